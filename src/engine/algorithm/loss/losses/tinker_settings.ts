/**
 * Common parts of Tinker's losses: sums over tokens, thresholds as absolute ratios. The service sums; give
 * `loss_agg_mode: "token-sum"` for its numbers.
 * @see https://tinker-docs.thinkingmachines.ai/losses
 */
import type { LossDefinition, LossPlan, MetricNames } from "../definition.ts";

export const TINKER_LOSSES_PAGE = "https://tinker-docs.thinkingmachines.ai/losses";

/** The settings of a clip range, which are also inputs: a threshold for each token in their place. */
export const THRESHOLDS = ["clip_low_threshold", "clip_high_threshold"] as const;

/** Inputs of losses on samples of another policy. */
export const OFF_POLICY = ["logprobs", "advantages"] as const;

export const thresholds = (s: { readonly clip_low_threshold: number; readonly clip_high_threshold: number }) => ({
  low: s.clip_low_threshold,
  high: s.clip_high_threshold,
});

export const SIDES_METRICS: MetricNames = ["actor/pg_clipfrac_low", "actor/ppo_kl", "actor/pg_clipfrac_high"];

/** The two sides are counted separately; the published fraction is their sum. */
export const clippedEitherSide: NonNullable<LossPlan["derived"]> = ([low, , high]) => ({
  "actor/pg_clipfrac": low + high,
});

/** A loss of Tinker's as `tinker.NAME`, and under its bare name, which verl gives to no loss of its own. */
export function underBothNames(loss: LossDefinition): readonly [LossDefinition, LossDefinition] {
  return [loss, { ...loss, name: loss.name.slice("tinker.".length) }];
}
