/** Kernels of the rollout correction: importance weights, and rejection. */

import { sum } from "../../../leaves/statistics.ts";
import { defineKernel, folded, type Kernel } from "../../compute/kernel.ts";
import { loadShader } from "../../compute/shader.ts";
import { forEachRow, trainedIn } from "../../packing/offsets.ts";
import { clamp } from "../loss/token.ts";
import { SAFETY_BOUND } from "./rows.ts";
import type { Divergence, Reduction, Statistic } from "./statistics.ts";

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

const rejects = new Map<string, Kernel<typeof REJECT_BINDINGS, typeof PARAMS>>();
const REJECT_BINDINGS = { ...BINDINGS, kept: "write u32" } as const;

/** The kernel of one rejection: the frame of correction/reject.wgsl with the statistic's WGSL. */
export function correctionReject(statistic: Statistic): Kernel<typeof REJECT_BINDINGS, typeof PARAMS> {
  const kernel = rejects.get(statistic.name) ?? rejectKernel(statistic);
  rejects.set(statistic.name, kernel);
  return kernel;
}

function rejectKernel({ name, divergence, reduction }: Statistic) {
  return defineKernel({
    name: `correction/reject/${name}`,
    source: async () => `${await loadShader("correction/reject")}\n${statisticWgsl(divergence, reduction)}`,
    bindings: REJECT_BINDINGS,
    params: PARAMS,
    tolerance: { relative: 0, absolute: 0 },
    grid,
    reference({ logprobs, rollout, mask, offsets, kept }, { rows, low, high }) {
      const of = (t: number) => divergence.of(clamp(logprobs[t]! - rollout[t]!, -SAFETY_BOUND, SAFETY_BOUND));
      const passes = (x: number) => x >= low && x <= high;
      forEachRow(offsets.subarray(0, rows + 1), (_, first, end) => {
        const tokens = trainedIn(mask, first, end);
        if (!reduction) for (const t of tokens) kept[t] = passes(of(t)) ? kept[t]! : 0;
        else if (!passes(tokens.length === 0 ? 0 : reduction.of(tokens.map(of)))) kept.fill(0, first, end);
      });
    },
  });
}

function statisticWgsl(divergence: Divergence, reduction: Reduction | undefined): string {
  return `//#file statistic
const BY_ROW = ${reduction !== undefined};

fn divergence(x: f32) -> f32 {
  return ${divergence.wgsl};
}

fn reduce(n: f32, sum: f32, most: f32) -> f32 {
  return ${reduction?.wgsl ?? "0.0"};
}
`;
}
