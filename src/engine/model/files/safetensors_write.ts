/** Writes safetensors one tensor at a time, so that weights on a GPU are never all in host memory. */
import { ConfigError } from "../../../leaves/errors.ts";
import { encodeBf16 } from "../dtype.ts";

type Numbers = Float32Array | Int32Array | Uint32Array;

/** One tensor to write. */
export interface TensorSource {
  readonly name: string;
  readonly shape: readonly number[];
  /** Row-major. A function is called once, when its tensor is written. Integers keep their type. */
  readonly data: Numbers | (() => Promise<Float32Array>);
}

export interface SafetensorsOptions {
  /** Type of floats in the file; BF16 rounds to nearest even. Default F32. */
  readonly dtype?: "F32" | "BF16" | undefined;
  readonly metadata?: Readonly<Record<string, string>>;
  /** Allows NaN and infinities. Default false, because weights that hold one are useless. */
  readonly anyNumber?: boolean;
}

/**
 * The bytes of a safetensors file, in order: the header, then each tensor.
 * @throws ConfigError when a tensor's data do not fill its shape or are not finite, or two tensors share a name.
 */
export async function* encodeSafetensors(
  tensors: readonly TensorSource[],
  options: SafetensorsOptions = {},
): AsyncGenerator<Uint8Array> {
  yield encodeHeader(tensors, options);
  for (const tensor of tensors) {
    const data = typeof tensor.data === "function" ? await tensor.data() : tensor.data;
    if (data.length !== lengthOf(tensor))
      throw new ConfigError(
        `Cannot write tensor ${tensor.name}: shape [${tensor.shape}] needs ${lengthOf(tensor)} elements (${data.length}).`,
      );
    if (!options.anyNumber) checkFinite(tensor.name, data);
    const raw = dtypeOf(tensor, options) === "BF16" ? encodeBf16(data as Float32Array) : data;
    yield new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength);
  }
}

function checkFinite(name: string, data: Numbers): void {
  let sum = 0;
  // 0 times a finite number is 0. A branch in this loop takes three times as long.
  for (let i = 0; i < data.length; i++) sum += data[i]! * 0;
  if (sum === 0) return;
  const at = data.findIndex((value) => !Number.isFinite(value));
  throw new ConfigError(
    `Cannot save the weights: ${name} holds ${data[at]} at index ${at}. Continue from an earlier checkpoint with a lower learning rate.`,
  );
}

function encodeHeader(tensors: readonly TensorSource[], options: SafetensorsOptions): Uint8Array {
  const entries: [string, unknown][] = [["__metadata__", { format: "pt", ...options.metadata }]];
  let position = 0;
  for (const tensor of tensors) {
    const dtype = dtypeOf(tensor, options);
    const end = position + byteLengthOf(tensor, options);
    entries.push([tensor.name, { dtype, shape: tensor.shape, data_offsets: [position, end] }]);
    position = end;
  }
  if (new Set(entries.map(([name]) => name)).size !== entries.length)
    throw new ConfigError("Cannot write safetensors: two tensors have the same name.");
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  // Padded with spaces to a multiple of 8, so that readers can view the numbers in place.
  const header = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(header.length - 8), true);
  header.set(json, 8);
  return header;
}

/** Bytes of a tensor's data in the file. */
export function byteLengthOf(tensor: TensorSource, options: SafetensorsOptions): number {
  return lengthOf(tensor) * (dtypeOf(tensor, options) === "BF16" ? 2 : 4);
}

function dtypeOf({ data }: TensorSource, { dtype = "F32" }: SafetensorsOptions): "F32" | "BF16" | "I32" | "U32" {
  if (data instanceof Int32Array) return "I32";
  return data instanceof Uint32Array ? "U32" : dtype;
}

function lengthOf({ shape }: TensorSource): number {
  return shape.reduce((product, size) => product * size, 1);
}
