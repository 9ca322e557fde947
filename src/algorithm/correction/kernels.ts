/** Kernels of the rollout correction: importance weights, and rejection. */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { forEachRow, trainedIn } from "../../data/offsets.ts";
import { sum } from "../../statistics.ts";
import { clamp } from "../loss/token.ts";
import { divergence } from "./judge.ts";
import { SAFETY_BOUND } from "./rows.ts";

const BINDINGS = {
  logprobs: "read f32",
  rollout: "read f32",
  mask: "read u32",
  offsets: "read u32",
} as const;
const PARAMS = { rows: "u32", low: "f32", high: "f32" } as const;
const ROWS_PER_GROUP = 64;
const grid = ({ rows }: { rows: number }) => folded(Math.ceil(rows / ROWS_PER_GROUP));

export const correctionWeights = defineKernel({
  name: "correction/weights",
  bindings: { ...BINDINGS, weights: "write f32" },
  params: PARAMS,
  constants: { SEQUENCE: 0, ICEPOP: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid,
  reference({ logprobs, rollout, mask, offsets, weights }, { rows, low, high }, constants) {
    const logRatio = (t: number) => logprobs[t]! - rollout[t]!;
    const bounded = (w: number) => (constants.ICEPOP ? (w >= low && w <= high ? w : 0) : Math.min(w, high));
    const weight = (x: number) => bounded(Math.exp(clamp(x, -SAFETY_BOUND, SAFETY_BOUND)));
    forEachRow(offsets.subarray(0, rows + 1), (_, first, end) => {
      const total = sum(trainedIn(mask, first, end).map(logRatio));
      for (let t = first; t < end; t++)
        weights[t] = mask[t] === 0 ? 0 : weight(constants.SEQUENCE ? total : logRatio(t));
    });
  },
});

/** Kinds in the order of the shader's codes, which begin at 1. */
export const KINDS = ["k1", "k2", "k3"] as const;
/** Codes of the shader; 0 is by token. */
export const REDUCTIONS = { sum: 1, mean: 2, max: 3 } as const;

/** A row's statistic; 0 for a row without trained tokens. */
function reduce(values: readonly number[], reduction: number): number {
  if (values.length === 0) return 0;
  if (reduction === REDUCTIONS.max) return Math.max(...values);
  return reduction === REDUCTIONS.mean ? sum(values) / values.length : sum(values);
}

export const correctionReject = defineKernel({
  name: "correction/reject",
  bindings: { ...BINDINGS, kept: "write u32" },
  params: PARAMS,
  constants: { KIND: 1, REDUCTION: 0 },
  tolerance: { relative: 0, absolute: 0 },
  grid,
  reference({ logprobs, rollout, mask, offsets, kept }, { rows, low, high }, constants) {
    const kind = KINDS[constants.KIND! - 1]!;
    const of = (t: number) => divergence(kind, clamp(logprobs[t]! - rollout[t]!, -SAFETY_BOUND, SAFETY_BOUND));
    const passes = (x: number) => x >= low && x <= high;
    forEachRow(offsets.subarray(0, rows + 1), (_, first, end) => {
      const tokens = trainedIn(mask, first, end);
      if (constants.REDUCTION === 0) for (const t of tokens) kept[t] = passes(of(t)) ? kept[t]! : 0;
      else if (!passes(reduce(tokens.map(of), constants.REDUCTION!))) kept.fill(0, first, end);
    });
  },
});
