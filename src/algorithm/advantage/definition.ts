/** What an advantage estimator is, and what it needs of a batch. */
import type { Advantages } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import type { MaskedRows } from "../rows.ts";
import type { SettingsSchema } from "../settings.ts";
import type { Groups } from "./groups.ts";

/** A packed batch as estimators see it. Per-row arrays are [N], per-token ones [T]. */
export interface AdvantageBatch extends MaskedRows {
  readonly groups: Groups;
  /** Outcome reward of each row (the sum of its token rewards). */
  readonly scores: ArrayLike<number>;
  /** Absent: the score at the row's last trained token. */
  readonly tokenRewards?: ArrayLike<number> | undefined;
  /** Critic values (`gae`). */
  readonly values?: ArrayLike<number> | undefined;
  /** Reward of the greedy rollout of each row's prompt (`remax`), [N]. */
  readonly rewardBaselines?: ArrayLike<number> | undefined;
  /** For `optimal_token_baseline` and its multi-turn form, like the two fields that follow. */
  readonly oldLogprobs?: ArrayLike<number> | undefined;
  readonly sumPiSquared?: ArrayLike<number> | undefined;
  readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  /** Rewards by name (`gdpo`), [N] each. Absent: the scores alone. */
  readonly rewardComponents?: Readonly<Record<string, ArrayLike<number>>> | undefined;
}

/** The advantages of a batch, with their returns. */
export interface Estimate extends Advantages<Float64Array> {
  /** At the same level. Absent: equal to the advantages. */
  readonly returns?: Float64Array | undefined;
}

/** Settings of an estimator under their published names. */
export type EstimatorSettings = Readonly<Record<string, unknown>>;

/** An advantage estimator: its name, settings with defaults, what it sees at once, and its function. */
export interface Estimator<S extends EstimatorSettings = EstimatorSettings> {
  readonly name: string;
  /** Settings with their defaults, under the published names. A setting outside this table is refused. */
  readonly settings: S;
  /** Checks settings in place of the table. */
  readonly schema?: SettingsSchema<S>;
  /** Rewards in, advantages out, in float64. */
  estimate(batch: AdvantageBatch, settings: S): Estimate;
  /** How far statistics couple rows: not at all, within a `group`, or over the `batch` (which rules out streaming). */
  readonly scope: "row" | "group" | "batch";
}

/** An estimate of one advantage per row, [N]. */
export function perRow(values: Float64Array): Estimate {
  return { level: "row", values };
}

/** @throws {ConfigError} for a field that the estimator needs and the batch lacks. */
export function needs<T>(value: T | undefined, estimator: string, field: string): T {
  if (value !== undefined) return value;
  throw new ConfigError(
    `Cannot estimate ${estimator}: it needs ${field}, which the batch does not hold. Give ${field}, or choose another estimator.`,
    { path: field },
  );
}
