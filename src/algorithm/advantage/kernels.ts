/** Kernels of the advantage estimators. Their references call the float64 functions of the estimators. */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { discountedReturns, gaeRow, lastTrained } from "./estimators/gae.ts";
import { groupNorm, leaveOneOut, lengthWeighted, passAtK } from "./estimators/grpo.ts";
import { baselineAdvantages, runningPower } from "./estimators/optimal_token_baseline.ts";

const TOLERANCE = { relative: 2e-5, absolute: 2e-6 };
const GROUPS_PER_WORKGROUP = 64;
const ROWS_PER_WORKGROUP = 64;
const MAX_GROUP_WORKGROUPS = 256;
const SUM_GROUPS = 64;

/** What a group does with its scores. */
export const GROUP_MODE = { norm: 0, others: 1, best: 2, length: 3 } as const;

const groupGrid = ({ groups }: { groups: number }) =>
  [Math.min(Math.ceil(groups / GROUPS_PER_WORKGROUP), MAX_GROUP_WORKGROUPS)] as const;

interface GroupOptions {
  readonly MODE: number;
  readonly BY_DEVIATION: number;
  readonly ALONE_IS_ZERO?: number;
}

function groupFunction(options: GroupOptions, { ddof, epsilon }: { ddof: number; epsilon: number }) {
  const singleton = options.ALONE_IS_ZERO ? ("zero" as const) : ("reward" as const);
  const norm = { byDeviation: options.BY_DEVIATION === 1, ddof, epsilon, singleton };
  const byMode: Record<number, (scores: number[], lengths: number[]) => number[]> = {
    0: (scores) => groupNorm(scores, norm),
    1: (scores) => leaveOneOut(scores, singleton),
    2: (scores) => passAtK(scores, norm),
    3: (scores, lengths) => lengthWeighted(scores, lengths),
  };
  return byMode[options.MODE];
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
    const of = groupFunction(constants as unknown as GroupOptions, params);
    for (let group = 0; group < params.groups; group++) {
      const [first, end] = [group_offsets[group], group_offsets[group + 1]];
      if (first === end) continue;
      const rows = constants.ORDERED
        ? Uint32Array.from({ length: end! - first! }, (_, k) => first! + k)
        : members.subarray(first, end);
      const pick = (from: ArrayLike<number>) => Array.from(rows, (row) => from[row]!);
      const values = of!(pick(scores), constants.MODE === GROUP_MODE.length ? pick(lengths) : []);
      for (const [k, row] of rows.entries()) advantages[row] = values[k]!;
    }
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
    const of = groupFunction(constants as unknown as GroupOptions, params);
    const size = constants.VECTORS! * 4;
    for (let first = 0; first < params.groups * size; first += size)
      advantages.set(of!(Array.from(scores.subarray(first, first + size)), []), first);
  },
});

/** Triples of {@link advantageSums}, added up. */
function totals(sums: Float32Array): [number, number, number] {
  const total: [number, number, number] = [0, 0, 0];
  for (let i = 0; i < 3 * SUM_GROUPS; i++) total[i % 3]! += sums[i]!;
  return total;
}

export const SUMS_BYTES = 3 * SUM_GROUPS * 4;

export const advantageSums = defineKernel({
  name: "advantage/sums",
  bindings: { values: "read f32", weights: "read u32", sums: "write f32" },
  params: { count: "u32", count_epsilon: "f32" },
  constants: { PASS: 0, WEIGHTED: 1, NONZERO: 0 },
  tolerance: TOLERANCE,
  grid: () => [SUM_GROUPS],
  reference({ values, weights, sums }, { count, count_epsilon }, constants) {
    const [n, sum] = constants.PASS === 1 ? totals(sums) : [0, 0];
    const centre = constants.PASS === 1 ? sum / (n + count_epsilon) : 0;
    const parts = [0, 0, 0];
    for (let i = 0; i < count; i++) {
      const weight = constants.NONZERO ? Number(values[i] !== 0) : constants.WEIGHTED ? weights[i] : 1;
      if (weight === 0) continue;
      parts[0]! += weight!;
      parts[1]! += weight! * values[i]!;
      parts[2]! += weight! * (values[i]! - centre) ** 2;
    }
    const written = constants.PASS === 1 ? [2] : [0, 1];
    for (const k of written)
      for (let group = 0; group < SUM_GROUPS; group++) sums[3 * group + k] = group === 0 ? parts[k]! : 0;
  },
});

export const WHITEN_MODE = { whiten: 0, scale: 1 } as const;

export const advantageWhiten = defineKernel({
  name: "advantage/whiten",
  bindings: { weights: "read u32", sums: "read f32", values: "write f32" },
  params: {
    count: "u32",
    count_epsilon: "f32",
    ddof: "f32",
    variance_epsilon: "f32",
    deviation_epsilon: "f32",
  },
  constants: { MODE: 0, SHIFT: 1, MASKED: 0 },
  tolerance: TOLERANCE,
  grid: () => [SUM_GROUPS],
  reference({ weights, sums, values }, params, constants) {
    const [n, sum, squares] = totals(sums);
    const { count, count_epsilon, ddof, variance_epsilon, deviation_epsilon } = params;
    const whiten = constants.MODE === WHITEN_MODE.whiten;
    const centre = whiten && constants.SHIFT ? sum / (n + count_epsilon) : 0;
    const variance = (squares / (n + count_epsilon)) * (n / (n - ddof));
    const scale = whiten
      ? 1 / (Math.sqrt(variance + variance_epsilon) + deviation_epsilon)
      : count / Math.max(n, 1) / deviation_epsilon;
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
    const rewardAt = (t: number, row: number) =>
      constants.TOKEN_REWARDS
        ? rewards[t]!
        : t === lastTrained(mask, offsets[row]!, offsets[row + 1]!)
          ? rewards[row]!
          : 0;
    for (let row = 0; row < params.rows; row++) {
      const range = {
        first: offsets[row]!,
        end: offsets[row + 1]!,
        mask,
        reward: (t: number) => rewardAt(t, row),
      };
      if (constants.MODE === ROWS_MODE.gae) {
        gaeRow(range, values, params, { advantages, returns });
        continue;
      }
      if (constants.MODE === ROWS_MODE.toGo) {
        discountedReturns(range, { gamma: 1, atMasked: "carry and show" }, returns);
        for (let t = range.first; t < range.end; t++)
          advantages[t] = returns[t]! - (constants.BASELINE && mask[t] !== 0 ? values[row]! : 0);
        continue;
      }
      const atMasked = constants.MODE === ROWS_MODE.reset ? ("reset" as const) : ("carry" as const);
      discountedReturns(range, { gamma: params.gamma, atMasked }, returns);
      for (let t = range.first; t < range.end; t++) advantages[t] = returns[t]!;
    }
  },
});

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
    for (let row = 0; row < rows; row++) {
      let next = offsets[row]!;
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++)
        if (!constants.COMPACT || mask[t] !== 0) columns[next++] = t;
      columns.fill(0xffff_ffff, next, offsets[row + 1]);
    }
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
      groups: { offsets: group_offsets.subarray(0, groups + 1), members, fixedSize: 0, ordered: false },
    };
    const options = { compact: constants.COMPACT === 1, zeroTail: constants.ZERO_TAIL === 1 };
    baselineAdvantages(batch, { returns, power, advantages }, options);
  },
});
