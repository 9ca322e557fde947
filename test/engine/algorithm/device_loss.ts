/** Runs a host batch through the recorded loss, as a caller with data in memory would. */

import { type RecordOptions, recordPolicyLoss } from "../../../src/engine/algorithm/loss/device.ts";
import type { LossBatch } from "../../../src/engine/algorithm/loss/host.ts";
import type { LossResult, PolicyLossSpec } from "../../../src/engine/algorithm/loss/resolve.ts";
import { countRows } from "../../../src/engine/algorithm/rows.ts";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { rowsOfTokens } from "../../../src/engine/packing/offsets.ts";

export async function deviceLoss(
  device: Device,
  batch: LossBatch,
  spec: PolicyLossSpec,
  options: RecordOptions = {},
): Promise<LossResult & { dlogprobs: Float32Array; dentropy?: Float32Array | undefined }> {
  const floats = (data: ArrayLike<number>, label: string) => device.upload(Float32Array.from(data), label);
  const optional = (data: ArrayLike<number> | undefined, label: string) => data && floats(data, label);
  const { level } = batch.advantages;
  const values = floats(batch.advantages.values, "advantages");
  const buffers = {
    logprobs: floats(batch.logprobs, "logprobs"),
    oldLogprobs: optional(batch.oldLogprobs, "old"),
    refLogprobs: optional(batch.refLogprobs, "ref"),
    mask: device.upload(batch.mask, "mask"),
    isWeights: optional(batch.rolloutIsWeights, "weights"),
    offsets: device.upload(batch.offsets, "offsets"),
    trajectoryOfToken: device.upload(rowsOfTokens(batch.offsets), "rows"),
    entropy: optional(batch.entropy, "entropy"),
  };
  const counts = countRows(batch.offsets, batch.mask);
  const input = { ...buffers, advantages: { level, values } };
  const recorded = recordPolicyLoss(device, spec, { buffers: input, counts, ...options });
  const data = await device.read(recorded.reads);
  const result = {
    ...recorded.decode(data),
    dlogprobs: await readFloats(device, recorded.dlogprobs, counts.tokens),
    dentropy: recorded.dentropy && (await readFloats(device, recorded.dentropy, counts.tokens)),
  };
  recorded.release();
  device.release(values, ...Object.values(buffers).filter((buffer) => buffer !== undefined));
  return result;
}
