/** Records a reward model's loss on a device: scores and their gradient stay in GPU buffers. */

import { sum } from "../../../leaves/statistics.ts";
import { allocTogether, type Buffer, type Device, type Recorded } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import type { LossResult } from "../loss/resolve.ts";
import { bradleyTerry, pairScoreMetrics, planPairs, type RewardModelSpec } from "./bradley_terry.ts";

/** A reward model's loss in GPU buffers. */
export interface RecordedRewardModelLoss extends Recorded<LossResult> {
  /** f32 [2P], d(loss)/d(score). */
  readonly dscores: Buffer;
}

/**
 * Records value, gradient and metrics of {@link rewardModelLoss}. Nothing waits: submit or read when the step is complete.
 * @param pairs.scores f32 [2P]: element 2i is the chosen row's, 2i + 1 the rejected row's
 * @param pairs.margins [P], on the host. Default 0.
 * @throws {ConfigError} as {@link rewardModelLoss}; for a score that is not finite when the result is decoded
 */
export function recordRewardModelLoss(
  device: Device,
  spec: RewardModelSpec,
  pairs: {
    readonly scores: Buffer;
    readonly count: number;
    readonly margins?: ArrayLike<number> | undefined;
  },
): RecordedRewardModelLoss {
  const { scores, margins } = pairs;
  const { count, scale, center } = planPairs({ scores: { length: 2 * pairs.count }, margins }, spec);
  const ahead = device.upload(margins ? Float32Array.from(margins) : new Float32Array(count), "margins");
  const [values, dscores] = allocTogether(device, [
    { byteLength: count * F32_BYTES, label: "pair losses" },
    { byteLength: 2 * count * F32_BYTES, label: "dscores" },
  ]) as [Buffer, Buffer];
  device.dispatch(bradleyTerry, {
    buffers: { scores, margins: ahead, values, dscores },
    params: { pairs: count, scale, center },
  });
  return {
    dscores,
    reads: [
      { buffer: values, type: "f32", length: count },
      { buffer: scores, type: "f32", length: 2 * count },
    ],
    decode: ([each, pairScores]) => ({ metrics: pairScoreMetrics(pairScores!), loss: scale * sum(Array.from(each!)) }),
    release: () => device.release(ahead, values, dscores),
  };
}
