/** The rows of a batch as Tinker's data, split into requests of the size that the service accepts. */
import type { PackedTokens } from "../../../engine/contract/backend.ts";
import type { SampledSpan } from "../stable/sampled_records.ts";
import type { Flags } from "./session.ts";

/** One row: its input tokens, and arrays with one element per predicted token. */
export interface TrainingDatum {
  /** [L]. */
  readonly tokens: Int32Array;
  /** `target_tokens` as int64, the others as float32, [L] each. */
  readonly inputs: Readonly<Record<string, BigInt64Array | Float32Array>>;
  /** Origin of the inputs and the targets, for `stable_reinforce`. */
  readonly provenance?:
    | { readonly modelInput: readonly SampledSpan[]; readonly targets: readonly SampledSpan[] }
    | undefined;
}

type Rows = Pick<PackedTokens, "tokens" | "offsets">;

/** Rows of one token have no target and are left out. */
function rowsWithTargets({ offsets }: Rows): number[] {
  return Array.from({ length: offsets.length - 1 }, (_, row) => row).filter(
    (row) => offsets[row + 1]! - offsets[row]! > 1,
  );
}

/**
 * Every token but a row's last is an input, every token but its first a target.
 * @param of.inputs by name, [T] over the tokens of the batch
 * @param of.spans of every row, over its tokens
 */
export function datumsOf(
  batch: Rows,
  {
    inputs,
    spans,
  }: { inputs: Readonly<Record<string, Float32Array>>; spans?: readonly (readonly SampledSpan[])[] | undefined },
): TrainingDatum[] {
  const { tokens, offsets } = batch;
  return rowsWithTargets(batch).map((row) => {
    const [first, end] = [offsets[row]!, offsets[row + 1]!];
    const parts = Object.entries(inputs).map(([name, values]) => [name, values.slice(first + 1, end)] as const);
    return {
      tokens: Int32Array.from(tokens.subarray(first, end - 1)),
      inputs: { target_tokens: asInt64(tokens.subarray(first + 1, end)), ...Object.fromEntries(parts) },
      ...(spans && { provenance: provenanceOf(spans[row]!, end - first) }),
    };
  });
}

function provenanceOf(spans: readonly SampledSpan[], length: number) {
  return { modelInput: cut(spans, { from: 0, to: length - 1 }), targets: cut(spans, { from: 1, to: length }) };
}

/** The spans of a row's tokens from <= t < to. */
function cut(spans: readonly SampledSpan[], { from, to }: { from: number; to: number }): SampledSpan[] {
  let at = 0;
  return spans.flatMap(({ length, offset, ...of }) => {
    const [first, end] = [Math.max(at, from), Math.min(at + length, to)];
    const kept = { ...of, offset: offset + first - at, length: end - first };
    at += length;
    return end > first ? [kept] : [];
  });
}

/** Written as 32-bit halves, low before high. */
function asInt64(ids: Uint32Array): BigInt64Array {
  const halves = new Uint32Array(2 * ids.length);
  for (let i = 0; i < ids.length; i++) halves[2 * i] = ids[i]!;
  return new BigInt64Array(halves.buffer);
}

/** Values at the targets of the datums, back at the tokens of the batch: [T], 0 at first tokens. */
export function atTokens(datums: readonly Float32Array[], batch: Rows): Float32Array {
  const joined = new Float32Array(batch.tokens.length);
  const rows = rowsWithTargets(batch);
  for (const [i, values] of datums.entries()) joined.set(values, batch.offsets[rows[i]!]! + 1);
  return joined;
}

/** Splits data into requests within the service's limits. */
export function* chunked(datums: readonly TrainingDatum[], flags: Flags): Generator<readonly TrainingDatum[]> {
  const { fwdbwd_max_chunk_len: most, fwdbwd_max_chunk_bytes_count: mostBytes } = flags;
  let chunk: TrainingDatum[] = [];
  let bytes = 0;
  for (const datum of datums) {
    const size = encodedBytes(datum);
    if (chunk.length > 0 && (chunk.length >= most || bytes + size > mostBytes)) {
      yield chunk;
      [chunk, bytes] = [[], 0];
    }
    chunk.push(datum);
    bytes += size;
  }
  if (chunk.length > 0) yield chunk;
}

/** Estimated size of an encoded datum. */
function encodedBytes({ tokens, inputs, provenance }: TrainingDatum): number {
  const spans = provenance ? [...provenance.modelInput, ...provenance.targets] : [];
  const others = spans.reduce((sum, { sequenceId }) => sum + sequenceId.length + 24, tokens.byteLength + 16);
  return Object.values(inputs).reduce((sum, { byteLength }) => sum + byteLength + 32, others);
}
