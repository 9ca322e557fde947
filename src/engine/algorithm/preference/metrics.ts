/** A preference loss and its metrics, from the sums of its rows. Names are TRL's. */

import { ConfigError } from "../../../leaves/errors.ts";
import { mean, sum } from "../../../leaves/statistics.ts";
import type { Metrics } from "../../contract/backend.ts";
import type { LossResult } from "../loss/resolve.ts";
import { logSigmoid } from "./logistic.ts";
import { logOddsRatio } from "./odds.ts";
import type { PreferenceRows, ResolvedPreference } from "./resolve.ts";
import type { RowSums } from "./unit.ts";

/**
 * The loss, `rewards/chosen`, `rewards/rejected`, `rewards/accuracies`, `rewards/margins`, `logps/chosen`, `logps/rejected`,
 * and `nll_loss`, `log_odds_ratio`, `log_odds_chosen`, `kl` of the losses that have them. For `kto`, chosen rows are the
 * desirable ones, and what has no row is left out.
 * @throws {ConfigError} for rows whose loss is not finite
 */
export function preferenceResult(
  plan: ResolvedPreference,
  rows: readonly RowSums[],
  { labels, places }: Pick<PreferenceRows, "labels" | "places">,
): LossResult {
  refuseBroken(plan, rows, places);
  const { loss, scale, kl, nll } = plan;
  const likelihood = nll && sum(rows.map((row) => row.nll)) / nll.tokens;
  const isChosen = (row: number) => (labels ? labels[row] === 1 : row % 2 === 0);
  const sides = { chosen: sideOf(plan, rows, isChosen), rejected: sideOf(plan, rows, (row) => !isChosen(row)) };
  return {
    loss: sum(rows.map(({ value }) => value)) * scale + (nll ? nll.weight * likelihood! : 0),
    metrics: {
      ...sideMetrics(sides),
      ...(loss.unit === "row" ? { kl } : pairMetrics(sides)),
      ...(nll && { nll_loss: likelihood! }),
      ...(loss.hasOdds && oddsMetrics(sides)),
    },
  };
}

interface Side {
  readonly rewards: readonly number[];
  readonly logps: readonly number[];
}

type Sides = { readonly chosen: Side; readonly rejected: Side };

/** Rewards are beta times the log-ratio to the reference; without one, beta times the mean log-prob. */
function sideOf(
  { loss, settings, counts }: ResolvedPreference,
  rows: readonly RowSums[],
  has: (row: number) => boolean,
): Side {
  const sideRows = rows.flatMap((sums, row) => (has(row) ? [{ ...sums, tokens: counts.trained[row]! }] : []));
  const logps = sideRows.map((row) => (loss.hasReference ? row.logps : row.logps / row.tokens));
  const scores = loss.hasReference ? sideRows.map(({ ratio }) => ratio) : logps;
  return { logps, rewards: scores.map((score) => (settings.beta ?? 1) * score) };
}

function sideMetrics(sides: Sides): Metrics {
  const metrics: Metrics = {};
  for (const name of ["chosen", "rejected"] as const) {
    const { rewards, logps } = sides[name];
    if (rewards.length === 0) continue;
    metrics[`rewards/${name}`] = mean(rewards);
    metrics[`logps/${name}`] = mean(logps);
  }
  const { "rewards/chosen": chosen, "rewards/rejected": rejected } = metrics;
  if (chosen !== undefined && rejected !== undefined) metrics["rewards/margins"] = chosen - rejected;
  return metrics;
}

function pairMetrics({ chosen, rejected }: Sides): Metrics {
  return { "rewards/accuracies": mean(chosen.rewards.map((reward, i) => Number(reward > rejected.rewards[i]!))) };
}

function oddsMetrics({ chosen, rejected }: Sides): Metrics {
  const odds = chosen.logps.map((logps, i) => logOddsRatio(logps, rejected.logps[i]!));
  return { log_odds_chosen: mean(odds), log_odds_ratio: mean(odds.map(logSigmoid)) };
}

function refuseBroken(
  { loss, settings }: ResolvedPreference,
  rows: readonly RowSums[],
  places: PreferenceRows["places"],
): void {
  const isScored = ({ logps, ratio }: RowSums) => Number.isFinite(logps) && Number.isFinite(ratio);
  const unscored = rows.findIndex((row) => !isScored(row));
  const broken = unscored < 0 ? rows.findIndex((row) => !Object.values(row).every(Number.isFinite)) : unscored;
  if (broken < 0) return;
  const { logps, ratio, value } = rows[broken]!;
  const advice =
    unscored < 0 ? "Remove the row, or take another loss." : "Lower the learning rate if training has diverged.";
  throw new ConfigError(
    `Cannot take the preference loss ${loss.name}: it is not finite at row ${broken} of the batch (sum of log-probs ${logps}, log-ratio ${ratio}, loss ${value}, beta ${settings.beta}). ${advice}`,
    places?.[broken],
  );
}
