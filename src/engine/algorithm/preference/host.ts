/** The preference loss on the host, in float64: the reference of the GPU's, and the way without a device. */
import { sum } from "../../../leaves/statistics.ts";
import type { LossResult } from "../loss/resolve.ts";
import { preferenceResult } from "./metrics.ts";
import { type PreferenceRows, type PreferenceSpec, type ResolvedPreference, resolvePreference } from "./resolve.ts";
import { takeUnit } from "./unit.ts";

/** Batch of preferences; per-token arrays are [T]. */
export interface PreferenceBatch extends PreferenceRows {
  readonly logprobs: ArrayLike<number>;
  /** Log-probs of the reference policy. `simpo` and `orpo` need none. */
  readonly refLogprobs?: ArrayLike<number> | undefined;
}

/** A preference loss computed on the host. */
export interface HostPreference extends LossResult {
  /** d(loss)/d(logprob), [T]. */
  readonly dlogprobs: Float64Array;
}

/**
 * Value, gradient and metrics of a preference loss, in float64 on the host.
 * @throws {ConfigError} for an unknown loss or setting, rows that the loss cannot use, or a loss that is not finite
 * @see TRL DPOTrainer, KTOTrainer, ORPOTrainer, CPOTrainer
 */
export function preferenceLoss(batch: PreferenceBatch, spec: PreferenceSpec): HostPreference {
  const plan = resolvePreference(spec, batch);
  const { mask, nllMask = mask, refLogprobs: ref } = batch;
  const of = { streams: { ...batch, ref, nllMask }, plan: { ...plan, nllScale: likelihoodScale(plan) } };
  const dlogprobs = new Float64Array(plan.counts.tokens);
  const rows = Array.from({ length: plan.units }, (_, unit) => takeUnit(unit, of, dlogprobs)).flat();
  return { ...preferenceResult(plan, rows, batch), dlogprobs };
}

/** Factor of a token's negative log-likelihood. */
export function likelihoodScale({ nll }: ResolvedPreference): number {
  return nll ? nll.weight / nll.tokens : 0;
}

/**
 * KTO's baseline: the mean over rows of the log-ratio of a completion to a prompt that it does not answer, at least 0.
 * @param batch rows of prompts with other rows' completions; TRL takes those of the row before, and the last row's for the first
 */
export function klBaseline({
  logprobs,
  refLogprobs,
  mask,
  offsets,
}: Omit<PreferenceBatch, "labels" | "nllMask">): number {
  const ratios = Array.from(mask, (isTrained, t) => (isTrained ? logprobs[t]! - refLogprobs![t]! : 0));
  return Math.max(sum(ratios) / (offsets.length - 1), 0);
}
