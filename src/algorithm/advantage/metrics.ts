/** What a batch of rewards and advantages looks like: numbers for logs, and how hard the prompts were. */
import type { Metrics } from "../../contract/backend.ts";
import { largest, mean, populationDeviation, smallest, spread } from "../../statistics.ts";
import type { AdvantageBatch } from "./definition.ts";

/** Whether a group teaches anything: its rewards differ, or all are at the top or at the bottom. */
export type Difficulty = "informative" | "too_easy" | "too_hard" | "flat";

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

const DISTINCT = 1e-8;

function difficultyOf(rewards: readonly number[]): Difficulty | undefined {
  if (rewards.length < 2) return undefined;
  if (populationDeviation(rewards) >= DISTINCT) return "informative";
  if (mean(rewards) >= 1) return "too_easy";
  return mean(rewards) <= 0 ? "too_hard" : "flat";
}

/** One summary per group, in the groups' order. `advantages` are per token, [T]. */
export function summarizeGroups(batch: AdvantageBatch, advantages: ArrayLike<number>): GroupSummary[] {
  const { offsets, members } = batch.groups;
  return Array.from({ length: offsets.length - 1 }, (_, group) => {
    const rows = Array.from(members.subarray(offsets[group], offsets[group + 1]));
    const rewards = rows.map((row) => batch.scores[row]!);
    const trained = rows.flatMap((row) => trainedValues(batch, row, advantages));
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

function trainedValues({ offsets, mask }: AdvantageBatch, row: number, values: ArrayLike<number>): number[] {
  const found: number[] = [];
  for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) found.push(values[t]!);
  return found;
}

/**
 * verl's data metrics (`critic/*`) and rLLM's difficulty breakdown (`batch/*`).
 * Rewards are those of rows with a trained token, advantages and returns those of trained tokens.
 */
export function advantageMetrics(
  batch: AdvantageBatch,
  result: { readonly advantages: ArrayLike<number>; readonly returns: ArrayLike<number> },
): Metrics {
  const rows = Array.from({ length: batch.offsets.length - 1 }, (_, row) => row);
  const filled = rows.filter((row) => trainedValues(batch, row, result.advantages).length > 0);
  const trained = (values: ArrayLike<number>) => rows.flatMap((row) => trainedValues(batch, row, values));
  return {
    ...spread(
      "critic/score",
      filled.map((row) => batch.scores[row]!),
    ),
    ...spread("critic/advantages", trained(result.advantages)),
    ...spread("critic/returns", trained(result.returns)),
    ...difficultyMetrics(summarizeGroups(batch, result.advantages)),
  };
}

function difficultyMetrics(groups: readonly GroupSummary[]): Metrics {
  const judged = groups.filter(({ difficulty }) => difficulty !== undefined);
  const total = judged.length;
  const share = (kind: Difficulty) =>
    judged.filter(({ difficulty }) => difficulty === kind).length / Math.max(total, 1);
  return {
    "batch/total": total,
    "batch/informative": judged.filter(({ difficulty }) => difficulty === "informative").length,
    "batch/fractions/effective": share("informative"),
    "batch/fractions/too_easy": share("too_easy"),
    "batch/fractions/too_hard": share("too_hard"),
  };
}
