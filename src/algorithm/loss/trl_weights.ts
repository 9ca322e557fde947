/**
 * TRL's three factors on a token's loss, as importance weights for any loss here: they multiply the loss before
 * aggregation and leave the KL term alone. In float64.
 */
import type { Advantages } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import { advantageReader, checkAdvantages } from "../advantage/level.ts";
import { clamp } from "./definition.ts";
import { rowsOfTokens } from "./host.ts";

export interface TrlWeightOptions {
  /** Keeps the tokens of highest entropy, this share of all trained ones (`top_entropy_quantile`). Default 1: all. */
  readonly top_entropy_quantile?: number;
  /** Drops rows of negative advantage whose mean log-ratio of sampler to trainer is above it. */
  readonly off_policy_mask_threshold?: number;
  /** `token_truncate`, `token_mask`, `sequence_truncate` or `sequence_mask` of exp(old - sampled). */
  readonly vllm_importance_sampling_mode?: string;
  readonly vllm_importance_sampling_clip_min?: number;
  /** Default 3. */
  readonly vllm_importance_sampling_clip_max?: number;
}

export interface TrlWeightBatch {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
  readonly logprobs: ArrayLike<number>;
  readonly oldLogprobs?: ArrayLike<number>;
  readonly rolloutLogprobs?: ArrayLike<number>;
  readonly entropy?: ArrayLike<number> | undefined;
  readonly advantages?: Advantages<ArrayLike<number>>;
}

/**
 * Product of the factors asked for, [T], 0 where mask = 0.
 * @throws ConfigError for an unknown mode, or a factor whose input the batch lacks
 * @see TRL GRPOTrainer
 */
export function trlWeights(batch: TrlWeightBatch, options: TrlWeightOptions): Float64Array {
  const factors = [
    topEntropy(batch, options.top_entropy_quantile ?? 1),
    ...(options.off_policy_mask_threshold === undefined
      ? []
      : [offPolicy(batch, options.off_policy_mask_threshold)]),
    ...(options.vllm_importance_sampling_mode === undefined ? [] : [samplerRatio(batch, options)]),
  ];
  return Float64Array.from(batch.mask, (m, t) =>
    m === 0 ? 0 : factors.reduce((product, of) => product * of[t]!, 1),
  );
}

function input<T>(value: T | undefined, name: string): T {
  if (value === undefined)
    throw new ConfigError(`Cannot weigh tokens as the batch does not hold ${name}.`, { path: name });
  return value;
}

/** 1 at the tokens whose entropy reaches the quantile 1 - share of all trained ones (linear between neighbours). */
function topEntropy(batch: TrlWeightBatch, share: number): Float64Array {
  if (share >= 1) return new Float64Array(batch.mask.length).fill(1);
  const entropy = input(batch.entropy, "entropy");
  const sorted = Array.from(entropy)
    .filter((_, t) => batch.mask[t] !== 0)
    .sort((a, b) => a - b);
  const at = (1 - share) * (sorted.length - 1);
  const below = sorted[Math.floor(at)]!;
  const threshold = below + (sorted[Math.ceil(at)]! - below) * (at % 1);
  return Float64Array.from(entropy, (h) => (h >= threshold ? 1 : 0));
}

/** 1 at tokens that are kept: of a good advantage, or in a row that is near enough to its sampler. */
function offPolicy(batch: TrlWeightBatch, threshold: number): Float64Array {
  const sampled = input(batch.rolloutLogprobs, "rolloutLogprobs");
  const size = { rows: batch.offsets.length - 1, tokens: batch.mask.length };
  const advantage = advantageReader(checkAdvantages(input(batch.advantages, "advantages"), size));
  const drift = (tokens: readonly number[]) =>
    tokens.reduce((sum, t) => sum + sampled[t]! - batch.logprobs[t]!, 0) / Math.max(tokens.length, 1);
  const drifts = byRow(batch, (_, tokens) => drift(tokens));
  const rowOfToken = rowsOfTokens(batch.offsets);
  return drifts.map((of, t) => (advantage(t, rowOfToken[t]!) >= 0 || of <= threshold ? 1 : 0));
}

function samplerRatio(batch: TrlWeightBatch, options: TrlWeightOptions): Float64Array {
  const [level, action] = input(options.vllm_importance_sampling_mode, "vllm_importance_sampling_mode").split(
    "_",
  );
  if (!["token", "sequence"].includes(level!) || !["truncate", "mask"].includes(action!))
    throw new ConfigError(
      `Cannot weigh tokens as ${JSON.stringify(options.vllm_importance_sampling_mode)}: use token_truncate, token_mask, sequence_truncate or sequence_mask.`,
      { path: "vllm_importance_sampling_mode" },
    );
  const old = input(batch.oldLogprobs, "oldLogprobs");
  const sampled = input(batch.rolloutLogprobs, "rolloutLogprobs");
  const low = options.vllm_importance_sampling_clip_min ?? 0;
  const high = options.vllm_importance_sampling_clip_max ?? 3;
  const bounded = (x: number) =>
    action === "truncate" ? clamp(x, low, high) : x >= low && x <= high ? x : 0;
  const drift = (t: number) => (batch.mask[t] === 0 ? 0 : old[t]! - sampled[t]!);
  if (level === "token") return Float64Array.from(batch.mask, (_, t) => bounded(Math.exp(drift(t))));
  return byRow(batch, (_, tokens) => bounded(Math.exp(tokens.reduce((sum, t) => sum + drift(t), 0))));
}

/** A number for each row, from its trained tokens, spread over its tokens. */
function byRow(
  { offsets, mask }: TrlWeightBatch,
  of: (row: number, tokens: number[]) => number,
): Float64Array {
  const spread = new Float64Array(mask.length);
  for (let row = 0; row + 1 < offsets.length; row++) {
    const tokens: number[] = [];
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) tokens.push(t);
    spread.fill(of(row, tokens), offsets[row], offsets[row + 1]);
  }
  return spread;
}
