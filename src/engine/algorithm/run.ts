/** The engine in one call: packed rollouts in host memory, results back. With a device on it, else in float64 here. */

import { ConfigError } from "../../leaves/errors.ts";
import { type Buffer, type Device, readFloats } from "../compute/device.ts";
import type { RolloutsPart } from "../packing/rollouts/read.ts";
import type { Floats } from "../packing/rollouts/rollouts.ts";
import type { AdvantageBatch, Estimate, EstimatorSettings } from "./advantage/definition.ts";
import { hasAdvantageKernel, recordAdvantages } from "./advantage/device.ts";
import { findEstimator } from "./advantage/estimators.ts";
import { advantages, perToken } from "./advantage/host.ts";
import { checkAdvantages } from "./advantage/level.ts";
import { Inputs } from "./inputs.ts";
import { recordPolicyLoss } from "./loss/device.ts";
import { type LossBatch, policyLoss } from "./loss/host.ts";
import { type KlBatch, type KlSpec, klLoss, recordKl } from "./loss/kl_loss.ts";
import { isHostOnly, type LossResult, type PolicyLossSpec } from "./loss/resolve.ts";
import { type RewardModelSpec, rewardModelLoss, type ScoredPairs } from "./preference/bradley_terry.ts";
import { recordRewardModelLoss } from "./preference/bradley_terry_device.ts";
import { recordPreferenceLoss } from "./preference/device.ts";
import { type PreferenceBatch, preferenceLoss } from "./preference/host.ts";
import type { PreferenceSpec } from "./preference/resolve.ts";
import { advantageBatch } from "./rollout_batches.ts";
import { countRows } from "./rows.ts";

/** Place of the computation; absent: in float64 on the host. */
export interface RunOptions {
  readonly device?: Device | undefined;
}

/** Advantages and returns per token, and the estimate they come from. */
export interface TokenAdvantages {
  /** The estimator's result. */
  readonly estimate: Estimate;
  /** Both [T]; rows spread over their trained tokens, 0 elsewhere. */
  readonly advantages: Float64Array;
  readonly returns: Float64Array;
}

/** Settings of the estimator, and where to run. */
export interface AdvantageRunOptions extends RunOptions {
  readonly settings?: EstimatorSettings | undefined;
}

/**
 * Advantages of a packed batch. Estimators without a kernel run on the host.
 * @throws {ConfigError} for an unknown estimator or setting, or a field that it needs and the batch lacks
 */
export async function computeAdvantages(
  batch: AdvantageBatch,
  name: string,
  { device, settings }: AdvantageRunOptions = {},
): Promise<TokenAdvantages> {
  const estimate =
    device && hasAdvantageKernel(name, batch)
      ? await deviceAdvantages(device, batch, { name, settings })
      : advantages(batch, name, settings);
  return { estimate, ...perToken(batch, estimate) };
}

/**
 * Advantages of rollouts that come in parts of whole groups (`streamJsonl`), in bounded memory.
 * @throws {ConfigError} for an estimator whose statistics span the batch
 */
export async function* streamAdvantages(
  parts: AsyncIterable<RolloutsPart>,
  name: string,
  options: AdvantageRunOptions = {},
): AsyncGenerator<TokenAdvantages & RolloutsPart> {
  if (findEstimator(name).scope === "batch")
    throw new ConfigError(`Cannot stream ${name}: its statistics span the whole batch. Read the whole file at once.`, {
      path: "adv_estimator",
    });
  for await (const part of parts)
    yield { ...part, ...(await computeAdvantages(advantageBatch(part.rollouts), name, options)) };
}

async function deviceAdvantages(
  device: Device,
  batch: AdvantageBatch,
  { name, settings }: { name: string; settings: EstimatorSettings | undefined },
): Promise<Estimate> {
  const inputs = new Inputs(device);
  const recorded = recordAdvantages(device, name, {
    buffers: {
      scores: inputs.floats(batch.scores, "scores"),
      tokenRewards: inputs.optional(batch.tokenRewards, "token rewards"),
      mask: inputs.ints(batch.mask, "mask"),
      offsets: inputs.ints(batch.offsets, "offsets"),
      values: inputs.optional(batch.values, "values"),
      rewardBaselines: inputs.optional(batch.rewardBaselines, "reward baselines"),
      oldLogprobs: inputs.optional(batch.oldLogprobs, "old log-probs"),
      sumPiSquared: inputs.optional(batch.sumPiSquared, "sums of squared probabilities"),
      rolloutIsWeights: inputs.optional(batch.rolloutIsWeights, "importance weights"),
    },
    groups: batch.groups,
    counts: countRows(batch.offsets, batch.mask),
    settings,
  });
  try {
    const { level, values } = recorded.advantages;
    const read = async (buffer: Buffer) => Float64Array.from(await readFloats(device, buffer));
    const returns = recorded.returns && (await read(recorded.returns));
    return { level, values: await read(values), returns };
  } finally {
    recorded.release();
    inputs.release();
  }
}

/** A policy loss with its gradient per token. */
export interface TokenLosses extends LossResult {
  /** d(loss)/d(logprob), [T]. */
  readonly dlogprobs: Floats;
  /** d(loss)/d(entropy), [T], where the batch holds entropies. */
  readonly dentropy?: Floats | undefined;
}

/**
 * Value, gradient and metrics of a policy loss. A user's loss without WGSL runs on the host.
 * @throws {ConfigError} for an unknown loss, setting or mode, an input that the loss needs and the batch lacks, or input
 * that is not finite
 */
export async function computePolicyLoss(
  batch: LossBatch,
  spec: PolicyLossSpec,
  { device }: RunOptions = {},
): Promise<TokenLosses> {
  if (!device || isHostOnly(spec)) return policyLoss(batch, spec);
  const counts = countRows(batch.offsets, batch.mask);
  const { level, values } = checkAdvantages(batch.advantages, {
    rows: counts.trained.length,
    tokens: counts.tokens,
  });
  const inputs = new Inputs(device);
  const recorded = recordPolicyLoss(device, spec, {
    buffers: {
      ...inputs.rows(batch),
      logprobs: inputs.floats(batch.logprobs, "logprobs"),
      oldLogprobs: inputs.optional(batch.oldLogprobs, "old log-probs"),
      refLogprobs: inputs.optional(batch.refLogprobs, "reference log-probs"),
      advantages: { level, values: inputs.floats(values, "advantages") },
      isWeights: inputs.optional(batch.rolloutIsWeights, "importance weights"),
      entropy: inputs.optional(batch.entropy, "entropy"),
    },
    counts,
  });
  const gradients = [recorded.dlogprobs, ...(recorded.dentropy ? [recorded.dentropy] : [])];
  const [result, [dlogprobs, dentropy]] = await inputs.read(recorded, gradients, counts.tokens);
  return { ...result, dlogprobs: dlogprobs!, dentropy };
}

/**
 * KL to the reference policy.
 * @returns estimates [T], their aggregate, its gradient [T]; both 0 where mask = 0
 * @throws {ConfigError} for a KL estimator or aggregation that is not published, or a batch without a trained token
 */
export async function computeKl(
  batch: KlBatch,
  spec: KlSpec,
  { device }: RunOptions = {},
): Promise<{ values: Floats; loss: number; dlogprobs: Floats }> {
  if (!device) return klLoss(batch, spec);
  const counts = countRows(batch.offsets, batch.mask);
  const inputs = new Inputs(device);
  const recorded = recordKl(device, spec, {
    buffers: {
      ...inputs.rows(batch),
      logprobs: inputs.floats(batch.logprobs, "logprobs"),
      refLogprobs: inputs.floats(batch.refLogprobs, "reference log-probs"),
    },
    counts,
  });
  const wanted = [recorded.values, recorded.dlogprobs];
  const [{ loss }, [values, dlogprobs]] = await inputs.read(recorded, wanted, counts.tokens);
  return { values: values!, loss, dlogprobs: dlogprobs! };
}

/**
 * Value, gradient and metrics of a preference loss (DPO, IPO, KTO, ORPO, SimPO) over pairs of packed rows.
 * @throws {ConfigError} for an unknown loss or setting, rows that the loss cannot use, or a loss that is not finite
 */
export async function computePreferenceLoss(
  batch: PreferenceBatch,
  spec: PreferenceSpec,
  { device }: RunOptions = {},
): Promise<TokenLosses> {
  if (!device) return preferenceLoss(batch, spec);
  const inputs = new Inputs(device);
  const { nllMask, labels } = batch;
  const recorded = recordPreferenceLoss(device, spec, {
    buffers: {
      logprobs: inputs.floats(batch.logprobs, "logprobs"),
      refLogprobs: inputs.optional(batch.refLogprobs, "reference log-probs"),
      mask: inputs.ints(batch.mask, "mask"),
      nllMask: nllMask && inputs.ints(nllMask, "likelihood mask"),
      offsets: inputs.ints(batch.offsets, "offsets"),
      labels: labels && inputs.ints(labels, "labels"),
    },
    rows: batch,
  });
  const [result, [dlogprobs]] = await inputs.read(recorded, [recorded.dlogprobs], batch.logprobs.length);
  return { ...result, dlogprobs: dlogprobs! };
}

/** A reward model's loss with its gradient per score. */
export interface ScoreLosses extends LossResult {
  /** d(loss)/d(score), [2P]. */
  readonly dscores: Floats;
}

/**
 * Value, gradient and metrics of a reward model's loss over the scores of pairs; see {@link rewardModelLoss}.
 * @throws {ConfigError} for scores that do not come in pairs or are not finite, and a coefficient or margin that is no number
 */
export async function computeRewardModelLoss(
  pairs: ScoredPairs,
  spec: RewardModelSpec = {},
  { device }: RunOptions = {},
): Promise<ScoreLosses> {
  if (!device) return rewardModelLoss(pairs, spec);
  const inputs = new Inputs(device);
  const count = pairs.scores.length / 2;
  const scores = inputs.floats(pairs.scores, "scores");
  const recorded = recordRewardModelLoss(device, spec, { scores, count, margins: pairs.margins });
  const [result, [dscores]] = await inputs.read(recorded, [recorded.dscores], 2 * count);
  return { ...result, dscores: dscores! };
}
