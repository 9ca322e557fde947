/** A user's own estimator: groups in, advantages per group out. */

import { ConfigError } from "../../../leaves/errors.ts";
import { mapRows } from "../../packing/offsets.ts";
import { countRows } from "../rows.ts";
import type { SettingsSchema } from "../settings.ts";
import { type AdvantageBatch, type EstimatorSettings, perRow } from "./definition.ts";
import { registerEstimator } from "./estimators.ts";
import { pick } from "./groups.ts";

/** One group of trajectories; lists run over its rows. */
export interface Group {
  /** Index in the batch. */
  readonly index: number;
  /** Places of the rows in the batch. */
  readonly rows: readonly number[];
  readonly rewards: readonly number[];
  /** Trained tokens of each row. */
  readonly lengths: readonly number[];
}

/** An advantage estimator of your own: rewards of every group in, advantages out. See {@link defineEstimator}. */
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
 * @throws {ConfigError} when the name is taken; on use, for the wrong number of advantages or one that is not finite
 */
export function defineEstimator<S extends EstimatorSettings>(estimator: CustomEstimator<S>): void {
  const { name, schema, settings = {} as S } = estimator;
  registerEstimator<S>({
    name,
    settings,
    ...(schema && { schema }),
    scope: "batch",
    estimate: (batch, settings) => {
      const groups = groupsOf(batch);
      const estimate = estimator.estimate(groups, settings, batch);
      const estimates = new Float64Array(batch.scores.length);
      for (const group of groups)
        for (const [row, advantage] of checked(estimate[group.index], group, name)) estimates[row] = advantage;
      return perRow(estimates);
    },
  });
}

function groupsOf({ groups, scores, offsets, mask }: AdvantageBatch): Group[] {
  const { trained } = countRows(offsets, mask);
  return mapRows(groups.offsets, (index, first, end) => {
    const rows = groups.members.subarray(first, end);
    return { index, rows: Array.from(rows), rewards: pick(scores, rows), lengths: pick(trained, rows) };
  });
}

/** The group's rows with their advantages. */
function checked(
  values: readonly number[] | undefined,
  { index, rows }: Group,
  estimator: string,
): [row: number, advantage: number][] {
  const fail = (why: string) =>
    new ConfigError(`Cannot use the estimator ${estimator}: ${why}. Correct its estimate().`, {
      kind: "code",
    });
  if (values?.length !== rows.length)
    throw fail(`group ${index} needs ${rows.length} advantages, and there are ${values?.length ?? "none"}`);
  return values.map((advantage, k) => {
    const row = rows[k]!;
    if (!Number.isFinite(advantage))
      throw fail(`advantages must be finite (${advantage} for row ${row} of group ${index})`);
    return [row, advantage];
  });
}
