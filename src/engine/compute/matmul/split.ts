/**
 * Products whose sums along k are computed in parts side by side, then added first to last. For gradients only: the number of parts
 * may follow from the number of rows, and a forward pass gives a row the same bits in every batch.
 */
import type { Buffer, Device } from "../device.ts";
import { defineKernel, folded } from "../kernel.ts";
import { FORMAT, type PackedFormat } from "../packed.ts";
import { MATMUL_KERNELS, MODE, PACKED_KERNELS, type ProductParams, TILES } from "./kernels.ts";

/** Tiles of C with which a large GPU is busy, several of them on each of its multiprocessors. */
const WANTED_TILES = 1024;
const MOST_PARTS = 8;
/** Shorter parts gain less than their sums cost. */
const LEAST_LENGTH = 1024;

/** How many parts fill a GPU; 1 where the product does without. */
export function partsAlongK({ info }: Device, { m, n, k }: Pick<ProductParams, "m" | "n" | "k">): number {
  const { rows, columns } = TILES.tiled_large;
  const tiles = Math.ceil(m / rows) * Math.ceil(n / columns);
  const fitting = Math.floor(info.limits.maxBindingBytes / (m * n * 4));
  const parts = Math.min(MOST_PARTS, Math.ceil(WANTED_TILES / tiles), Math.floor(k / LEAST_LENGTH), fitting);
  return Math.max(parts, 1);
}

/** C (+)= alpha times the sum of its parts. sums [parts, rows, width], width a multiple of 4. */
export const fold = defineKernel({
  name: "matmul/fold",
  bindings: { sums: "read f32", c: "write f32" },
  params: {
    rows: "u32",
    width: "u32",
    parts: "u32",
    c_offset: "u32",
    c_row: "u32",
    alpha: "f32",
    accumulate: "u32",
  },
  constants: { WORKGROUP: 64 },
  grid: ({ rows, width }, { WORKGROUP }) => folded(Math.ceil((rows * width) / 4 / WORKGROUP!)),
  reference({ sums, c }, { rows, width, parts, c_offset, c_row, alpha, accumulate }) {
    for (let i = 0; i < rows * width; i++) {
      let sum = 0;
      for (let part = 0; part < parts; part++) sum += sums[part * rows * width + i]!;
      const at = c_offset + Math.floor(i / width) * c_row + (i % width);
      c[at] = (accumulate ? c[at]! : 0) + alpha * sum;
    }
  },
  tolerance: { relative: 1e-6, absolute: 1e-6 },
});

/** A product that is written to C or accumulated there, with whole vec4 for `matmul/tiled_large`. */
interface SplitProduct {
  readonly params: ProductParams;
  readonly buffers: Readonly<Record<"a" | "b" | "scales" | "addend" | "c", Buffer>>;
  readonly format: PackedFormat | undefined;
  readonly parts: number;
}

/** Records the product, with scratch for the sums of the parts. */
export function multiplyInParts(device: Device, { params, buffers, format, parts }: SplitProduct): void {
  const { m, n, alpha, c_offset, c_row, mode } = params;
  const sums = device.alloc(parts * m * n * 4, "sums in parts");
  const product = {
    buffers: { ...buffers, c: sums },
    params: { ...params, alpha: 1, mode: MODE.write, c_offset: 0, c_row: n },
    constants: { ROWS: TILES.tiled_large.rows, PARTS: parts },
  };
  if (format)
    device.dispatch(PACKED_KERNELS.tiled_large, {
      ...product,
      constants: { ...product.constants, FORMAT: FORMAT[format] },
    });
  else device.dispatch(MATMUL_KERNELS.tiled_large, product);
  device.dispatch(fold, {
    buffers: { sums, c: buffers.c },
    params: { rows: m, width: n, parts, c_offset, c_row, alpha, accumulate: mode === MODE.accumulate ? 1 : 0 },
  });
  device.release(sums);
}
