/** Losses that the host computes from the log-probs of a pass. */
import type { Device } from "../../../engine/compute/device.ts";
import { Scratch } from "../../../engine/model/scratch.ts";
import type { PassLoss, PassOutputs } from "../../../engine/model/train/passes.ts";

/** A loss that the host computes from the log-probs of scored tokens. */
export interface HostLossFunction {
  /** Sequence i has the scored tokens [offsets[i], offsets[i+1]). */
  readonly offsets: Uint32Array;
  /** Takes the scored tokens of whole sequences, from `first` on. @returns their slopes d(loss)/d(logprob), as many as `logprobs`. */
  take(logprobs: Float32Array, first: number): Float32Array;
}

/** Reads the log-probs of a pass, and uploads the loss's gradient. */
export async function computeHostLoss(
  device: Device,
  hostLoss: HostLossFunction,
  outputs: PassOutputs,
): Promise<PassLoss> {
  const length = outputs.offsets[outputs.offsets.length - 1];
  const [logprobs] = await device.read([{ buffer: outputs.logprobs, type: "f32", length }]);
  const slopes = hostLoss.take(logprobs as Float32Array, hostLoss.offsets[outputs.sequences.from]!);
  const scratch = new Scratch(device);
  return { dlogprobs: scratch.upload(slopes, "dlogprobs"), reads: [], release: () => scratch.release() };
}
