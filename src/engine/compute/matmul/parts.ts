/** Splits a product whose matrices exceed one binding into products that fit. */
import { UnsupportedError } from "../../../leaves/errors.ts";
import type { Buffer } from "../device.ts";
import { alignedElements, fittingElements, matrixBytes, scalesBytes } from "../packed.ts";
import { type MatmulOptions, type Matrix, widthOfA, widthOfC } from "./product.ts";

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
const TILE_ROWS = 128;

/**
 * The products that make up one, each with buffers of at most `limit` bytes. A part along k continues the sums of the
 * part before it, so that the bits are those of the whole; with an alpha, or into an accumulated C, it adds to them.
 * @throws {UnsupportedError} where one row is larger, {@link RangeError} where an `input` would have to be cut along k, an
 * `output` along n or k, or an `adapter`.
 */
export function bindableParts(product: MatmulOptions, limit: number): readonly MatmulOptions[] {
  const { a, b, c, addend, bias } = product;
  const buffers = [a.buffer, b.buffer, c.buffer, addend, bias?.buffer];
  if (buffers.every((buffer) => !buffer || buffer.byteLength <= limit)) return [product];
  const large = operands(product).find((operand) => boundRange(operand, limit).length > limit);
  if (!large) return [narrowed(product, limit)];
  return cuts(product, { axis: large.along, size: fittingRows(large, limit) }).flatMap((part) =>
    bindableParts(part, limit),
  );
}

/** The products that make up one, each with at most so many rows of B; whole tiles of them where they fit. */
export function cutRowsOfB(product: MatmulOptions, rows: number): readonly MatmulOptions[] {
  const axis = product.transposeB ? "n" : "k";
  return product[axis] <= rows ? [product] : cuts(product, { axis, size: wholeTiles(rows) });
}

/** The products that make up one, each with at most so many rows of C. */
export function cutRowsOfC(product: MatmulOptions, rows: number): readonly MatmulOptions[] {
  return product.m <= rows ? [product] : cuts(product, { axis: "m", size: rows });
}

function operands(product: MatmulOptions): Operand[] {
  const { m, n, k, a, b, c } = product;
  return [
    { name: "c", matrix: c, along: "m", rows: m, columns: widthOfC(product) },
    product.transposeA
      ? { name: "a", matrix: a, along: "k", rows: k, columns: m }
      : { name: "a", matrix: a, along: "m", rows: m, columns: widthOfA(product) },
    product.transposeB
      ? { name: "b", matrix: b, along: "n", rows: n, columns: k }
      : { name: "b", matrix: b, along: "k", rows: k, columns: n },
  ];
}

/** Range of a buffer to bind: all of it where it fits, else the operand's rows. */
interface BoundRange {
  readonly firstElement: number;
  readonly elements: number;
  /** Bytes. */
  readonly length: number;
}

function boundRange(
  { matrix, rows, columns }: Pick<Operand, "matrix" | "rows" | "columns">,
  limit: number,
): BoundRange {
  const { buffer, offset = 0, stride = columns, format = "float32" } = matrix;
  if (buffer.byteLength <= limit)
    return { firstElement: 0, elements: fittingElements(format, buffer.byteLength), length: buffer.byteLength };
  const alignment = alignedElements(format);
  const firstElement = Math.floor(offset / alignment) * alignment;
  const elements = offset + (Math.max(rows, 1) - 1) * stride + columns - firstElement;
  return { firstElement, elements, length: matrixBytes(format, elements) };
}

function fittingRows({ name, matrix, columns }: Operand, limit: number): number {
  const { stride = columns, format = "float32" } = matrix;
  const fitting = Math.floor((fittingElements(format, limit) - alignedElements(format) - columns) / stride) + 1;
  if (fitting < 1)
    throw new UnsupportedError(
      `Cannot multiply by matrix ${name}: one of its rows (${columns} values) exceeds what one binding of this device holds (${limit} bytes). Use another device.`,
      { part: "device", capability: "maxStorageBufferBindingSize" },
    );
  return wholeTiles(fitting);
}

function wholeTiles(rows: number): number {
  return rows < TILE_ROWS ? rows : Math.floor(rows / TILE_ROWS) * TILE_ROWS;
}

function cuts(product: MatmulOptions, { axis, size }: { axis: Axis; size: number }): MatmulOptions[] {
  const { input, output, adapter } = product;
  const fused = axis === "k" && input ? input.kind : axis !== "m" && output ? output.kind : adapter && "an adapter";
  if (fused)
    throw new RangeError(
      `Cannot fuse ${fused} into a product: one binding does not hold its ${axis} (${product[axis]}). Multiply without it.`,
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
  { alpha = 1, accumulate, addend, bias, continues }: MatmulOptions,
  { isFirst, isLast }: { isFirst: boolean; isLast: boolean },
): Pick<MatmulOptions, "accumulate" | "addend" | "bias" | "continues"> {
  const added = (isAdded: boolean) => (isAdded ? { addend, bias } : { addend: undefined, bias: undefined });
  if (alpha === 1 && !accumulate) return { continues: continues || !isFirst, ...added(isLast) };
  return { accumulate: accumulate || !isFirst, ...added(isFirst) };
}

/** The three matrices from index `from` of an axis on, with the same strides. */
function moved(product: MatmulOptions, { axis, from }: { axis: Axis; from: number }) {
  const { m, n, k, transposeA, transposeB, bias } = product;
  const [widthA, widthC] = [widthOfA(product), widthOfC(product)];
  const along = (matrix: Matrix, rowAxis: Axis, columnAxis: Axis, columns: number): Matrix => {
    const { offset = 0, stride = columns } = matrix;
    const step = axis === rowAxis ? stride : axis === columnAxis ? 1 : 0;
    return { ...matrix, offset: offset + from * step, stride };
  };
  return {
    a: transposeA ? along(product.a, "k", "m", m) : along(product.a, "m", "k", widthA),
    b: transposeB ? along(product.b, "n", "k", k) : along(product.b, "k", "n", n),
    c: along(product.c, "m", "n", widthC),
    ...(bias && { bias: { ...bias, offset: (bias.offset ?? 0) + (axis === "n" ? from : 0) } }),
  };
}

/** The same product over slices that hold only the operands' rows. */
function narrowed(product: MatmulOptions, limit: number): MatmulOptions {
  const [c, a, b] = operands(product).map((operand) => narrow(operand.matrix, boundRange(operand, limit)));
  // Sliced as C, because it is laid out as C.
  const addend =
    product.addend && narrow({ ...product.c, buffer: product.addend }, boundRange(operands(product)[0]!, limit)).buffer;
  const bias =
    product.bias && narrow(product.bias, boundRange({ matrix: product.bias, rows: 1, columns: product.n }, limit));
  return { ...product, a: a!, b: b!, c: c!, addend, bias };
}

function narrow(matrix: Matrix, { firstElement, elements }: BoundRange): Matrix {
  const { buffer, offset = 0, format = "float32", scales } = matrix;
  const from = (whole: Buffer, bytesOf: typeof matrixBytes) =>
    slice(whole, bytesOf(format, firstElement), bytesOf(format, elements));
  return {
    ...matrix,
    buffer: from(buffer, matrixBytes),
    offset: offset - firstElement,
    scales: scales && from(scales, scalesBytes),
  };
}

/** Scales end with their matrix, while a buffer bound as a whole may be longer than its matrix. */
function slice(buffer: Buffer, start: number, length: number): Buffer {
  return buffer.slice(start, Math.min(length, buffer.byteLength));
}
