/** Stage 6, advantages: rewards into one number per trajectory (or per token) that says how much better than its group it was. */
import type { Metrics } from "../backend.ts";
import { rowCount } from "../data/pack.ts";
import type { Step, TrajectoryGroup } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import type { LoopSettings } from "./settings.ts";
import type { AdvantageRows, ProcessedRows, StageContext, Staged } from "./stages.ts";
import { groupBy, mean, percentile, standardDeviation, summary } from "./statistics.ts";

export interface AdvantageOptions {
  readonly name: string;
  readonly norm_adv_by_std_in_grpo: boolean;
}

/**
 * Advantages of one role's trajectories, [N]. `groups` gives each one's group, 0 to G-1. Called once per role and
 * step, so a batch-level estimator sees the whole role.
 */
export type EstimateAdvantages = (
  rewards: Float32Array,
  groups: Uint32Array,
  options: AdvantageOptions,
) => Float32Array | Promise<Float32Array>;

/** Below this an advantage counts as zero, and a group's rewards as equal. */
const ZERO_BELOW = 1e-8;

/**
 * Estimates each role's advantages with its estimator and spreads them over the rows. With
 * `use_precomputed_advantage`, groups whose steps carry advantages keep them (a missing one is 0).
 */
export async function advantages(
  rows: ProcessedRows,
  { settings, estimate }: StageContext,
): Promise<Staged<AdvantageRows>> {
  const perTrajectory = new Float32Array(rows.trajectories.length);
  const metrics: Metrics = {};
  const isGiven = rows.groups.map(
    (group) => settings.algorithm.use_precomputed_advantage && hasAdvantages(group),
  );
  for (const [role, members] of membersByRole(rows)) {
    const estimated = members.filter((i) => !isGiven[rows.groupOfTrajectory[i]]);
    const rewards = Float32Array.from(estimated, (i) => rows.trajectories[i].reward);
    const groups = Uint32Array.from(estimated, (i) => rows.groupOfTrajectory[i]);
    const values = await estimate(rewards, renumber(groups), advantageOptions(role, settings));
    checkFinite(values, { rows, members: estimated });
    for (let i = 0; i < estimated.length; i++) perTrajectory[estimated[i]] = values[i];
    Object.assign(
      metrics,
      rewardMetrics(role, rewards),
      advantageMetrics(role, values),
      difficulty(role, rewards, groups),
    );
  }
  const spreadOut = isGiven.some(Boolean)
    ? perToken(rows, { perTrajectory, isGiven })
    : perRow(rows, perTrajectory);
  return { value: { ...rows, advantages: spreadOut }, metrics };
}

function membersByRole({ groups, groupOfTrajectory }: ProcessedRows): Map<string, number[]> {
  return groupBy(groupOfTrajectory.keys(), (trajectory) => groups[groupOfTrajectory[trajectory]].group_role);
}

function hasAdvantages(group: TrajectoryGroup): boolean {
  const isSet = (step: Step) => step.advantage !== undefined && step.advantage !== null;
  return group.trajectories.some((trajectory) => trajectory.steps.some(isSet));
}

/** The role's own estimator where `traj_group_adv_estimator_map` names one. */
function advantageOptions(role: string, { algorithm }: LoopSettings): AdvantageOptions {
  const own = algorithm.traj_group_adv_estimator_map[role] as string | { estimator?: string } | undefined;
  const name = (typeof own === "string" ? own : own?.estimator) ?? algorithm.adv_estimator;
  return { name, norm_adv_by_std_in_grpo: algorithm.norm_adv_by_std_in_grpo };
}

/** Group numbers that have gaps into 0 to G-1, in order of appearance. */
function renumber(groups: Uint32Array): Uint32Array {
  const numbers = new Map<number, number>();
  return groups.map((group) => {
    const number = numbers.get(group) ?? numbers.size;
    numbers.set(group, number);
    return number;
  });
}

function checkFinite(values: Float32Array, it: { rows: ProcessedRows; members: readonly number[] }): void {
  const at = values.findIndex((value) => !Number.isFinite(value));
  if (at < 0) return;
  const { uid } = it.rows.trajectories[it.members[at]];
  throw new ConfigError(
    `Cannot train on an advantage as it must be finite: ${values[at]}, of the trajectory ${uid}`,
  );
}

function perRow({ trajectoryOfRow }: ProcessedRows, perTrajectory: Float32Array): Float32Array {
  return Float32Array.from(trajectoryOfRow, (trajectory) => perTrajectory[trajectory]);
}

function perToken(
  rows: ProcessedRows,
  it: { perTrajectory: Float32Array; isGiven: readonly boolean[] },
): Float32Array {
  const values = new Float32Array(rows.tokens.length);
  for (let row = 0; row < rowCount(rows); row++) {
    const trajectory = rows.trajectoryOfRow[row];
    const [from, to] = [rows.offsets[row], rows.offsets[row + 1]];
    const given = it.isGiven[rows.groupOfTrajectory[trajectory]] ? rows.givenAdvantages : undefined;
    for (let t = from; t < to; t++) {
      if (!rows.mask[t]) continue;
      values[t] = given ? given[t] || 0 : it.perTrajectory[trajectory];
    }
  }
  return values;
}

export function rewardMetrics(role: string, rewards: Float32Array): Metrics {
  return summary(`reward/${role}`, rewards);
}

function advantageMetrics(role: string, values: Float32Array): Metrics {
  if (values.length === 0) return {};
  const zeros = values.filter((value) => Math.abs(value) < ZERO_BELOW).length;
  return {
    ...summary(`advantage/${role}`, values),
    [`advantage/${role}/fraction_zero`]: zeros / values.length,
  };
}

/** How hard the groups were: only those with unequal rewards teach. */
function difficulty(role: string, rewards: Float32Array, groups: Uint32Array): Metrics {
  const byGroup = groupBy(rewards.keys(), (i) => groups[i]);
  const compared = Array.from(byGroup.values(), (group) => group.map((i) => rewards[i])).filter(
    (it) => it.length >= 2,
  );
  if (compared.length === 0) return {};
  const means = compared.map(mean);
  const deviations = compared.map(standardDeviation);
  const total = compared.length;
  const informative = deviations.filter((deviation) => deviation >= ZERO_BELOW).length;
  const uniform = means.filter((_, i) => deviations[i] < ZERO_BELOW);
  const name = `batch/${role}`;
  const metrics: Metrics = {
    [`${name}/total`]: total,
    [`${name}/informative`]: informative,
    [`${name}/fractions/effective`]: informative / total,
    [`${name}/fractions/too_easy`]: uniform.filter((value) => value >= 1).length / total,
    [`${name}/fractions/too_hard`]: uniform.filter((value) => value <= 0).length / total,
  };
  for (const p of [10, 50, 90]) {
    metrics[`${name}/group_reward_mean/p${p}`] = percentile(means, p);
    metrics[`${name}/group_reward_std/p${p}`] = percentile(deviations, p);
  }
  return metrics;
}
