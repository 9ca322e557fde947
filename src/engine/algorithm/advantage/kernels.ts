/** Kernels of the advantage estimators. Their references call the float64 functions of the estimators. */

import { sum, weightedMean } from "../../../leaves/statistics.ts";
import { type Constants, defineKernel, folded } from "../../compute/kernel.ts";
import { forEachRow } from "../../packing/offsets.ts";
import { gaeRow } from "./estimators/gae.ts";
import { groupNorm } from "./estimators/grpo.ts";
import { leadOfBest } from "./estimators/grpo_passk.ts";
import { lengthWeighted } from "./estimators/opo.ts";
import { baselineAdvantages, runningPower } from "./estimators/optimal_token_baseline.ts";
import { discountedReturns, lastTrained } from "./estimators/returns.ts";
import { leaveOneOut } from "./estimators/rloo.ts";
import { pick } from "./groups.ts";

const TOLERANCE = { relative: 2e-5, absolute: 2e-6 };
const GROUPS_PER_WORKGROUP = 64;
const ROWS_PER_WORKGROUP = 64;
const MAX_GROUP_WORKGROUPS = 256;
const SUM_GROUPS = 64;

/** Codes of a group's treatment of its scores: grpo, rloo, grpo_passk, opo. */
export const GROUP_MODE = { norm: 0, others: 1, best: 2, length: 3 } as const;

const groupGrid = ({ groups }: { groups: number }) =>
  [Math.min(Math.ceil(groups / GROUPS_PER_WORKGROUP), MAX_GROUP_WORKGROUPS)] as const;

type GroupFunction = (scores: number[], lengths: number[]) => readonly number[];

function groupFunction(constants: Constants, { ddof, epsilon }: { ddof: number; epsilon: number }): GroupFunction {
  const singleton = constants.ALONE_IS_ZERO ? "zero" : "reward";
  const norm = { byDeviation: constants.BY_DEVIATION === 1, ddof, epsilon, singleton } as const;
  if (constants.MODE === GROUP_MODE.length) return lengthWeighted;
  if (constants.MODE === GROUP_MODE.best) return (scores) => leadOfBest(scores, norm);
  if (constants.MODE === GROUP_MODE.others) return (scores) => leaveOneOut(scores, singleton);
  return (scores) => groupNorm(scores, norm);
}

export const advantageGroup = defineKernel({
  name: "advantage/group",
  bindings: {
    scores: "read f32",
    group_offsets: "read u32",
    members: "read u32",
    lengths: "read u32",
    advantages: "write f32",
  },
  params: { groups: "u32", ddof: "f32", epsilon: "f32" },
  constants: { MODE: 0, BY_DEVIATION: 1, ALONE_IS_ZERO: 0, ORDERED: 0 },
  tolerance: TOLERANCE,
  grid: groupGrid,
  reference({ scores, group_offsets, members, lengths, advantages }, params, constants) {
    const of = groupFunction(constants, params);
    const byLength = constants.MODE === GROUP_MODE.length;
    forEachRow(group_offsets.subarray(0, params.groups + 1), (_, first, end) => {
      if (first === end) return;
      const rows = constants.ORDERED
        ? Uint32Array.from({ length: end - first }, (_, k) => first + k)
        : members.subarray(first, end);
      const values = of(pick(scores, rows), byLength ? pick(lengths, rows) : []);
      for (const [k, row] of rows.entries()) advantages[row] = values[k]!;
    });
  },
});

/** Largest group that advantage/fixed.wgsl keeps in registers. */
export const MAX_FIXED_GROUP = 32;

export const advantageFixed = defineKernel({
  name: "advantage/fixed",
  bindings: { scores: "read f32", advantages: "write f32" },
  params: { groups: "u32", ddof: "f32", epsilon: "f32" },
  constants: { VECTORS: 2, MODE: 0, BY_DEVIATION: 1 },
  tolerance: TOLERANCE,
  grid: groupGrid,
  reference({ scores, advantages }, params, constants) {
    const of = groupFunction(constants, params);
    const size = constants.VECTORS! * 4;
    for (let first = 0; first < params.groups * size; first += size)
      advantages.set(of(Array.from(scores.subarray(first, first + size)), []), first);
  },
});

/** Triples of {@link advantageSums} (weights, mean, squared distances from it), merged. */
function merged(sums: Float32Array): { n: number; mean: number; squares: number } {
  const triples = Array.from({ length: SUM_GROUPS }, (_, k) => sums.subarray(3 * k, 3 * k + 3));
  const means = triples.map(([, mean]) => mean!);
  const mean = weightedMean(means, (k) => triples[k]![0]!);
  const squares = triples.map(([n, groupMean, squares]) => squares! + n! * (groupMean! - mean) ** 2);
  return { n: sum(triples.map(([n]) => n!)), mean, squares: sum(squares) };
}

export const SUMS_BYTES = 3 * SUM_GROUPS * 4;

export const advantageSums = defineKernel({
  name: "advantage/sums",
  bindings: { values: "read f32", weights: "read u32", sums: "write f32" },
  params: { count: "u32" },
  constants: { WEIGHTED: 1, NONZERO: 0 },
  tolerance: TOLERANCE,
  grid: () => [SUM_GROUPS],
  reference({ values, weights, sums }, { count }, constants) {
    const weightOf = (i: number) =>
      constants.NONZERO ? Number(values[i] !== 0) : constants.WEIGHTED ? weights[i]! : 1;
    const mean = weightedMean(values.subarray(0, count), weightOf);
    let [weight, squares] = [0, 0];
    for (let i = 0; i < count; i++) {
      const rowWeight = weightOf(i);
      if (rowWeight === 0) continue;
      weight += rowWeight;
      squares += rowWeight * (values[i]! - mean) ** 2;
    }
    // One workgroup of the reference adds all.
    sums.fill(0, 0, 3 * SUM_GROUPS).set([weight, mean, squares]);
  },
});

export const WHITEN_MODE = { whiten: 0, scale: 1 } as const;

export const advantageWhiten = defineKernel({
  name: "advantage/whiten",
  bindings: { weights: "read u32", sums: "read f32", values: "write f32" },
  params: {
    count: "u32",
    ddof: "f32",
    variance_epsilon: "f32",
    deviation_epsilon: "f32",
  },
  constants: { MODE: 0, SHIFT: 1, MASKED: 0 },
  tolerance: TOLERANCE,
  grid: () => [SUM_GROUPS],
  reference({ weights, sums, values }, params, constants) {
    const { n, mean, squares } = merged(sums);
    const { count, ddof, variance_epsilon, deviation_epsilon } = params;
    const whiten = constants.MODE === WHITEN_MODE.whiten;
    const centre = whiten && constants.SHIFT ? mean : 0;
    const deviation = Math.sqrt(squares / (n - ddof) + variance_epsilon) + deviation_epsilon;
    const whitening = n > ddof ? 1 / deviation : 0;
    const scale = whiten ? whitening : count / Math.max(n, 1) / deviation_epsilon;
    for (let i = 0; i < count; i++)
      values[i] = constants.MASKED && weights[i] === 0 ? 0 : (values[i]! - centre) * scale;
  },
});

export const ROWS_MODE = { gae: 0, discounted: 1, reset: 2, toGo: 3 } as const;

export const advantageRows = defineKernel({
  name: "advantage/rows",
  bindings: {
    rewards: "read f32",
    mask: "read u32",
    offsets: "read u32",
    values: "read f32",
    advantages: "write f32",
    returns: "write f32",
  },
  params: { rows: "u32", gamma: "f32", lam: "f32" },
  constants: { MODE: 0, TOKEN_REWARDS: 1, BASELINE: 1 },
  tolerance: TOLERANCE,
  grid: ({ rows }) => folded(Math.ceil(rows / ROWS_PER_WORKGROUP)),
  reference({ rewards, mask, offsets, values, advantages, returns }, params, constants) {
    const byToken = constants.TOKEN_REWARDS === 1;
    forEachRow(offsets.subarray(0, params.rows + 1), (row, first, end) => {
      const last = lastTrained(mask, first, end);
      const reward = (t: number) => (byToken ? rewards[t]! : t === last ? rewards[row]! : 0);
      const range = { row, first, end, mask, reward };
      if (constants.MODE === ROWS_MODE.gae) return gaeRow(range, values, params, { advantages, returns });
      const options = returnsOptions(constants.MODE!, params.gamma);
      discountedReturns(range, options, returns);
      const baseline = constants.MODE === ROWS_MODE.toGo && constants.BASELINE ? values[row]! : 0;
      for (let t = first; t < end; t++) advantages[t] = returns[t]! - (mask[t] === 0 ? 0 : baseline);
    });
  },
});

function returnsOptions(mode: number, gamma: number): Parameters<typeof discountedReturns>[1] {
  if (mode === ROWS_MODE.toGo) return { gamma: 1, atMasked: "carry and show" };
  return { gamma, atMasked: mode === ROWS_MODE.reset ? "reset" : "carry" };
}

/** Fills the columns that a row does not have. */
const NO_TOKEN = 0xffff_ffff;

export const advantagePower = defineKernel({
  name: "advantage/power",
  bindings: {
    old: "read f32",
    sum_pi_squared: "read f32",
    is_weights: "read f32",
    mask: "read u32",
    offsets: "read u32",
    power: "write f32",
    columns: "write u32",
  },
  params: { rows: "u32" },
  constants: { COMPACT: 0, WEIGHT: 0 },
  tolerance: TOLERANCE,
  grid: ({ rows }) => folded(Math.ceil(rows / ROWS_PER_WORKGROUP)),
  reference({ old, sum_pi_squared, is_weights, mask, offsets, power, columns }, { rows }, constants) {
    const batch = {
      offsets: offsets.subarray(0, rows + 1),
      mask,
      oldLogprobs: old,
      sumPiSquared: sum_pi_squared,
      rolloutIsWeights: constants.WEIGHT ? is_weights : undefined,
    };
    power.set(runningPower(batch));
    forEachRow(batch.offsets, (_, first, end) => {
      let next = first;
      for (let t = first; t < end; t++) if (!constants.COMPACT || mask[t] !== 0) columns[next++] = t;
      columns.fill(NO_TOKEN, next, end);
    });
  },
});

export const advantageBaseline = defineKernel({
  name: "advantage/baseline",
  bindings: {
    group_offsets: "read u32",
    members: "read u32",
    offsets: "read u32",
    mask: "read u32",
    columns: "read u32",
    power: "read f32",
    returns: "write f32",
    advantages: "write f32",
  },
  params: { groups: "u32" },
  constants: { COMPACT: 0, ZERO_TAIL: 1 },
  tolerance: TOLERANCE,
  grid: groupGrid,
  reference({ group_offsets, members, offsets, mask, power, returns, advantages }, { groups }, constants) {
    const batch = {
      offsets,
      mask,
      groups: { offsets: group_offsets.subarray(0, groups + 1), members },
    };
    const options = { compact: constants.COMPACT === 1, zeroTail: constants.ZERO_TAIL === 1 };
    baselineAdvantages(batch, { returns, power, advantages }, options);
  },
});
