/** Places the advantages of trajectories and steps in the packed rows. */
import type { Advantages } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { rowCount } from "../../data/pack.ts";
import type { ProcessedRows } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";

/** Unit that gets one advantage: a trajectory, or one step of it. */
export interface Unit {
  readonly trajectory: number;
  readonly step?: number;
  readonly reward: number;
  readonly group: string;
}

/** Spreads advantages over the rows of a batch: one per row while each trajectory has only one, else one per token. */
export class AdvantageSpread {
  private readonly rows: ProcessedRows;
  /** Advantages by trajectory, then by step. */
  private readonly perStep: readonly Float32Array[];
  /** Trained tokens by trajectory, then by step. */
  private readonly counts: readonly Uint32Array[];
  /** [T]; absent while no trajectory has an advantage per token. */
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

  /** Values [T] of the units' trained tokens, concatenated in the units' order. */
  gather(units: readonly Unit[], values_T: Float32Array): Float32Array {
    const starts = startsOf(units, (unit) => this.trainedTokens(unit));
    const gathered = new Float32Array(units.reduce((sum, unit) => sum + this.trainedTokens(unit), 0));
    this.eachTrained((t, place) => {
      const at = nextPlace(starts, place);
      if (at !== undefined) gathered[at] = values_T[t]!;
    });
    return gathered;
  }

  /** Keeps the advantages that the steps of these trajectories carry, 0 where they carry none. Returns them per token. */
  keepGiven(trajectoryIndices: readonly number[]): number[] {
    const { givenAdvantages, trajectories } = this.rows;
    const kept: number[] = [];
    this.fillTokens(new Set(trajectoryIndices), (t, { row, trajectory }) => {
      const value = givenAdvantages?.isGiven[t] ? givenAdvantages.values[t]! : 0;
      checkFinite(value, { uid: trajectories[trajectory]!.uid, token: t - this.rows.offsets[row]! });
      kept.push(value);
      return value;
    });
    return kept;
  }

  /** Places advantages of units, or of their concatenated trained tokens. */
  put(units: readonly Unit[], { level, values }: Advantages, options: LoopSettings["stepwise_advantage"]): void {
    const { trajectories } = this.rows;
    if (level === "row") {
      for (const [u, unit] of units.entries()) {
        checkFinite(values[u]!, { uid: trajectories[unit.trajectory]!.uid });
        this.putUnit(unit, values[u]!, options);
      }
      return;
    }
    const starts = startsOf(units, (unit) => this.trainedTokens(unit));
    this.fillTokens(new Set(units.map(({ trajectory }) => trajectory)), (t, place) => {
      const { row, trajectory } = place;
      const at = nextPlace(starts, place)!;
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
    const values_T = this.perToken ?? new Float32Array(this.rows.tokens.length);
    this.eachTrained((t, { trajectory, step }) => {
      if (!this.isPerToken[trajectory]) values_T[t] = this.perStep[trajectory]![step]!;
    });
    return { level: "token", values: values_T };
  }
}

/** The position of a token. */
interface Place {
  readonly row: number;
  readonly trajectory: number;
  readonly step: number;
}

/** The next element of the unit that a token belongs to; undefined for a token of none. Moves the unit's start. */
function nextPlace(starts: Map<string, number>, { trajectory, step }: Place): number | undefined {
  const key = starts.has(`${trajectory}`) ? `${trajectory}` : `${trajectory}:${step}`;
  const at = starts.get(key);
  if (at !== undefined) starts.set(key, at + 1);
  return at;
}

/** Returns where each unit's tokens start, by `trajectory` or `trajectory:step`. */
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

function checkFinite(value: number, { uid, token }: { uid: string; token?: number }): void {
  if (Number.isFinite(value)) return;
  const where = token === undefined ? "" : `, at token ${token} of the row`;
  throw new ConfigError(
    `Cannot train on the advantage of the trajectory ${uid}: it must be finite (${value}${where}). Check the estimator and the rewards.`,
    { kind: "code" },
  );
}
