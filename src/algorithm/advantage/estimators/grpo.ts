/** Estimators that give one advantage per trajectory, in float64. Default semantics are verl 0.10's. */
import { ConfigError } from "../../../errors.ts";
import { deviation, mean, populationDeviation } from "../../../statistics.ts";
import type { AdvantageBatch, Estimate, Estimator, EstimatorSettings } from "../definition.ts";
import { whitening } from "../whitening.ts";

const row = (values: Float64Array): Estimate => ({ level: "row", values });

/** Trained tokens of each row. */
export function trainedLengths({ offsets, mask }: AdvantageBatch): Uint32Array {
  const lengths = new Uint32Array(offsets.length - 1);
  for (let i = 0; i < lengths.length; i++)
    for (let t = offsets[i]!; t < offsets[i + 1]!; t++) lengths[i]! += mask[t] === 0 ? 0 : 1;
  return lengths;
}

/** Applies a function of one group's scores, rows being their numbers in the batch. */
function byGroup(batch: AdvantageBatch, of: (scores: number[], rows: Uint32Array) => number[]): Float64Array {
  const { offsets, members } = batch.groups;
  const advantages = new Float64Array(members.length);
  for (let group = 0; group + 1 < offsets.length; group++) {
    const rows = members.subarray(offsets[group], offsets[group + 1]);
    if (rows.length === 0) continue;
    const values = of(
      Array.from(rows, (i) => batch.scores[i]!),
      rows,
    );
    for (const [k, i] of rows.entries()) advantages[i] = values[k]!;
  }
  return advantages;
}

export interface GroupNorm {
  readonly byDeviation: boolean;
  /** 1 = sample (verl, TRL), 0 = population (rLLM). */
  readonly ddof: number;
  /** Added to the deviation. */
  readonly epsilon: number;
  /** What a group of one becomes: its reward over 1 + epsilon (verl, rLLM), or 0 (TRL). */
  readonly singleton: "reward" | "zero";
}

/** (s - mean) / (deviation + epsilon) of one group. */
export function groupNorm(scores: readonly number[], norm: GroupNorm): number[] {
  const alone = scores.length === 1;
  const centre = alone && norm.singleton === "reward" ? 0 : mean(scores);
  if (!norm.byDeviation) return scores.map((s) => s - centre);
  const spread = alone ? (norm.singleton === "reward" ? 1 : 0) : deviation(scores, norm.ddof);
  return scores.map((s) => (s - centre) / (spread + norm.epsilon));
}

/** s - mean of the others, as verl's `rloo` (alone: the reward) or `rloo_vectorized` (alone: 0). */
export function leaveOneOut(scores: readonly number[], alone: "reward" | "zero"): number[] {
  const n = scores.length;
  if (n <= 1) return scores.map((s) => (alone === "reward" ? s : 0));
  const centre = mean(scores);
  return scores.map((s) => ((s - centre) * n) / (n - 1));
}

/** The best row gets its lead over the second, the others 0. */
export function passAtK(scores: readonly number[], norm: GroupNorm): number[] {
  if (scores.length < 2)
    throw new ConfigError(
      "Cannot estimate grpo_passk as every group needs two trajectories or more: one has 1.",
    );
  const best = scores.indexOf(Math.max(...scores));
  const second = Math.max(...scores.filter((_, k) => k !== best));
  const gap = scores[best]! - second;
  const scaled = norm.byDeviation ? gap / (deviation(scores, norm.ddof) + norm.epsilon) : gap;
  return scores.map((_, k) => (k === best ? scaled : 0));
}

/** s - sum n_j s_j / sum n_j, with n the trained lengths (alone: the reward). */
export function lengthWeighted(scores: readonly number[], lengths: readonly number[]): number[] {
  if (scores.length === 1) return [...scores];
  const tokens = lengths.reduce((sum, n) => sum + n, 0);
  if (tokens === 0)
    throw new ConfigError("Cannot estimate opo: a group has no trained token (mask = 1) in any row.");
  const baseline = scores.reduce((sum, s, k) => sum + s * lengths[k]!, 0) / tokens;
  return scores.map((s) => s - baseline);
}

const centred = (scores: readonly number[]) => groupNorm(scores, { ...VERL_NORM, byDeviation: false });

const VERL_NORM: GroupNorm = { byDeviation: true, ddof: 1, epsilon: 1e-6, singleton: "reward" };

/** How a grpo-like estimator normalises under its settings. */
export function groupNormOf(name: string, settings: EstimatorSettings): GroupNorm {
  return {
    byDeviation: settings.norm_adv_by_std_in_grpo !== false,
    ddof: settings.ddof as number,
    epsilon: settings.epsilon as number,
    singleton: name.startsWith("trl.") ? "zero" : "reward",
  };
}

const normSettings = (ddof: number, epsilon: number) => ({ norm_adv_by_std_in_grpo: true, epsilon, ddof });

function grpo(name: string, settings: ReturnType<typeof normSettings>): Estimator {
  return {
    name,
    settings,
    scope: "group",
    estimate: (batch, s) => row(byGroup(batch, (scores) => groupNorm(scores, groupNormOf(name, s)))),
  };
}

/** Token-weighted whitening of per-row numbers: what verl gets by whitening the rows spread over their tokens. */
export function whitenRows(advantages: Float64Array, lengths: ArrayLike<number>): Float64Array {
  const { mean: centre, scale } = whitening(advantages, lengths);
  return advantages.map((a) => (a - centre) * scale);
}

function gpg(batch: AdvantageBatch, { f_norm }: EstimatorSettings): Estimate {
  const scores = Array.from(batch.scores);
  const alpha = scores.length / Math.max(scores.filter((s) => s !== 0).length, 1);
  return row(byGroup(batch, centred).map((a) => (alpha * a) / (f_norm as number)));
}

/** Deviation of all rows, population; 0 rows give no advantages. */
function overBatch(values: Float64Array, centre: number, epsilon: number): Float64Array {
  if (values.length === 0) return values;
  const spread = populationDeviation(values) + epsilon;
  return values.map((a) => (a - centre) / spread);
}

/** GDPO: each reward normalised on its own, then their weighted sum whitened over tokens. */
function gdpo(batch: AdvantageBatch, settings: EstimatorSettings): Estimate {
  const components = batch.rewardComponents ?? { reward: batch.scores };
  const sum = new Float64Array(batch.scores.length);
  for (const [name, scores] of Object.entries(components)) {
    const weight = (settings[`weight.${name}`] as number | undefined) ?? 1;
    const part = byGroup({ ...batch, scores }, (s) => groupNorm(s, groupNormOf("gdpo", settings)));
    for (let i = 0; i < sum.length; i++) sum[i]! += weight * part[i]!;
  }
  return row(whitenRows(sum, trainedLengths(batch)));
}

export const ROW_ESTIMATORS: readonly Estimator[] = [
  grpo("grpo", normSettings(1, 1e-6)),
  grpo("grpo_vectorized", normSettings(1, 1e-6)),
  grpo("rllm.grpo", normSettings(0, 1e-6)),
  grpo("trl.grpo", normSettings(1, 1e-4)),
  {
    name: "grpo_passk",
    settings: normSettings(1, 1e-6),
    scope: "group",
    estimate: (batch, s) => row(byGroup(batch, (scores) => passAtK(scores, groupNormOf("grpo_passk", s)))),
  },
  {
    name: "rloo",
    settings: {},
    scope: "group",
    estimate: (batch) => row(byGroup(batch, (scores) => leaveOneOut(scores, "reward"))),
  },
  {
    name: "rloo_vectorized",
    settings: {},
    scope: "group",
    estimate: (batch) => row(byGroup(batch, (scores) => leaveOneOut(scores, "zero"))),
  },
  {
    name: "reinforce",
    settings: {},
    scope: "row",
    estimate: (batch) => row(Float64Array.from(batch.scores)),
  },
  {
    name: "opo",
    settings: {},
    scope: "group",
    estimate: (batch) => {
      const lengths = trainedLengths(batch);
      return row(
        byGroup(batch, (scores, rows) =>
          lengthWeighted(
            scores,
            Array.from(rows, (i) => lengths[i]!),
          ),
        ),
      );
    },
  },
  { name: "gpg", settings: { f_norm: 1 }, scope: "batch", estimate: gpg },
  {
    name: "reinforce_plus_plus_baseline",
    settings: {},
    scope: "batch",
    estimate: (batch) => row(whitenRows(byGroup(batch, centred), trainedLengths(batch))),
  },
  {
    name: "rllm.reinforce_plus_plus_baseline",
    settings: { epsilon: 1e-6 },
    scope: "batch",
    estimate: (batch, s) => {
      const rows = byGroup(batch, (scores) => scores.map((x) => x - mean(scores)));
      return row(overBatch(rows, 0, s.epsilon as number));
    },
  },
  {
    name: "prpo",
    settings: { epsilon: 1e-6 },
    scope: "batch",
    estimate: (batch, s) => {
      const scores = Float64Array.from(batch.scores);
      return row(overBatch(scores, mean(Array.from(scores)), s.epsilon as number));
    },
  },
  { name: "gdpo", settings: normSettings(1, 1e-6), scope: "batch", estimate: gdpo },
];
