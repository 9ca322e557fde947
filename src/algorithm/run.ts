/** The engine in one call: packed rollouts in host memory, results back. With a device on it, else in float64 here. */

import { type Buffer, type Data, type Device, readFloats } from "../compute/device.ts";
import type { Floats, Rollouts } from "../data/rollouts/builder.ts";
import type { RolloutsPart } from "../data/rollouts/read.ts";
import { ConfigError } from "../errors.ts";
import type { AdvantageBatch, Estimate, EstimatorSettings } from "./advantage/definition.ts";
import { hasKernel, recordAdvantages } from "./advantage/device.ts";
import { packGroups } from "./advantage/groups.ts";
import { advantages, perToken } from "./advantage/host.ts";
import { checkAdvantages } from "./advantage/level.ts";
import { findEstimator } from "./advantage/registry.ts";
import { type KlSpec, klLoss, recordKl } from "./kl/loss.ts";
import { countRows } from "./loss/aggregation.ts";
import { recordPolicyLoss } from "./loss/device.ts";
import { type LossBatch, policyLoss, rowsOfTokens } from "./loss/host.ts";
import { isHostOnly, type LossResult, type PolicyLossSpec } from "./loss/resolve.ts";

/** Where to run; absent: in float64 on the host. */
export interface RunOptions {
  readonly device?: Device | undefined;
}

/** The estimators' view of packed rollouts. Without groups, each row is a group of its own. */
export function advantageBatch(rollouts: Rollouts): AdvantageBatch {
  const { offsets, mask, tokens, rewards, groupOfRow, groupNames } = rollouts;
  if (!rewards)
    throw new ConfigError(
      "Cannot estimate advantages as the rollouts hold no reward: give reward or token_rewards.",
      {
        path: "reward",
      },
    );
  const components = rollouts.rewardComponents;
  return {
    offsets,
    mask,
    groups: groupOfRow
      ? packGroups(groupOfRow, groupNames.length)
      : packGroups(Uint32Array.from(rewards.keys()), rewards.length),
    scores: rewards,
    tokenRewards: tokens.token_rewards,
    values: tokens.values,
    rewardBaselines: rollouts.rewardBaselines,
    oldLogprobs: tokens.old_logprobs,
    sumPiSquared: tokens.sum_pi_squared,
    rolloutIsWeights: tokens.rollout_is_weights,
    rewardComponents: Object.keys(components).length > 0 ? components : undefined,
  };
}

/** The losses' view of packed rollouts: `logprobs` and `advantages` must be there. */
export function lossBatch(rollouts: Rollouts): LossBatch {
  const { offsets, mask, tokens } = rollouts;
  return {
    offsets,
    mask,
    logprobs: field(rollouts, "logprobs"),
    oldLogprobs: tokens.old_logprobs,
    advantages: { level: "token", values: field(rollouts, "advantages") },
    rolloutIsWeights: tokens.rollout_is_weights,
    refLogprobs: tokens.ref_logprobs,
  };
}

/** @throws ConfigError when the rollouts do not hold the field. */
export function field(rollouts: Rollouts, name: keyof Rollouts["tokens"]): Floats {
  const values = rollouts.tokens[name];
  if (values) return values;
  throw new ConfigError(`Cannot compute this as the rollouts hold no ${name}: give it at every token.`, {
    path: name,
  });
}

export interface TokenAdvantages {
  /** What the estimator gave. */
  readonly estimate: Estimate;
  /** Both [T]; rows spread over their trained tokens, 0 elsewhere. */
  readonly advantages: Float64Array;
  readonly returns: Float64Array;
}

/**
 * Advantages of a packed batch.
 * @throws ConfigError for an unknown estimator or setting, or a field that it needs and the batch lacks
 */
export async function computeAdvantages(
  batch: AdvantageBatch,
  name: string,
  options: RunOptions & { readonly settings?: EstimatorSettings } = {},
): Promise<TokenAdvantages> {
  const { device, settings } = options;
  const estimate =
    device && hasKernel(name, batch)
      ? await deviceAdvantages(device, batch, { name, settings })
      : advantages(batch, name, settings);
  return { estimate, ...perToken(batch, estimate) };
}

/**
 * Advantages of rollouts that come in parts of whole groups (`streamJsonl`), in bounded memory.
 * @throws ConfigError for an estimator whose statistics span the batch
 */
export async function* streamAdvantages(
  parts: AsyncIterable<RolloutsPart>,
  name: string,
  options: RunOptions & { readonly settings?: EstimatorSettings } = {},
): AsyncGenerator<TokenAdvantages & RolloutsPart> {
  if (findEstimator(name).scope === "batch")
    throw new ConfigError(
      `Cannot stream ${name} as its statistics span the whole batch: read the file at once.`,
      {
        path: "adv_estimator",
      },
    );
  for await (const part of parts)
    yield { ...part, ...(await computeAdvantages(advantageBatch(part.rollouts), name, options)) };
}

async function deviceAdvantages(
  device: Device,
  batch: AdvantageBatch,
  { name, settings }: { name: string; settings?: EstimatorSettings | undefined },
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

export interface TokenLosses extends LossResult {
  /** d(loss)/d(logprob), [T]. */
  readonly dlogprobs: Floats;
  /** d(loss)/d(entropy), [T], where the batch holds entropies. */
  readonly dentropy?: Floats | undefined;
}

/**
 * Value, gradient and metrics of a policy loss.
 * @throws ConfigError for an unknown loss, setting or mode, an input that it needs and the batch lacks, or input that is not finite
 */
export async function computePolicyLoss(
  batch: LossBatch,
  spec: PolicyLossSpec,
  { device }: RunOptions = {},
): Promise<TokenLosses> {
  if (!device || isHostOnly(spec)) return policyLoss(batch, spec);
  const counts = countRows(batch.offsets, batch.mask);
  const size = { rows: counts.trained.length, tokens: counts.tokens };
  const { level, values } = checkAdvantages(batch.advantages, size);
  const inputs = new Inputs(device);
  const recorded = recordPolicyLoss(device, spec, {
    buffers: {
      logprobs: inputs.floats(batch.logprobs, "logprobs"),
      oldLogprobs: inputs.optional(batch.oldLogprobs, "old log-probs"),
      refLogprobs: inputs.optional(batch.refLogprobs, "reference log-probs"),
      advantages: { level, values: inputs.floats(values, "advantages") },
      isWeights: inputs.optional(batch.rolloutIsWeights, "importance weights"),
      entropy: inputs.optional(batch.entropy, "entropy"),
      mask: inputs.ints(batch.mask, "mask"),
      offsets: inputs.ints(batch.offsets, "offsets"),
      trajectoryOfToken: inputs.ints(rowsOfTokens(batch.offsets), "row of token"),
    },
    counts,
  });
  try {
    const wanted = [recorded.dlogprobs, ...(recorded.dentropy ? [recorded.dentropy] : [])];
    const reads = wanted.map((buffer) => ({ buffer, type: "f32" as const, length: counts.tokens }));
    const data = await device.read([...recorded.reads, ...reads]);
    const [dlogprobs, dentropy] = data.slice(recorded.reads.length) as [Float32Array, Float32Array?];
    return { ...recorded.decode(data.slice(0, recorded.reads.length)), dlogprobs, dentropy };
  } finally {
    recorded.release();
    inputs.release();
  }
}

/** KL to the reference policy: estimates [T], their aggregate, its gradient [T]. */
export async function computeKl(
  batch: Parameters<typeof klLoss>[0],
  spec: KlSpec,
  { device }: RunOptions = {},
): Promise<{ values: Floats; loss: number; dlogprobs: Floats }> {
  if (!device) return klLoss(batch, spec);
  const inputs = new Inputs(device);
  const counts = countRows(batch.offsets, batch.mask);
  const recorded = recordKl(device, spec, {
    buffers: {
      logprobs: inputs.floats(batch.logprobs, "logprobs"),
      refLogprobs: inputs.floats(batch.refLogprobs, "reference log-probs"),
      mask: inputs.ints(batch.mask, "mask"),
      trajectoryOfToken: inputs.ints(rowsOfTokens(batch.offsets), "row of token"),
    },
    counts,
  });
  try {
    const reads = [recorded.values, recorded.dlogprobs].map((buffer) => ({
      buffer,
      type: "f32" as const,
      length: counts.tokens,
    }));
    const data = await device.read([...recorded.reads, ...reads]);
    const [sums, values, dlogprobs] = data as [Float32Array, Float32Array, Float32Array];
    return { values, loss: recorded.decode([sums]).loss, dlogprobs };
  } finally {
    recorded.release();
    inputs.release();
  }
}

/** Uploads that live for one call. */
class Inputs {
  private readonly device: Device;
  private readonly buffers: Buffer[] = [];

  constructor(device: Device) {
    this.device = device;
  }

  ints(data: Uint32Array, label: string): Buffer {
    return this.upload(data, label);
  }

  floats(data: ArrayLike<number>, label: string): Buffer {
    return this.upload(data instanceof Float32Array ? data : Float32Array.from(data), label);
  }

  optional(data: ArrayLike<number> | undefined, label: string): Buffer | undefined {
    return data && this.floats(data, label);
  }

  release(): void {
    this.device.release(...this.buffers);
  }

  private upload(data: Data, label: string): Buffer {
    const buffer = this.device.upload(data, label);
    this.buffers.push(buffer);
    return buffer;
  }
}
