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
 * Estimates each role's advantages with its estimator. By default a trajectory has one advantage, for all of its
 * steps; with `stepwise_advantage` in mode `per_step` each step has its own, compared with the same step of the other
 * trajectories. With `use_precomputed_advantage`, groups whose steps carry advantages keep them (a missing one is 0).
 */
export async function advantages(
  rows: ProcessedRows,
  { settings, estimate }: StageContext,
): Promise<Staged<AdvantageRows>> {
  const { stepwise_advantage, algorithm } = settings;
  const isPerStep = stepwise_advantage.enable && stepwise_advantage.mode === "per_step";
  const isGiven = rows.groups.map((group) => algorithm.use_precomputed_advantage && hasAdvantages(group));
  const perStep = rows.trajectories.map(({ steps }) => new Float32Array(steps.length));
  const metrics: Metrics = {};
  for (const [role, members] of membersByRole(rows)) {
    const estimated = members.filter((i) => !isGiven[rows.groupOfTrajectory[i]]);
    const units = isPerStep ? stepUnits(rows, estimated) : trajectoryUnits(rows, estimated);
    const rewards = Float32Array.from(units, (unit) => unit.reward);
    const groups = numbered(units.map((unit) => unit.group));
    const values = await estimate(rewards, groups, advantageOptions(role, settings));
    units.forEach((unit, u) => {
      checkFinite(values[u], rows.trajectories[unit.trajectory].uid);
      spreadOver(perStep[unit.trajectory], { unit, value: values[u], options: stepwise_advantage });
    });
    Object.assign(
      metrics,
      rewardMetrics(
        role,
        Float32Array.from(estimated, (i) => rows.trajectories[i].reward),
      ),
      advantageMetrics(role, values),
      difficulty(role, rewards, groups),
    );
  }
  const isFlat = !isPerStep && !isGiven.some(Boolean);
  const value = {
    ...rows,
    advantages: isFlat ? perRow(rows, perStep) : perToken(rows, { perStep, isGiven }),
  };
  return { value, metrics };
}

/** What is given one advantage: a trajectory, or one step of it. */
interface Unit {
  readonly trajectory: number;
  readonly step?: number;
  readonly reward: number;
  readonly group: string;
}

function trajectoryUnits(rows: ProcessedRows, members: readonly number[]): Unit[] {
  return members.map((trajectory) => ({
    trajectory,
    reward: rows.trajectories[trajectory].reward,
    group: `${rows.groupOfTrajectory[trajectory]}`,
  }));
}

function stepUnits(rows: ProcessedRows, members: readonly number[]): Unit[] {
  return members.flatMap((trajectory) =>
    rows.trajectories[trajectory].steps.map(({ reward }, step) => ({
      trajectory,
      step,
      reward,
      group: `${rows.groupOfTrajectory[trajectory]}:${step}`,
    })),
  );
}

function spreadOver(
  steps: Float32Array,
  it: { unit: Unit; value: number; options: LoopSettings["stepwise_advantage"] },
): void {
  const { unit, value, options } = it;
  if (unit.step !== undefined) steps[unit.step] = value;
  else steps.fill(options.enable && options.normalize_by_steps ? value / steps.length : value);
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

/** Groups by name as numbers from 0, in order of appearance. */
function numbered(names: readonly string[]): Uint32Array {
  const numbers = new Map<string, number>();
  return Uint32Array.from(names, (name) => {
    const number = numbers.get(name) ?? numbers.size;
    numbers.set(name, number);
    return number;
  });
}

function checkFinite(value: number, uid: string): void {
  if (Number.isFinite(value)) return;
  throw new ConfigError(
    `Cannot train on an advantage as it must be finite: ${value}, of the trajectory ${uid}`,
  );
}

/** All steps of a trajectory have the same one. */
function perRow({ trajectoryOfRow }: ProcessedRows, perStep: readonly Float32Array[]): Float32Array {
  return Float32Array.from(trajectoryOfRow, (trajectory) => perStep[trajectory][0]);
}

function perToken(
  rows: ProcessedRows,
  it: { perStep: readonly Float32Array[]; isGiven: readonly boolean[] },
): Float32Array {
  const values = new Float32Array(rows.tokens.length);
  for (let row = 0; row < rowCount(rows); row++) {
    const trajectory = rows.trajectoryOfRow[row];
    const given = it.isGiven[rows.groupOfTrajectory[trajectory]] ? rows.givenAdvantages : undefined;
    for (let t = rows.offsets[row]; t < rows.offsets[row + 1]; t++) {
      if (!rows.mask[t]) continue;
      values[t] = given ? given[t] || 0 : it.perStep[trajectory][rows.stepOfToken[t]];
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
