/**
 * What a dispatch must do at least: bytes that move once each, and operations. A kernel's buffers count once as a whole, except
 * where it binds more than it uses: those have formulas here. Caches of a real device are taken as large enough for nothing
 * to be read twice.
 */
import { blocksBytes } from "../../src/engine/compute/matmul/blocks.ts";
import { MODE } from "../../src/engine/compute/matmul/kernels.ts";
import { FORMAT, matrixBytes, type PackedFormat, scalesBytes } from "../../src/engine/compute/packed.ts";
import { SEGMENT, segmentCount } from "../../src/engine/model/kernels/segments.ts";
import { SEGMENT_FLOATS } from "../../src/engine/model/kernels/selection.ts";
import type { RawDispatch } from "./counted.ts";

type Formula = (it: RawDispatch, context: number) => number;

const F32_BYTES = 4;

function productBytes({ kernel, params: { m, n, k, mode }, constants }: RawDispatch): number {
  const found = Object.entries(FORMAT).find(([, code]) => code === constants.FORMAT);
  const format = kernel.endsWith("_packed") ? (found![0] as PackedFormat) : "float32";
  const weights = matrixBytes(format, n! * k!) + scalesBytes(format, n! * k!);
  const readsMore = mode === MODE.write ? 0 : mode === MODE.continueAndAdd ? 2 : 1;
  const rows = kernel.startsWith("matmul/subgroup_matrix")
    ? blocksBytes(m!, k!, { inputs: kernel.includes("f32") ? "f32" : "f16" })
    : F32_BYTES * m! * k!;
  return weights + rows + F32_BYTES * (1 + readsMore) * m! * n! * (constants.PARTS ?? 1);
}

/** Elements of q and of the output, and keys and values as far as they are filled. */
const decodedAttention: Formula = ({ params, constants, buffers }, context) => {
  const width = constants.HEAD_QUADS! * 4;
  const { rows, heads, key_heads } = params;
  return (heads! + 2 * context * key_heads!) * rows! * width * F32_BYTES + buffers.out!.byteLength;
};

/** Whether a dispatch attends to the cache, rather than folding what others left. */
const attendsToCache = (kernel: string) =>
  kernel.startsWith("decode/attention_") && kernel !== "decode/attention_merge";

const BYTES: Readonly<Record<string, Formula>> = {
  "layer/embedding": ({ params }) => params.tokens! * (2 * params.width! + 1) * F32_BYTES,
  "layer/embedding_packed": ({ params }) => params.tokens! * (1.5 * params.width! + 1) * F32_BYTES,
  "layer/rope": ({ params }) => 2 * params.rows! * params.width! * F32_BYTES,
  "layer/add_scaled": ({ params: p }) =>
    ((p.x_stride === 0 ? p.width! : p.rows! * p.width!) + 2 * p.rows! * p.width!) * F32_BYTES,
  "head/logprob_segments": ({ params }) => params.rows! * params.vocabulary! * F32_BYTES,
  "head/logprob_tiled": ({ params }) => params.rows! * segmentCount(params.vocabulary!) * 4 * F32_BYTES,
  "head/logprob_backward": ({ params }) => 2 * params.rows! * params.vocabulary! * F32_BYTES,
  "decode/sample_segments": ({ params }) => params.rows! * params.vocabulary! * F32_BYTES,
  "decode/sample_histogram": ({ params }) => params.rows! * params.vocabulary! * F32_BYTES,
  "decode/sample_kept": ({ params }) => params.rows! * params.vocabulary! * F32_BYTES,
  // What is kept of each segment, and the logits of one.
  "decode/sample_tiled": ({ params }) =>
    params.rows! * (segmentCount(params.vocabulary!) * SEGMENT_FLOATS + SEGMENT) * F32_BYTES,
  "decode/cache_append": ({ params }) => 4 * params.rows! * params.width! * F32_BYTES,
  "decode/cache_gather": ({ params }) => (4 * params.width! * F32_BYTES + F32_BYTES) * params.rows!,
  "decode/rope_append": ({ params: p }) => 2 * p.rows! * (p.heads! + 2 * p.key_heads!) * p.width! * F32_BYTES,
};

/** Bytes that a dispatch moves at least. @param context tokens that a sequence holds in the cache */
export function bytesOf(it: RawDispatch, context: number): number {
  if (it.kernel.startsWith("matmul/") && it.params.n !== undefined) return productBytes(it);
  if (attendsToCache(it.kernel)) return decodedAttention(it, context);
  return BYTES[it.kernel]?.(it, context) ?? boundBytes(it);
}

/** Each range once: an operand that is not used is another one's buffer. */
function boundBytes({ buffers }: RawDispatch): number {
  const ranges = new Map<string, number>();
  for (const { whole, label, byteOffset, byteLength } of Object.values(buffers))
    ranges.set(`${placeOf(whole)} ${label} ${byteOffset}`, byteLength);
  return [...ranges.values()].reduce((sum, length) => sum + length, 0);
}

const places = new WeakMap<object, number>();
let known = 0;

function placeOf(whole: object): number {
  if (!places.has(whole)) places.set(whole, known++);
  return places.get(whole)!;
}

/** Operations of a dispatch: of products and of attention; the rest is bound by its bytes. */
export function flopOf(it: RawDispatch, context: number): number {
  if (it.work !== undefined) return it.work;
  const { kernel, params, constants } = it;
  if (attendsToCache(kernel)) return params.rows! * params.heads! * constants.HEAD_QUADS! * 4 * 4 * context;
  if (!kernel.startsWith("attention/")) return 0;
  // Of a query and a key, 2 D operations each; a causal query meets half of its sequence's keys.
  const products = kernel.includes("backward_keys") ? 4 : kernel.includes("backward_queries") ? 3 : 2;
  return products * 2 * params.tokens! * params.heads! * constants.HEAD_QUADS! * 4 * (context / 2);
}
