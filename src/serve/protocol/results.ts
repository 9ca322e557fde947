/** The protocol's binary results: ForwardBackwardOutput and SampleResponse. */
import type { SampledSequence } from "../../contract/backend.ts";
import type { PromptScores } from "../../contract/engine.ts";
import { bytesOf, Writer } from "../../protobuf.ts";
import { DTYPE } from "./forward_backward.ts";
import type { PromptRequest } from "./prompt_request.ts";

/** Encodes a ForwardBackwardOutput: the log-probs of every datum, and the metrics. */
export function encodeTrainingOutput(of: {
  logprobs: Float32Array;
  offsets: Uint32Array;
  metrics: Readonly<Record<string, number>>;
}): Uint8Array {
  const byteOffsets = BigInt64Array.from(of.offsets, (offset) => BigInt(offset) * 4n);
  const tensor = new Writer().bytes(1, bytesOf(of.logprobs)).bytes(2, bytesOf(byteOffsets)).varint(3, DTYPE.float32);
  const field = new Writer().text(1, "logprobs").message(2, tensor);
  const record = new Writer()
    .text(1, "ArrayRecord")
    .message(2, field)
    .varint(3, of.offsets.length - 1);
  const output = new Writer().text(1, "ArrayRecord").message(2, record);
  for (const [name, value] of Object.entries(of.metrics))
    output.message(3, new Writer().text(1, name).double(2, value));
  return output.finish();
}

/** Written by the service for top tokens that were not requested. */
const NO_LOGPROB = -99999;

/** Encodes a SampleResponse. Prompt log-probs that were not requested are NaN. */
export function encodeSamples(
  request: Pick<PromptRequest, "prompt" | "promptLogprobs" | "promptLogprobsLastN" | "topkPromptLogprobs">,
  of: { sequences: readonly SampledSequence[]; scores?: PromptScores | undefined },
): Uint8Array {
  const response = new Writer();
  for (const { tokens, logprobs, finish_reason } of of.sequences)
    response.message(
      1,
      new Writer()
        .varint(1, finish_reason === "stop" ? 0 : 1)
        .bytes(2, bytesOf(Int32Array.from(tokens)))
        .bytes(3, bytesOf(Float32Array.from(logprobs))),
    );
  const { length } = request.prompt;
  const omitted = length - (request.promptLogprobsLastN ?? length);
  if (of.scores && request.promptLogprobs)
    response.bytes(2, bytesOf(of.scores.logprobs.slice().fill(Number.NaN, 0, omitted)));
  const top = of.scores?.top;
  if (top) {
    const k = request.topkPromptLogprobs;
    // The first token has no prediction.
    const hidden = Math.max(omitted, 1) * k;
    response.message(
      3,
      new Writer()
        .bytes(1, bytesOf(Int32Array.from(top.tokens).fill(0, 0, hidden)))
        .bytes(2, bytesOf(top.logprobs.slice().fill(NO_LOGPROB, 0, hidden)))
        .varint(3, k)
        .varint(4, length),
    );
  }
  return response.finish();
}
