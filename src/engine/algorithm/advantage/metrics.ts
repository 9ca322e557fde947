/** Metrics of rewards and advantages, and how hard the prompts were. */

import { largest, mean, populationDeviation, smallest, spread } from "../../../leaves/statistics.ts";
import type { Metrics } from "../../contract/backend.ts";
import { trainedIn } from "../../packing/offsets.ts";
import { countRows } from "../rows.ts";
import type { AdvantageBatch } from "./definition.ts";
import { memberRows, pick } from "./groups.ts";

/** Whether a group teaches anything: its rewards differ, or all are at the top or at the bottom. */
export type Difficulty = "informative" | "too_easy" | "too_hard" | "flat";

/** One group's size and rewards, and whether it teaches anything. */
export interface GroupSummary {
  readonly size: number;
  readonly rewardMean: number;
  /** Population deviation. */
  readonly rewardStd: number;
  /** Absent for a group of one. */
  readonly difficulty?: Difficulty | undefined;
  readonly advantageMin: number;
  readonly advantageMax: number;
}

/** Deviation of rewards from which on they count as different. */
const DISTINCT = 1e-8;

function difficultyOf(rewards: readonly number[]): Difficulty | undefined {
  if (rewards.length < 2) return undefined;
  if (populationDeviation(rewards) >= DISTINCT) return "informative";
  if (mean(rewards) >= 1) return "too_easy";
  return mean(rewards) <= 0 ? "too_hard" : "flat";
}

/** One summary per group, in the groups' order. `advantages` are per token, [T]. */
export function summarizeGroups(batch: AdvantageBatch, advantages: ArrayLike<number>): GroupSummary[] {
  return memberRows(batch.groups).map((rows) => {
    const rewards = pick(batch.scores, rows);
    const trained = trainedValues(batch, rows, advantages);
    return {
      size: rows.length,
      rewardMean: mean(rewards),
      rewardStd: populationDeviation(rewards),
      difficulty: difficultyOf(rewards),
      advantageMin: smallest(trained),
      advantageMax: largest(trained),
    };
  });
}

/** Values of the rows' trained tokens. */
function trainedValues({ offsets, mask }: AdvantageBatch, rows: Iterable<number>, values: ArrayLike<number>): number[] {
  return Array.from(rows, (row) => trainedIn(mask, offsets[row]!, offsets[row + 1]!)).flatMap((tokens) =>
    tokens.map((t) => values[t]!),
  );
}

/**
 * verl's data metrics (`critic/*`) and rLLM's difficulty breakdown (`batch/*`).
 * Rewards are those of rows with a trained token, advantages and returns those of trained tokens.
 * @param result both [T]
 */
export function advantageMetrics(
  batch: AdvantageBatch,
  result: { readonly advantages: ArrayLike<number>; readonly returns: ArrayLike<number> },
): Metrics {
  const { trained } = countRows(batch.offsets, batch.mask);
  const filled = Uint32Array.from(trained.keys()).filter((row) => trained[row] !== 0);
  return {
    ...spread("critic/score", pick(batch.scores, filled)),
    ...spread("critic/advantages", trainedValues(batch, filled, result.advantages)),
    ...spread("critic/returns", trainedValues(batch, filled, result.returns)),
    ...difficultyMetrics(summarizeGroups(batch, result.advantages)),
  };
}

function difficultyMetrics(groups: readonly GroupSummary[]): Metrics {
  const judged = groups.flatMap(({ difficulty }) => difficulty ?? []);
  const count = (kind: Difficulty) => judged.filter((difficulty) => difficulty === kind).length;
  const share = (kind: Difficulty) => count(kind) / Math.max(judged.length, 1);
  return {
    "batch/total": judged.length,
    "batch/informative": count("informative"),
    "batch/fractions/effective": share("informative"),
    "batch/fractions/too_easy": share("too_easy"),
    "batch/fractions/too_hard": share("too_hard"),
  };
}
