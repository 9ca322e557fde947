/** What an advantage estimator is, and what it needs of a batch. */
import type { Advantages } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import type { Groups } from "./groups.ts";

/** A packed batch as estimators see it. Per-row arrays are [N], per-token ones [T]. */
export interface AdvantageBatch {
  /** [N+1] */
  readonly offsets: Uint32Array;
  /** 1 = trained on. */
  readonly mask: Uint32Array;
  readonly groups: Groups;
  /** Outcome reward of each row (the sum of its token rewards). */
  readonly scores: ArrayLike<number>;
  /** Absent: the score at the row's last trained token. */
  readonly tokenRewards?: ArrayLike<number> | undefined;
  /** Critic values (`gae`). */
  readonly values?: ArrayLike<number> | undefined;
  /** Reward of the greedy rollout of each row's prompt (`remax`), [N]. */
  readonly rewardBaselines?: ArrayLike<number> | undefined;
  /** `optimal_token_baseline` and its multi-turn form. */
  readonly oldLogprobs?: ArrayLike<number> | undefined;
  readonly sumPiSquared?: ArrayLike<number> | undefined;
  readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  /** Rewards by name (`gdpo`), [N] each. Absent: the scores alone. */
  readonly rewardComponents?: Readonly<Record<string, ArrayLike<number>>> | undefined;
}

/** The advantages of a batch, with their returns. */
export interface Estimate extends Advantages<Float64Array> {
  /** At the same level. Absent: as the advantages. */
  readonly returns?: Float64Array | undefined;
}

export type EstimatorSettings = Readonly<Record<string, unknown>>;

/** Checks settings and fills in their defaults, or throws and says what is wrong. A zod schema is one. */
export interface SettingsSchema<S> {
  parse(given: unknown): S;
}

export interface Estimator<S extends EstimatorSettings = EstimatorSettings> {
  readonly name: string;
  /** Settings with their defaults, under the published names. A setting outside this table is refused. */
  readonly settings: S;
  /** Checks settings in place of the table. */
  readonly schema?: SettingsSchema<S>;
  /** @returns rewards in, advantages out, in float64. */
  estimate(batch: AdvantageBatch, settings: S): Estimate;
  /** How many trained tokens couple through statistics: a `group`'s rows, or the whole `batch` (no streaming). */
  readonly scope: "row" | "group" | "batch";
}

/**
 * Puts the given settings over the defaults.
 * @throws ConfigError for a setting that the estimator does not know, or one of another type.
 */
export function estimatorSettings(estimator: Estimator, given: EstimatorSettings): EstimatorSettings {
  const part = `the estimator ${estimator.name}`;
  if (estimator.schema) return parseSettings(estimator.schema, given, part);
  for (const [key, value] of Object.entries(given)) {
    if (!Object.hasOwn(estimator.settings, key))
      throw new ConfigError(
        `Cannot set ${key} of ${part}: it has ${Object.keys(estimator.settings).join(", ") || "no settings"}.`,
        { path: key },
      );
    if (typeof value !== typeof estimator.settings[key])
      throw new ConfigError(
        `Cannot set ${key} of ${part} as it takes a ${typeof estimator.settings[key]}: ${value}.`,
        { path: key },
      );
  }
  return { ...estimator.settings, ...given };
}

/** @throws ConfigError in the schema's words; zod's carry one message per setting. */
export function parseSettings<S>(schema: SettingsSchema<S>, given: unknown, part: string): S {
  try {
    return schema.parse(given);
  } catch (error) {
    const { issues, message } = error as {
      message: string;
      issues?: readonly { path: readonly PropertyKey[]; message: string }[];
    };
    const told = issues?.map((issue) => `${issue.path.join(".")}: ${issue.message}`).join("; ") ?? message;
    throw new ConfigError(`Cannot take the settings of ${part} as its schema refuses them: ${told}.`, {
      path: issues?.[0]?.path.join("."),
    });
  }
}

export function needs<T>(value: T | undefined, estimator: string, field: string): T {
  if (value === undefined)
    throw new ConfigError(
      `Cannot estimate ${estimator} as it needs ${field}, which the batch does not hold.`,
      {
        path: field,
      },
    );
  return value;
}
