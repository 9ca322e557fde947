/**
 * Common parts of TRL's losses (GRPOTrainer and RLOOTrainer, 1.10): one set of arguments, and aggregations of their
 * own, so that `loss_agg_mode` does not act on them. Log-ratios are not bounded.
 */
import type { Aggregation } from "../definition.ts";

export const TRL_SETTINGS = {
  epsilon: 0.2,
  /** -1: the same as `epsilon`. */
  epsilon_high: -1,
  /** 0: no upper bound for negative advantages (TRL's None). */
  delta: 0,
  /** 0 = token, 1 = sequence. */
  importance_sampling_level: 0,
  sapo_temperature_pos: 1,
  sapo_temperature_neg: 1.05,
  vespo_k_pos: 2,
  vespo_lambda_pos: 3,
  vespo_k_neg: 3,
  vespo_lambda_neg: 2,
  /** Needed by `trl.dr_grpo`. 0: the longest row. */
  max_completion_length: 0,
  /** Trained tokens of the generation batch (`trl.dapo`, `cispo`, `vespo`). 0: this batch's. */
  num_items_in_batch: 0,
};

export type TrlSettings = typeof TRL_SETTINGS;

/** TRL does not cut k3 off. */
export const klBound = Number.POSITIVE_INFINITY;

/** The upper distance from 1. */
export const upperDistance = (s: TrlSettings) => (s.epsilon_high < 0 ? s.epsilon : s.epsilon_high);

export const rowMean: Aggregation = (step) => ({
  mode: "seq-mean-token-mean",
  given: { global_batch_size: step.count },
});

export const allTokens =
  (s: TrlSettings): Aggregation =>
  () => ({
    mode: "token-mean",
    given: s.num_items_in_batch > 0 ? { batch_num_tokens: s.num_items_in_batch } : {},
  });
