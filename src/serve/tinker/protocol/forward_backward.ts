/** Decodes the protocol's ForwardBackwardRequest, a protobuf message of up to megabytes from an untrusted client. */
import { RemoteError } from "../../../leaves/errors.ts";
import { SLICE_BYTES, yieldToEventLoop } from "../../../leaves/http/event_loop.ts";
import {
  alignedCopy,
  type FieldCount,
  fields,
  mapEntry,
  type ProtobufField,
  packedVarints,
} from "../../../leaves/protobuf.ts";
import { Refusal } from "./outcome.ts";
import { type DatumSpan, decodeSpan, type Provenance } from "./provenance.ts";

export interface RequestDatum {
  readonly chunks: readonly Chunk[];
  readonly inputs: ReadonlyMap<string, TensorMessage>;
  /** Absent where the client gives none. */
  readonly provenance?: Provenance | undefined;
}

interface Chunk {
  readonly kind: "text" | "image" | "dmel";
  readonly tokens: Int32Array;
}

export interface TensorMessage {
  readonly values: Float32Array | BigInt64Array;
  /** Positions of the values of a sparse matrix, in compressed rows. */
  readonly sparse?: { readonly crow: BigInt64Array; readonly col: BigInt64Array } | undefined;
  readonly shape: readonly number[];
}

export interface ForwardBackwardMessage {
  readonly modelId: string;
  readonly seqId: bigint;
  readonly data: readonly RequestDatum[];
  readonly lossFn: string;
  readonly config: Readonly<Record<string, number | string>>;
  readonly forwardOnly: boolean;
  /** Estimated memory of the decoded objects in addition to their content, bytes. */
  readonly overheadBytes: number;
}

/** The protocol's element types. */
export const DTYPE = { float32: 1, int64: 2 } as const;
/** Sequences in one request. The SDK cuts batches at 1024. */
export const MOST_DATA = 8192;
/** Fields of a request, nested messages included: a datum from the SDK has 25. */
const MOST_FIELDS = 2 ** 19;
/** Fields of one datum, which is decoded without a pause. */
const MOST_DATUM_FIELDS = 2 ** 14;
/** Memory per field: an array object and its buffer. */
const FIELD_BYTES = 256;
/** Fields decoded between two pauses: about ten milliseconds. */
const SLICE_FIELDS = 2 ** 16;
/** Dimensions of a tensor. */
const MOST_DIMENSIONS = 8;
const EMPTY: Uint8Array = new Uint8Array();

/**
 * Decodes in slices, so that other requests are answered in between.
 * @throws Refusal 413 for more data than a request may hold, 422 for a damaged message.
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
  const message = new MessageReader();
  const { count } = message;
  let [slice, sliceBytes] = [count.left - SLICE_FIELDS, 0];
  for (const field of fields(bytes, count)) {
    message.take(field);
    sliceBytes += field.bytes.length;
    if (count.left > slice && sliceBytes < SLICE_BYTES) continue;
    [slice, sliceBytes] = [count.left - SLICE_FIELDS, 0];
    await yieldToEventLoop();
  }
  return message.finish();
}

class MessageReader {
  readonly count: FieldCount = { left: MOST_FIELDS };
  private modelId = "";
  private lossFn = "";
  private seqId = 0n;
  private forwardOnly = false;
  private readonly data: RequestDatum[] = [];
  private readonly config = new Map<string, number>();
  /** Entries of the newer field 7, which win over those of field 5. */
  private readonly typedConfig = new Map<string, number | string>();

  take(field: ProtobufField): void {
    if (field.number === 1) this.modelId = text(field.bytes);
    else if (field.number === 2) this.seqId = field.varint;
    else if (field.number === 3) this.takeDatum(field.bytes);
    else if (field.number === 4) this.lossFn = text(field.bytes);
    else if (field.number === 5) {
      const { key, value } = mapEntry(field.bytes, this.count);
      this.config.set(key, value?.double ?? 0);
    } else if (field.number === 6) this.forwardOnly = field.varint !== 0n;
    else if (field.number === 7) this.takeTypedConfig(field.bytes);
  }

  private takeDatum(bytes: Uint8Array): void {
    if (this.data.length === MOST_DATA)
      throw new Refusal(
        413,
        `Cannot accept more than ${MOST_DATA} data in one request. Split the batch into several requests.`,
      );
    const fieldCount = { left: Math.min(MOST_DATUM_FIELDS, this.count.left) };
    const before = fieldCount.left;
    this.data.push(decodeDatum(bytes, fieldCount));
    this.count.left -= before - fieldCount.left;
  }

  private takeTypedConfig(bytes: Uint8Array): void {
    const { key, value } = mapEntry(bytes, this.count);
    for (const field of fields(value?.bytes ?? EMPTY, this.count))
      if (field.number === 1) this.typedConfig.set(key, field.double);
      else if (field.number === 2) this.typedConfig.set(key, text(field.bytes));
  }

  /** @throws Refusal 422 for a message without a model, a loss or data. */
  finish(): ForwardBackwardMessage {
    const { modelId, seqId, data, lossFn, forwardOnly, count } = this;
    if (modelId === "" || lossFn === "" || data.length === 0)
      throw new Refusal(422, "Cannot read the request: it must have model_id, loss_fn and data.");
    return {
      modelId,
      seqId,
      data,
      lossFn,
      config: Object.fromEntries([...this.config, ...this.typedConfig]),
      forwardOnly,
      overheadBytes: FIELD_BYTES * (MOST_FIELDS - count.left),
    };
  }
}

/** Fields searched for a request's address: encoders write it first. */
const ADDRESS_FIELDS = 64;

/** The model and number of a request; also of a damaged one, if they come before the damage. */
export function peekAddress(bytes: Uint8Array): { modelId: string; number: bigint } | undefined {
  let [modelId, number] = ["", 0n];
  try {
    for (const field of fields(bytes, { left: ADDRESS_FIELDS }))
      if (field.number === 1) modelId = text(field.bytes);
      else if (field.number === 2) number = field.varint;
  } catch {
    // What came before the damage counts.
  }
  return modelId === "" ? undefined : { modelId, number };
}

function decodeDatum(bytes: Uint8Array, count: FieldCount): RequestDatum {
  const chunks: Chunk[] = [];
  const inputs = new Map<string, TensorMessage>();
  const [modelInput, targets]: [DatumSpan[], DatumSpan[]] = [[], []];
  for (const field of fields(bytes, count)) {
    if (field.number === 1) chunks.push(decodeChunk(field.bytes, count));
    else if (field.number === 2) {
      const { key, value } = mapEntry(field.bytes, count);
      inputs.set(key, decodeTensor(key, { bytes: value?.bytes ?? EMPTY, count }));
    } else if (field.number === 3) modelInput.push(decodeSpan(field.bytes, count));
    else if (field.number === 4) targets.push(decodeSpan(field.bytes, count));
  }
  const hasSpans = modelInput.length > 0 || targets.length > 0;
  return { chunks, inputs, ...(hasSpans && { provenance: { modelInput, targets } }) };
}

function decodeChunk(bytes: Uint8Array, count: FieldCount): Chunk {
  for (const field of fields(bytes, count)) {
    if (field.number === 2) return { kind: "image", tokens: new Int32Array() };
    if (field.number === 3) return { kind: "dmel", tokens: new Int32Array() };
    if (field.number !== 1) continue;
    let tokens = EMPTY;
    for (const inner of fields(field.bytes, count)) if (inner.number === 1) tokens = inner.bytes;
    return { kind: "text", tokens: new Int32Array(elements(tokens, { size: 4, name: "tokens" })) };
  }
  return { kind: "text", tokens: new Int32Array() };
}

function decodeTensor(name: string, { bytes, count }: { bytes: Uint8Array; count: FieldCount }): TensorMessage {
  let [data, dtype] = [EMPTY, 0];
  let sparse: TensorMessage["sparse"];
  const shape: number[] = [];
  for (const field of fields(bytes, count)) {
    if (field.number === 1) data = field.bytes;
    else if (field.number === 2) ({ data, sparse } = decodeSparse(name, { bytes: field.bytes, count }));
    else if (field.number === 3) dtype = Number(field.varint);
    else if (field.number === 4) shape.push(...shapeOf(name, field));
  }
  if (dtype === DTYPE.float32) return { values: new Float32Array(elements(data, { size: 4, name })), sparse, shape };
  if (dtype === DTYPE.int64) return { values: new BigInt64Array(elements(data, { size: 8, name })), sparse, shape };
  throw new Refusal(422, `Cannot read the tensor ${name}: its dtype must be float32 or int64 (${dtype}).`);
}

function decodeSparse(name: string, { bytes, count }: { bytes: Uint8Array; count: FieldCount }) {
  let [data, crow, col] = [EMPTY, EMPTY, EMPTY];
  for (const field of fields(bytes, count))
    if (field.number === 1) data = field.bytes;
    else if (field.number === 2) crow = field.bytes;
    else if (field.number === 3) col = field.bytes;
  const indices = (of: Uint8Array) => new BigInt64Array(elements(of, { size: 8, name }));
  return { data, sparse: { crow: indices(crow), col: indices(col) } };
}

/** Sizes packed, or one per field. */
function shapeOf(name: string, field: ProtobufField): number[] {
  if (field.bytes.length > 10 * MOST_DIMENSIONS)
    throw new Refusal(422, `Cannot read the tensor ${name}: it has more than ${MOST_DIMENSIONS} dimensions.`);
  const sizes = field.bytes.length === 0 ? [field.varint] : packedVarints(field.bytes);
  return sizes.map(Number);
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

function elements(bytes: Uint8Array, { size, name }: { size: number; name: string }): ArrayBuffer {
  if (bytes.byteLength % size === 0) return alignedCopy(bytes);
  throw new Refusal(422, `Cannot read ${name}: its length must be a multiple of ${size} bytes (${bytes.byteLength}).`);
}
