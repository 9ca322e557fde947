/**
 * TRL's three factors on a token's loss, as importance weights for any loss here: they multiply the loss before
 * aggregation and leave the KL term alone. In float64.
 */

import { ConfigError } from "../../../leaves/errors.ts";
import { sum } from "../../../leaves/statistics.ts";
import type { Advantages } from "../../contract/backend.ts";
import { forEachRow, rowsOfTokens, totalTokens, trainedIn } from "../../packing/offsets.ts";
import { advantageReader, checkAdvantages } from "../advantage/level.ts";
import type { MaskedRows } from "../rows.ts";
import { clamp } from "./token.ts";

/** Choice of TRL's token weights and masks. */
export interface TrlWeightOptions {
  /** Keeps this share of the trained tokens, those of highest entropy. Default 1: all. */
  readonly top_entropy_quantile?: number | undefined;
  /** Drops tokens of negative advantage in rows whose mean log-ratio of sampler to trainer is above it. */
  readonly off_policy_mask_threshold?: number | undefined;
  /** `token_truncate`, `token_mask`, `sequence_truncate` or `sequence_mask` of exp(old - sampled). */
  readonly vllm_importance_sampling_mode?: string | undefined;
  /** Default 0. */
  readonly vllm_importance_sampling_clip_min?: number | undefined;
  /** Default 3. */
  readonly vllm_importance_sampling_clip_max?: number | undefined;
}

/** Batch of TRL's weights; per-token arrays are [T]. */
export interface TrlWeightBatch extends MaskedRows {
  readonly logprobs: ArrayLike<number>;
  readonly oldLogprobs?: ArrayLike<number> | undefined;
  readonly rolloutLogprobs?: ArrayLike<number> | undefined;
  readonly entropy?: ArrayLike<number> | undefined;
  readonly advantages?: Advantages<ArrayLike<number>> | undefined;
}

/**
 * Product of the factors asked for, [T], 0 where mask = 0.
 * @throws {ConfigError} for an unknown mode, or a factor whose input the batch lacks
 * @see TRL GRPOTrainer
 */
export function trlWeights(batch: TrlWeightBatch, options: TrlWeightOptions): Float64Array {
  const { off_policy_mask_threshold: threshold, vllm_importance_sampling_mode: mode } = options;
  const weights = topEntropy(batch, options.top_entropy_quantile ?? 1);
  const multiply = (factor: Float64Array) =>
    factor.forEach((x, t) => {
      weights[t]! *= x;
    });
  if (threshold !== undefined) multiply(offPolicy(batch, threshold));
  if (mode !== undefined) multiply(samplerRatio(batch, mode, options));
  return weights.map((weight, t) => (batch.mask[t] === 0 ? 0 : weight));
}

function input<T>(value: T | undefined, name: string): T {
  if (value !== undefined) return value;
  throw new ConfigError(
    `Cannot weigh tokens: the batch does not hold ${name}. Give ${name}, or leave out the option that needs it.`,
    { path: name },
  );
}

/** 1 at the tokens whose entropy reaches the quantile 1 - share of all trained ones (linear between neighbours). */
function topEntropy({ mask, entropy }: TrlWeightBatch, share: number): Float64Array {
  if (share >= 1) return new Float64Array(mask.length).fill(1);
  const entropies = Float64Array.from(input(entropy, "entropy"));
  const trained = entropies.filter((_, t) => mask[t] !== 0);
  const at = (1 - share) * (trained.length - 1);
  const sorted = trained.sort();
  const below = sorted[Math.floor(at)]!;
  const threshold = below + (sorted[Math.ceil(at)]! - below) * (at % 1);
  return entropies.map((h) => (h >= threshold ? 1 : 0));
}

/** 1 at tokens that are kept: of an advantage of 0 or more, or in a row that is near enough to its sampler. */
function offPolicy(batch: TrlWeightBatch, threshold: number): Float64Array {
  const { offsets, logprobs } = batch;
  const sampled = input(batch.rolloutLogprobs, "rolloutLogprobs");
  const size = { rows: offsets.length - 1, tokens: totalTokens(offsets) };
  const advantage = advantageReader(checkAdvantages(input(batch.advantages, "advantages"), size));
  const drift = (t: number) => sampled[t]! - logprobs[t]!;
  const drifts = byRow(batch, (tokens) => sum(tokens.map(drift)) / Math.max(tokens.length, 1));
  const rowOfToken = rowsOfTokens(offsets);
  return drifts.map((of, t) => (advantage(t, rowOfToken[t]!) >= 0 || of <= threshold ? 1 : 0));
}

/** exp(old - sampled) of the token or its row, cut at the bounds or 0 outside them. */
function samplerRatio(batch: TrlWeightBatch, mode: string, options: TrlWeightOptions): Float64Array {
  const [level, action] = samplerMode(mode);
  const old = input(batch.oldLogprobs, "oldLogprobs");
  const sampled = input(batch.rolloutLogprobs, "rolloutLogprobs");
  const { vllm_importance_sampling_clip_min: low = 0, vllm_importance_sampling_clip_max: high = 3 } = options;
  const bounded = (x: number) => (action === "truncate" ? clamp(x, low, high) : x >= low && x <= high ? x : 0);
  const drift = (t: number) => (batch.mask[t] === 0 ? 0 : old[t]! - sampled[t]!);
  if (level === "token") return Float64Array.from(batch.mask, (_, t) => bounded(Math.exp(drift(t))));
  return byRow(batch, (tokens) => bounded(Math.exp(sum(tokens.map(drift)))));
}

function samplerMode(mode: string): [level: string, action: string] {
  const match = /^(token|sequence)_(truncate|mask)$/.exec(mode);
  if (match) return [match[1]!, match[2]!];
  throw new ConfigError(
    `Cannot weigh tokens: there is no mode ${JSON.stringify(mode)}. Use token_truncate, token_mask, sequence_truncate or sequence_mask.`,
    { path: "vllm_importance_sampling_mode" },
  );
}

/** A number for each row, from its trained tokens, spread over its tokens. */
function byRow({ offsets, mask }: TrlWeightBatch, of: (tokens: number[]) => number): Float64Array {
  const spread = new Float64Array(mask.length);
  forEachRow(offsets, (_, first, end) => {
    spread.fill(of(trainedIn(mask, first, end)), first, end);
  });
  return spread;
}
