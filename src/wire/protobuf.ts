/** Protocol buffers' wire form: just what Tinker's messages need, for the client and for the server. */
import { RemoteError } from "../errors.ts";

export type Field = {
  readonly number: number;
  readonly varint: bigint;
  readonly bytes: Uint8Array;
  readonly double: number;
};

/** The fields of a message in their order. @throws {RemoteError} for bytes that are no message. */
export function* fields(message: Uint8Array): Generator<Field> {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const none = { varint: 0n, bytes: new Uint8Array(), double: 0 };
  let at = 0;
  const varint = (): bigint => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (at >= message.length) throw damaged("a number is cut off");
      const byte = message[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asIntN(64, value);
    }
    throw damaged("a number is too long");
  };
  while (at < message.length) {
    const key = Number(varint());
    const number = key >>> 3;
    if (number === 0 || key > 0xffffffff) throw damaged("a field has no number");
    const take = (length: number): number => {
      if (length < 0 || at + length > message.length) throw damaged(`field ${number} is cut off`);
      at += length;
      return at - length;
    };
    if ((key & 7) === 0) yield { ...none, number, varint: varint() };
    else if ((key & 7) === 1) yield { ...none, number, double: view.getFloat64(take(8), true) };
    else if ((key & 7) === 2) {
      const length = Number(varint());
      const start = take(length);
      yield { ...none, number, bytes: message.subarray(start, start + length) };
    } else if ((key & 7) === 5) yield { ...none, number, double: view.getFloat32(take(4), true) };
    else throw damaged(`field ${number} is of wire type ${key & 7}`);
  }
}

function damaged(why: string): RemoteError {
  return new RemoteError(`Cannot read what came as it must be a protobuf message: ${why}.`, {
    retryable: false,
  });
}

export class Writer {
  private readonly parts: Uint8Array[] = [];

  varint(number: number, value: number | bigint): this {
    if (value) this.parts.push(encodeVarint(BigInt(number << 3)), encodeVarint(BigInt(value)));
    return this;
  }

  bytes(number: number, value: Uint8Array): this {
    this.parts.push(encodeVarint(BigInt((number << 3) | 2)), encodeVarint(BigInt(value.byteLength)), value);
    return this;
  }

  text(number: number, value: string): this {
    return this.bytes(number, new TextEncoder().encode(value));
  }

  double(number: number, value: number): this {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setFloat64(0, value, true);
    this.parts.push(encodeVarint(BigInt((number << 3) | 1)), bytes);
    return this;
  }

  message(number: number, value: Writer): this {
    return this.bytes(number, value.finish());
  }

  finish(): Uint8Array {
    const joined = new Uint8Array(this.parts.reduce((sum, { byteLength }) => sum + byteLength, 0));
    let at = 0;
    for (const part of this.parts) {
      joined.set(part, at);
      at += part.byteLength;
    }
    return joined;
  }
}

/** Numbers packed end to end, without keys. */
export function packVarints(values: readonly number[]): Uint8Array {
  return Uint8Array.from(values.flatMap((value) => [...encodeVarint(BigInt(value))]));
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
  if (shift > 0n) throw damaged("a packed number is cut off");
  return values;
}

/** The bytes that an array lies on. */
export function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer as ArrayBuffer, byteOffset, byteLength);
}

function encodeVarint(value: bigint): Uint8Array {
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, value);
  for (; rest >= 0x80n; rest >>= 7n) bytes.push(Number(rest & 0x7fn) | 0x80);
  bytes.push(Number(rest));
  return Uint8Array.from(bytes);
}
