/** Definition of an advantage estimator: what it needs of a batch, and how it is recorded on a device. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Buffer } from "../../compute/device.ts";
import type { Advantages } from "../../contract/backend.ts";
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
  /** Old log-probs, for `optimal_token_baseline` and its multi-turn form, like the two fields that follow. */
  readonly oldLogprobs?: ArrayLike<number> | undefined;
  readonly sumPiSquared?: ArrayLike<number> | undefined;
  readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  /** Rewards by name (`gdpo`), [N] each. Absent: the scores alone. */
  readonly rewardComponents?: Readonly<Record<string, ArrayLike<number>>> | undefined;
}

/** The advantages of a batch, with their returns. */
export interface Estimate extends Advantages<Float64Array> {
  /** Returns at the same level. Absent: equal to the advantages. */
  readonly returns?: Float64Array | undefined;
}

/** Settings of an estimator under their published names. */
export type EstimatorSettings = Readonly<Record<string, unknown>>;

/** A packed batch on the device; each estimator needs some of the fields. */
export interface AdvantageBuffers {
  /** f32 [N], outcome rewards. */
  readonly scores?: Buffer | undefined;
  /** f32 [T]. Absent: the score at each row's last trained token. */
  readonly tokenRewards?: Buffer | undefined;
  /** u32 [T], 1 = trained on. */
  readonly mask?: Buffer | undefined;
  /** u32 [N+1]. */
  readonly offsets?: Buffer | undefined;
  /** f32 [T], critic values. */
  readonly values?: Buffer | undefined;
  /** f32 [N]. */
  readonly rewardBaselines?: Buffer | undefined;
  /** f32 [T], like the two that follow. */
  readonly oldLogprobs?: Buffer | undefined;
  readonly sumPiSquared?: Buffer | undefined;
  readonly rolloutIsWeights?: Buffer | undefined;
  /** u32, the `offsets` and `members` of the groups where they are on the device already. Absent: uploaded each time. */
  readonly groupOffsets?: Buffer | undefined;
  readonly groupMembers?: Buffer | undefined;
  /** f32 [N] each, rewards by name (`gdpo`). */
  readonly rewardComponents?: Readonly<Record<string, Buffer>> | undefined;
}

/** An estimator's result on the device: advantages [N], or advantages and returns [T] each. */
export interface Recorded {
  readonly advantages: Buffer;
  readonly returns?: Buffer;
}

/** A group's treatment of its scores: a norm, each against the others, the best's lead, a mean weighted by length. */
export type GroupForm = "norm" | "others" | "best" | "length";

/** How rewards run backwards through a row. */
export type RowsForm = "toGo" | "discounted" | "reset" | "gae";

/** The dispatches that estimators are made of, over one batch on the device. Buffers that they return are the caller's. */
export interface AdvantageRecorder {
  readonly settings: EstimatorSettings;
  readonly groups: Groups;
  readonly rewardComponents: AdvantageBuffers["rewardComponents"];
  /** @throws {ConfigError} where the batch lacks the field */
  need(field: Exclude<keyof AdvantageBuffers, "rewardComponents">): Buffer;
  /** Group-wise advantages of `scores`, [N], with the settings' `ddof` and `epsilon`. */
  group(scores: Buffer, options: { form: GroupForm; byDeviation?: boolean; aloneIsZero?: boolean }): Buffer;
  /** verl's masked_whiten in place, weighted by trained tokens: rows by their lengths, tokens by their mask. */
  whitenByTokens(values: Buffer, level: "row" | "token"): void;
  /** rLLM's deviation over all rows, in place: the population's, epsilon added to it. */
  divideByDeviation(values: Buffer, options: { shift: boolean }): void;
  /** GPG's factor in place: rows / rows with a reward / divisor. */
  scaleByNonzero(values: Buffer, scores: Buffer, divisor: number): void;
  /** A copy of the scores, [N], to change in place. */
  copyOfScores(): Buffer;
  /** Runs backwards through every row; see advantage/rows.wgsl. */
  backwards(form: RowsForm, options?: { values?: Buffer; gamma?: number; lam?: number }): Required<Recorded>;
  /** The optimal token baseline; see advantage/power.wgsl and advantage/baseline.wgsl. */
  optimalBaseline(options: { compact: boolean }): Required<Recorded>;
}

/** Names of an estimator in other systems. */
export interface EstimatorElsewhere {
  /** verl's `algorithm.adv_estimator`. */
  readonly verl?: string;
  /** Trinity-RFT's advantage function, and whether an algorithm type there takes it. */
  readonly trinity?: { readonly name: string; readonly hasType: boolean };
}

/** An advantage estimator: its name, settings with defaults, what it sees at once, and its function on the host and on a device. */
export interface Estimator<S extends EstimatorSettings = EstimatorSettings> {
  readonly name: string;
  /** Description of its formula, for docs/estimators.md. */
  readonly describe?: string;
  /** Publications, and the implementation that it equals. */
  readonly sources?: readonly string[];
  readonly elsewhere?: EstimatorElsewhere;
  /** Settings with their defaults, under the published names. A setting outside this table is refused. */
  readonly settings: S;
  /** Checks settings in place of the table. */
  readonly schema?: SettingsSchema<S>;
  /** Rewards in, advantages out, in float64. */
  estimate(batch: AdvantageBatch, settings: S): Estimate;
  /** The same on a device. Absent: it runs on the host. @throws {UnsupportedError} for a batch that it takes on the host alone */
  record?(recorder: AdvantageRecorder): Recorded;
  /** Whether the device takes this batch. Absent: every one. */
  isRecordable?(batch: Pick<AdvantageBatch, "rewardComponents">): boolean;
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
