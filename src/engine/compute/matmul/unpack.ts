/** Products by a packed B whose kernels read f32: parts of B are unpacked to scratch, one after another. */
import type { Buffer, Device } from "../device.ts";
import { defineKernel, folded } from "../kernel.ts";
import { elementReader, FORMAT, type PackedFormat } from "../packed.ts";
import { cutRowsOfB } from "./parts.ts";
import type { MatmulOptions } from "./product.ts";

/** A part of B takes at most this as f32, or one row where that is larger. */
export const UNPACKED_BYTES = 16 * 2 ** 20;

/** Rows of a packed matrix as f32, or their transpose. */
export const unpackMatrix = defineKernel({
  name: "matmul/unpack",
  bindings: { words: "read u32", scales: "read f32", out: "write f32" },
  params: { rows: "u32", columns: "u32", offset: "u32", stride: "u32", out_row: "u32", out_column: "u32" },
  constants: { WORKGROUP: 64, FORMAT: FORMAT.bfloat16 },
  grid: ({ rows, columns }, { WORKGROUP }) =>
    folded(Math.ceil((Math.ceil(rows / 4) * Math.ceil(columns / 4)) / WORKGROUP!)),
  reference({ words, scales, out }, { rows, columns, offset, stride, out_row, out_column }, { FORMAT: format }) {
    const read = elementReader(format!, words, scales);
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) out[r * out_row + c * out_column] = read(offset + r * stride + c);
  },
  tolerance: { relative: 0, absolute: 0 },
});

/** The products that make up one by a packed B, each by f32 rows that lie along k. `multiply` records one of them. */
export function multiplyUnpacked(
  device: Device,
  product: MatmulOptions,
  { format, multiply }: { format: PackedFormat; multiply: (part: MatmulOptions) => void },
): void {
  const columns = product.transposeB ? product.k : product.n;
  const limit = Math.min(UNPACKED_BYTES, device.info.limits.maxBindingBytes) / 4;
  const parts = cutRowsOfB(product, Math.max(Math.floor(limit / columns), 1));
  const scratch = device.alloc(Math.max(...parts.map(({ n, k }) => n * k)) * 4, "unpacked weights");
  for (const part of parts) {
    unpackInto(device, scratch, { ...part, format });
    multiply({ ...part, b: { buffer: scratch }, transposeB: false });
  }
  device.release(scratch);
}

/** B as [k, n]. */
function unpackInto(
  device: Device,
  out: Buffer,
  { n, k, b, transposeB, format }: MatmulOptions & { format: PackedFormat },
): void {
  const [rows, columns] = transposeB ? [n, k] : [k, n];
  device.dispatch(unpackMatrix, {
    buffers: { words: b.buffer, scales: b.scales ?? b.buffer, out },
    params: {
      ...{ rows, columns, offset: b.offset ?? 0, stride: b.stride ?? columns },
      ...(transposeB ? { out_row: 1, out_column: rows } : { out_row: columns, out_column: 1 }),
    },
    constants: { FORMAT: FORMAT[format] },
  });
}
