/** Additions, factors, copies between layouts, and the transpose. */
import { defineKernel } from "../../compute/kernel.ts";
import { quads, THREADS, threads } from "./rows.ts";

/**
 * y[r, y_offset + c] (+)= scale * x[r, x_offset + c] for c < width; rows are `x_stride` and `y_stride` apart.
 * Added where `accumulate` is 1 (residual), written where 0 (copy between layouts).
 */
export const addScaled = defineKernel({
  name: "layer/add_scaled",
  bindings: { x: "read f32", y: "write f32" },
  params: {
    rows: "u32",
    width: "u32",
    x_stride: "u32",
    x_offset: "u32",
    y_stride: "u32",
    y_offset: "u32",
    scale: "f32",
    accumulate: "u32",
  },
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ x, y }, { rows, width, x_stride, x_offset, y_stride, y_offset, scale, accumulate }) {
    for (let row = 0; row < rows; row++)
      for (let c = 0; c < width; c++) {
        const to = row * y_stride + y_offset + c;
        y[to] = (accumulate ? y[to]! : 0) + scale * x[row * x_stride + x_offset + c]!;
      }
  },
  tolerance: { relative: 1e-6, absolute: 1e-6 },
});

/** x *= scale, in place. `length` is a multiple of 4. */
export const scaleInPlace = defineKernel({
  name: "layer/scale",
  bindings: { x: "write f32" },
  params: { length: "u32", scale: "f32" },
  constants: THREADS,
  grid: ({ length }, constants) => threads(quads(length, "length"), constants),
  reference({ x }, { length, scale }) {
    for (let i = 0; i < length; i++) x[i]! *= scale;
  },
  tolerance: { relative: 1e-6, absolute: 0 },
});

/** x[r, c] *= factors[r], in place, for c < width. */
export const scaleRows = defineKernel({
  name: "layer/scale_rows",
  bindings: { x: "write f32", factors: "read f32" },
  params: { rows: "u32", width: "u32" },
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ x, factors }, { rows, width }) {
    for (let row = 0; row < rows; row++) for (let c = 0; c < width; c++) x[row * width + c]! *= factors[row]!;
  },
  tolerance: { relative: 1e-6, absolute: 0 },
});

/**
 * y[c, r] = x[r, c]. x [rows, columns] starts at `x_offset`, its rows `x_stride` apart; y [columns, rows] likewise. Both
 * may be blocks of larger matrices.
 */
export const transpose = defineKernel({
  name: "layer/transpose",
  bindings: { x: "read f32", y: "write f32" },
  params: {
    rows: "u32",
    columns: "u32",
    x_offset: "u32",
    x_stride: "u32",
    y_offset: "u32",
    y_stride: "u32",
  },
  constants: THREADS,
  grid: ({ rows, columns }, constants) => threads(Math.ceil(rows / 4) * columns, constants),
  reference({ x, y }, { rows, columns, x_offset, x_stride, y_offset, y_stride }) {
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) y[y_offset + c * y_stride + r] = x[x_offset + r * x_stride + c]!;
  },
  tolerance: { relative: 0, absolute: 0 },
});
