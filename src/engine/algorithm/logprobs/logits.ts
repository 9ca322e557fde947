/** Log-probs, entropies and sums of squared probabilities from materialised logits in one pass, and back. */
import type { Buffer, Device } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import type { PassParams } from "./kernels.ts";
import {
  allocStatistics,
  backwardPiece,
  forwardPiece,
  type LogitShape,
  releaseStatistics,
  type StatisticsGradient,
  type TokenStatistics,
} from "./statistics.ts";

/** Log-probs from logits, in GPU buffers, and the way back. */
export interface RecordedLogprobs extends TokenStatistics {
  /** Turns the logits into their gradient, in place. */
  backward(gradient: StatisticsGradient): void;
  release(): void;
}

/** Elements per slice alignment. */
const ALIGNMENT = 64;

/**
 * Records the statistics of materialised logits, and on demand their gradient in place. Where one binding cannot hold
 * them, windows of rows are dispatched one after the other.
 * @param input.logits f32 [rows, stride]; stride (default V) must be a multiple of 4
 * @param input.targets u32 [rows]
 * @throws {RangeError} for another stride
 */
export function recordLogprobs(
  device: Device,
  input: LogitShape & { readonly logits: Buffer; readonly targets: Buffer; readonly stride?: number | undefined },
): RecordedLogprobs {
  const { rows, vocabulary, targets, stride = vocabulary } = input;
  if (stride % 4 !== 0)
    throw new RangeError(`Cannot read logits: their stride is no multiple of 4 (${stride}). Pad the rows.`);
  const statistics = allocStatistics(device, rows);
  const windows = logitWindows({ ...input, stride }, maxRows(device, stride));
  for (const window of windows) forwardPiece(device, { ...window, targets, statistics, states: statistics.logSumExps });
  return {
    ...statistics,
    backward(gradient) {
      for (const window of windows) backwardPiece(device, { ...window, targets, statistics, gradient });
    },
    release: () => releaseStatistics(device, statistics),
  };
}

/** Rows of logits that one binding holds, so that every window starts at a slice's alignment. */
function maxRows(device: Device, stride: number): number {
  const step = ALIGNMENT / gcd(ALIGNMENT, stride);
  const held = Math.floor(device.info.limits.maxBindingBytes / F32_BYTES / stride / step) * step;
  return Math.max(held, step);
}

function logitWindows(
  { rows, vocabulary, stride, logits, temperature = 1 }: LogitShape & { logits: Buffer; stride: number },
  rowsPerWindow: number,
): { logits: Buffer; params: PassParams }[] {
  return Array.from({ length: Math.ceil(rows / rowsPerWindow) }, (_, index) => {
    const first_row = index * rowsPerWindow;
    const count = Math.min(rowsPerWindow, rows - first_row);
    return {
      logits: logits.slice(first_row * stride * F32_BYTES, count * stride * F32_BYTES),
      params: {
        rows: count,
        first_row,
        columns: vocabulary,
        column_offset: 0,
        stride,
        inverse_temperature: 1 / temperature,
      },
    };
  });
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
