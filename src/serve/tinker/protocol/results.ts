/** The protocol's binary results: ForwardBackwardOutput and SampleResponse. */
import type { SampledSequence } from "../../../engine/contract/backend.ts";
import type { PromptScores } from "../../../engine/contract/engine.ts";
import { bytesOf, ProtobufWriter } from "../../../leaves/protobuf.ts";
import { DTYPE } from "./forward_backward.ts";
import type { PromptRequest } from "./prompt_request.ts";
import { encodeTargetLogprobs } from "./prompt_targets.ts";

/** One value per target of a request's data. */
export interface TrainingOutput {
  readonly logprobs: Float32Array;
  /** The loss, `elementwise_loss` on the wire; absent: not written. */
  readonly losses?: Float32Array | undefined;
  /** Datum i has the targets [offsets[i], offsets[i+1]). */
  readonly offsets: Uint32Array;
  /** Targets per position of each datum, [N]. Absent: one, and results without that dimension. */
  readonly widths?: readonly number[] | undefined;
  readonly metrics: Readonly<Record<string, number>>;
}

/** Encodes a ForwardBackwardOutput: log-probs and losses of every datum, and the metrics. */
export function encodeTrainingOutput(of: TrainingOutput): Uint8Array {
  const output = new ProtobufWriter().text(1, "ArrayRecord");
  // A record has one width.
  for (let from = 0; from + 1 < of.offsets.length; ) {
    const width = of.widths?.[from];
    let to = from + 1;
    while (to + 1 < of.offsets.length && of.widths?.[to] === width) to++;
    output.message(2, recordOf(of, { from, to, width }));
    from = to;
  }
  for (const [name, value] of Object.entries(of.metrics))
    output.message(3, new ProtobufWriter().text(1, name).double(2, value));
  return output.finish();
}

function recordOf(of: TrainingOutput, at: { from: number; to: number; width: number | undefined }): ProtobufWriter {
  const offsets = of.offsets.subarray(at.from, at.to + 1);
  const [start, end] = [offsets[0]!, offsets.at(-1)!];
  const byteOffsets = bytesOf(BigInt64Array.from(offsets, (offset) => BigInt(offset - start) * 4n));
  const record = new ProtobufWriter().text(1, "ArrayRecord");
  const fields = { logprobs: of.logprobs, elementwise_loss: of.losses };
  for (const [name, values] of Object.entries(fields)) {
    if (!values) continue;
    const tensor = new ProtobufWriter()
      .bytes(1, bytesOf(values.subarray(start, end)))
      .bytes(2, byteOffsets)
      .varint(3, DTYPE.float32);
    // Packed, as encoders write a list of sizes: the body of a field without its tag.
    if (at.width !== undefined) tensor.bytes(4, new ProtobufWriter().varint(1, at.width).finish().subarray(1));
    record.message(2, new ProtobufWriter().text(1, name).message(2, tensor));
  }
  return record.varint(3, at.to - at.from);
}

/** Written by the service for top tokens that were not requested. */
const NO_LOGPROB = -99999;

/** Encodes a SampleResponse. Prompt log-probs that were not requested are NaN. */
export function encodeSamples(
  request: Pick<
    PromptRequest,
    | "prompt"
    | "promptLogprobs"
    | "promptLogprobsLastN"
    | "topkPromptLogprobs"
    | "topkSampleLogprobs"
    | "targetPromptLogprobs"
  >,
  of: { sequences: readonly SampledSequence[]; scores?: PromptScores | undefined },
): Uint8Array {
  const response = new ProtobufWriter();
  for (const sequence of of.sequences) response.message(1, sequenceOf(sequence, request.topkSampleLogprobs));
  const { length } = request.prompt;
  const omitted = length - (request.promptLogprobsLastN ?? length);
  if (of.scores && request.promptLogprobs)
    response.bytes(2, bytesOf(of.scores.logprobs.slice().fill(Number.NaN, 0, omitted)));
  const top = of.scores?.top;
  if (top) {
    const k = request.topkPromptLogprobs;
    // The first token has no prediction.
    const hidden = Math.max(omitted, 1) * k;
    const tokens = Int32Array.from(top.tokens).fill(0, 0, hidden);
    response.message(3, topOf({ tokens, logprobs: top.logprobs.slice().fill(NO_LOGPROB, 0, hidden), k, length }));
  }
  const { targetPromptLogprobs: tensor } = request;
  if (tensor && of.scores?.targets) response.message(5, encodeTargetLogprobs(tensor, of.scores.targets));
  if (of.scores?.draws) response.message(6, drawsOf(of.scores.draws, length - 1));
  return response.finish();
}

/** PromptAltTokens: matrices [prompt length - 1, k]. */
function drawsOf({ tokens, logprobs }: NonNullable<PromptScores["draws"]>, rows: number): ProtobufWriter {
  const tensor = (values: ArrayBufferView, dtype: number) =>
    new ProtobufWriter()
      .bytes(1, bytesOf(values))
      .varint(3, dtype)
      .varint(4, rows)
      .varint(4, rows > 0 ? tokens.length / rows : 0);
  return new ProtobufWriter()
    .message(1, tensor(BigInt64Array.from(tokens, BigInt), DTYPE.int64))
    .message(2, tensor(logprobs, DTYPE.float32));
}

/** @param k most likely tokens at each sampled one; the sequence may have more */
function sequenceOf(
  { tokens, logprobs, finish_reason, top_logprobs: top }: SampledSequence,
  k: number,
): ProtobufWriter {
  const sequence = new ProtobufWriter()
    .varint(1, finish_reason === "stop" ? 0 : 1)
    .bytes(2, bytesOf(Int32Array.from(tokens)))
    .bytes(3, bytesOf(Float32Array.from(logprobs)));
  const cells = top?.flatMap((row) => row.slice(0, k)) ?? [];
  if (cells.length === 0) return sequence;
  const columns = {
    tokens: Int32Array.from(cells, ({ token }) => token),
    logprobs: Float32Array.from(cells, ({ logprob }) => logprob),
  };
  return sequence.message(4, topOf({ ...columns, k: cells.length / tokens.length, length: tokens.length }));
}

/** TopkLogprobs: matrices [length, k], best first. */
function topOf(of: { tokens: Int32Array; logprobs: Float32Array; k: number; length: number }): ProtobufWriter {
  return new ProtobufWriter()
    .bytes(1, bytesOf(of.tokens))
    .bytes(2, bytesOf(of.logprobs))
    .varint(3, of.k)
    .varint(4, of.length);
}
