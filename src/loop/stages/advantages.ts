/** Stage 6, advantages: rewards into one number per trajectory (or per token) that says how much better than its group it was. */
import { checkAdvantages } from "../../algorithm/advantage/level.ts";
import type { Advantages, Metrics } from "../../contract/backend.ts";
import { rowCount } from "../../data/pack.ts";
import type { Step, TrajectoryGroup } from "../../data/types.ts";
import { ConfigError } from "../../errors.ts";
import type { AdvantageOptions, AdvantageRows, ProcessedRows, StageContext, Staged } from "../contract.ts";
import { groupBy } from "../group_by.ts";
import type { LoopSettings } from "../settings.ts";
import { advantageMetrics, difficulty, rewardMetrics } from "./advantage_metrics.ts";
import { algorithmOf } from "./roles.ts";

/**
 * Estimates each role's advantages with its estimator. By default a trajectory has one advantage, for all of its
 * steps; with `stepwise_advantage` in mode `per_step` each step has its own, compared with the same step of the other
 * trajectories. With `use_precomputed_advantage`, a group in which any step carries an advantage keeps what its steps
 * carry: the estimator does not see it, and a step without one counts as 0, as rLLM's guide says (its source raises).
 * @throws {ConfigError} for an advantage that is not finite, naming its trajectory and token
 */
export async function advantages(
  rows: ProcessedRows,
  { settings, estimate, warn }: StageContext,
): Promise<Staged<AdvantageRows>> {
  const isPerStep = settings.stepwise_advantage.enable && settings.stepwise_advantage.mode === "per_step";
  const { use_precomputed_advantage } = settings.algorithm;
  const isGiven = rows.groups.map((group) => use_precomputed_advantage && hasAdvantages(group));
  const spread = new Spread(rows);
  const metrics: Metrics = {};
  for (const [role, members] of membersByRole(rows)) {
    const [given, estimated] = split(members, (i) => isGiven[rows.groupOfTrajectory[i]!]!);
    if (estimated.some((i) => hasAdvantages(rows.groups[rows.groupOfTrajectory[i]!]!)))
      warn?.(overwrites(role));
    const kept = spread.keepGiven(given);
    const units = isPerStep ? stepUnits(rows, estimated) : trajectoryUnits(rows, estimated);
    const groups = numbered(units.map((unit) => unit.group));
    const rewards = Float32Array.from(units, (unit) => unit.reward);
    const lengths = Uint32Array.from(units, (unit) => spread.trainedTokens(unit));
    const options = { ...advantageOptions(role, settings), lengths };
    const estimates = checkAdvantages(await estimate(rewards, groups, options), {
      rows: units.length,
      tokens: lengths.reduce((sum, length) => sum + length, 0),
      from: `the estimator ${options.name} for the role ${role}`,
    });
    spread.put(units, estimates, settings.stepwise_advantage);
    const trajectoryRewards = estimated.map((i) => rows.trajectories[i]!.reward);
    Object.assign(
      metrics,
      rewardMetrics(role, trajectoryRewards),
      advantageMetrics(role, [...estimates.values, ...kept]),
      difficulty(role, units),
    );
  }
  return { value: { ...rows, advantages: spread.advantages() }, metrics };
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

/** Lays advantages over a batch: one per row as long as every trajectory has only one, else one per token. */
class Spread {
  private readonly rows: ProcessedRows;
  /** By trajectory, then by step. */
  private readonly perStep: readonly Float32Array[];
  /** Trained tokens by trajectory, then by step. */
  private readonly counts: readonly Uint32Array[];
  /** [T], once something has an advantage per token. */
  private perToken: Float32Array | undefined;
  private readonly isPerToken: Uint8Array;
  private hasOnePerTrajectory = true;

  constructor(rows: ProcessedRows) {
    this.rows = rows;
    this.perStep = rows.trajectories.map(({ steps }) => new Float32Array(steps.length));
    this.counts = rows.trajectories.map(({ steps }) => new Uint32Array(steps.length));
    this.isPerToken = new Uint8Array(rows.trajectories.length);
    this.eachTrained((_, { trajectory, step }) => {
      this.counts[trajectory]![step]!++;
    });
  }

  trainedTokens({ trajectory, step }: Unit): number {
    const counts = this.counts[trajectory]!;
    return step === undefined ? counts.reduce((sum, count) => sum + count, 0) : counts[step]!;
  }

  /** Takes over what the steps of these trajectories carried, 0 where nothing; returns it, token by token. */
  keepGiven(given: readonly number[]): number[] {
    const { givenAdvantages, trajectories } = this.rows;
    const kept: number[] = [];
    this.fillTokens(new Set(given), (t, { row, trajectory }) => {
      const value = givenAdvantages?.isGiven[t] ? givenAdvantages.values[t]! : 0;
      checkFinite(value, { uid: trajectories[trajectory]!.uid, token: t - this.rows.offsets[row]! });
      kept.push(value);
      return value;
    });
    return kept;
  }

  /** Advantages of units, or of their trained tokens end to end. */
  put(
    units: readonly Unit[],
    { level, values }: Advantages,
    options: LoopSettings["stepwise_advantage"],
  ): void {
    const { trajectories } = this.rows;
    if (level === "row") {
      for (const [u, unit] of units.entries()) {
        checkFinite(values[u]!, { uid: trajectories[unit.trajectory]!.uid });
        this.putUnit(unit, values[u]!, options);
      }
      return;
    }
    const starts = startsOf(units, (unit) => this.trainedTokens(unit));
    this.fillTokens(new Set(units.map(({ trajectory }) => trajectory)), (t, { row, trajectory, step }) => {
      const key = starts.has(`${trajectory}`) ? `${trajectory}` : `${trajectory}:${step}`;
      const at = starts.get(key) as number;
      starts.set(key, at + 1);
      checkFinite(values[at]!, { uid: trajectories[trajectory]!.uid, token: t - this.rows.offsets[row]! });
      return values[at]!;
    });
  }

  private putUnit({ trajectory, step }: Unit, value: number, options: LoopSettings["stepwise_advantage"]) {
    const steps = this.perStep[trajectory]!;
    if (step === undefined) {
      steps.fill(options.enable && options.normalize_by_steps ? value / steps.length : value);
    } else {
      steps[step] = value;
      this.hasOnePerTrajectory = false;
    }
  }

  private fillTokens(chosen: ReadonlySet<number>, value: (t: number, of: Place) => number): void {
    if (chosen.size === 0) return;
    this.perToken ??= new Float32Array(this.rows.tokens.length);
    const { perToken } = this;
    for (const trajectory of chosen) this.isPerToken[trajectory] = 1;
    this.eachTrained((t, place) => {
      if (chosen.has(place.trajectory)) perToken[t] = value(t, place);
    });
  }

  private eachTrained(visit: (t: number, place: Place) => void): void {
    const { offsets, mask, trajectoryOfRow, stepOfToken } = this.rows;
    for (let row = 0; row < rowCount(this.rows); row++) {
      const trajectory = trajectoryOfRow[row]!;
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
        if (mask[t]) visit(t, { row, trajectory, step: stepOfToken[t]! });
      }
    }
  }

  advantages(): Advantages {
    if (this.hasOnePerTrajectory && !this.perToken) {
      const { trajectoryOfRow } = this.rows;
      return { level: "row", values: Float32Array.from(trajectoryOfRow, (i) => this.perStep[i]![0]!) };
    }
    const values = this.perToken ?? new Float32Array(this.rows.tokens.length);
    this.eachTrained((t, { trajectory, step }) => {
      if (!this.isPerToken[trajectory]) values[t] = this.perStep[trajectory]![step]!;
    });
    return { level: "token", values };
  }
}

/** Of a token. */
interface Place {
  readonly row: number;
  readonly trajectory: number;
  readonly step: number;
}

/** Where each unit's tokens begin, by `trajectory` or `trajectory:step`. */
function startsOf(units: readonly Unit[], length: (unit: Unit) => number): Map<string, number> {
  let next = 0;
  return new Map(
    units.map((unit) => {
      const start = next;
      next += length(unit);
      return [unit.step === undefined ? `${unit.trajectory}` : `${unit.trajectory}:${unit.step}`, start];
    }),
  );
}

function split<T>(values: readonly T[], isFirst: (value: T) => boolean): [T[], T[]] {
  return [values.filter(isFirst), values.filter((value) => !isFirst(value))];
}

function membersByRole({ groups, groupOfTrajectory }: ProcessedRows): Map<string, number[]> {
  return groupBy(
    groupOfTrajectory.keys(),
    (trajectory) => groups[groupOfTrajectory[trajectory]!]!.group_role,
  );
}

function hasAdvantages(group: TrajectoryGroup): boolean {
  const isSet = (step: Step) => step.advantage !== undefined && step.advantage !== null;
  return group.trajectories.some((trajectory) => trajectory.steps.some(isSet));
}

function advantageOptions(role: string, { algorithm }: LoopSettings): AdvantageOptions {
  const { estimator, estimator_args } = algorithmOf(role, algorithm);
  const { norm_adv_by_std_in_grpo } = algorithm;
  return { name: estimator, norm_adv_by_std_in_grpo, settings: estimator_args };
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

function checkFinite(value: number, { uid, token }: { uid: string; token?: number }): void {
  if (Number.isFinite(value)) return;
  const where = token === undefined ? "" : `, at token ${token} of the row`;
  throw new ConfigError(
    `Cannot train on an advantage: it must be finite (${value}${where}, of the trajectory ${uid}). Look at the estimator and the rewards`,
    { kind: "code" },
  );
}

function overwrites(role: string): string {
  return (
    `Steps of the role ${role} carry advantages that the estimator overwrites, because ` +
    "rllm.algorithm.use_precomputed_advantage is false. Set rllm.algorithm.use_precomputed_advantage=true to train on them"
  );
}
