/**
 * {@link sample} for GPUs, with a workgroup per segment of a row's logits, because one per row leaves a GPU idle: softmax and best of
 * each segment; where rows have filters, eight histograms of integers that find the smallest logit kept, a byte at a time, and what
 * is kept of each segment; the draw.
 */

import { uniformAt } from "../../../leaves/random.ts";
import type { Buffer, Device, DispatchOptions } from "../../compute/device.ts";
import { defineKernel, folded } from "../../compute/kernel.ts";
import type { Scratch } from "../scratch.ts";
import { drawToken, sample } from "./sample.ts";
import { forEachSegment, segmentCount, segmentGrid, softmaxOf } from "./segments.ts";
import {
  CHOICE_WORDS,
  HISTOGRAM_WORDS,
  RowSelection,
  SEGMENT_FLOATS,
  SELECTION_STEPS,
  settingOf,
} from "./selection.ts";

const FILTER_PARAMS = { rows: "u32", first_row: "u32", vocabulary: "u32", stride: "u32", step: "u32" } as const;

/** Logit where nothing is filtered. */
const LOWEST = -3e38;

/** The softmax and the best logit of each segment, with nothing filtered. */
export const sampleSegments = defineKernel({
  name: "decode/sample_segments",
  bindings: { logits: "read f32", settings: "read f32", segments: "write f32" },
  params: FILTER_PARAMS,
  grid: segmentGrid,
  reference({ logits, settings, segments }, params) {
    forEachSegment(params, (index, { row, first, from, end }) => {
      const rowLogits = logits.subarray(from, end);
      const { inverse } = settingOf(settings, params.first_row + row);
      const [highest, total] = softmaxOf(rowLogits, inverse);
      let best = 0;
      for (const [i, logit] of rowLogits.entries()) if (logit > rowLogits[best]!) best = i;
      segments.set([highest, total, rowLogits[best]!, first + best, total, LOWEST, 0, 0], index * SEGMENT_FLOATS);
    });
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

const SELECTION_BINDINGS = {
  ...sampleSegments.bindings,
  histograms: "write u32",
  choices: "write u32",
} as const;

/**
 * Step `step` of 8: a histogram over one byte of the ordered logits, of counts for top-k (0 to 3), of mass for top-p (4 to 7).
 * histograms [rows, 8, 3, 256], zeros at first; choices [rows, 8, 4]. Rows without the filter are left out.
 */
export const sampleHistogram = defineKernel({
  name: "decode/sample_histogram",
  bindings: SELECTION_BINDINGS,
  params: FILTER_PARAMS,
  grid: segmentGrid,
  reference(buffers, params) {
    for (let row = 0; row < params.rows; row++) new RowSelection(buffers, { row, params }).count(params.step);
  },
  tolerance: { relative: 0, absolute: 0 },
});

/** After the histograms: what the filters keep of each segment. */
export const sampleKept = defineKernel({
  name: "decode/sample_kept",
  bindings: SELECTION_BINDINGS,
  params: FILTER_PARAMS,
  grid: segmentGrid,
  reference(buffers, params) {
    const { logits, settings, segments } = buffers;
    forEachSegment(params, (index, { row, from, end }) => {
      const selection = new RowSelection(buffers, { row, params });
      if (!selection.filters) return;
      const least = Math.max(LOWEST, selection.least());
      const { inverse } = settingOf(settings, params.first_row + row);
      const highest = segments[index * SEGMENT_FLOATS]!;
      let mass = 0;
      for (const logit of logits.subarray(from, end)) if (logit >= least) mass += Math.exp(logit * inverse - highest);
      segments.set([mass, least, 0, 0], index * SEGMENT_FLOATS + 4);
    });
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/** {@link sample} from the segments that the other kernels leave. */
export const sampleTiled = defineKernel({
  ...sample,
  name: "decode/sample_tiled",
  bindings: { ...sample.bindings, segments: "read f32" },
  constants: {},
  grid: ({ rows }) => folded(rows),
  reference({ logits, seeds, positions, settings, next, tokens, logprobs, segments }, params) {
    const { rows, first_row, vocabulary, stride, shift, history_stride } = params;
    for (let local = 0; local < rows; local++) {
      const row = first_row + local;
      const drawn = drawToken(logits.subarray(local * stride, local * stride + vocabulary), {
        ...settingOf(settings, row),
        uniform: uniformAt(seeds[row]!, positions[row]! + shift),
        least: segments[local * segmentCount(vocabulary) * SEGMENT_FLOATS + 5]!,
      });
      next[row] = drawn.token;
      tokens[row * history_stride + shift] = drawn.token;
      logprobs[row * history_stride + shift] = drawn.logprob;
    }
  },
});

/** Filters that any of the rows has. */
export interface Filters {
  readonly topK: boolean;
  readonly topP: boolean;
}

/** The filters of rows with these settings. Greedy rows have none. */
export function filtersOf(rows: readonly { temperature: number; top_p: number; top_k: number }[]): Filters {
  const drawn = rows.filter(({ temperature }) => temperature !== 0);
  return { topK: drawn.some(({ top_k }) => top_k > 0), topP: drawn.some(({ top_p }) => top_p < 1) };
}

type SampleOptions = DispatchOptions<typeof sample.bindings, typeof sample.params> & {
  readonly filters: Filters;
  readonly scratch: Scratch;
};

/** Records {@link sample}: by a thread per row where barriers are slow, by segments on GPUs. */
export function recordSample(device: Device, { buffers, params, filters, scratch }: SampleOptions): void {
  if (device.info.family !== "tiled") {
    device.dispatch(sample, { buffers, params });
    return;
  }
  const { logits, settings } = buffers;
  const count = params.rows * segmentCount(params.vocabulary);
  const segments = scratch.floats(count * SEGMENT_FLOATS, "segments of logits");
  const buffersOfRows = { logits, settings, segments };
  device.dispatch(sampleSegments, { buffers: buffersOfRows, params: { ...params, step: 0 } });
  if (filters.topK || filters.topP) recordFilters(device, { buffers: buffersOfRows, params, filters, scratch });
  device.dispatch(sampleTiled, { buffers: { ...buffers, segments }, params });
  scratch.free(segments);
}

type FilterOptions = Omit<SampleOptions, "buffers"> &
  Pick<DispatchOptions<typeof sampleSegments.bindings, typeof FILTER_PARAMS>, "buffers">;

/** Rows whose histograms are made at once: they fit the smallest bindings, and logits can be sliced there. */
const FILTERED_ROWS = 4096;

function recordFilters(device: Device, at: FilterOptions): void {
  const { rows, first_row, vocabulary, stride } = at.params;
  for (let first = 0; first < rows; first += FILTERED_ROWS) {
    const run = Math.min(FILTERED_ROWS, rows - first);
    const slice = (buffer: Buffer, width: number) => buffer.slice(first * width * 4, run * width * 4);
    const logits = slice(at.buffers.logits, stride);
    const segments = slice(at.buffers.segments, segmentCount(vocabulary) * SEGMENT_FLOATS);
    recordRun(device, {
      ...at,
      buffers: { ...at.buffers, logits, segments },
      params: { ...at.params, rows: run, first_row: first_row + first },
    });
  }
}

function recordRun(device: Device, { buffers, params, filters, scratch }: FilterOptions): void {
  const histograms = scratch.floats(params.rows * HISTOGRAM_WORDS, "histograms of logits");
  const choices = scratch.floats(params.rows * CHOICE_WORDS, "choices of filters");
  device.clear(histograms);
  const rowBuffers = { ...buffers, histograms, choices };
  for (let step = 0; step < SELECTION_STEPS; step++)
    if (step < SELECTION_STEPS / 2 ? filters.topK : filters.topP)
      device.dispatch(sampleHistogram, { buffers: rowBuffers, params: { ...params, step } });
  device.dispatch(sampleKept, { buffers: rowBuffers, params: { ...params, step: SELECTION_STEPS } });
  scratch.free(histograms, choices);
}
