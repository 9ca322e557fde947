/**
 * The safetensors format: 8 bytes of header length, a JSON header, raw little-endian numbers. Reads tensor by tensor
 * from any {@link ByteReader}, so it runs in a browser too. Accepts and rejects the same files as the published reader.
 * @see https://github.com/huggingface/safetensors#format
 */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { BYTES_OF, type DType, decodeFloats, integerReader } from "../dtype.ts";
import type { ByteReader } from "./reader.ts";

/** Position of one tensor in its file. */
export interface TensorInfo {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Number of elements. */
  readonly length: number;
  /** First byte in the file. */
  readonly offset: number;
  readonly byteLength: number;
  readonly file: string;
}

export interface SafetensorsFile {
  readonly name: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** Tensors in the order of the file. */
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /**
   * A float tensor, or `length` of its elements from `start`, widened or rounded to f32.
   * @throws ConfigError when there is no such tensor; UnsupportedError when it holds integers.
   */
  read(name: string, range?: { start: number; length: number }): Promise<Float32Array>;
  /** The bytes of a tensor, or of `length` of its elements from `start`, as they lie in the file. */
  readBytes(name: string, range?: { start: number; length: number }): Promise<Uint8Array>;
  /** An integer tensor, exact. @throws ConfigError above 2^53. */
  readIntegers(name: string): Promise<Float64Array>;
}

/** Headers above this size are rejected as damage, as in the published reader. */
export const MAX_HEADER_BYTES = 100_000_000;

/**
 * Reads and checks the header. Tensors are read on demand.
 * @throws ConfigError naming the file (and the tensor) for a truncated, overlapping or malformed file.
 */
export async function openSafetensors(reader: ByteReader): Promise<SafetensorsFile> {
  const { header, dataStart } = await readHeader(reader);
  const { __metadata__: metadata = {}, ...entries } = header as Record<string, unknown>;
  const infos = Object.entries(entries).map(([name, entry]) =>
    readEntry({ name, entry, dataStart, file: reader.name }),
  );
  infos.sort((a, b) => a.offset - b.offset || a.byteLength - b.byteLength);
  checkLayout(infos, { dataStart, reader });
  const tensors = new Map(infos.map((info) => [info.name, info]));
  const find = (name: string): TensorInfo => {
    const info = tensors.get(name);
    if (info) return info;
    throw new ConfigError(`Cannot read tensor ${name}: the file does not hold it.`, at(reader));
  };
  const readBytes = async (name: string, range?: { start: number; length: number }): Promise<Uint8Array> => {
    const info = find(name);
    const { start, length } = range ?? { start: 0, length: info.length };
    if (start < 0 || length < 0 || start + length > info.length)
      throw new RangeError(`Cannot read elements ${start}..${start + length} of ${name}: it has ${info.length}.`);
    const width = BYTES_OF[info.dtype];
    return reader.read(info.offset + start * width, length * width);
  };
  return {
    name: reader.name,
    metadata: metadata as Record<string, string>,
    tensors,
    readBytes,
    read: async (name, range) => toFloats(await readBytes(name, range), find(name)),
    async readIntegers(name) {
      const info = find(name);
      return toIntegers(await reader.read(info.offset, info.byteLength), info);
    },
  };
}

async function readHeader(reader: ByteReader): Promise<{ header: object; dataStart: number }> {
  const fail = (rule: string) => new ConfigError(`Cannot read safetensors: ${rule}.`, at(reader));
  if (reader.size < 8) throw fail(`the file is truncated (${reader.size} bytes)`);
  const prefix = await reader.read(0, 8);
  const length = Number(new DataView(prefix.buffer, prefix.byteOffset, 8).getBigUint64(0, true));
  if (length > MAX_HEADER_BYTES) throw fail(`its header is over 100 MB (${length} bytes)`);
  if (8 + length > reader.size)
    throw fail(`the file ends inside its header (${reader.size} of ${8 + length} bytes). Fetch the file again`);
  const text = new TextDecoder().decode(await reader.read(8, length));
  let header: unknown;
  try {
    header = JSON.parse(text);
  } catch (cause) {
    throw fail(`its header is not JSON (${(cause as Error).message})`);
  }
  if (typeof header !== "object" || header === null || Array.isArray(header))
    throw fail("its header is not a JSON object");
  return { header, dataStart: 8 + length };
}

function readEntry(header: { name: string; entry: unknown; dataStart: number; file: string }): TensorInfo {
  const { dtype, shape, data_offsets: offsets } = (header.entry ?? {}) as Record<string, unknown>;
  const fail = (rule: string, value: unknown) =>
    new ConfigError(`Cannot read tensor ${header.name}: ${rule} (${JSON.stringify(value)}).`, { file: header.file });
  if (typeof dtype !== "string" || !Object.hasOwn(BYTES_OF, dtype)) throw fail("its dtype is unknown", dtype);
  if (!isCounts(shape)) throw fail("its shape is not a list of sizes", shape);
  if (!isCounts(offsets) || offsets.length !== 2) throw fail("data_offsets must be two positions", offsets);
  const [begin, end] = offsets;
  const length = shape.reduce((product, size) => product * size, 1);
  const bytes = length * BYTES_OF[dtype as DType];
  if (begin! > end! || end! - begin! !== bytes)
    throw fail(`${dtype} [${shape}] needs ${bytes} bytes, not these data_offsets`, offsets);
  return {
    name: header.name,
    dtype: dtype as DType,
    shape,
    length,
    offset: header.dataStart + begin!,
    byteLength: end! - begin!,
    file: header.file,
  };
}

/** Tensors must fill the data exactly: no overlap, no hole, nothing after the last. */
function checkLayout(infos: readonly TensorInfo[], layout: { dataStart: number; reader: ByteReader }): void {
  const { reader } = layout;
  let position = layout.dataStart;
  for (const { name, offset, byteLength } of infos) {
    const fail = (rule: string) => new ConfigError(`Cannot read tensor ${name}: ${rule}.`, at(reader));
    const end = offset + byteLength;
    if (offset < position) throw fail(`it overlaps another (byte ${offset})`);
    if (offset > position) throw fail(`unnamed bytes lie before it (bytes ${position} to ${offset})`);
    if (end > reader.size)
      throw fail(`the file is truncated (the tensor ends at byte ${end} of ${reader.size}). Fetch the file again`);
    position = end;
  }
  if (position === reader.size) return;
  const message = `Cannot read safetensors: ${reader.size - position} bytes follow its tensors.`;
  throw new ConfigError(message, at(reader));
}

function toFloats(bytes: Uint8Array, info: TensorInfo): Float32Array {
  const floats = decodeFloats(bytes, info.dtype);
  if (floats) return floats;
  throw wrongType("floats", info);
}

function toIntegers(bytes: Uint8Array, info: TensorInfo): Float64Array {
  const read = integerReader(bytes, info.dtype);
  if (!read) throw wrongType("integers", info);
  return Float64Array.from({ length: info.length }, (_, i) => {
    const value = Number(read(i));
    if (Number.isSafeInteger(value)) return value;
    const message = `Cannot read tensor ${info.name}: an element is above 2^53 (${value}).`;
    throw new ConfigError(message, { file: info.file });
  });
}

function wrongType(wanted: string, { name, dtype, file }: TensorInfo): UnsupportedError {
  const message = `Cannot read tensor ${name} as ${wanted}: it holds ${dtype} (${file}).`;
  return new UnsupportedError(message, { part: "safetensors", capability: dtype });
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((v) => Number.isSafeInteger(v) && v >= 0);
}

function at(reader: ByteReader): { file: string } {
  return { file: reader.name };
}
