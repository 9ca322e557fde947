/** Records advantage estimation on a device: data in GPU buffers, advantages left there. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import type { Advantages } from "../../contract/backend.ts";
import { mergeSettings } from "../settings.ts";
import type { AdvantageBatch } from "./definition.ts";
import { findEstimator } from "./estimators.ts";
import { type AdvantageInput, EstimatorRecorder } from "./recorder.ts";

/** Advantages in GPU buffers, as a recorded estimate leaves them. */
export interface RecordedAdvantages {
  /** f32, as `recordPolicyLoss` takes them. Per token: 0 where mask = 0, except `remax`. */
  readonly advantages: Advantages<Buffer>;
  /** f32 [T], for per-token estimators. */
  readonly returns?: Buffer | undefined;
  release(): void;
}

/** True for an estimator that {@link recordAdvantages} takes; `gdpo` over several rewards runs on the host. */
export function hasAdvantageKernel(name: string, batch: Pick<AdvantageBatch, "rewardComponents"> = {}): boolean {
  const { record, isRecordable } = findEstimator(name);
  return record !== undefined && (isRecordable?.(batch) ?? true);
}

/**
 * Records the advantages of a packed batch. Nothing waits, nothing is read back.
 * @param name a built-in estimator; the user's own run on the host, see {@link advantages}
 * @throws {ConfigError} for an unknown name or setting, or a field the estimator needs and the batch lacks
 * @throws {UnsupportedError} for an estimator without a kernel
 */
export function recordAdvantages(device: Device, name: string, input: AdvantageInput): RecordedAdvantages {
  const estimator = findEstimator(name);
  const settings = mergeSettings("estimator", estimator, input.settings ?? {});
  if (!estimator.record)
    throw new UnsupportedError(
      `Cannot estimate ${name} on the device: it is a function of the host. Use advantages().`,
      { part: "advantages", capability: name },
    );
  const recorder = new EstimatorRecorder(device, { name, settings }, input);
  const { advantages, returns } = estimator.record(recorder);
  recorder.finish();
  return {
    advantages: { level: returns ? "token" : "row", values: advantages },
    returns,
    release: () => device.release(advantages, ...(returns ? [returns] : [])),
  };
}
