/**
 * The wire format of protocol buffers, as far as Tinker's messages and the TensorBoard and W&B logs need it.
 * @see https://protobuf.dev/programming-guides/encoding
 */
import { RemoteError } from "./errors.ts";

export type ProtobufField = {
  readonly number: number;
  readonly varint: bigint;
  readonly bytes: Uint8Array;
  readonly double: number;
};

const NOTHING: Uint8Array = new Uint8Array();

/** A budget of fields to read, shared by a message and its nested messages. */
export interface FieldCount {
  left: number;
}

/** The fields of a message in order. @throws {RemoteError} for a damaged message, and for one with more fields than `count`. */
export function* fields(message: Uint8Array, count?: FieldCount): Generator<ProtobufField> {
  const reader = new Reader(message);
  while (!reader.isAtEnd) {
    if (count && count.left-- <= 0) throw damaged("it has too many fields");
    const key = Number(reader.varint());
    const number = key >>> 3;
    if (number === 0 || key > 0xffffffff) throw damaged("a field has no number");
    let [varint, bytes, double] = [0n, NOTHING, 0];
    if ((key & 7) === 0) varint = BigInt(reader.varint());
    else if ((key & 7) === 1) double = reader.float(8, number);
    else if ((key & 7) === 2) bytes = reader.bytes(Number(reader.varint()), number);
    else if ((key & 7) === 5) double = reader.float(4, number);
    else throw damaged(`field ${number} has the unsupported wire type ${key & 7}`);
    yield { number, varint, bytes, double };
  }
}

/** An entry of a map whose keys are text. */
export function mapEntry(
  bytes: Uint8Array,
  count?: FieldCount,
): { readonly key: string; readonly value: ProtobufField | undefined } {
  let key = "";
  let value: ProtobufField | undefined;
  for (const field of fields(bytes, count)) {
    if (field.number === 1) key = new TextDecoder().decode(field.bytes);
    else if (field.number === 2) value = field;
  }
  return { key, value };
}

class Reader {
  private readonly message: Uint8Array;
  private at = 0;

  constructor(message: Uint8Array) {
    this.message = message;
  }

  get isAtEnd(): boolean {
    return this.at >= this.message.length;
  }

  /** A number up to 28 bits, which avoids a bigint in most cases. */
  varint(): number | bigint {
    let value = 0;
    for (let shift = 0; shift < 28; shift += 7) {
      const byte = this.byte();
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return this.longVarint(BigInt(value));
  }

  private longVarint(low: bigint): bigint {
    let value = low;
    for (let shift = 28n; shift < 70n; shift += 7n) {
      const byte = this.byte();
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asIntN(64, value);
    }
    throw damaged("a number is too long");
  }

  private byte(): number {
    if (this.isAtEnd) throw damaged("a number is truncated");
    return this.message[this.at++]!;
  }

  /** @param number of the field, for errors */
  bytes(length: number, number: number): Uint8Array {
    if (length < 0 || this.at + length > this.message.length) throw damaged(`field ${number} is truncated`);
    this.at += length;
    return this.message.subarray(this.at - length, this.at);
  }

  float(length: 4 | 8, number: number): number {
    const { buffer, byteOffset } = this.bytes(length, number);
    const view = new DataView(buffer, byteOffset, length);
    return length === 8 ? view.getFloat64(0, true) : view.getFloat32(0, true);
  }
}

function damaged(why: string): RemoteError {
  return new RemoteError(`Cannot read the protobuf message: ${why}.`, {
    retryable: false,
  });
}

/** Writes a message. Nested messages are copied once, by the outermost {@link ProtobufWriter.finish}. */
export class ProtobufWriter {
  private readonly parts: Uint8Array[] = [];
  private byteLength = 0;

  /** Leaves out 0, the default. */
  varint(number: number, value: number | bigint): this {
    return value ? this.push(encodeVarint(number << 3)).push(encodeVarint(value)) : this;
  }

  bytes(number: number, value: Uint8Array): this {
    return this.open(number, value.byteLength).push(value);
  }

  text(number: number, value: string): this {
    return this.bytes(number, new TextEncoder().encode(value));
  }

  double(number: number, value: number): this {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setFloat64(0, value, true);
    return this.push(encodeVarint((number << 3) | 1)).push(bytes);
  }

  float(number: number, value: number): this {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setFloat32(0, value, true);
    return this.push(encodeVarint((number << 3) | 5)).push(bytes);
  }

  message(number: number, value: ProtobufWriter): this {
    this.open(number, value.byteLength);
    for (const part of value.parts) this.push(part);
    return this;
  }

  finish(): Uint8Array {
    return concatBytes(this.parts);
  }

  private open(number: number, length: number): this {
    return this.push(encodeVarint((number << 3) | 2)).push(encodeVarint(length));
  }

  private push(part: Uint8Array): this {
    this.parts.push(part);
    this.byteLength += part.byteLength;
    return this;
  }
}

/** The numbers of a packed repeated field. */
export function packVarints(values: readonly number[]): Uint8Array {
  return Uint8Array.from(values.flatMap((value) => [...encodeVarint(value)]));
}

/** The inverse of {@link packVarints}. */
export function packedVarints(bytes: Uint8Array): bigint[] {
  const values: bigint[] = [];
  let [value, shift] = [0n, 0n];
  for (const byte of bytes) {
    value |= BigInt(byte & 0x7f) << shift;
    shift += 7n;
    if (shift > 70n) throw damaged("a packed number is too long");
    if (byte >= 0x80) continue;
    values.push(BigInt.asIntN(64, value));
    [value, shift] = [0n, 0n];
  }
  if (shift > 0n) throw damaged("a packed number is truncated");
  return values;
}

/** Concatenates the parts. */
export function concatBytes(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, { byteLength }) => sum + byteLength, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.byteLength;
  }
  return whole;
}

/** A copy whose buffer starts at its first byte, for typed arrays. */
export function alignedCopy(bytes: Uint8Array): ArrayBuffer {
  return bytes.slice().buffer as ArrayBuffer;
}

/** The bytes of a typed array, without a copy. */
export function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer as ArrayBuffer, byteOffset, byteLength);
}

function encodeVarint(value: number | bigint): Uint8Array {
  if (value >= 0 && value < 2 ** 28) return encodeSmall(Number(value));
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest >= 0x80n; rest >>= 7n) bytes.push(Number(rest & 0x7fn) | 0x80);
  bytes.push(Number(rest));
  return Uint8Array.from(bytes);
}

function encodeSmall(value: number): Uint8Array {
  const bytes = new Uint8Array(value < 2 ** 7 ? 1 : value < 2 ** 14 ? 2 : value < 2 ** 21 ? 3 : 4);
  for (let i = 0; i < bytes.length; i++) bytes[i] = ((value >>> (7 * i)) & 0x7f) | (i + 1 < bytes.length ? 0x80 : 0);
  return bytes;
}
