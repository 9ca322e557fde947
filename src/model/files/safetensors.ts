/**
 * The safetensors format: 8 bytes of header length, a JSON header, raw little-endian numbers. Reads tensor by tensor
 * from anything that can give a range of bytes, so it runs in a browser too. Rules as the published reader's.
 * @see https://github.com/huggingface/safetensors#format
 */
import { ConfigError, UnsupportedError } from "../../errors.ts";

/** A range of bytes on demand: a file, a Blob, an HTTP resource. */
export interface ByteReader {
  /** For messages. */
  readonly name: string;
  readonly size: number;
  /** Exactly `length` bytes from `offset`. */
  read(offset: number, length: number): Promise<Uint8Array>;
}

const BYTES_OF = {
  F64: 8,
  F32: 4,
  F16: 2,
  BF16: 2,
  I64: 8,
  I32: 4,
  I16: 2,
  I8: 1,
  U64: 8,
  U32: 4,
  U16: 2,
  U8: 1,
  BOOL: 1,
} as const;
export type DType = keyof typeof BYTES_OF;

/** Where one tensor lies in its file. */
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
  /** In the order of the file. */
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /**
   * A float tensor, or `length` of its elements from `start`, widened or rounded to f32.
   * @throws ConfigError when there is no such tensor; UnsupportedError when it holds integers.
   */
  read(name: string, range?: { start: number; length: number }): Promise<Float32Array>;
  /** An integer tensor, exact. @throws ConfigError above 2^53. */
  readIntegers(name: string): Promise<Float64Array>;
}

/** Header size above which a file is taken for damaged, as the published reader does. */
export const MAX_HEADER_BYTES = 100_000_000;

/**
 * Reads and checks the header; tensors are read when asked for.
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
    if (!info)
      throw new ConfigError(`Cannot read tensor ${name} as the file has none of that name`, at(reader));
    return info;
  };
  return {
    name: reader.name,
    metadata: metadata as Record<string, string>,
    tensors,
    async read(name, range) {
      const info = find(name);
      const { start, length } = range ?? { start: 0, length: info.length };
      if (start < 0 || length < 0 || start + length > info.length) {
        throw new RangeError(
          `Cannot read elements ${start}..${start + length} of ${name}: it has ${info.length}`,
        );
      }
      const width = BYTES_OF[info.dtype];
      return toFloats(await reader.read(info.offset + start * width, length * width), info);
    },
    async readIntegers(name) {
      const info = find(name);
      return toIntegers(await reader.read(info.offset, info.byteLength), info);
    },
  };
}

async function readHeader(reader: ByteReader): Promise<{ header: object; dataStart: number }> {
  if (reader.size < 8) {
    throw new ConfigError(
      `Cannot read safetensors as the file is truncated: ${reader.size} bytes`,
      at(reader),
    );
  }
  const prefix = await reader.read(0, 8);
  const length = Number(new DataView(prefix.buffer, prefix.byteOffset, 8).getBigUint64(0, true));
  if (length > MAX_HEADER_BYTES) {
    throw new ConfigError(
      `Cannot read safetensors as its header is over 100 MB: ${length} bytes`,
      at(reader),
    );
  }
  if (8 + length > reader.size) {
    const message = `Cannot read safetensors as the file ends inside its header: ${reader.size} of ${8 + length} bytes`;
    throw new ConfigError(`${message}. Fetch the file again`, at(reader));
  }
  const text = new TextDecoder().decode(await reader.read(8, length));
  let header: unknown;
  try {
    header = JSON.parse(text);
  } catch (cause) {
    throw new ConfigError(
      `Cannot read safetensors as its header is not JSON: ${(cause as Error).message}`,
      at(reader),
    );
  }
  if (typeof header !== "object" || header === null || Array.isArray(header)) {
    throw new ConfigError("Cannot read safetensors as its header is not a JSON object", at(reader));
  }
  return { header, dataStart: 8 + length };
}

function readEntry(it: { name: string; entry: unknown; dataStart: number; file: string }): TensorInfo {
  const { dtype, shape, data_offsets: offsets } = (it.entry ?? {}) as Record<string, unknown>;
  const fail = (rule: string, value: unknown) =>
    new ConfigError(`Cannot read tensor ${it.name} as ${rule}: ${JSON.stringify(value)}`, { file: it.file });
  if (typeof dtype !== "string" || !Object.hasOwn(BYTES_OF, dtype)) throw fail("its dtype is unknown", dtype);
  if (!isCounts(shape)) throw fail("its shape is not a list of sizes", shape);
  if (!isCounts(offsets) || offsets.length !== 2) throw fail("data_offsets must be two positions", offsets);
  const [begin, end] = offsets;
  const length = shape.reduce((product, size) => product * size, 1);
  if (begin! > end! || end! - begin! !== length * BYTES_OF[dtype as DType]) {
    throw fail(
      `${dtype} [${shape}] needs ${length * BYTES_OF[dtype as DType]} bytes, not these data_offsets`,
      offsets,
    );
  }
  return {
    name: it.name,
    dtype: dtype as DType,
    shape,
    length,
    offset: it.dataStart + begin!,
    byteLength: end! - begin!,
    file: it.file,
  };
}

/** Tensors must fill the data exactly: no overlap, no hole, nothing after the last. */
function checkLayout(infos: readonly TensorInfo[], at_: { dataStart: number; reader: ByteReader }): void {
  const { reader } = at_;
  let position = at_.dataStart;
  for (const info of infos) {
    const end = info.offset + info.byteLength;
    if (info.offset < position) {
      throw new ConfigError(
        `Cannot read tensor ${info.name} as it overlaps another: byte ${info.offset}`,
        at(reader),
      );
    }
    if (info.offset > position) {
      const hole = `bytes ${position} to ${info.offset}`;
      throw new ConfigError(
        `Cannot read tensor ${info.name} as unnamed bytes lie before it: ${hole}`,
        at(reader),
      );
    }
    if (end > reader.size) {
      const message = `Cannot read tensor ${info.name} as the file is truncated: it ends at byte ${reader.size} of ${end}`;
      throw new ConfigError(`${message}. Fetch the file again`, at(reader));
    }
    position = end;
  }
  if (position !== reader.size) {
    throw new ConfigError(
      `Cannot read safetensors as ${reader.size - position} bytes follow its tensors`,
      at(reader),
    );
  }
}

/** f32 values of raw F32, F16, BF16 or F64 bytes. The machine is taken to be little-endian, as all with WebGPU are. */
function toFloats(raw: Uint8Array, info: TensorInfo): Float32Array {
  const width = BYTES_OF[info.dtype];
  // A typed array must start at a multiple of its width: move the bytes where they do not.
  const bytes = raw.byteOffset % width === 0 ? raw : raw.slice();
  const range = [bytes.buffer, bytes.byteOffset, bytes.byteLength / width] as const;
  switch (info.dtype) {
    case "F32":
      return new Float32Array(...range);
    case "F64":
      return Float32Array.from(new Float64Array(...range));
    case "BF16": {
      const halves = new Uint16Array(...range);
      const words = new Uint32Array(halves.length);
      for (let i = 0; i < halves.length; i++) words[i] = halves[i]! << 16;
      return new Float32Array(words.buffer);
    }
    case "F16": {
      const halves = new Uint16Array(...range);
      const table = halfTable();
      const floats = new Float32Array(halves.length);
      for (let i = 0; i < halves.length; i++) floats[i] = table[halves[i]!]!;
      return floats;
    }
  }
  throw new UnsupportedError(
    `Cannot read tensor ${info.name} as floats: it holds ${info.dtype} (${info.file})`,
    {
      part: "safetensors",
      capability: info.dtype,
    },
  );
}

let halfValues: Float32Array | undefined;
/** Value of each of the 65,536 half-precision bit patterns. */
function halfTable(): Float32Array {
  if (halfValues) return halfValues;
  halfValues = new Float32Array(65_536);
  for (let bits = 0; bits < 65_536; bits++) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size =
      exponent === 31
        ? fraction
          ? Number.NaN
          : Number.POSITIVE_INFINITY
        : exponent
          ? (1 + fraction / 1024) * 2 ** (exponent - 15)
          : fraction * 2 ** -24;
    halfValues[bits] = bits >> 15 ? -size : size;
  }
  return halfValues;
}

function toIntegers(bytes: Uint8Array, info: TensorInfo): Float64Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const readers: Partial<Record<DType, (at: number) => number | bigint>> = {
    I64: (i) => view.getBigInt64(i, true),
    U64: (i) => view.getBigUint64(i, true),
    I32: (i) => view.getInt32(i, true),
    U32: (i) => view.getUint32(i, true),
    I16: (i) => view.getInt16(i, true),
    U16: (i) => view.getUint16(i, true),
    I8: (i) => view.getInt8(i),
    U8: (i) => view.getUint8(i),
    BOOL: (i) => view.getUint8(i),
  };
  const read = readers[info.dtype];
  if (!read) {
    throw new UnsupportedError(
      `Cannot read tensor ${info.name} as integers: it holds ${info.dtype} (${info.file})`,
      {
        part: "safetensors",
        capability: info.dtype,
      },
    );
  }
  const width = BYTES_OF[info.dtype];
  return Float64Array.from({ length: info.length }, (_, i) => {
    const value = Number(read(i * width));
    if (Number.isSafeInteger(value)) return value;
    const message = `Cannot read tensor ${info.name} as an element is above 2^53: ${value}`;
    throw new ConfigError(message, { file: info.file });
  });
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((v) => Number.isSafeInteger(v) && v >= 0);
}

function at(reader: ByteReader): { file: string } {
  return { file: reader.name };
}
