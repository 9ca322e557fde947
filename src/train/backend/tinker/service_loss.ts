/**
 * A policy loss in the service's terms. The service sums over tokens, so the weight of each token under `loss_agg_mode`
 * and its rollout correction multiply its advantage. Losses that the service lacks, and all with a KL term, are computed
 * here: the gradient by each log-prob becomes the weight of a cross-entropy, which is exact for any loss.
 */

import { factorsOf, findLoss, type HostLoss, policyLoss } from "../../../engine/algorithm/mod.ts";
import type { LossSpec, TrainBatch } from "../../../engine/contract/backend.ts";
import { LOGITS_TEMPERATURE } from "../../../engine/contract/engine.ts";
import { UnsupportedError } from "../../../leaves/errors.ts";
import type { SampledSpan } from "../stable/sampled_records.ts";
import { weightedAdvantages } from "../stable/weighted_advantages.ts";

/** The loss of a forward_backward request. */
export interface ServiceLoss {
  readonly lossFn: string;
  readonly config: Readonly<Record<string, number>>;
  /** Inputs of the data other than `target_tokens`, [T] over the tokens of the batch. */
  readonly inputs: Readonly<Record<string, Float32Array>>;
  /** Spans of every row's tokens: where they were sampled. */
  readonly spans?: readonly (readonly SampledSpan[])[] | undefined;
}

/**
 * The service's name of a loss that is proportional to the advantage, so that tokens are weighed through it. `tinker.dro` is
 * not, so it is computed here, and so are losses of the same name that are not Tinker's (verl's `cispo`, `dro`, `gspo`).
 */
function serviceName(name: string): string | undefined {
  const tinker = findLoss(name).elsewhere?.tinker;
  return tinker?.isLinear ? tinker.name : undefined;
}

/** The settings of a loss on log-probs at a temperature. At 1 there are none, so that every service takes the loss. */
export function atTemperature(temperature: number): ServiceLoss["config"] {
  return temperature === 1 ? {} : { [LOGITS_TEMPERATURE]: temperature };
}

/** The loss as the service computes it in one pass; undefined for one that must be computed here. */
export function serviceLoss(batch: TrainBatch, spec: LossSpec): ServiceLoss | undefined {
  const loss = nativeLoss(batch, spec);
  return loss && { ...loss, config: { ...loss.config, ...atTemperature(spec.temperature) } };
}

function nativeLoss(batch: TrainBatch, spec: LossSpec): ServiceLoss | undefined {
  const name = serviceName(spec.name);
  if (name === undefined || spec.kl) return undefined;
  const advantages = weightedAdvantages(batch, spec);
  // Without old log-probs the ratio is 1: each of these losses has the gradient of a cross-entropy.
  if (name === "cross_entropy" || !batch.oldLogprobs)
    return { lossFn: "cross_entropy", config: {}, inputs: { weights: advantages } };
  const { settings } = findLoss(spec.name);
  const config = Object.fromEntries(Object.entries(spec.settings).filter(([key]) => key in settings));
  const inputs = { logprobs: batch.oldLogprobs, advantages };
  if (name !== "gspo") return { lossFn: name, config, inputs };
  return { lossFn: name, config, inputs: { ...inputs, sequence_ratio_mask: Float32Array.from(batch.mask) } };
}

/**
 * @param service.takesTemperature whether the service has announced {@link LOGITS_TEMPERATURE}
 * @throws {UnsupportedError} for an entropy bonus, and for a temperature other than 1 where the service has no other.
 */
export function refuseUnsupported(
  { temperature, entropy_coeff }: LossSpec,
  { takesTemperature }: { takesTemperature: boolean },
): void {
  const about = (capability: string) => ({ part: "tinker", capability });
  if (temperature !== 1 && !takesTemperature)
    throw new UnsupportedError(
      `Cannot train at temperature ${temperature}: the service computes log-probs at temperature 1 (get_server_capabilities announces no ${LOGITS_TEMPERATURE}). Set rllm.rollout.train.temperature=1.`,
      about("temperature"),
    );
  if (entropy_coeff !== 0)
    throw new UnsupportedError(
      "Cannot train with an entropy bonus: the service returns no entropies. Set rllm.algorithm.entropy_coeff=0.",
      about("entropy_coeff"),
    );
}

/**
 * The loss computed here in float64: value, metrics and gradient at the service's log-probs.
 * @param logprobs [T], at trained tokens
 */
export function hostLoss(batch: TrainBatch, spec: LossSpec, logprobs: Float32Array): HostLoss {
  return policyLoss({ ...batch, logprobs, advantages: factorsOf(batch) }, spec);
}

/** The service's part of a loss that is computed here. */
export function hostPart(temperature: number): Pick<ServiceLoss, "lossFn" | "config"> {
  return { lossFn: "cross_entropy", config: atTemperature(temperature) };
}

/** The weights of a cross-entropy that has the gradient of a loss: minus the slope at every token. */
export function slopesAsWeights({ dlogprobs }: HostLoss): Float32Array {
  return Float32Array.from(dlogprobs, (slope) => (slope === 0 ? 0 : -slope));
}
