/**
 * Reads a GGUF container: its metadata, and where its tensors lie. Everything that the file says of sizes is compared with
 * the file's own before it is believed.
 * @see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3)
 */
import { ConfigError, UnsupportedError } from "../../../../leaves/errors.ts";
import type { ByteReader } from "../reader.ts";
import { bytesOfElements, GGML_TYPES, type GgmlType, ggmlType } from "./types.ts";

export type MetadataValue = number | boolean | string | readonly (number | boolean | string)[];

/** Position of a tensor in its file. */
export interface StoredTensor {
  readonly name: string;
  /** Row-major: the file has the sizes in the other order. */
  readonly shape: readonly number[];
  readonly type: GgmlType;
  readonly reader: ByteReader;
  /** First byte in the file. */
  readonly offset: number;
  readonly byteLength: number;
}

export interface GgufFile {
  readonly metadata: ReadonlyMap<string, MetadataValue>;
  readonly tensors: readonly StoredTensor[];
}

/** Vocabularies of 262,144 tokens take 8 MiB. */
const MOST_HEADER_BYTES = 2 ** 28;
const FIRST_BYTES = 2 ** 20;
const MOST_DIMENSIONS = 4;

/** @throws ConfigError that names the file for one that is damaged; UnsupportedError for an element type that is not read here. */
export async function parseGguf(reader: ByteReader): Promise<GgufFile> {
  // Nothing says how long the header is: it is read again, twice as far, until it ends.
  for (let length = Math.min(FIRST_BYTES, reader.size); ; length = Math.min(2 * length, reader.size)) {
    const cursor = new Cursor(await reader.read(0, length), reader);
    try {
      return parse(cursor, reader);
    } catch (error) {
      if (!(error instanceof HeaderEnds)) throw error;
      if (length === reader.size) throw damaged(reader, `it ends inside its header (byte ${length})`);
      if (length >= MOST_HEADER_BYTES) throw damaged(reader, `its header is over ${MOST_HEADER_BYTES} bytes`);
    }
  }
}

function parse(cursor: Cursor, reader: ByteReader): GgufFile {
  if (reader.size < 24 || cursor.text(4) !== "GGUF") throw damaged(reader, 'it does not begin with "GGUF"');
  const version = cursor.u32();
  if (version !== 2 && version !== 3)
    throw damaged(reader, `its version must be 2 or 3, little-endian (${version >>> 0})`);
  const [tensorCount, keyCount] = [cursor.count(24), cursor.count(13)];
  const metadata = new Map<string, MetadataValue>();
  for (let i = 0; i < keyCount; i++) {
    const key = cursor.string();
    if (metadata.has(key)) throw damaged(reader, `it has the key ${shown(key)} twice`);
    metadata.set(key, cursor.value(cursor.u32(), key));
  }
  const entries = Array.from({ length: tensorCount }, () => tensorEntry(cursor, reader));
  const alignment = metadata.get("general.alignment") ?? 32;
  if (typeof alignment !== "number" || alignment < 1 || !Number.isSafeInteger(Math.log2(alignment)))
    throw damaged(reader, `general.alignment must be a power of 2 (${alignment})`);
  const start = Math.ceil(cursor.position / alignment) * alignment;
  const tensors = entries.map((entry) => ({ ...entry, reader, offset: start + entry.offset }));
  checkLayout(tensors, { alignment, start, reader });
  return { metadata, tensors };
}

function tensorEntry(cursor: Cursor, reader: ByteReader): Omit<StoredTensor, "reader"> {
  const name = cursor.string();
  const fail = (rule: string) => damaged(reader, `tensor ${shown(name)} ${rule}`);
  const dimensions = cursor.u32();
  if (dimensions < 1 || dimensions > MOST_DIMENSIONS) throw fail(`has ${dimensions} dimensions`);
  const shape = Array.from({ length: dimensions }, () => cursor.u64()).reverse();
  const length = shape.reduce((product, size) => product * size, 1);
  if (!Number.isSafeInteger(length)) throw fail(`has the shape [${shape}]`);
  const { type, name: typeName } = ggmlType(cursor.u32());
  if (type === undefined)
    throw new UnsupportedError(
      `Cannot read tensor ${shown(name)}: its type is ${typeName} (${reader.name}). Give a file in ${Object.keys(GGML_TYPES).join(", ")}.`,
      { part: "gguf", capability: typeName },
    );
  if (shape.at(-1)! % GGML_TYPES[type].block !== 0)
    throw fail(`has rows of ${shape.at(-1)}, which ${type} cannot hold`);
  return { name, shape, type, offset: cursor.u64(), byteLength: bytesOfElements(length, type) };
}

/** Tensors overlap neither each other nor the header, and end within the file. */
function checkLayout(
  tensors: readonly StoredTensor[],
  { alignment, start, reader }: { alignment: number; start: number; reader: ByteReader },
): void {
  const names = new Set<string>();
  let end = start;
  for (const { name, offset, byteLength } of [...tensors].sort((a, b) => a.offset - b.offset)) {
    const fail = (rule: string) => damaged(reader, `tensor ${shown(name)} ${rule}`);
    if (names.has(name)) throw fail("is there twice");
    names.add(name);
    if ((offset - start) % alignment !== 0) throw fail(`begins at byte ${offset}, no multiple of ${alignment}`);
    if (offset < end) throw fail(`overlaps another (byte ${offset})`);
    end = offset + byteLength;
    if (end > reader.size) throw fail(`ends at byte ${end} of ${reader.size}: the file is truncated`);
  }
}

const shown = (name: string) => JSON.stringify(name.slice(0, 80));

function damaged(reader: ByteReader, what: string): ConfigError {
  return new ConfigError(`Cannot read the GGUF file: ${what}. Fetch the file again.`, { file: reader.name });
}

/** Error of a read that does not hold the whole header. */
class HeaderEnds extends Error {}

/** Numbers of the metadata's types, by their code. */
const SCALARS: Readonly<Record<number, readonly [bytes: number, read: (view: DataView, at: number) => number]>> = {
  0: [1, (view, at) => view.getUint8(at)],
  1: [1, (view, at) => view.getInt8(at)],
  2: [2, (view, at) => view.getUint16(at, true)],
  3: [2, (view, at) => view.getInt16(at, true)],
  4: [4, (view, at) => view.getUint32(at, true)],
  5: [4, (view, at) => view.getInt32(at, true)],
  6: [4, (view, at) => view.getFloat32(at, true)],
  10: [8, (view, at) => Number(view.getBigUint64(at, true))],
  11: [8, (view, at) => Number(view.getBigInt64(at, true))],
  12: [8, (view, at) => view.getFloat64(at, true)],
};
const [BOOL, STRING, ARRAY] = [7, 8, 9];

/** A token may begin with a byte order mark. */
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Little-endian bytes, read one after another. */
class Cursor {
  position = 0;
  private readonly bytes: Uint8Array;
  private readonly view: DataView;
  private readonly reader: ByteReader;

  constructor(bytes: Uint8Array, reader: ByteReader) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.reader = reader;
  }

  u32(): number {
    return this.view.getUint32(this.take(4), true);
  }

  u64(): number {
    const value = Number(this.view.getBigUint64(this.take(8), true));
    if (value <= this.reader.size * 256) return value;
    throw damaged(this.reader, `it names a size of ${value}, larger than the file can hold`);
  }

  /** A number of things, each of which takes at least `bytes`. */
  count(bytes: number): number {
    const count = this.u64();
    if (count * bytes <= this.reader.size) return count;
    throw damaged(this.reader, `it names ${count} entries, more than the file can hold`);
  }

  text(length: number): string {
    const at = this.take(length);
    try {
      return UTF8.decode(this.bytes.subarray(at, at + length));
    } catch {
      throw damaged(this.reader, `a text at byte ${at} is not UTF-8`);
    }
  }

  string(): string {
    return this.text(this.count(1));
  }

  value(type: number, key: string): MetadataValue {
    if (type !== ARRAY) return this.scalar(type, key);
    const of = this.u32();
    const count = this.count(of === STRING ? 8 : (SCALARS[of]?.[0] ?? 1));
    return Array.from({ length: count }, () => this.scalar(of, key));
  }

  private scalar(type: number, key: string): number | boolean | string {
    if (type === STRING) return this.string();
    if (type === BOOL) return this.bytes[this.take(1)] !== 0;
    const scalar = SCALARS[type];
    if (!scalar) throw damaged(this.reader, `the type of its key ${shown(key)} is unknown (${type})`);
    return scalar[1](this.view, this.take(scalar[0]));
  }

  private take(length: number): number {
    const at = this.position;
    if (at + length > this.bytes.length) throw new HeaderEnds();
    this.position += length;
    return at;
  }
}
