/** Rows of a Parquet file with the values that the file has: hyparquet gives float32 as float64, and replaces bytes that are not UTF-8. */
import type { SchemaTree } from "hyparquet";
import { ConfigError } from "../../leaves/errors.ts";
import { halfBits, halfValue } from "../../leaves/half.ts";
import { parseJson, withBigInts } from "../../leaves/json.ts";
import { decodeUtf8 } from "../../leaves/utf8.ts";

type Row = Readonly<Record<string, unknown>>;

/** Stands for text that cannot be read, until the row is known. */
class Unreadable {
  readonly why: string;
  constructor(why: string) {
    this.why = why;
  }
}

/** @throws {ConfigError} for a file that cannot be read, and for a value, naming its row and column */
export async function parquetRows(bytes: ArrayBuffer, file: string): Promise<Row[]> {
  const { parquetMetadata, parquetReadObjects, parquetSchema } = await import("hyparquet");
  const read = async () => {
    const metadata = parquetMetadata(bytes);
    const rows = await parquetReadObjects({
      file: bytes,
      metadata,
      utf8: false,
      parsers: { stringFromBytes: textOf, jsonFromBytes: jsonOf },
    });
    return { rows, root: parquetSchema(metadata) };
  };
  const { rows, root } = await read().catch((cause: Error) => {
    throw new ConfigError(`Cannot read the Parquet file: ${cause.message}.`, { file });
  });
  return rows.map((row, i) => fieldsOf(row, root, { file, line: i + 1, path: "" }));
}

function textOf(bytes: Uint8Array | undefined): unknown {
  return bytes && attempt("is not UTF-8", () => decodeUtf8(bytes));
}

function jsonOf(bytes: Uint8Array | undefined): unknown {
  return bytes && attempt("is not JSON in UTF-8", () => withBigInts(parseJson(decodeUtf8(bytes))));
}

function attempt(why: string, read: () => unknown): unknown {
  try {
    return read();
  } catch {
    return new Unreadable(why);
  }
}

interface Place {
  readonly file: string;
  readonly line: number;
  /** Path of the column. */
  readonly path: string;
}

function fieldsOf(value: object, tree: SchemaTree, at: Place): Row {
  const children = new Map(tree.children.map((child) => [child.element.name, child]));
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => {
      const path = at.path === "" ? name : `${at.path}.${name}`;
      return [name, readValue(each, children.get(name), { ...at, path })];
    }),
  );
}

/** @param tree undefined below JSON, whose values have no columns */
function readValue(value: unknown, tree: SchemaTree | undefined, at: Place): unknown {
  if (value instanceof Unreadable)
    throw new ConfigError(`Cannot read the row: its text ${value.why}. Write the file again as UTF-8.`, {
      ...at,
      kind: "data",
    });
  if (value === null || value === undefined || !tree || tree.element.converted_type === "JSON") return value;
  if (Array.isArray(value)) return value.map((each) => readValue(each, itemOf(tree), at));
  if (value instanceof Uint8Array) return tree.element.type === "BYTE_ARRAY" ? textOrBytes(value) : value;
  if (typeof value === "object" && !(value instanceof Date)) return structOf(value, tree, at);
  return scalarOf(value, tree, at);
}

/** Bytes of a column that does not say it holds text. */
function textOrBytes(bytes: Uint8Array): unknown {
  const text = textOf(bytes);
  return text instanceof Unreadable ? bytes : text;
}

/** Returns the item of a list: `list.element`, or the repeated field alone. */
function itemOf(tree: SchemaTree): SchemaTree {
  const { children, element } = tree;
  if (element.repetition_type === "REPEATED" && element.converted_type !== "LIST") return tree;
  const [repeated] = children;
  if (!repeated || children.length !== 1) return tree;
  return repeated.children.length === 1 ? repeated.children[0]! : repeated;
}

function structOf(value: object, tree: SchemaTree, at: Place): Row {
  const isMap = tree.element.converted_type === "MAP" || tree.element.logical_type?.type === "MAP";
  if (!isMap) return fieldsOf(value, tree, at);
  const values = tree.children[0]?.children.at(-1);
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, readValue(each, values, at)]));
}

function scalarOf(value: unknown, { element }: SchemaTree, at: Place): unknown {
  if (typeof value === "bigint") return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  if (typeof value !== "number") return value;
  if (element.type === "FLOAT") return shortest(value, Math.fround);
  if (element.logical_type?.type === "FLOAT16") return shortest(value, (half) => halfValue(halfBits(half)));
  if (element.converted_type === "DECIMAL") return decimalOf(value, element.scale ?? 0, at);
  return value;
}

/** The number of fewest digits that is this one in a narrower type: 0.1 for float32's 0.10000000149011612. */
function shortest(value: number, narrow: (value: number) => number): number {
  for (let digits = 1; digits <= 9 && Number.isFinite(value); digits++) {
    const short = Number(value.toPrecision(digits));
    if (narrow(short) === value) return short;
  }
  return value;
}

/** hyparquet multiplies by a power of ten, which is not exact: 3 * 0.1. */
function decimalOf(value: number, scale: number, at: Place): number {
  if (Math.abs(value) * 10 ** scale <= Number.MAX_SAFE_INTEGER) return Number(value.toFixed(scale));
  throw new ConfigError(
    `Cannot read the row: its decimal has more digits than a number keeps (${value}). Write the column as text.`,
    { ...at, kind: "data" },
  );
}
