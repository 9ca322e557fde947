/** Rollout correction on a device: importance weights and the mask without rejected tokens stay in GPU buffers. */
import type { Buffer, Device } from "../../compute/device.ts";
import { defineKernel, folded } from "../../compute/kernel.ts";
import { UnsupportedError } from "../../errors.ts";
import { clamp } from "../loss/definition.ts";
import { type CorrectionConfig, planCorrection, type Rejection } from "./config.ts";
import { divergence } from "./host.ts";
import { SAFETY_BOUND } from "./metrics.ts";

const BINDINGS = {
  logprobs: "read f32",
  rollout: "read f32",
  mask: "read u32",
  offsets: "read u32",
} as const;
const PARAMS = { rows: "u32", low: "f32", high: "f32" } as const;
const ROWS_PER_GROUP = 64;
const grid = ({ rows }: { rows: number }) => folded(Math.ceil(rows / ROWS_PER_GROUP));

/** Trained tokens of a row. */
function trained(mask: ArrayLike<number>, first: number, end: number): number[] {
  const tokens: number[] = [];
  for (let t = first; t < end; t++) if (mask[t] !== 0) tokens.push(t);
  return tokens;
}

export const correctionWeights = defineKernel({
  name: "correction/weights",
  bindings: { ...BINDINGS, weights: "write f32" },
  params: PARAMS,
  constants: { SEQUENCE: 0, ICEPOP: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid,
  reference({ logprobs, rollout, mask, offsets, weights }, { rows, low, high }, constants) {
    const bounded = (w: number) => (constants.ICEPOP ? (w >= low && w <= high ? w : 0) : Math.min(w, high));
    for (let row = 0; row < rows; row++) {
      const [first, end] = [offsets[row], offsets[row + 1]];
      const sum = trained(mask, first!, end!).reduce((total, t) => total + logprobs[t]! - rollout[t]!, 0);
      for (let t = first; t! < end!; t!++) {
        const x = constants.SEQUENCE ? sum : logprobs[t!]! - rollout[t!]!;
        weights[t!] = mask[t!] === 0 ? 0 : bounded(Math.exp(clamp(x, -SAFETY_BOUND, SAFETY_BOUND)));
      }
    }
  },
});

const KINDS = { k1: 1, k2: 2, k3: 3 } as const;
const REDUCTIONS = { sum: 1, mean: 2, max: 3 } as const;

export const correctionReject = defineKernel({
  name: "correction/reject",
  bindings: { ...BINDINGS, kept: "write u32" },
  params: PARAMS,
  constants: { KIND: 1, REDUCTION: 0 },
  tolerance: { relative: 0, absolute: 0 },
  grid,
  reference({ logprobs, rollout, mask, offsets, kept }, { rows, low, high }, constants) {
    const kind = (["k1", "k2", "k3"] as const)[constants.KIND! - 1]!;
    const of = (t: number) =>
      divergence(kind, clamp(logprobs[t]! - rollout[t]!, -SAFETY_BOUND, SAFETY_BOUND));
    const passes = (x: number) => x >= low && x <= high;
    for (let row = 0; row < rows; row++) {
      const values = trained(mask, offsets[row]!, offsets[row + 1]!);
      if (constants.REDUCTION === 0) {
        for (const t of values) if (!passes(of(t))) kept[t] = 0;
        continue;
      }
      const sum = values.reduce((total, t) => total + of(t), 0);
      const most = values.length === 0 ? 0 : Math.max(...values.map(of));
      const statistic = [0, sum, sum / Math.max(values.length, 1), most][constants.REDUCTION!];
      if (!passes(statistic!)) kept.fill(0, offsets[row], offsets[row + 1]);
    }
  },
});

export interface RecordedCorrection {
  /** f32 [T], for the loss's `isWeights`; absent without `rollout_is`. */
  readonly weights?: Buffer | undefined;
  /** u32 [T], for the loss's `mask`. Its counts change: count it again where tokens may have been rejected. */
  readonly mask: Buffer;
  release(): void;
}

/** Bounds of k2 and k3 have no lower end. */
const F32_LOWEST = -3.4e38;

/**
 * Records importance weights and rejection. Nothing waits; metrics are the host's {@link rolloutCorrection}.
 * @throws ConfigError for a level, option or threshold that is not known
 * @throws UnsupportedError for `rollout_is_batch_normalize`, which the host does
 */
export function recordCorrection(
  device: Device,
  config: CorrectionConfig,
  batch: {
    readonly buffers: {
      readonly logprobs: Buffer;
      readonly rolloutLogprobs: Buffer;
      readonly mask: Buffer;
      readonly offsets: Buffer;
    };
    readonly rows: number;
    readonly tokens: number;
  },
): RecordedCorrection {
  const plan = planCorrection(config);
  if (plan.batchNormalize)
    throw new UnsupportedError(
      "Cannot normalise importance weights over the batch on the device: use rolloutCorrection on the host.",
      { part: "rollout correction", capability: "rollout_is_batch_normalize" },
    );
  const { logprobs, rolloutLogprobs: rollout, mask, offsets } = batch.buffers;
  const inputs = { logprobs, rollout, mask, offsets };
  const bytes = batch.tokens * 4;
  const kept = device.alloc(bytes, "mask after rejection");
  device.copy(mask, kept, bytes);
  for (const rejection of plan.rejections)
    device.dispatch(correctionReject, {
      buffers: { ...inputs, kept },
      params: { rows: batch.rows, low: Math.max(rejection.low, F32_LOWEST), high: rejection.high },
      constants: rejectionConstants(rejection),
    });
  const weights = plan.level && device.alloc(bytes, "importance weights");
  if (weights)
    device.dispatch(correctionWeights, {
      buffers: { ...inputs, weights },
      params: { rows: batch.rows, low: plan.bounds.low, high: plan.bounds.high },
      constants: { SEQUENCE: Number(plan.level === "sequence"), ICEPOP: Number(plan.bounds.icepop) },
    });
  return {
    weights: weights || undefined,
    mask: kept,
    release: () => device.release(kept, ...(weights ? [weights] : [])),
  };
}

function rejectionConstants({ level, reduction, kind }: Rejection) {
  return { KIND: KINDS[kind], REDUCTION: level === "token" ? 0 : REDUCTIONS[reduction] };
}
