/** Writes safetensors, a tensor at a time: what a GPU holds need never be in memory all at once. */
import { ConfigError } from "../../errors.ts";

type Numbers = Float32Array | Int32Array | Uint32Array;

/** One tensor to write. */
export interface TensorSource {
  readonly name: string;
  readonly shape: readonly number[];
  /** Row-major. A function is called when its turn comes, once. Integers are written as they are. */
  readonly data: Numbers | (() => Promise<Float32Array>);
}

export interface WriteOptions {
  /** Type that floats are written in; BF16 rounds to nearest even. Default F32. */
  readonly dtype?: "F32" | "BF16";
  readonly metadata?: Readonly<Record<string, string>>;
  /** Whether NaN and infinities may be written. Default false: weights that hold one are of no use to anyone. */
  readonly anyNumber?: boolean;
}

/**
 * The bytes of a safetensors file, in order: the header, then each tensor.
 * @throws ConfigError when a tensor's data do not fill its shape or are not finite, or a name comes twice.
 */
export async function* encodeSafetensors(
  tensors: readonly TensorSource[],
  options: WriteOptions = {},
): AsyncGenerator<Uint8Array> {
  yield encodeHeader(tensors, options);
  for (const tensor of tensors) {
    const data = typeof tensor.data === "function" ? await tensor.data() : tensor.data;
    if (data.length !== lengthOf(tensor)) {
      const message = `Cannot write tensor ${tensor.name} as shape [${tensor.shape}] needs ${lengthOf(tensor)} elements`;
      throw new ConfigError(`${message}: ${data.length}`);
    }
    if (!options.anyNumber) checkFinite(tensor.name, data);
    const raw = dtypeOf(tensor, options) === "BF16" ? toBf16(data as Float32Array) : data;
    yield new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength);
  }
}

function checkFinite(name: string, data: Numbers): void {
  let sum = 0;
  // 0 times anything finite is 0; a branch in this loop would cost three times as much.
  for (let i = 0; i < data.length; i++) sum += data[i]! * 0;
  if (sum === 0) return;
  const at = data.findIndex((value) => !Number.isFinite(value));
  throw new ConfigError(
    `Cannot save the weights: ${name} holds ${data[at]} at index ${at}. Go on from an earlier checkpoint, with a lower learning rate.`,
  );
}

function encodeHeader(tensors: readonly TensorSource[], options: WriteOptions): Uint8Array {
  const entries: [string, unknown][] = [["__metadata__", { format: "pt", ...options.metadata }]];
  let position = 0;
  for (const tensor of tensors) {
    const dtype = dtypeOf(tensor, options);
    const end = position + lengthOf(tensor) * (dtype === "BF16" ? 2 : 4);
    entries.push([tensor.name, { dtype, shape: tensor.shape, data_offsets: [position, end] }]);
    position = end;
  }
  if (new Set(entries.map(([name]) => name)).size !== entries.length) {
    throw new ConfigError("Cannot write safetensors as two tensors have one name");
  }
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  // Spaces up to a multiple of 8, so that the numbers after it can be viewed in place.
  const header = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(header.length - 8), true);
  header.set(json, 8);
  return header;
}

function dtypeOf({ data }: TensorSource, { dtype = "F32" }: WriteOptions): "F32" | "BF16" | "I32" | "U32" {
  if (data instanceof Int32Array) return "I32";
  return data instanceof Uint32Array ? "U32" : dtype;
}

function lengthOf({ shape }: TensorSource): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** Round to nearest even; NaN stays NaN. */
function toBf16(floats: Float32Array): Uint16Array {
  const words = new Uint32Array(floats.buffer, floats.byteOffset, floats.length);
  const halves = new Uint16Array(floats.length);
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    const nan = (word & 0x7fff_ffff) > 0x7f80_0000;
    halves[i] = nan ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  }
  return halves;
}
