/** Losses that a training service computes from what it recorded while it sampled, so that the pass of this engine has none of them. */
import type { LossSettings } from "./token.ts";

/** The name of a loss and its settings with their defaults. */
export interface ServiceLossDefinition {
  readonly name: string;
  readonly settings: LossSettings;
}

/**
 * Tinker's REINFORCE for tokens of another policy. `kl_coeff` is the setting of `grpu serve tinker`: a penalty on the divergence from the sampler.
 */
export const STABLE_REINFORCE: ServiceLossDefinition = { name: "stable_reinforce", settings: { kl_coeff: 0 } };
