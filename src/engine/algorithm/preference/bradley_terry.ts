/** The loss of a pairwise reward model (Bradley and Terry, 1952) over the scores of whole rows: on the host in float64, and as a kernel. */

import { ConfigError } from "../../../leaves/errors.ts";
import { mean, sum } from "../../../leaves/statistics.ts";
import { defineKernel, folded } from "../../compute/kernel.ts";
import type { Metrics } from "../../contract/backend.ts";
import type { LossResult } from "../loss/resolve.ts";
import { logistic, softplus } from "./logistic.ts";

/** Settings of {@link rewardModelLoss} under TRL's names. */
export interface RewardModelSpec {
  /** Weight of the mean of (chosen + rejected)^2, which keeps scores near 0. Default 0. */
  readonly center_rewards_coefficient?: number | undefined;
  /** Pairs of the whole step where it is split over calls. Default: those of this call. */
  readonly global_batch_size?: number | undefined;
}

/** The scores of pairs. */
export interface ScoredPairs {
  /** [2P]: element 2i is the chosen row's, 2i + 1 the rejected row's. */
  readonly scores: ArrayLike<number>;
  /** Least lead of the chosen row of a pair, [P]. Default 0. */
  readonly margins?: ArrayLike<number> | undefined;
}

/** A reward model's loss computed on the host. */
export interface HostRewardModelLoss extends LossResult {
  /** d(loss)/d(score), [2P]. */
  readonly dscores: Float64Array;
}

/**
 * The mean over pairs of -log s(c - r - margin) + center_rewards_coefficient (c + r)^2, where c and r are the scores and s is the
 * logistic function; with its slopes and {@link pairScoreMetrics}.
 * @throws {ConfigError} for scores that do not come in pairs or are not finite, and a coefficient or margin that is no number
 * @see TRL RewardTrainer; Ouyang et al. 2022; Touvron et al. 2023 (margin); Eisenstein et al. 2023 (centring)
 */
export function rewardModelLoss(pairs: ScoredPairs, spec: RewardModelSpec = {}): HostRewardModelLoss {
  const { count, scale, center } = planPairs(pairs, spec);
  const values = new Float64Array(count);
  const dscores = new Float64Array(2 * count);
  takePairs({ ...pairs, margins: pairs.margins ?? values.slice(), values, dscores }, { pairs: count, scale, center });
  return { loss: scale * sum(values), metrics: pairScoreMetrics(pairs.scores), dscores };
}

/** Everything that a pass over the pairs needs to know. */
export interface PlannedPairs {
  readonly count: number;
  /** Factor of a pair's loss in the mean. */
  readonly scale: number;
  readonly center: number;
}

/** @throws {ConfigError} as {@link rewardModelLoss}, but for the scores' values */
export function planPairs(
  { scores: { length }, margins }: { readonly scores: { readonly length: number } } & Pick<ScoredPairs, "margins">,
  { center_rewards_coefficient: center = 0, global_batch_size }: RewardModelSpec,
): PlannedPairs {
  const fail = (why: string, path: string) => new ConfigError(`Cannot take the reward model's loss: ${why}`, { path });
  if (length === 0 || length % 2 === 1)
    throw fail(
      `scores come in pairs, chosen before rejected, and there are ${length}. Give two for each pair.`,
      "scores",
    );
  if (margins && (margins.length !== length / 2 || !Array.from(margins).every(Number.isFinite)))
    throw fail(
      `margins must be one finite number per pair (${margins.length} of ${length / 2}). Correct them.`,
      "margins",
    );
  if (!(Number.isFinite(center) && center >= 0))
    throw fail(
      `center_rewards_coefficient must be a number from 0 (${center}). Correct it.`,
      "center_rewards_coefficient",
    );
  return { count: length / 2, scale: 1 / (global_batch_size ?? length / 2), center };
}

/**
 * TRL's metrics of a reward model: `accuracy`, the share of pairs whose chosen row has the larger score, `margin`, the mean of their
 * differences, and `mean_reward`, `min_reward`, `max_reward` over all rows.
 * @throws {ConfigError} for a score that is not finite
 */
export function pairScoreMetrics(scores: ArrayLike<number>): Metrics {
  const list = Array.from(scores);
  const broken = list.findIndex((score) => !Number.isFinite(score));
  if (broken >= 0)
    throw new ConfigError(
      `Cannot take the reward model's loss: the score of row ${broken} is not finite (${list[broken]}). Lower the learning rate, or correct the row.`,
    );
  const margins = Array.from({ length: list.length / 2 }, (_, pair) => list[2 * pair]! - list[2 * pair + 1]!);
  return {
    accuracy: mean(margins.map((margin) => Number(margin > 0))),
    margin: mean(margins),
    mean_reward: mean(list),
    min_reward: list.reduce((least, score) => Math.min(least, score)),
    max_reward: list.reduce((most, score) => Math.max(most, score)),
  };
}

type Numbers = Float32Array | Float64Array;

interface PairArrays {
  readonly scores: ArrayLike<number>;
  readonly margins: ArrayLike<number>;
  readonly values: Numbers;
  readonly dscores: Numbers;
}

function takePairs(
  { scores, margins, values, dscores }: PairArrays,
  { pairs, scale, center }: { pairs: number; scale: number; center: number },
): void {
  for (let pair = 0; pair < pairs; pair++) {
    const [chosen, rejected] = [scores[2 * pair]!, scores[2 * pair + 1]!];
    const ahead = chosen - rejected - margins[pair]!;
    const total = chosen + rejected;
    values[pair] = softplus(-ahead) + center * total * total;
    const slope = -logistic(-ahead);
    const pull = 2 * center * total;
    dscores[2 * pair] = scale * (slope + pull);
    dscores[2 * pair + 1] = scale * (pull - slope);
  }
}

const PAIRS_PER_GROUP = 64;

/** values[P] is the loss of each pair, dscores[2P] the gradient of their mean. */
export const bradleyTerry = defineKernel({
  name: "preference/bradley_terry",
  bindings: { scores: "read f32", margins: "read f32", values: "write f32", dscores: "write f32" },
  params: { pairs: "u32", scale: "f32", center: "f32" },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: ({ pairs }) => folded(Math.ceil(pairs / PAIRS_PER_GROUP)),
  reference: (buffers, params) => takePairs(buffers, params),
});
