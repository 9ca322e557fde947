/** Logits of selected rows of the hidden states, in windows that fit one binding. */
import type { Buffer, Device } from "../compute/device.ts";
import { embedding } from "./kernels/embedding.ts";
import { bufferRows, type RowRun, rowRuns } from "./row_windows.ts";
import type { Scratch } from "./scratch.ts";
import type { Transformer } from "./transformer.ts";
import type { Weights } from "./weights.ts";

/** Logits of one window on a software GPU take this at most, to fit caches as well as a binding. */
const WINDOW_BYTES = 64 * 2 ** 20;
/** A GPU may take more: a gradient's product along V from few rows leaves most of it idle. This share of the rows, and at most so much. */
const WINDOW_SHARE = 1 / 8;
const MAX_WINDOW_BYTES = 2 ** 30;

/** Elements from one row of logits to the next: whole vec4s. */
export function logitStride(vocabSize: number): number {
  return Math.ceil(vocabSize / 4) * 4;
}

/** out[r, :] = from[positions[r], :]. */
export function gatherRows(model: Transformer, at: { from: Buffer; positions: Uint32Array; scratch: Scratch }): Buffer {
  const { hiddenSize: width } = model.config;
  const out = at.scratch.floats(at.positions.length * width, "hidden rows");
  model.device.dispatch(embedding, {
    buffers: { tokens: at.scratch.upload(at.positions, "row positions"), table: at.from, out },
    params: { tokens: at.positions.length, width, first_row: 0, row_count: 2 ** 32 - 1 },
  });
  return out;
}

/** logits [rows, logitStride] of a window's rows of the normed hidden states. */
export function projectLogits(
  model: Transformer,
  weights: Weights,
  io: { normed: Buffer; logits: Buffer; window: RowRun },
): void {
  weights.apply(model.head, {
    x: bufferRows(io.normed, io.window, model.config.hiddenSize),
    y: io.logits,
    m: io.window.rows,
    stride: logitStride(model.config.vocabSize),
  });
}

/** Runs of rows whose logits fit the limit, and whose slices of the hidden states are aligned. */
export function logitWindows(model: Transformer, count: number): RowRun[] {
  const { vocabSize, hiddenSize } = model.config;
  const width = logitStride(vocabSize);
  return rowRuns(model.device, count, {
    width,
    sliced: hiddenSize,
    mostBytes: windowBytes(model.device, count * width * 4),
  });
}

function windowBytes({ info }: Device, allBytes: number): number {
  if (info.family !== "tiled") return WINDOW_BYTES;
  return Math.min(Math.max(allBytes * WINDOW_SHARE, WINDOW_BYTES), MAX_WINDOW_BYTES);
}
