/**
 * The GGUF container: metadata, then the names and shapes of tensors, then their data, each from a multiple of 32 bytes.
 * @see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3)
 */
import { bytesOfElements, GGML_TYPES, type GgmlType } from "../files/gguf/types.ts";

/** A typed value of the metadata. */
export type GgufValue =
  | { readonly type: "u32" | "i32" | "f32"; readonly value: number }
  | { readonly type: "bool"; readonly value: boolean }
  | { readonly type: "string"; readonly value: string }
  | { readonly type: "strings"; readonly value: readonly string[] }
  | { readonly type: "f32s" | "i32s"; readonly value: readonly number[] };

/** A tensor of the file. */
export interface GgufTensor {
  readonly name: string;
  /** Row-major, as in safetensors; the file has the sizes in the other order. */
  readonly shape: readonly number[];
  readonly type: GgufType;
  /** Called once, when the tensor is written. */
  readonly data: () => Promise<Uint8Array>;
}

/** The types that are written. */
export type GgufType = Extract<GgmlType, "F32" | "BF16" | "F16" | "Q8_0">;

const CODES = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 } as const;
const ALIGNMENT = 32;

/** The bytes of a file, in order: the header, then each tensor. */
export async function* encodeGguf(
  metadata: ReadonlyMap<string, GgufValue>,
  tensors: readonly GgufTensor[],
): AsyncGenerator<Uint8Array> {
  yield header(metadata, tensors);
  for (const tensor of tensors) {
    const data = await tensor.data();
    yield data;
    yield new Uint8Array(padding(data.length));
  }
}

/** Bytes of a tensor's data. */
export function bytesOfTensor({ shape, type }: Pick<GgufTensor, "shape" | "type">): number {
  return bytesOfElements(
    shape.reduce((product, size) => product * size, 1),
    type,
  );
}

const padding = (length: number) => (ALIGNMENT - (length % ALIGNMENT)) % ALIGNMENT;

function header(metadata: ReadonlyMap<string, GgufValue>, tensors: readonly GgufTensor[]): Uint8Array {
  const out = new Bytes();
  out.text("GGUF").u32(3).u64(tensors.length).u64(metadata.size);
  for (const [key, value] of metadata) writeValue(out.string(key), value);
  let offset = 0;
  for (const tensor of tensors) {
    out.string(tensor.name).u32(tensor.shape.length);
    for (const size of [...tensor.shape].reverse()) out.u64(size);
    out.u32(GGML_TYPES[tensor.type].code).u64(offset);
    const length = bytesOfTensor(tensor);
    offset += length + padding(length);
  }
  return out.pad(padding(out.length)).whole();
}

function writeValue(out: Bytes, item: GgufValue): void {
  if (item.type === "strings" || item.type === "f32s" || item.type === "i32s") {
    const of = item.type === "strings" ? "string" : item.type === "f32s" ? "f32" : "i32";
    out.u32(CODES.array).u32(CODES[of]).u64(item.value.length);
    for (const value of item.value) writeScalar(out, { type: of, value } as GgufValue);
    return;
  }
  writeScalar(out.u32(CODES[item.type]), item);
}

function writeScalar(out: Bytes, item: GgufValue): void {
  if (item.type === "string") out.string(item.value);
  else if (item.type === "bool") out.u8(Number(item.value));
  else if (item.type === "f32") out.f32(item.value);
  else out.u32(item.value as number);
}

/** Little-endian bytes that grow. */
class Bytes {
  length = 0;
  private buffer = new Uint8Array(1 << 16);

  u8(value: number): this {
    return this.put(1, (view, at) => view.setUint8(at, value));
  }

  u32(value: number): this {
    return this.put(4, (view, at) => view.setUint32(at, value, true));
  }

  f32(value: number): this {
    return this.put(4, (view, at) => view.setFloat32(at, value, true));
  }

  u64(value: number): this {
    return this.put(8, (view, at) => view.setBigUint64(at, BigInt(value), true));
  }

  string(value: string): this {
    const bytes = new TextEncoder().encode(value);
    return this.u64(bytes.length).bytes(bytes);
  }

  text(value: string): this {
    return this.bytes(new TextEncoder().encode(value));
  }

  pad(count: number): this {
    return this.bytes(new Uint8Array(count));
  }

  whole(): Uint8Array {
    return this.buffer.subarray(0, this.length);
  }

  private bytes(bytes: Uint8Array): this {
    this.grow(bytes.length);
    this.buffer.set(bytes, this.length);
    this.length += bytes.length;
    return this;
  }

  private put(size: number, write: (view: DataView, at: number) => void): this {
    this.grow(size);
    write(new DataView(this.buffer.buffer), this.length);
    this.length += size;
    return this;
  }

  private grow(by: number): void {
    if (this.length + by <= this.buffer.length) return;
    const larger = new Uint8Array(Math.max(this.buffer.length * 2, this.length + by));
    larger.set(this.buffer);
    this.buffer = larger;
  }
}
