/** Tinker's protobuf messages from the client's side: requests encoded, results decoded. */
import { RemoteError } from "../../../leaves/errors.ts";
import { alignedCopy, bytesOf, fields, mapEntry, ProtobufWriter, packVarints } from "../../../leaves/protobuf.ts";
import type { SampledSpan } from "../stable/sampled_records.ts";
import type { TrainingDatum } from "./datums.ts";
import type { TrainingReply } from "./training_output.ts";

export interface ForwardBackwardRequest {
  readonly modelId: string;
  readonly seqId: number;
  readonly data: readonly TrainingDatum[];
  readonly lossFn: string;
  readonly config: Readonly<Record<string, number>>;
  readonly forwardOnly: boolean;
}

const FLOAT32 = 1;
const INT64 = 2;
const BFLOAT16 = 4;

export function encodeForwardBackward(request: ForwardBackwardRequest): Uint8Array {
  const message = new ProtobufWriter().text(1, request.modelId).varint(2, request.seqId);
  for (const datum of request.data) message.message(3, encodeDatum(datum));
  message.text(4, request.lossFn);
  for (const [name, value] of Object.entries(request.config))
    message.message(5, new ProtobufWriter().text(1, name).double(2, value));
  return message.varint(6, request.forwardOnly ? 1 : 0).finish();
}

function encodeDatum({ tokens, inputs, provenance }: TrainingDatum): ProtobufWriter {
  const text = new ProtobufWriter().bytes(1, bytesOf(tokens));
  const datum = new ProtobufWriter().message(1, new ProtobufWriter().message(1, text));
  for (const [name, values] of Object.entries(inputs))
    datum.message(2, new ProtobufWriter().text(1, name).message(2, encodeTensor(values)));
  for (const span of provenance?.modelInput ?? []) datum.message(3, encodeSpan(span));
  for (const span of provenance?.targets ?? []) datum.message(4, encodeSpan(span));
  return datum;
}

function encodeSpan({ kind, sequenceId, offset, length }: SampledSpan): ProtobufWriter {
  const run = new ProtobufWriter().text(1, sequenceId).varint(2, offset).varint(3, length);
  return new ProtobufWriter().message(kind === "prompt" ? 1 : 2, run);
}

function encodeTensor(values: BigInt64Array | Float32Array): ProtobufWriter {
  return new ProtobufWriter()
    .bytes(1, bytesOf(values))
    .varint(3, values instanceof Float32Array ? FLOAT32 : INT64)
    .bytes(4, packVarints([values.length]));
}

/** Decodes a ForwardBackwardOutput. @throws {RemoteError} for damaged bytes, and for a result without log-probs. */
export function decodeTrainingOutput(bytes: Uint8Array): TrainingReply {
  const logprobs: Float32Array[] = [];
  const metrics: Record<string, number> = {};
  for (const field of fields(bytes))
    if (field.number === 2) logprobs.push(...decodeRecord(field.bytes));
    else if (field.number === 3) {
      const { key, value } = mapEntry(field.bytes);
      metrics[key] = value?.double ?? 0;
    }
  return { logprobs, metrics };
}

function decodeRecord(bytes: Uint8Array): Float32Array[] {
  for (const field of fields(bytes)) {
    if (field.number !== 2) continue;
    const { key, value } = mapEntry(field.bytes);
    if (key === "logprobs" && value) return decodeBatched(value.bytes);
  }
  throw unreadable("a training result has no log-probs");
}

/** One array per datum, split at byte offsets. */
function decodeBatched(bytes: Uint8Array): Float32Array[] {
  let [data, offsets, dtype]: [Uint8Array, Uint8Array, bigint] = [new Uint8Array(), new Uint8Array(), 0n];
  for (const field of fields(bytes))
    if (field.number === 1) data = field.bytes;
    else if (field.number === 2) offsets = field.bytes;
    else if (field.number === 3) dtype = field.varint;
  if (offsets.byteLength % 8 !== 0) throw unreadable("the offsets of a batch are truncated");
  const at = Array.from(new BigInt64Array(alignedCopy(offsets)), Number);
  return at.slice(1).map((end, i) => {
    if (at[i]! < 0 || at[i]! > end || end > data.byteLength) throw unreadable("an offset is outside its batch");
    return floats(data.subarray(at[i], end), Number(dtype));
  });
}

function floats(bytes: Uint8Array, dtype: number): Float32Array {
  if (dtype === FLOAT32 && bytes.byteLength % 4 === 0) return new Float32Array(alignedCopy(bytes));
  if (dtype !== BFLOAT16 || bytes.byteLength % 2 !== 0)
    throw unreadable(`log-probs must be float32 or bfloat16 (dtype ${dtype}, ${bytes.byteLength} bytes)`);
  // bfloat16 is the upper half of a float32.
  const halves = new Uint16Array(alignedCopy(bytes));
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

export interface SampledMessage {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  readonly stopReason: "stop" | "length";
}

export interface SampleResponse {
  readonly sequences: readonly SampledMessage[];
  /** One per prompt token; NaN where there is none. */
  readonly promptLogprobs?: Float32Array | undefined;
}

/** Decodes a SampleResponse. @throws {RemoteError} for damaged bytes. */
export function decodeSamples(bytes: Uint8Array): SampleResponse {
  const sequences: SampledMessage[] = [];
  let promptLogprobs: Float32Array | undefined;
  for (const field of fields(bytes))
    if (field.number === 1) sequences.push(decodeSequence(field.bytes));
    else if (field.number === 2) promptLogprobs = floats(field.bytes, FLOAT32);
  return { sequences, promptLogprobs };
}

function decodeSequence(bytes: Uint8Array): SampledMessage {
  let stopReason: SampledMessage["stopReason"] = "stop";
  let [tokens, logprobs]: [Uint8Array, Uint8Array] = [new Uint8Array(), new Uint8Array()];
  for (const field of fields(bytes))
    if (field.number === 1) stopReason = field.varint === 1n ? "length" : "stop";
    else if (field.number === 2) tokens = field.bytes;
    else if (field.number === 3) logprobs = field.bytes;
  if (tokens.byteLength % 4 !== 0) throw unreadable("the tokens of a sample are truncated");
  const sequence = {
    stopReason,
    tokens: [...new Int32Array(alignedCopy(tokens))],
    logprobs: [...floats(logprobs, FLOAT32)],
  };
  if (sequence.tokens.length === sequence.logprobs.length) return sequence;
  throw unreadable(`a sample of ${sequence.tokens.length} tokens has ${sequence.logprobs.length} log-probs`);
}

function unreadable(why: string): RemoteError {
  return new RemoteError(`Cannot read the service's result: ${why}.`, { retryable: false });
}
