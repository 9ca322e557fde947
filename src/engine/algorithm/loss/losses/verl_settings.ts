/** Common parts of verl's losses: one actor configuration for all of them, and the names of their metrics. */
import { ConfigError } from "../../../../leaves/errors.ts";
import type { Aggregation, MetricNames } from "../definition.ts";

/** verl passes one actor configuration to every loss, so each accepts all of it and reads its own part. */
export const VERL_SETTINGS = {
  clip_ratio: 0.2,
  clip_ratio_low: 0.2,
  clip_ratio_high: 0.2,
  clip_ratio_c: 3,
  tau_pos: 1,
  tau_neg: 1.05,
  clip_cov_ratio: 2e-4,
  clip_cov_lb: 1,
  clip_cov_ub: 5,
  kl_cov_ratio: 2e-4,
  ppo_kl_coef: 0.1,
  dro_beta: 0,
  seed: 0,
};

export type VerlSettings = typeof VERL_SETTINGS;

export const CLIP_METRICS: MetricNames = ["actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"];
export const KL_METRIC: MetricNames = [null, "actor/ppo_kl", null];
export const NO_METRICS: MetricNames = [null, null, null];

/** The bounds of the ratio. */
export const band = (s: VerlSettings) => ({ low: 1 - s.clip_ratio_low, high: 1 + s.clip_ratio_high });

/** GSPO and SAPO ignore `loss_agg_mode`. */
export const sequenceMean: Aggregation = () => ({ mode: "seq-mean-token-mean", given: {} });

/** @throws {ConfigError} for a value that is not above the limit */
export function above(limit: number, key: keyof VerlSettings, s: VerlSettings): number {
  if (s[key] > limit) return s[key];
  throw new ConfigError(`Cannot take the loss: ${key} must be above ${limit} (${s[key]}).`, { path: key });
}
