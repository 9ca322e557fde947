/** Rows of an embedding table by token id, whatever its format and size. */
import type { Buffer, Device } from "../compute/device.ts";
import { FORMAT } from "../compute/packed.ts";
import { embedding, embeddingPacked } from "./kernels/embedding.ts";
import { type RowMatrix, rowWindows } from "./row_windows.ts";

/** out [count, width] = the table's rows `tokens` [count]; a table beyond one binding is walked in windows. Records only. */
export function embedRows(
  device: Device,
  table: RowMatrix & { readonly buffer: Buffer },
  { tokens, out, count }: { tokens: Buffer; out: Buffer; count: number },
): void {
  const { width, format = "float32" } = table;
  for (const { first, rows, buffer, scales = buffer } of rowWindows(device, table.buffer, table)) {
    const params = { tokens: count, width, first_row: first, row_count: rows };
    if (format === "float32") device.dispatch(embedding, { buffers: { tokens, table: buffer, out }, params });
    else
      device.dispatch(embeddingPacked, {
        buffers: { tokens, table: buffer, out, scales },
        params,
        constants: { FORMAT: FORMAT[format] },
      });
  }
}
