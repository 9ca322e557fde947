/** A user's own estimator: groups in, advantages per group out. */
import { ConfigError } from "../../errors.ts";
import type { SettingsSchema } from "./definition.ts";
import { trainedLengths } from "./estimators/grpo.ts";
import { type AdvantageBatch, type EstimatorSettings, registerEstimator } from "./registry.ts";

/** One group of trajectories as a custom estimator sees it; lists run over its rows. */
export interface Group {
  /** Index in the batch. */
  readonly index: number;
  /** Places of the rows in the batch. */
  readonly rows: readonly number[];
  readonly rewards: readonly number[];
  /** Trained tokens of each row. */
  readonly lengths: readonly number[];
}

export interface CustomEstimator<S extends EstimatorSettings> {
  readonly name: string;
  /** Settings with their defaults; `rllm.algorithm.estimator_args` and `--set` change them. */
  readonly settings?: S;
  /** Checks them and fills in defaults in place of `settings`: a zod schema, or any object with `parse`. */
  readonly schema?: SettingsSchema<S>;
  /** The whole batch in, one list per group out, one advantage per row. */
  estimate(groups: readonly Group[], settings: S, batch: AdvantageBatch): readonly (readonly number[])[];
}

/**
 * Registers an estimator under its name, for the trainer, configurations and the CLI.
 * @throws ConfigError when the name is taken; on use, when it gives too few or too many numbers or one that is not finite
 */
export function defineEstimator<S extends EstimatorSettings>(estimator: CustomEstimator<S>): void {
  registerEstimator<S>({
    name: estimator.name,
    settings: estimator.settings ?? ({} as S),
    ...(estimator.schema && { schema: estimator.schema }),
    scope: "batch",
    estimate: (batch, settings) => {
      const groups = groupsOf(batch);
      const given = estimator.estimate(groups, settings, batch);
      const estimates = new Float64Array(batch.scores.length);
      for (const group of groups) {
        const values = checked(given[group.index], group, estimator.name);
        for (const [k, row] of group.rows.entries()) estimates[row] = values[k]!;
      }
      return { level: "row", values: estimates };
    },
  });
}

function groupsOf(batch: AdvantageBatch): Group[] {
  const { offsets, members } = batch.groups;
  const lengths = trainedLengths(batch);
  return Array.from({ length: offsets.length - 1 }, (_, index) => {
    const rows = Array.from(members.subarray(offsets[index]!, offsets[index + 1]!));
    return {
      index,
      rows,
      rewards: rows.map((row) => batch.scores[row]!),
      lengths: rows.map((row) => lengths[row]!),
    };
  });
}

function checked(
  values: readonly number[] | undefined,
  { index, rows }: Group,
  name: string,
): readonly number[] {
  if (values?.length !== rows.length)
    throw new ConfigError(
      `Cannot use the estimator ${name} as it must give ${rows.length} advantages for group ${index}: ${values?.length ?? "none"}.`,
    );
  const wrong = values.findIndex((x) => !Number.isFinite(x));
  if (wrong >= 0)
    throw new ConfigError(
      `Cannot use the estimator ${name} as advantages must be finite: ${values[wrong]} for row ${rows[wrong]} of group ${index}.`,
    );
  return values;
}
