/** Stage 6, advantages: how much better each trajectory (or token) is than its group, from the rewards. */
import { checkAdvantages } from "../../../engine/algorithm/advantage/level.ts";
import type { Advantages, Metrics } from "../../../engine/contract/backend.ts";
import { rowCount } from "../../data/pack.ts";
import type { Step, TrajectoryGroup } from "../../data/types.ts";
import type {
  AdvantageOptions,
  AdvantageRows,
  EstimatedAdvantages,
  ProcessedRows,
  StageContext,
  Staged,
} from "../contract.ts";
import { withTeacher } from "../distill/advantages.ts";
import { isTeacherOnly } from "../distill/choices.ts";
import { groupBy } from "../group_by.ts";
import { algorithmOf } from "../roles.ts";
import type { LoopSettings } from "../settings.ts";
import { difficulty, greedyMetrics, rewardMetrics, roleAdvantageMetrics } from "./advantage_metrics.ts";
import { AdvantageSpread, type Unit } from "./advantage_spread.ts";
import { checkComponents, componentMetrics, componentsOf } from "./components.ts";
import { criticDataMetrics, TargetSpread } from "./critic_targets.ts";

/**
 * Estimates the advantages of each role with the role's estimator. A trajectory has one advantage for all its steps;
 * with `stepwise_advantage` in mode `per_step` each step has one, compared with the same step of the other trajectories.
 * With `use_precomputed_advantage`, a group in which any step carries an advantage keeps what its steps carry: the
 * estimator does not see it, and a step without an advantage counts as 0, as in rLLM's guide (its source raises). With a
 * critic, the returns of what was estimated are its targets. Distillation by policy gradient adds the teacher's advantages,
 * or without task rewards replaces the estimated ones.
 * @throws {ConfigError} for an advantage that is not finite, with its trajectory and token
 */
export async function roleAdvantages(rows: ProcessedRows, context: StageContext): Promise<Staged<AdvantageRows>> {
  if (isTeacherOnly(context.settings)) return withTeacher(rows, unestimated(rows), context);
  const spread = new AdvantageSpread(rows);
  const targets = rows.values && new TargetSpread(rows);
  const metrics: Metrics = {};
  for (const [role, members] of membersByRole(rows))
    Object.assign(metrics, await estimateRole(role, members, { rows, spread, targets, context }));
  Object.assign(metrics, componentMetrics(rows, context.settings));
  const estimated = withTeacher(rows, { value: spread.advantages(), metrics }, context);
  if (!targets) return estimated;
  const { value: advantages } = estimated;
  const value = { ...advantages, advantages: { ...advantages.advantages, targets: targets.targets() } };
  return { value, metrics: { ...estimated.metrics, ...criticDataMetrics(value) } };
}

/** Returns no advantages and the metrics of the rewards, for a run without task rewards. */
function unestimated(rows: ProcessedRows): Staged<Advantages> {
  const metrics: Metrics = {};
  for (const [role, members] of membersByRole(rows)) {
    const rewards_N = members.map((trajectory) => rows.trajectories[trajectory]!.reward);
    Object.assign(metrics, rewardMetrics(role, rewards_N), difficulty(role, trajectoryUnits(rows, members)));
  }
  return { value: { level: "row", values: new Float32Array(rowCount(rows)) }, metrics };
}

interface Batch {
  readonly rows: ProcessedRows;
  readonly spread: AdvantageSpread;
  /** Targets of the critic, where there is one. */
  readonly targets: TargetSpread | undefined;
  readonly context: StageContext;
}

/** Places the advantages of a role's trajectories. Returns its metrics. */
async function estimateRole(role: string, members: readonly number[], batch: Batch): Promise<Metrics> {
  const { rows, spread, context } = batch;
  const { algorithm, stepwise_advantage: stepwise } = context.settings;
  const carry = rows.groups.map(carriesAdvantages);
  const carries = (trajectory: number) => carry[rows.groupOfTrajectory[trajectory]!]!;
  const isGiven = (trajectory: number) => algorithm.use_precomputed_advantage && carries(trajectory);
  const estimated = members.filter((trajectory) => !isGiven(trajectory));
  if (estimated.some(carries)) context.warn?.(overwrites(role));
  const kept = spread.keepGiven(members.filter(isGiven));
  const isPerStep = stepwise.enable && stepwise.mode === "per_step";
  const units = isPerStep ? stepUnits(rows, estimated) : trajectoryUnits(rows, estimated);
  const estimates = isMasked(units, spread) ? zeros(units) : await estimateUnits(units, role, batch);
  spread.put(units, estimates, stepwise);
  batch.targets?.put(units, estimates);
  const rewards_N = estimated.map((trajectory) => rows.trajectories[trajectory]!.reward);
  return {
    ...rewardMetrics(role, rewards_N),
    ...greedyMetrics(role, baselinesOf(units, rows)),
    ...roleAdvantageMetrics(role, [...estimates.values, ...kept]),
    ...difficulty(role, units),
  };
}

/** True where no token of a role is trained: there is nothing to estimate, and a user's estimator may divide by it. */
function isMasked(units: readonly Unit[], spread: AdvantageSpread): boolean {
  return units.length > 0 && units.every((unit) => spread.trainedTokens(unit) === 0);
}

function zeros({ length }: readonly Unit[]): EstimatedAdvantages {
  return { level: "row", values: new Float32Array(length) };
}

async function estimateUnits(
  units: readonly Unit[],
  role: string,
  { rows, spread, context }: Batch,
): Promise<EstimatedAdvantages> {
  const groups_N = numbered(units.map((unit) => unit.group));
  const rewards_N = Float32Array.from(units, (unit) => unit.reward);
  const lengths_N = Uint32Array.from(units, (unit) => spread.trainedTokens(unit));
  const values_T = rows.values && spread.gather(units, rows.values);
  const greedy_N = baselinesOf(units, rows);
  const baselines_N = greedy_N && Float32Array.from(greedy_N);
  const components = componentsOf(units, rows);
  const options = {
    ...advantageOptions(role, context.settings),
    lengths: lengths_N,
    values: values_T,
    baselines: baselines_N,
    components,
  };
  if (options.name === "gdpo") checkComponents(units, rows, options.settings);
  const estimate = await context.estimate(rewards_N, groups_N, options);
  checkAdvantages(estimate, {
    rows: units.length,
    tokens: lengths_N.reduce((sum, length) => sum + length, 0),
    from: `the estimator ${options.name} for the role ${role}`,
  });
  return estimate;
}

/** Undefined unless every unit's trajectory has one. */
function baselinesOf(units: readonly Unit[], { trajectories }: ProcessedRows): readonly number[] | undefined {
  const baselines_N = units.map(({ trajectory }) => trajectories[trajectory]!.reward_baseline);
  return baselines_N.length > 0 && baselines_N.every((each) => each !== undefined) ? baselines_N : undefined;
}

function trajectoryUnits(rows: ProcessedRows, members: readonly number[]): Unit[] {
  return members.map((trajectory) => ({
    trajectory,
    reward: rows.trajectories[trajectory]!.reward,
    group: `${rows.groupOfTrajectory[trajectory]}`,
  }));
}

function stepUnits(rows: ProcessedRows, members: readonly number[]): Unit[] {
  return members.flatMap((trajectory) =>
    rows.trajectories[trajectory]!.steps.map(({ reward }, step) => ({
      trajectory,
      step,
      reward,
      group: `${rows.groupOfTrajectory[trajectory]}:${step}`,
    })),
  );
}

function membersByRole({ groups, groupOfTrajectory }: ProcessedRows): Map<string, number[]> {
  return groupBy(groupOfTrajectory.keys(), (trajectory) => groups[groupOfTrajectory[trajectory]!]!.group_role);
}

function carriesAdvantages(group: TrajectoryGroup): boolean {
  const isSet = (step: Step) => step.advantage !== undefined && step.advantage !== null;
  return group.trajectories.some((trajectory) => trajectory.steps.some(isSet));
}

function advantageOptions(role: string, { algorithm }: LoopSettings): AdvantageOptions {
  const { estimator, estimator_args } = algorithmOf(role, algorithm);
  const { norm_adv_by_std_in_grpo, gamma, lam } = algorithm;
  return { name: estimator, norm_adv_by_std_in_grpo, gamma, lam, settings: estimator_args };
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

function overwrites(role: string): string {
  return (
    `The estimator overwrites advantages that steps of the role ${role} carry. ` +
    "Set rllm.algorithm.use_precomputed_advantage=true to train on those."
  );
}
