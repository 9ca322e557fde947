/** The settings that the losses of TRL's DPOTrainer share: sums of log-ratios to a reference, and RPO's likelihood term. */
import type { PreferenceSettings } from "../pair.ts";

/** `rpo_alpha` weighs the likelihood term. */
export const DPO_SETTINGS = { beta: 0.1, rpo_alpha: 0 };

export const ON_LOG_RATIOS = {
  unit: "pair",
  hasReference: true,
  isMean: false,
  describeSettings: { rpo_alpha: "weight of the likelihood of chosen answers" },
  nllWeight: ({ rpo_alpha }: PreferenceSettings) => rpo_alpha!,
} as const;

export const betaOnly = ({ beta }: PreferenceSettings) => ({ beta: beta! });

/** `label_smoothing` in the losses that have it. */
export const LABEL_SMOOTHING = "share of labels that are taken to be wrong, below 0.5";
