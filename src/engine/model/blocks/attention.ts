/**
 * Attention: out = x + attend(q, k, v) W_o^T with [q | k | v] = norm(x) W_qkv^T, where q and k may be normalised by head (Qwen3) and are
 * rotated by position. T tokens, C channels, H query heads, KV key/value heads, D head width, Q = H D.
 */
import type { Buffer } from "../../compute/device.ts";
import { addScaled } from "../kernels/elementwise.ts";
import { chooseRmsNorm } from "../kernels/norm.ts";
import { rope } from "../kernels/rope.ts";
import type { PackedInput } from "../packed_input.ts";
import type { Scratch } from "../scratch.ts";
import type { Weights } from "../weights.ts";
import { type AttentionBlock, attentionKernels } from "./attention_block.ts";
import { attendCached } from "./attention_step.ts";
import type {
  BackwardRows,
  BlockContext,
  BlockKind,
  BlockTensor,
  ForwardResult,
  ForwardRows,
  GivenKeys,
  KeyValueRows,
} from "./block.ts";
import { attentionParams, keyRows, keyValueOffsets, qkvBuffers, qkvWidth, queryRows, valueRows } from "./qkv_layout.ts";

/** State that a forward pass keeps. */
export interface AttentionState {
  /** [T, Q + 2 KV D]: rotated, or before normalisation and rotation where the model normalises q and k. */
  readonly qkv: Buffer;
  /** [T, Q]. */
  readonly attended: Buffer;
  readonly statistics: Buffer;
}

/** q, k and v as attention reads them. */
interface PlacedHeads {
  readonly qkv: Buffer;
  /** 1 / rms of each head, where q and k are normalised. */
  readonly inverseQ?: Buffer;
  readonly inverseK?: Buffer;
}

/** The projections that an adapter can be put on, by the last parts of their names. */
export const ATTENTION_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"] as const;

export const attentionKind: BlockKind<AttentionBlock, AttentionState> = {
  weights,

  cost(block, hiddenSize) {
    const { heads, headDim, window } = block;
    const matrixElements = hiddenSize * (qkvWidth(block) + heads * headDim);
    return { matrixElements, pairs: { operations: 4 * heads * headDim, window } };
  },

  widest: qkvWidth,

  cachedWidth: ({ kvHeads, headDim }) => kvHeads * headDim,

  forward(context, weights, at): ForwardResult<AttentionState> {
    const { block, x, input, scratch } = at;
    const rows = input.count;
    const state = attend(context, weights, at);
    const { qkv, attended, statistics } = state;
    const out = scratch.floats(rows * context.hiddenSize, "residual");
    context.residual.add(weights, { output: block.output, x, input: attended, y: out, rows, scratch });
    if (at.keep) return { out, state };
    scratch.free(qkv, attended, statistics);
    return { out, state: undefined };
  },

  backward(context, weights, at): void {
    const { block, x, grad, sink, scratch, input } = at;
    const { norms, residual } = context;
    const rows = input.count;
    const { output, qkv, inputNorm } = block;
    const state = at.state ?? attend(context, weights, at);
    const outGrad = residual.outputGradient(weights, {
      output,
      rows,
      grad,
      sink,
      scratch,
      input: () => state.attended,
    });
    residual.outputWeights(outGrad, { output, input: state.attended, rows, sink, scratch });
    const attendedGrad = scratch.floats(rows * block.heads * block.headDim, "gradient");
    weights.applyBackward(output.matrix, { dy: outGrad, dx: attendedGrad, m: rows });
    const dy = headsGradient(context, weights, { ...at, state, attendedGrad });
    scratch.free(attendedGrad);
    residual.biasGradient(dy, { bias: qkv.bias, rows, width: qkvWidth(block), sink, scratch });
    const norm = norms.rows(weights, { name: inputNorm, x, rows, scratch });
    residual.normedGradient(weights, { ...at, rows }, { ...norm, matrix: qkv.matrix, dy, norm: inputNorm });
  },

  step(context, weights, at): void {
    const { block, x, out, scratch } = at;
    const rows = at.rows.count;
    const projected = project(context, weights, { block, x, rows, scratch });
    const qkv = block.headNorms ? normHeads(context, weights, { block, qkv: projected, rows, scratch }).qkv : projected;
    const attended = attendCached(context, at, qkv);
    context.residual.add(weights, { output: block.output, x, input: attended, y: out, rows, scratch });
  },
};

function weights(block: AttentionBlock, C: number): BlockTensor[] {
  const { tensors, headNorms, heads, kvHeads, headDim: D, qkv, output, inputNorm } = block;
  const [Q, KV] = [heads * D, kvHeads * D];
  const parts = [
    { name: tensors.q, rows: Q, gguf: "attn_q", rotatedHeads: heads },
    { name: tensors.k, rows: KV, gguf: "attn_k", rotatedHeads: kvHeads },
    { name: tensors.v, rows: KV, gguf: "attn_v" },
  ];
  return [
    { name: inputNorm, shape: [C], role: "norm", gguf: "attn_norm" },
    ...parts.map(({ name, rows, ...more }) => {
      return { name: `${name}.weight`, shape: [rows, C], role: "matrix", fused: qkv.matrix, ...more } as const;
    }),
    ...parts.flatMap(({ name, rows, ...more }) =>
      qkv.bias === undefined
        ? []
        : [{ name: `${name}.bias`, shape: [rows], role: "bias", fused: qkv.bias, ...more } as const],
    ),
    ...(headNorms
      ? ([
          { name: headNorms.q, shape: [D], role: "norm", gguf: "attn_q_norm" },
          { name: headNorms.k, shape: [D], role: "norm", gguf: "attn_k_norm" },
        ] as const)
      : []),
    { name: output.matrix, shape: [C, Q], role: "matrix", isOutput: true, gguf: "attn_output" },
    ...(output.bias === undefined
      ? []
      : [{ name: output.bias, shape: [C], role: "bias", gguf: "attn_output" } as const]),
    ...(output.norm === undefined
      ? []
      : [{ name: output.norm, shape: [C], role: "norm", gguf: "post_attention_norm" } as const]),
  ];
}

/** Returns the places of k and v in the rows of the projection. */
function keyValueRows(block: AttentionBlock): KeyValueRows {
  const { k: keyOffset, v: valueOffset } = keyValueOffsets(block);
  const width = block.kvHeads * block.headDim;
  return { layer: block.layer, width, stride: qkvWidth(block), keyOffset, valueOffset };
}

/** Everything up to the product by W_o. */
function attend(
  context: BlockContext,
  weights: Weights,
  at: Pick<ForwardRows<AttentionBlock>, "block" | "x" | "input" | "scratch" | "visit">,
): AttentionState {
  const { block, x, input, scratch } = at;
  const { heads: H, headDim: D } = block;
  const T = input.count;
  const kernels = attentionKernels(context.device.info, block);
  const qkv = project(context, weights, { block, x, rows: T, scratch });
  const placed = placeHeads(context, weights, { block, qkv, input, scratch });
  const visited = at.visit?.(keyValueRows(block), placed.qkv);
  const attended = scratch.floats(T * H * D, "attention output");
  const statistics = scratch.floats(T * H * 2, "attention statistics");
  const { sequenceStart } = input;
  const { buffers, params } = visited
    ? readGiven(block, visited)
    : { buffers: { sequenceStart }, params: { first: 0 } };
  context.device.dispatch(kernels.forward, {
    buffers: { ...qkvBuffers(placed.qkv), ...buffers, out: attended, statistics },
    params: { ...attentionParams(block, { tokens: T }), ...params },
    constants: kernels.constants,
  });
  if (visited) scratch.free(visited.k, visited.v);
  if (placed.inverseQ && placed.inverseK) scratch.free(placed.qkv, placed.inverseQ, placed.inverseK);
  return { qkv, attended, statistics };
}

function readGiven({ kvHeads, headDim }: AttentionBlock, { k, v, first, sequenceStart }: GivenKeys) {
  const stride = kvHeads * headDim;
  return {
    buffers: { k, v, sequenceStart },
    params: { first, k_stride: stride, k_offset: 0, v_stride: stride, v_offset: 0 },
  };
}

/** q, k and v of every row, not rotated: norm(x) W_qkv^T (+ bias). */
function project(
  { residual }: BlockContext,
  weights: Weights,
  { block, x, rows, scratch }: { block: AttentionBlock; x: Buffer; rows: number; scratch: Scratch },
): Buffer {
  const width = qkvWidth(block);
  const y = scratch.floats(rows * width, "qkv");
  residual.multiplyNormed(weights, { norm: block.inputNorm, product: block.qkv, x, y, rows, width, scratch });
  return y;
}

/** q and k normalised by head and rotated by position. Without norms this happens in place, so once only. */
function placeHeads(
  context: BlockContext,
  weights: Weights,
  at: { block: AttentionBlock; qkv: Buffer; input: PackedInput; scratch: Scratch },
): PlacedHeads {
  const { block, qkv, input } = at;
  const placed = block.headNorms ? normHeads(context, weights, { ...at, rows: input.count }) : { qkv };
  rotate(context, placed.qkv, { block, input, sign: 1 });
  return placed;
}

/** RMSNorm of every head of q and k; v is copied. */
function normHeads(
  { device, norms }: BlockContext,
  weights: Weights,
  at: { block: AttentionBlock; qkv: Buffer; rows: number; scratch: Scratch },
): Required<PlacedHeads> {
  const { block, rows, scratch } = at;
  const { q, k } = block.headNorms!;
  const qkv = scratch.floats(rows * qkvWidth(block), "qkv, normalised");
  const inverseQ = scratch.floats(rows * block.heads, "inverse rms");
  const inverseK = scratch.floats(rows * block.kvHeads, "inverse rms");
  for (const [name, inverseRms, layout] of [
    [q, inverseQ, queryRows(block, rows)],
    [k, inverseK, keyRows(block, rows)],
  ] as const)
    device.dispatch(chooseRmsNorm(device.info, layout), {
      buffers: { x: at.qkv, weight: weights.values.get(name), y: qkv, inverseRms },
      params: { ...layout, epsilon: norms.epsilon },
      constants: norms.constants,
    });
  device.dispatch(addScaled, { buffers: { x: at.qkv, y: qkv }, params: valueRows(block, rows) });
  return { qkv, inverseQ, inverseK };
}

/** Rotates q and k by their positions, in place; `sign` -1 is the inverse. */
function rotate(
  { device, ropes }: BlockContext,
  qkv: Buffer,
  { block, input, sign }: { block: AttentionBlock; input: PackedInput; sign: 1 | -1 },
): void {
  if (!block.rope) return;
  const perToken = block.heads + block.kvHeads;
  device.dispatch(rope, {
    buffers: { positions: input.positions, table: ropes.table(block), x: qkv },
    params: {
      rows: input.count * perToken,
      width: block.headDim,
      per_token: perToken,
      stride: qkvWidth(block),
      offset: 0,
      shift: 0,
      sign,
    },
  });
}

interface HeadsGradient extends BackwardRows<AttentionBlock, AttentionState> {
  readonly state: AttentionState;
  readonly attendedGrad: Buffer;
}

/** Gradient of q, k and v, before their norms and rotation, from that of the attention's output. */
function headsGradient(context: BlockContext, weights: Weights, at: HeadsGradient): Buffer {
  const { state, block, input, scratch } = at;
  if (!block.headNorms) return rotatedGradient(context, state.qkv, at);
  const placed = placeHeads(context, weights, { block, qkv: state.qkv, input, scratch }) as Required<PlacedHeads>;
  const qkvGrad = rotatedGradient(context, placed.qkv, at);
  scratch.free(placed.qkv);
  return headNormsGradient(context, weights, { ...at, placed, qkvGrad });
}

/** Gradient of q, k and v before their rotation. */
function rotatedGradient(context: BlockContext, qkv: Buffer, at: HeadsGradient): Buffer {
  const { block, state, input, scratch, attendedGrad: outGrad } = at;
  const { device } = context;
  const { attended: out, statistics } = state;
  const { sequenceStart, sequenceEnd } = input;
  const width = qkvWidth(block);
  const offsets = keyValueOffsets(block);
  const qkvGrad = scratch.floats(input.count * width, "gradient");
  const params = attentionParams(block, { tokens: input.count });
  const kernels = attentionKernels(device.info, block);
  device.dispatch(kernels.backwardQueries, {
    buffers: { ...qkvBuffers(qkv), out, outGrad, sequenceStart, statistics, qGrad: qkvGrad },
    params: { ...params, grad_stride: width, grad_offset: 0 },
    constants: kernels.constants,
  });
  const keyValueLayout = { dk_stride: width, dk_offset: offsets.k, dv_stride: width, dv_offset: offsets.v };
  device.dispatch(kernels.backwardKeys, {
    buffers: { ...qkvBuffers(qkv), outGrad, sequenceEnd, statistics, keyValueGrad: qkvGrad },
    params: { ...params, ...keyValueLayout },
    constants: kernels.backwardKeysConstants,
  });
  rotate(context, qkvGrad, { block, input, sign: -1 });
  return qkvGrad;
}

function headNormsGradient(
  { device, norms }: BlockContext,
  weights: Weights,
  at: HeadsGradient & { placed: Required<PlacedHeads>; qkvGrad: Buffer },
): Buffer {
  const { block, state, scratch, sink, input, placed, qkvGrad: yGrad } = at;
  const T = input.count;
  const xGrad = scratch.floats(T * qkvWidth(block), "gradient");
  for (const [name, inverse, layout] of [
    [block.headNorms!.q, placed.inverseQ, queryRows(block, T)],
    [block.headNorms!.k, placed.inverseK, keyRows(block, T)],
  ] as const)
    norms.backward(weights, { name, layout, x: state.qkv, inverse, yGrad, xGrad, accumulate: false, sink, scratch });
  device.dispatch(addScaled, { buffers: { x: yGrad, y: xGrad }, params: valueRows(block, T) });
  return xGrad;
}
