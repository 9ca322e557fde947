/** Rollout correction on a device: importance weights and the mask without rejected tokens stay in GPU buffers. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import { type CorrectionConfig, planCorrection } from "./config.ts";
import { correctionReject, correctionWeights } from "./kernels.ts";

/** Importance weights and mask of a rollout correction, in GPU buffers. */
export interface RecordedCorrection {
  /** f32 [T], for the loss's `isWeights`; absent without `rollout_is`. */
  readonly weights?: Buffer | undefined;
  /** u32 [T], for the loss's `mask`. Where tokens may have been rejected, its rows must be counted again. */
  readonly mask: Buffer;
  release(): void;
}

/** Stands for -Infinity: k2 and k3 have no lower bound. */
const F32_LOWEST = -3.4e38;

/**
 * Records importance weights and rejection. Nothing waits; metrics are the host's {@link rolloutCorrection}.
 * @throws {ConfigError} for a level, option or threshold that is not known
 * @throws {UnsupportedError} for `rollout_is_batch_normalize`, which the host does
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
      "Cannot normalise importance weights over the batch on the device: no kernel does it. Use rolloutCorrection() on the host.",
      { part: "rollout correction", capability: "rollout_is_batch_normalize" },
    );
  const { logprobs, rolloutLogprobs: rollout, mask, offsets } = batch.buffers;
  const inputs = { logprobs, rollout, mask, offsets };
  const bytes = batch.tokens * F32_BYTES;
  const kept = device.alloc(bytes, "mask after rejection");
  device.copy(mask, kept, bytes);
  for (const rejection of plan.rejections)
    device.dispatch(correctionReject(rejection.statistic), {
      buffers: { ...inputs, kept },
      params: { rows: batch.rows, low: Math.max(rejection.low, F32_LOWEST), high: rejection.high },
    });
  const weights = plan.level ? device.alloc(bytes, "importance weights") : undefined;
  if (weights)
    device.dispatch(correctionWeights, {
      buffers: { ...inputs, weights },
      params: { rows: batch.rows, low: plan.bounds.low, high: plan.bounds.high },
      constants: { SEQUENCE: Number(plan.level === "sequence"), ICEPOP: Number(plan.bounds.icepop) },
    });
  return {
    weights,
    mask: kept,
    release: () => device.release(kept, ...(weights ? [weights] : [])),
  };
}
