/** The protocol's binary messages, in the server's own terms. */
import type { SampledSequence } from "../../contract/backend.ts";
import type { LossRows, PromptScores } from "../../contract/engine.ts";
import { ConfigError, RemoteError } from "../../errors.ts";
import { breathe, SLICE_BYTES } from "../../http/breathe.ts";
import { bytesOf, type Field, type FieldCount, fields, packedVarints, Writer } from "../../protobuf.ts";
import { Refusal } from "./outcome.ts";

export interface Datum {
  readonly chunks: readonly { readonly kind: "text" | "image" | "dmel"; readonly tokens: Int32Array }[];
  readonly inputs: ReadonlyMap<string, TensorMessage>;
}

export interface TensorMessage {
  readonly values: Float32Array | BigInt64Array;
  readonly isSparse: boolean;
  readonly shape: readonly number[];
}

export interface ForwardBackwardMessage {
  readonly modelId: string;
  readonly seqId: bigint;
  readonly data: readonly Datum[];
  readonly lossFn: string;
  readonly config: Readonly<Record<string, number>>;
  readonly forwardOnly: boolean;
  /** What the decoded objects take beside their content, bytes, about. */
  readonly overheadBytes: number;
}

/** Sequences in one request. The SDK cuts batches at 1024. */
export const MOST_DATA = 8192;
/** Fields of a request with all messages in it: a datum of the SDK's has 25. */
const MOST_FIELDS = 2 ** 19;
/** Fields of one datum, which is decoded in one go. */
const MOST_DATUM_FIELDS = 2 ** 14;
/** What a field may leave behind: an array object and its buffer. */
const FIELD_BYTES = 256;
/** Fields read between two breaths: some ten milliseconds. */
const SLICE_FIELDS = 2 ** 16;

/**
 * Decodes in slices, between which others have their turn.
 * @throws Refusal 413 for more data than a request may hold, 422 for bytes that are no such message.
 */
export async function decodeForwardBackward(bytes: Uint8Array): Promise<ForwardBackwardMessage> {
  try {
    return await readForwardBackward(bytes);
  } catch (error) {
    if (error instanceof RemoteError) throw new Refusal(422, error.message);
    throw error;
  }
}

async function readForwardBackward(bytes: Uint8Array): Promise<ForwardBackwardMessage> {
  let [modelId, lossFn, seqId, forwardOnly] = ["", "", 0n, false];
  const data: Datum[] = [];
  const [config, configV2] = [new Map<string, number>(), new Map<string, number>()];
  const count = { left: MOST_FIELDS };
  let [slice, sliceBytes] = [count.left - SLICE_FIELDS, 0];
  for (const field of fields(bytes, count)) {
    if (field.number === 1) modelId = text(field.bytes);
    else if (field.number === 2) seqId = field.varint;
    else if (field.number === 3) {
      if (data.length === MOST_DATA)
        throw new Refusal(
          413,
          `Cannot take more than ${MOST_DATA} data in a request: send the batch in parts.`,
        );
      const own = { left: Math.min(MOST_DATUM_FIELDS, count.left) };
      const before = own.left;
      data.push(decodeDatum(field.bytes, own));
      count.left -= before - own.left;
    } else if (field.number === 4) lossFn = text(field.bytes);
    else if (field.number === 5) {
      const { key, value } = entry(field.bytes, count);
      config.set(key, value?.double ?? 0);
    } else if (field.number === 6) forwardOnly = field.varint !== 0n;
    else if (field.number === 7) setConfigValue(configV2, { bytes: field.bytes, count });
    sliceBytes += field.bytes.length;
    if (count.left > slice && sliceBytes < SLICE_BYTES) continue;
    [slice, sliceBytes] = [count.left - SLICE_FIELDS, 0];
    await breathe();
  }
  if (modelId === "" || lossFn === "" || data.length === 0)
    throw new Refusal(422, "Cannot read the request: it must name model_id and loss_fn and hold data.");
  return {
    modelId,
    seqId,
    data,
    lossFn,
    config: Object.fromEntries([...config, ...configV2]),
    forwardOnly,
    overheadBytes: FIELD_BYTES * (MOST_FIELDS - count.left),
  };
}

/** Fields among which a request's address is looked for: encoders write it first. */
const ADDRESS_FIELDS = 64;

/** Whose request it is and its number, where that much can be read of a damaged one. */
export function peekAddress(bytes: Uint8Array): { modelId: string; number: bigint } | undefined {
  let [modelId, number] = ["", 0n];
  try {
    for (const field of fields(bytes, { left: ADDRESS_FIELDS }))
      if (field.number === 1) modelId = text(field.bytes);
      else if (field.number === 2) number = field.varint;
  } catch {
    // The rest cannot be read.
  }
  return modelId === "" ? undefined : { modelId, number };
}

function setConfigValue(
  config: Map<string, number>,
  { bytes, count }: { bytes: Uint8Array; count: FieldCount },
): void {
  const { key, value } = entry(bytes, count);
  for (const field of fields(value?.bytes ?? new Uint8Array(), count))
    if (field.number === 1) config.set(key, field.double);
    else if (field.number === 2)
      throw new Refusal(
        422,
        `Cannot take ${key} of loss_fn_config as it must be a number: ${text(field.bytes)}`,
      );
}

function decodeDatum(bytes: Uint8Array, count: FieldCount): Datum {
  const chunks: Datum["chunks"][number][] = [];
  const inputs = new Map<string, TensorMessage>();
  for (const field of fields(bytes, count)) {
    if (field.number === 1) chunks.push(decodeChunk(field.bytes, count));
    else if (field.number === 2) {
      const { key, value } = entry(field.bytes, count);
      inputs.set(key, decodeTensor(key, { bytes: value?.bytes ?? new Uint8Array(), count }));
    }
  }
  return { chunks, inputs };
}

function decodeChunk(bytes: Uint8Array, count: FieldCount): Datum["chunks"][number] {
  for (const field of fields(bytes, count)) {
    if (field.number === 2) return { kind: "image", tokens: new Int32Array() };
    if (field.number === 3) return { kind: "dmel", tokens: new Int32Array() };
    if (field.number !== 1) continue;
    let tokens: Uint8Array = new Uint8Array();
    for (const inner of fields(field.bytes, count)) if (inner.number === 1) tokens = inner.bytes;
    return { kind: "text", tokens: new Int32Array(aligned(tokens, { size: 4, what: "tokens" })) };
  }
  return { kind: "text", tokens: new Int32Array() };
}

const FLOAT32 = 1n;
const INT64 = 2n;

/** Dimensions of a tensor. */
const MOST_DIMENSIONS = 8;

function decodeTensor(
  name: string,
  { bytes, count }: { bytes: Uint8Array; count: FieldCount },
): TensorMessage {
  let [dense, dtype, isSparse]: [Uint8Array, bigint, boolean] = [new Uint8Array(), 0n, false];
  const shape: number[] = [];
  for (const field of fields(bytes, count)) {
    if (field.number === 1) dense = field.bytes;
    else if (field.number === 2) isSparse = true;
    else if (field.number === 3) dtype = field.varint;
    else if (field.number === 4) shape.push(...shapeOf(name, field));
  }
  if (dtype !== FLOAT32 && dtype !== INT64)
    throw new Refusal(422, `Cannot read the tensor ${name} as its dtype must be float32 or int64: ${dtype}`);
  const buffer = aligned(dense, { size: dtype === FLOAT32 ? 4 : 8, what: name });
  const values = dtype === FLOAT32 ? new Float32Array(buffer) : new BigInt64Array(buffer);
  return { values, isSparse, shape };
}

/** Packed, or one at a time. */
function shapeOf(name: string, field: Field): number[] {
  if (field.bytes.length > 10 * MOST_DIMENSIONS)
    throw new Refusal(422, `Cannot read the tensor ${name}: it has more than ${MOST_DIMENSIONS} dimensions.`);
  const sizes = field.bytes.length === 0 ? [field.varint] : packedVarints(field.bytes);
  return sizes.map(Number);
}

function entry(bytes: Uint8Array, count: FieldCount): { key: string; value: Field | undefined } {
  let key = "";
  let value: Field | undefined;
  for (const field of fields(bytes, count)) {
    if (field.number === 1) key = text(field.bytes);
    else if (field.number === 2) value = field;
  }
  return { key, value };
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

/** A copy that typed arrays may lie on. */
function aligned(bytes: Uint8Array, { size, what }: { size: number; what: string }): ArrayBuffer {
  if (bytes.byteLength % size === 0) return bytes.slice().buffer as ArrayBuffer;
  throw new Refusal(422, `Cannot read ${what} as its bytes must come in ${size}s: ${bytes.byteLength}`);
}

/** The rows that a loss is taken over. @throws ConfigError naming the datum that breaks a rule. */
export function rowsOf(data: readonly Datum[]): LossRows {
  const offsets = new Uint32Array(data.length + 1);
  const names = [...new Set(data.flatMap(({ inputs }) => [...inputs.keys()]))];
  for (const [i, datum] of data.entries()) offsets[i + 1] = offsets[i]! + lengthOf(datum, { i, names });
  const total = offsets[data.length]!;
  const [tokens, targets] = [new Uint32Array(total), new Uint32Array(total)];
  const inputs = Object.fromEntries(
    names.filter((name) => name !== "target_tokens").map((name) => [name, new Float32Array(total)]),
  );
  for (const [i, datum] of data.entries()) {
    let at = offsets[i]!;
    for (const chunk of datum.chunks) {
      tokens.set(chunk.tokens, at);
      at += chunk.tokens.length;
    }
    for (const [name, { values }] of datum.inputs)
      if (name === "target_tokens") targets.set(tokenIds(values as BigInt64Array, i), offsets[i]);
      else inputs[name]!.set(values as Float32Array, offsets[i]);
  }
  return { tokens, offsets, targets, inputs };
}

function lengthOf({ chunks, inputs }: Datum, { i, names }: { i: number; names: readonly string[] }): number {
  const other = chunks.find(({ kind }) => kind !== "text");
  if (other)
    throw new ConfigError(
      `Cannot train on datum ${i} as this server's models read text: it holds a chunk of ${other.kind}.`,
    );
  const length = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0);
  if (length === 0) throw new ConfigError(`Cannot train on datum ${i} as its model_input holds no tokens.`);
  if (!inputs.has("target_tokens"))
    throw new ConfigError(`Cannot train on datum ${i} as its loss_fn_inputs must hold target_tokens.`);
  for (const name of names) {
    const tensor = inputs.get(name);
    if (!tensor)
      throw new ConfigError(`Cannot train on datum ${i} as ${name} is missing: other data have it.`);
    const wanted = name === "target_tokens" ? BigInt64Array : Float32Array;
    if (!(tensor.values instanceof wanted))
      throw new ConfigError(
        `Cannot train on datum ${i} as ${name} must be ${name === "target_tokens" ? "int64" : "float32"}.`,
      );
    const isVector = !tensor.isSparse && tensor.shape.length <= 1;
    if (!isVector || tensor.values.length !== length || (tensor.shape[0] ?? length) !== length)
      throw new ConfigError(
        `Cannot train on datum ${i} as ${name} must be dense with one element per token of model_input, [${length}]: ${tensor.isSparse ? "sparse " : ""}[${tensor.shape}] with ${tensor.values.length} elements. Several targets a position are not supported.`,
      );
  }
  return length;
}

/** Ids outside what 32 bits hold become the largest, which no vocabulary has. */
function tokenIds(values: BigInt64Array, i: number): Uint32Array {
  // By halves, low before high: a number of 64 bits each would be made for every token.
  const halves = new Uint32Array(values.buffer, values.byteOffset, 2 * values.length);
  const ids = new Uint32Array(values.length);
  for (let t = 0; t < ids.length; t++) {
    const high = halves[2 * t + 1]!;
    if (high >= 2 ** 31)
      throw new ConfigError(`Cannot train on datum ${i} as target_tokens must be token ids: ${values[t]}`);
    ids[t] = high === 0 ? halves[2 * t]! : 2 ** 32 - 1;
  }
  return ids;
}

/** ForwardBackwardOutput: log-probs of every datum, and the metrics. */
export function encodeTrainingOutput(of: {
  logprobs: Float32Array;
  offsets: Uint32Array;
  metrics: Readonly<Record<string, number>>;
}): Uint8Array {
  const byteOffsets = BigInt64Array.from(of.offsets, (offset) => BigInt(offset) * 4n);
  const tensor = new Writer()
    .bytes(1, bytesOf(of.logprobs))
    .bytes(2, bytesOf(byteOffsets))
    .varint(3, FLOAT32);
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

const NO_LOGPROB = -99999;

/** SampleResponse. Prompt entries that were not asked for are NaN. */
export function encodeSamples(
  order: {
    promptLogprobs: boolean;
    promptLogprobsLastN?: number | undefined;
    topkPromptLogprobs: number;
    prompt: readonly number[];
  },
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
  const length = order.prompt.length;
  const untold = length - (order.promptLogprobsLastN ?? length);
  if (of.scores && order.promptLogprobs)
    response.bytes(2, bytesOf(of.scores.logprobs.slice().fill(Number.NaN, 0, untold)));
  const top = of.scores?.top;
  if (top) {
    const k = order.topkPromptLogprobs;
    const hidden = Math.max(untold, 1) * k;
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
