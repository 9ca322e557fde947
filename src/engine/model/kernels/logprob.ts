/**
 * Log-probability and entropy of softmax(logits / temperature), fused with the gather of the chosen token, and their
 * gradient. logits [rows, stride], V of them used; rows may be a window of a larger batch that starts at `first_row`
 * of targets and of every per-row buffer, because the logits of a whole batch may exceed one binding.
 */
import type { Device, DeviceInfo, DispatchOptions } from "../../compute/device.ts";
import { type Constants, defineKernel, folded, type Grid } from "../../compute/kernel.ts";
import type { Scratch } from "../scratch.ts";
import { quads } from "./rows.ts";
import { forEachSegment, segmentCount, segmentGrid, softmaxOf } from "./segments.ts";

const PARAMS = {
  rows: "u32",
  first_row: "u32",
  vocabulary: "u32",
  stride: "u32",
  inverse_temperature: "f32",
} as const;

/** 1 / temperature in f32. Sampler and trainer share it, so that their log-probabilities have the same bits. */
export function inverseTemperature(temperature: number): number {
  return Math.fround(1 / temperature);
}

/** Vec4s of logits per thread of the gradient; DEPTH in the shader. */
const BACKWARD_DEPTH = 16;

const perRow = ({ rows }: { rows: number }, constants: Constants): Grid =>
  folded(Math.ceil(rows / constants.WORKGROUP!));

/** logprobs[r] = log p(targets[r]), entropies[r] = -sum p log p, logSumExps[r] of logits / temperature. */
export const logprob = defineKernel({
  name: "head/logprob",
  bindings: {
    logits: "read f32",
    targets: "read u32",
    logprobs: "write f32",
    entropies: "write f32",
    logSumExps: "write f32",
  },
  params: PARAMS,
  constants: { WORKGROUP: 8 },
  grid: perRow,
  reference({ logits, targets, logprobs, entropies, logSumExps }, params) {
    const { rows, first_row, vocabulary, stride, inverse_temperature } = params;
    for (let row = 0; row < rows; row++) {
      const from = row * stride;
      let max = -Infinity;
      for (let i = 0; i < vocabulary; i++) max = Math.max(max, logits[from + i]! * inverse_temperature);
      let total = 0;
      let weighted = 0;
      for (let i = 0; i < vocabulary; i++) {
        const shifted = logits[from + i]! * inverse_temperature - max;
        const weight = Math.exp(shifted);
        total += weight;
        weighted += weight * shifted;
      }
      const logTotal = Math.log(total);
      const to = first_row + row;
      logprobs[to] = logits[from + targets[to]!]! * inverse_temperature - max - logTotal;
      entropies[to] = logTotal - weighted / total;
      logSumExps[to] = max + logTotal;
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/** greedy[r] = 1 where greedy decoding would draw targets[r], the first of the largest logits; else 0. */
export const greedyHits = defineKernel({
  name: "head/greedy",
  bindings: { logits: "read f32", targets: "read u32", greedy: "write f32" },
  params: PARAMS,
  constants: { WORKGROUP: 8 },
  grid: perRow,
  reference({ logits, targets, greedy }, { rows, first_row, vocabulary, stride }) {
    for (let row = 0; row < rows; row++) {
      const rowLogits = logits.subarray(row * stride, row * stride + vocabulary);
      const target = targets[first_row + row]!;
      const isBeaten = rowLogits.some((x, i) => x > rowLogits[target]! || (x === rowLogits[target]! && i < target));
      greedy[first_row + row] = Number(!isBeaten);
    }
  },
  tolerance: { relative: 0, absolute: 0 },
});

const greedyHitsTiled = defineKernel({
  ...greedyHits,
  name: "head/greedy_tiled",
  constants: {},
  grid: ({ rows }) => folded(rows),
});

/** A thread per row where barriers are slow, a workgroup per row on GPUs. */
export function chooseGreedyHits({ family }: Pick<DeviceInfo, "family">): typeof greedyHits {
  return family === "tiled" ? greedyHitsTiled : greedyHits;
}

/**
 * Replaces logits by their gradient, from a = logprobGrads and b = entropyGrads of each row:
 * (a (1[i = y] - p_i) - b p_i (log p_i + entropy)) / temperature. Columns V .. stride become 0.
 */
export const logprobBackward = defineKernel({
  name: "head/logprob_backward",
  bindings: {
    logits: "write f32",
    targets: "read u32",
    logSumExps: "read f32",
    entropies: "read f32",
    logprobGrads: "read f32",
    entropyGrads: "read f32",
  },
  params: PARAMS,
  constants: { WORKGROUP: 8 },
  grid: ({ rows, stride }, { WORKGROUP }) =>
    folded(rows * Math.ceil(quads(stride, "stride") / (WORKGROUP! * BACKWARD_DEPTH))),
  reference({ logits, targets, logSumExps, entropies, logprobGrads, entropyGrads }, params) {
    const { rows, first_row, vocabulary, stride, inverse_temperature } = params;
    for (let row = 0; row < rows; row++) {
      const from = row * stride;
      const at = first_row + row;
      const a = logprobGrads[at]!;
      const b = entropyGrads[at]!;
      for (let i = 0; i < vocabulary; i++) {
        const logP = logits[from + i]! * inverse_temperature - logSumExps[at]!;
        const p = Math.exp(logP);
        const chosen = i === targets[at] ? a : 0;
        logits[from + i] = inverse_temperature * (chosen - p * (a + b * (logP + entropies[at]!)));
      }
      logits.fill(0, from + vocabulary, from + stride);
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-6 },
});

/** First step of {@link logprob} on GPUs: segments[r, s] = {highest, sum of exp(x - highest), sum of these times x - highest, 0}. */
export const logprobSegments = defineKernel({
  name: "head/logprob_segments",
  bindings: { logits: "read f32", segments: "write f32" },
  params: PARAMS,
  grid: segmentGrid,
  reference({ logits, segments }, params) {
    forEachSegment(params, (at, segment) => {
      segments.set([...softmaxOf(logits.subarray(segment.from, segment.end), params.inverse_temperature), 0], 4 * at);
    });
  },
  tolerance: { relative: 1e-5, absolute: 1e-4 },
});

/** {@link logprob} for GPUs, from what {@link logprobSegments} leaves. `decode/sample_tiled` takes the same sums in the same order. */
export const logprobTiled = defineKernel({
  ...logprob,
  name: "head/logprob_tiled",
  bindings: { ...logprob.bindings, segments: "read f32" },
  constants: {},
  grid: ({ rows }) => folded(rows),
});

const logprobBackwardTiled = defineKernel({ ...logprobBackward, constants: { WORKGROUP: 64 } });

/** The gradient's kernel: each uses its default constants. */
export function chooseLogprobBackward({ family }: Pick<DeviceInfo, "family">): typeof logprobBackward {
  return family === "tiled" ? logprobBackwardTiled : logprobBackward;
}

/** Records {@link logprob}: by a thread per row where barriers are slow, by a workgroup per segment of a row on GPUs. */
export function recordLogprob(
  device: Device,
  { buffers, params, scratch }: DispatchOptions<typeof logprob.bindings, typeof PARAMS> & { readonly scratch: Scratch },
): void {
  if (device.info.family !== "tiled") {
    device.dispatch(logprob, { buffers, params });
    return;
  }
  const segments = scratch.floats(params.rows * segmentCount(params.vocabulary) * 4, "segments of logits");
  device.dispatch(logprobSegments, { buffers: { logits: buffers.logits, segments }, params });
  device.dispatch(logprobTiled, { buffers: { ...buffers, segments }, params });
  scratch.free(segments);
}
