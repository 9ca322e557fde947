/** AdamW over a set of parameters, with clipping by the joint norm of all gradients. */

import type { Buffer, Device } from "../../compute/device.ts";
import type { OptimParams } from "../../contract/backend.ts";
import { adamw, CLIP_FLOATS, clipFactor, NORM_PARTIALS, squareSum } from "../kernels/adamw.ts";
import { ParameterSet } from "../parameters.ts";
import { type RowWindow, rowWindows } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";

export class AdamW {
  readonly parameters: ParameterSet;
  readonly gradients: ParameterSet;
  readonly means: ParameterSet;
  readonly variances: ParameterSet;
  /** Steps taken. */
  step = 0;
  private readonly device: Device;

  constructor(device: Device, parameters: ParameterSet) {
    this.device = device;
    this.parameters = parameters;
    const made: ParameterSet[] = [];
    const make = (label: string): ParameterSet => {
      const set = new ParameterSet(device, parameters.layout, label);
      made.push(set);
      return set;
    };
    try {
      this.gradients = make("gradients");
      this.means = make("first moments");
      this.variances = make("second moments");
    } catch (error) {
      // The next attempt must not find less memory.
      for (const set of made) set.release();
      throw error;
    }
  }

  /**
   * One step on the accumulated gradients, which are then cleared.
   * @param after called as soon as the change of the values is recorded, before it is done.
   * @returns the norm of the gradients before clipping; NaN where it is not finite, and then only the gradients have
   *   changed.
   */
  async apply(params: OptimParams, after: () => void): Promise<number> {
    const scratch = new Scratch(this.device);
    try {
      const clip = this.recordClip(params.grad_clip_norm, scratch);
      this.recordSteps(params, clip);
      this.gradients.clear();
      after();
      const [data] = await this.device.read([{ buffer: clip, type: "f32" }]);
      const [norm, , broken] = data!;
      if (broken === 0) this.step++;
      return broken === 0 ? norm! : Number.NaN;
    } finally {
      scratch.release();
    }
  }

  /** Returns to the state before the first step. */
  reset(): void {
    for (const set of [this.gradients, this.means, this.variances]) set.clear();
    this.step = 0;
  }

  private recordClip(maxNorm: number, scratch: Scratch): Buffer {
    const windows = this.gradients.shards.flatMap((shard) => this.windows(shard));
    const partials = scratch.floats(NORM_PARTIALS * windows.length, "norm partials");
    for (const [i, { buffer: x, rows: count }] of windows.entries())
      this.device.dispatch(squareSum, {
        buffers: { x, partials },
        params: { count, partials_offset: i * NORM_PARTIALS },
      });
    const clip = scratch.floats(CLIP_FLOATS, "clip");
    this.device.dispatch(clipFactor, {
      buffers: { partials, clip },
      params: { count: NORM_PARTIALS * windows.length, max_norm: maxNorm },
    });
    return clip;
  }

  private recordSteps(params: OptimParams, clip: Buffer): void {
    const { learning_rate, beta1, beta2, eps: epsilon, weight_decay } = params;
    const step = this.step + 1;
    const shared = {
      first: 0,
      learning_rate,
      mean_rate: 1 - beta1,
      variance_rate: 1 - beta2,
      epsilon,
      weight_decay,
      correction1: 1 - beta1 ** step,
      correction2: 1 - beta2 ** step,
    };
    for (const shard of this.parameters.shards.keys()) {
      const [gradients, parameters, means, variances] = [
        this.gradients,
        this.parameters,
        this.means,
        this.variances,
      ].map((set) => this.windows(set.shards[shard]!));
      for (const [i, { buffer: parameter, rows: count }] of parameters!.entries())
        this.device.dispatch(adamw, {
          buffers: {
            gradient: gradients![i]!.buffer,
            clip,
            parameter,
            mean: means![i]!.buffer,
            variance: variances![i]!.buffer,
          },
          params: { ...shared, count },
        });
    }
  }

  /** A shard's elements in windows that fit one binding. */
  private windows(shard: Buffer): RowWindow[] {
    return rowWindows(this.device, shard, { rows: shard.byteLength / 4, width: 1 });
  }

  release(): void {
    this.gradients.release();
    this.means.release();
    this.variances.release();
  }
}
