/** Splits a product whose matrices exceed one binding into products that fit. */
import { UnsupportedError } from "../../errors.ts";
import { type Buffer, SLICE_ALIGNMENT_BYTES } from "../device.ts";
import type { MatmulOptions, Matrix } from "./product.ts";

type Axis = "m" | "n" | "k";

/** A matrix of a product: the axis its rows lie along, and their width. */
interface Operand {
  readonly name: "a" | "b" | "c";
  readonly matrix: Matrix;
  readonly along: Axis;
  readonly rows: number;
  readonly columns: number;
}

/** Rows of a part are a multiple of this where that many fit: whole tiles of any kernel. */
const TILE_ROWS = 64;
const ALIGNMENT = SLICE_ALIGNMENT_BYTES / 4;

/**
 * The products that make up one, each with buffers of at most `limit` bytes. A part along k continues the sums of the
 * part before it, so that the bits are those of the whole; with an alpha, or into an accumulated C, it adds to them.
 * @throws {UnsupportedError} where one row is larger, {@link RangeError} where an `input` would have to be cut along k.
 */
export function bindableParts(product: MatmulOptions, limit: number): readonly MatmulOptions[] {
  const { a, b, c, addend } = product;
  if ([a.buffer, b.buffer, c.buffer, addend].every((buffer) => !buffer || buffer.byteLength <= limit)) return [product];
  const large = operands(product).find((operand) => boundRange(operand, limit).length > limit);
  if (!large) return [narrowed(product, limit)];
  return cuts(product, { axis: large.along, size: fittingRows(large, limit) }).flatMap((part) =>
    bindableParts(part, limit),
  );
}

function operands({ m, n, k, a, b, c, ...product }: MatmulOptions): Operand[] {
  const inputs = product.input?.kind === "swiglu" ? 2 * k : k;
  return [
    { name: "c", matrix: c, along: "m", rows: m, columns: n },
    product.transposeA
      ? { name: "a", matrix: a, along: "k", rows: k, columns: m }
      : { name: "a", matrix: a, along: "m", rows: m, columns: inputs },
    product.transposeB
      ? { name: "b", matrix: b, along: "n", rows: n, columns: k }
      : { name: "b", matrix: b, along: "k", rows: k, columns: n },
  ];
}

/** Bytes of the buffer to bind: all of them where they fit, else the operand's rows. */
function boundRange({ matrix, rows, columns }: Operand, limit: number): { start: number; length: number } {
  const { buffer, offset = 0, stride = columns } = matrix;
  if (buffer.byteLength <= limit) return { start: 0, length: buffer.byteLength };
  const start = Math.floor(offset / ALIGNMENT) * SLICE_ALIGNMENT_BYTES;
  return { start, length: (offset + (Math.max(rows, 1) - 1) * stride + columns) * 4 - start };
}

function fittingRows({ name, matrix, columns }: Operand, limit: number): number {
  const { stride = columns } = matrix;
  const fitting = Math.floor((limit / 4 - ALIGNMENT - columns) / stride) + 1;
  if (fitting < 1)
    throw new UnsupportedError(
      `Cannot multiply by matrix ${name}: one of its rows (${columns} values) exceeds what one binding of this device holds (${limit} bytes). Use another device.`,
      { part: "device", capability: "maxStorageBufferBindingSize" },
    );
  return fitting < TILE_ROWS ? fitting : Math.floor(fitting / TILE_ROWS) * TILE_ROWS;
}

function cuts(product: MatmulOptions, { axis, size }: { axis: Axis; size: number }): MatmulOptions[] {
  if (axis === "k" && product.input)
    throw new RangeError(
      `Cannot fuse ${product.input.kind} into a product: one binding does not hold its k (${product.k}). Multiply without input.`,
    );
  const found: MatmulOptions[] = [];
  for (let from = 0; from < product[axis]; from += size) {
    const length = Math.min(size, product[axis] - from);
    found.push({
      ...product,
      [axis]: length,
      ...moved(product, { axis, from }),
      ...(axis === "k" && joined(product, { isFirst: from === 0, isLast: from + length === product.k })),
    });
  }
  return found;
}

/** How a part along k joins those before it. */
function joined(
  { alpha = 1, accumulate, addend, continues }: MatmulOptions,
  { isFirst, isLast }: { isFirst: boolean; isLast: boolean },
): Pick<MatmulOptions, "accumulate" | "addend" | "continues"> {
  if (alpha === 1 && !accumulate) return { continues: continues || !isFirst, addend: isLast ? addend : undefined };
  return { accumulate: accumulate || !isFirst, addend: isFirst ? addend : undefined };
}

/** The three matrices from index `from` of an axis on, with the same strides. */
function moved(product: MatmulOptions, { axis, from }: { axis: Axis; from: number }) {
  const { m, n, k, transposeA, transposeB } = product;
  const along = (matrix: Matrix, rowAxis: Axis, columnAxis: Axis, columns: number): Matrix => {
    const { buffer, offset = 0, stride = columns } = matrix;
    const step = axis === rowAxis ? stride : axis === columnAxis ? 1 : 0;
    return { buffer, offset: offset + from * step, stride };
  };
  return {
    a: transposeA ? along(product.a, "k", "m", m) : along(product.a, "m", "k", k),
    b: transposeB ? along(product.b, "n", "k", k) : along(product.b, "k", "n", n),
    c: along(product.c, "m", "n", n),
  };
}

/** The same product over slices that hold only the operands' rows. */
function narrowed(product: MatmulOptions, limit: number): MatmulOptions {
  const narrow = (operand: Operand): { matrix: Matrix; start: number; length: number } => {
    const { start, length } = boundRange(operand, limit);
    const { buffer, offset = 0, stride } = operand.matrix;
    return {
      matrix: { buffer: slice(buffer, start, length), offset: offset - start / 4, stride },
      start,
      length,
    };
  };
  const [c, a, b] = operands(product).map(narrow);
  // Laid out as C, hence sliced as C.
  const addend = product.addend && slice(product.addend, c!.start, c!.length);
  return { ...product, a: a!.matrix, b: b!.matrix, c: c!.matrix, addend };
}

function slice(buffer: Buffer, start: number, length: number): Buffer {
  if (start === 0 && length >= buffer.byteLength) return buffer;
  return buffer.slice(start, Math.min(length, buffer.byteLength - start));
}
