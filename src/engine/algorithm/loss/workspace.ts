/** Layout of a loss's f32 workspace on the device, and how its sums are read back. */

import { addStrided, sum } from "../../../leaves/statistics.ts";
import type { Data, Device } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import { TOKEN_GROUPS } from "./aggregation.ts";
import { SUM_COUNT } from "./pass.ts";
import { PASS_GROUPS } from "./pass_kernel.ts";

/** Elements per slice alignment. */
const ALIGNMENT = 64;
/** Columns of the row table: weight, advantage, and the row statistic's a and b. */
const TABLE_COLUMNS = 4;

/** All in elements: row table, partial sums by window and workgroup, partial entropies, the selection's threshold. */
export interface LossLayout {
  readonly rowStride: number;
  readonly partialsAt: number;
  readonly windows: number;
  readonly entropyAt: number;
  readonly thresholdAt: number;
  readonly length: number;
}

export function layOutWorkspace(tokens: number, rows: number, windowTokens: number): LossLayout {
  const rowStride = Math.max(Math.ceil(rows / ALIGNMENT) * ALIGNMENT, ALIGNMENT);
  const windows = Math.ceil(tokens / windowTokens);
  const partialsAt = TABLE_COLUMNS * rowStride;
  const entropyAt = partialsAt + windows * PASS_GROUPS * SUM_COUNT;
  const thresholdAt = entropyAt + windows * TOKEN_GROUPS;
  return { rowStride, partialsAt, windows, entropyAt, thresholdAt, length: thresholdAt + ALIGNMENT };
}

/** Tokens that one binding holds, in whole slices. */
export function maxWindow(device: Device): number {
  return Math.floor(device.info.limits.maxBindingBytes / F32_BYTES / ALIGNMENT) * ALIGNMENT;
}

/** A part of the tokens that is dispatched at once. */
export interface Window {
  readonly first: number;
  readonly tokens: number;
}

export function windowsOf(tokens: number, windowTokens: number): Window[] {
  return Array.from({ length: Math.ceil(tokens / windowTokens) }, (_, index) => {
    const first = index * windowTokens;
    return { first, tokens: Math.min(windowTokens, tokens - first) };
  });
}

/**
 * Adds up the partial sums.
 * @param data the workspace from `partialsAt` to `thresholdAt`
 * @returns sums in the order of SUMS, and the aggregated entropy: 0 where none was computed
 */
export function addPartials(data: Data, { windows }: LossLayout): { sums: Float64Array; entropy: number } {
  const end = windows * PASS_GROUPS * SUM_COUNT;
  const sums = Float64Array.from(addStrided(data.subarray(0, end), SUM_COUNT));
  return { sums, entropy: sum(data.subarray(end, end + windows * TOKEN_GROUPS)) };
}
