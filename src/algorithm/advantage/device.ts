/** Records advantage estimation on a device: data in GPU buffers, advantages left there. */

import type { Buffer, Device } from "../../compute/device.ts";
import type { Advantages } from "../../contract/backend.ts";
import { ConfigError, UnsupportedError } from "../../errors.ts";
import { COUNT_EPSILON, type RowCounts, trainedTokens } from "../loss/aggregation.ts";
import { type AdvantageBatch, type EstimatorSettings, estimatorSettings, needs } from "./definition.ts";
import { groupNormOf } from "./estimators/grpo.ts";
import type { Groups } from "./groups.ts";
import {
  advantageBaseline,
  advantageFixed,
  advantageGroup,
  advantagePower,
  advantageRows,
  advantageSums,
  advantageWhiten,
  GROUP_MODE,
  MAX_FIXED_GROUP,
  ROWS_MODE,
  SUMS_BYTES,
  WHITEN_MODE,
} from "./kernels.ts";
import { findEstimator } from "./registry.ts";
import { refuseTooFew } from "./whitening.ts";

/** A packed batch on the device; which fields an estimator needs is told in {@link recordAdvantages}. */
export interface AdvantageBuffers {
  /** f32 [N], outcome rewards. */
  readonly scores?: Buffer | undefined;
  /** f32 [T]. Absent: the score at each row's last trained token. */
  readonly tokenRewards?: Buffer | undefined;
  /** u32 [T], 1 = trained on. */
  readonly mask?: Buffer;
  /** u32 [N+1]. */
  readonly offsets?: Buffer;
  /** f32 [T], critic values. */
  readonly values?: Buffer | undefined;
  /** f32 [N]. */
  readonly rewardBaselines?: Buffer | undefined;
  readonly oldLogprobs?: Buffer | undefined;
  readonly sumPiSquared?: Buffer | undefined;
  readonly rolloutIsWeights?: Buffer | undefined;
  /** u32, the `offsets` and `members` of the groups, where they lie on the device already. Else uploaded each time. */
  readonly groupOffsets?: Buffer;
  readonly groupMembers?: Buffer;
  /** f32 [N] each, rewards by name (`gdpo`). */
  readonly rewardComponents?: Readonly<Record<string, Buffer>>;
}

export interface AdvantageInput {
  readonly buffers: AdvantageBuffers;
  readonly groups: Groups;
  readonly counts: RowCounts;
  readonly settings?: EstimatorSettings | undefined;
}

export interface RecordedAdvantages {
  /** f32, as `recordPolicyLoss` takes them. Per token: 0 where mask = 0, except `remax`. */
  readonly advantages: Advantages<Buffer>;
  /** f32 [T], for per-token estimators. */
  readonly returns?: Buffer | undefined;
  release(): void;
}

const F32_BYTES = 4;

/** One call of {@link recordAdvantages}. What it uploads is given back as soon as the work is recorded. */
class Recorder {
  readonly device: Device;
  readonly name: string;
  readonly settings: EstimatorSettings;
  readonly input: AdvantageInput;
  private readonly scratch: Buffer[] = [];

  constructor(device: Device, name: string, input: AdvantageInput) {
    this.device = device;
    this.name = name;
    this.input = input;
    this.settings = estimatorSettings(findEstimator(name), input.settings ?? {});
  }

  get rows(): number {
    return this.input.counts.trained.length;
  }

  /** A buffer that only lives until the recording ends: recorded work still sees it. */
  private temporary(buffer: Buffer): Buffer {
    this.scratch.push(buffer);
    return buffer;
  }

  finish(): void {
    this.device.release(...this.scratch);
  }

  need(field: keyof AdvantageBuffers): Buffer {
    return needs(this.input.buffers[field] as Buffer | undefined, this.name, field);
  }

  private groupOffsets(): Buffer {
    const { buffers, groups } = this.input;
    return buffers.groupOffsets ?? this.upload(groups.offsets, "group offsets");
  }

  private groupMembers(): Buffer {
    const { buffers, groups } = this.input;
    return buffers.groupMembers ?? this.upload(groups.members, "group members");
  }

  private upload(data: Uint32Array, label: string): Buffer {
    return this.temporary(this.device.upload(data, label));
  }

  /** Group-wise advantages of `scores`. */
  group(scores: Buffer, options: { mode: number; byDeviation?: boolean; aloneIsZero?: boolean }): Buffer {
    const { groups, counts } = this.input;
    const { mode, byDeviation = false, aloneIsZero = false } = options;
    const advantages = this.device.alloc(this.rows * F32_BYTES, "advantages");
    const norm = groupNormOf(this.name, { ddof: 1, epsilon: 0, ...this.settings });
    const params = { groups: groups.offsets.length - 1, ddof: norm.ddof, epsilon: norm.epsilon };
    const common = { MODE: mode, BY_DEVIATION: Number(byDeviation) };
    if (
      groups.fixedSize % 4 === 0 &&
      groups.fixedSize > 0 &&
      groups.fixedSize <= MAX_FIXED_GROUP &&
      mode <= 1
    ) {
      const constants = { ...common, VECTORS: groups.fixedSize / 4 };
      this.device.dispatch(advantageFixed, { buffers: { scores, advantages }, params, constants });
      return advantages;
    }
    const group_offsets = this.groupOffsets();
    this.device.dispatch(advantageGroup, {
      buffers: {
        scores,
        group_offsets,
        members: groups.ordered ? group_offsets : this.groupMembers(),
        lengths: mode === GROUP_MODE.length ? this.upload(counts.trained, "row lengths") : group_offsets,
        advantages,
      },
      params,
      constants: {
        ...common,
        ALONE_IS_ZERO: Number(aloneIsZero),
        ORDERED: Number(groups.ordered),
      },
    });
    return advantages;
  }

  /** verl's masked_whiten, weighted by trained tokens: of rows by their lengths, of tokens by their mask. */
  whitenByTokens(values: Buffer, level: "row" | "token"): void {
    refuseTooFew(trainedTokens(this.input.counts));
    const weights =
      level === "row" ? this.upload(this.input.counts.trained, "row lengths") : this.need("mask");
    const count = level === "row" ? this.rows : this.input.counts.tokens;
    this.whiten(values, {
      count,
      weights,
      masked: level === "token",
      shift: true,
      ddof: 1,
      variance: 1e-8,
      deviation: 0,
    });
  }

  whiten(
    values: Buffer,
    o: {
      count: number;
      weights?: Buffer;
      masked: boolean;
      shift: boolean;
      ddof: number;
      variance: number;
      deviation: number;
    },
  ): void {
    const sums = this.temporary(this.device.alloc(SUMS_BYTES, "whitening sums"));
    const weights = o.weights ?? sums;
    const params = { count: o.count, count_epsilon: o.weights ? COUNT_EPSILON : 0 };
    for (const PASS of [0, 1])
      this.device.dispatch(advantageSums, {
        // Unweighted sums bind the values in the place of weights: one buffer cannot be read and written at once.
        buffers: { values, weights: o.weights ?? values, sums },
        params,
        constants: { PASS, WEIGHTED: Number(o.weights !== undefined) },
      });
    this.device.dispatch(advantageWhiten, {
      buffers: { weights, sums, values },
      params: { ...params, ddof: o.ddof, variance_epsilon: o.variance, deviation_epsilon: o.deviation },
      constants: { SHIFT: Number(o.shift), MASKED: Number(o.masked) },
    });
  }

  /** GPG: times rows / rows with a reward. */
  scaleByNonzero(values: Buffer, scores: Buffer, divisor: number): void {
    const sums = this.temporary(this.device.alloc(SUMS_BYTES, "nonzero counts"));
    const params = { count: this.rows, count_epsilon: 0 };
    this.device.dispatch(advantageSums, {
      buffers: { values: scores, weights: scores, sums },
      params,
      constants: { NONZERO: 1, WEIGHTED: 0 },
    });
    this.device.dispatch(advantageWhiten, {
      buffers: { weights: sums, sums, values },
      params: { ...params, ddof: 0, variance_epsilon: 0, deviation_epsilon: divisor },
      constants: { MODE: WHITEN_MODE.scale },
    });
  }

  copyOf(buffer: Buffer, bytes: number): Buffer {
    const copy = this.device.alloc(bytes, "advantages");
    this.device.copy(buffer, copy, bytes);
    return copy;
  }

  /** Runs backwards through every row; see advantage/rows.wgsl. */
  backwards(mode: number, options: { values?: Buffer; gamma?: number; lam?: number } = {}) {
    const { tokens } = this.input.counts;
    if (tokens * F32_BYTES > this.device.info.limits.maxBindingBytes)
      throw new UnsupportedError(
        `Cannot estimate ${this.name} over ${tokens} tokens at once: one binding holds ${this.device.info.limits.maxBindingBytes / F32_BYTES}. Split the batch by groups.`,
        { part: "advantages", capability: "token-level estimators over several bindings" },
      );
    const advantages = this.device.alloc(tokens * F32_BYTES, "advantages");
    const returns = this.device.alloc(tokens * F32_BYTES, "returns");
    const { tokenRewards } = this.input.buffers;
    const rewards = tokenRewards ?? this.need("scores");
    this.device.dispatch(advantageRows, {
      buffers: {
        rewards,
        mask: this.need("mask"),
        offsets: this.need("offsets"),
        values: options.values ?? rewards,
        advantages,
        returns,
      },
      params: { rows: this.rows, gamma: options.gamma ?? 1, lam: options.lam ?? 1 },
      constants: {
        MODE: mode,
        TOKEN_REWARDS: Number(tokenRewards !== undefined),
        BASELINE: Number(options.values !== undefined),
      },
    });
    return { advantages, returns };
  }

  /** The optimal token baseline; see advantage/power.wgsl and advantage/baseline.wgsl. */
  optimalBaseline(compact: boolean) {
    const { groups, counts, buffers } = this.input;
    const { advantages, returns } = this.backwards(ROWS_MODE.toGo);
    const bytes = counts.tokens * F32_BYTES;
    const power = this.temporary(this.device.alloc(bytes, "score power"));
    const columns = this.temporary(this.device.alloc(bytes, "columns"));
    const [mask, offsets, old] = [this.need("mask"), this.need("offsets"), this.need("oldLogprobs")];
    this.device.dispatch(advantagePower, {
      buffers: {
        old,
        sum_pi_squared: this.need("sumPiSquared"),
        is_weights: buffers.rolloutIsWeights ?? old,
        mask,
        offsets,
        power,
        columns,
      },
      params: { rows: this.rows },
      constants: { COMPACT: Number(compact), WEIGHT: Number(buffers.rolloutIsWeights !== undefined) },
    });
    this.device.clear(advantages);
    this.device.dispatch(advantageBaseline, {
      buffers: {
        group_offsets: this.groupOffsets(),
        members: this.groupMembers(),
        offsets,
        mask,
        columns,
        power,
        returns,
        advantages,
      },
      params: { groups: groups.offsets.length - 1 },
      constants: { COMPACT: Number(compact), ZERO_TAIL: Number(this.settings.handle_zero_tail === true) },
    });
    return { advantages, returns };
  }
}

type Result = { advantages: Buffer; returns?: Buffer };

const norm = (r: Recorder): Result => ({
  advantages: r.group(r.need("scores"), {
    mode: GROUP_MODE.norm,
    byDeviation: r.settings.norm_adv_by_std_in_grpo === true,
    aloneIsZero: r.name.startsWith("trl."),
  }),
});

const centred = (r: Recorder, aloneIsZero = false): Buffer =>
  r.group(r.need("scores"), { mode: GROUP_MODE.norm, aloneIsZero });

function gdpo(r: Recorder): Result {
  const components = Object.entries(r.input.buffers.rewardComponents ?? { reward: r.need("scores") });
  if (components.length !== 1)
    throw new UnsupportedError(
      "Cannot estimate gdpo over several rewards on the device: use the host's advantages().",
      {
        part: "advantages",
        capability: "gdpo with several rewards on the device",
      },
    );
  const byDeviation = r.settings.norm_adv_by_std_in_grpo === true;
  const advantages = r.group(components[0]![1], { mode: GROUP_MODE.norm, byDeviation });
  r.whitenByTokens(advantages, "row");
  return { advantages };
}

function whitenedReturns(r: Recorder): Result {
  const mode = r.settings.reset_at_masked ? ROWS_MODE.reset : ROWS_MODE.discounted;
  const result = r.backwards(mode, { gamma: r.settings.gamma as number });
  r.whitenByTokens(result.advantages, "token");
  return result;
}

function gae(r: Recorder): Result {
  const { gamma, lam } = r.settings as { gamma: number; lam: number };
  const result = r.backwards(ROWS_MODE.gae, { values: r.need("values"), gamma, lam });
  r.whitenByTokens(result.advantages, "token");
  return result;
}

/** rLLM's batch-wide deviation: population, epsilon added to it. */
function overBatch(r: Recorder, advantages: Buffer, shift: boolean): Result {
  const deviation = r.settings.epsilon as number;
  r.whiten(advantages, { count: r.rows, masked: false, shift, ddof: 0, variance: 0, deviation });
  return { advantages };
}

const RECORDERS: Readonly<Record<string, (r: Recorder) => Result>> = {
  grpo: norm,
  grpo_vectorized: norm,
  "rllm.grpo": norm,
  "trl.grpo": norm,
  grpo_passk: (r) => ({
    advantages: r.group(r.need("scores"), {
      mode: GROUP_MODE.best,
      byDeviation: r.settings.norm_adv_by_std_in_grpo === true,
    }),
  }),
  rloo: (r) => ({ advantages: r.group(r.need("scores"), { mode: GROUP_MODE.others }) }),
  rloo_vectorized: (r) => ({
    advantages: r.group(r.need("scores"), { mode: GROUP_MODE.others, aloneIsZero: true }),
  }),
  reinforce: (r) => ({ advantages: r.copyOf(r.need("scores"), r.rows * F32_BYTES) }),
  opo: (r) => ({ advantages: r.group(r.need("scores"), { mode: GROUP_MODE.length }) }),
  gpg: (r) => {
    const advantages = centred(r);
    r.scaleByNonzero(advantages, r.need("scores"), r.settings.f_norm as number);
    return { advantages };
  },
  reinforce_plus_plus_baseline: (r) => {
    const advantages = centred(r);
    r.whitenByTokens(advantages, "row");
    return { advantages };
  },
  "rllm.reinforce_plus_plus_baseline": (r) => overBatch(r, centred(r, true), false),
  prpo: (r) => overBatch(r, r.copyOf(r.need("scores"), r.rows * F32_BYTES), true),
  gdpo,
  gae,
  reinforce_plus_plus: whitenedReturns,
  remax: (r) => r.backwards(ROWS_MODE.toGo, { values: r.need("rewardBaselines") }),
  optimal_token_baseline: (r) => r.optimalBaseline(false),
  tir_optimal_token_baseline: (r) => r.optimalBaseline(true),
};

/** True for an estimator that {@link recordAdvantages} takes. */
export function hasAdvantageKernel(name: string): boolean {
  return Object.hasOwn(RECORDERS, name);
}

/**
 * Records the advantages of a packed batch. Nothing waits, nothing is read back.
 * @param name a built-in estimator; the user's own run on the host, see {@link advantages}
 * @throws ConfigError for an unknown name or setting, or a field the estimator needs and the batch lacks
 * @throws UnsupportedError for an estimator without a kernel
 */
export function recordAdvantages(device: Device, name: string, input: AdvantageInput): RecordedAdvantages {
  const recorder = new Recorder(device, name, input);
  if (!hasAdvantageKernel(name))
    throw new UnsupportedError(
      `Cannot estimate ${name} on the device: it is a function of the host. Use advantages().`,
      {
        part: "advantages",
        capability: name,
      },
    );
  if (name === "grpo_passk") refuseSingletons(input.groups);
  const { advantages, returns } = RECORDERS[name]!(recorder);
  recorder.finish();
  return {
    advantages: { level: returns ? "token" : "row", values: advantages },
    returns,
    release: () => device.release(advantages, ...(returns ? [returns] : [])),
  };
}

/** True where {@link recordAdvantages} can do it; the others run on the host. */
export function hasKernel(name: string, batch: Pick<AdvantageBatch, "rewardComponents">): boolean {
  const rewards = Object.keys(batch.rewardComponents ?? {}).length;
  return Object.hasOwn(RECORDERS, name) && !(name === "gdpo" && rewards > 0);
}

function refuseSingletons({ offsets }: Groups): void {
  for (let group = 0; group + 1 < offsets.length; group++)
    if (offsets[group + 1]! - offsets[group]! === 1)
      throw new ConfigError(
        "Cannot estimate grpo_passk as every group needs two trajectories or more: one has 1.",
      );
}
