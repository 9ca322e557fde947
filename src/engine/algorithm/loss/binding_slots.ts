/** The buffers of a loss, and which binding of the fused pass each optional one takes: a kernel binds 8. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import type { Buffer } from "../../compute/device.ts";
import type { Advantages } from "../../contract/backend.ts";
import { SLOT } from "./pass_kernel.ts";
import type { ResolvedLoss } from "./resolve.ts";

/** A packed batch on the device. Per-token buffers hold T elements. */
export interface LossBuffers {
  readonly logprobs: Buffer;
  /** Policy at the start of the update. Absent: the current log-probs, detached (ratio 1). */
  readonly oldLogprobs?: Buffer | undefined;
  readonly refLogprobs?: Buffer | undefined;
  /** f32; the weights of `cross_entropy`. */
  readonly advantages: Advantages<Buffer>;
  /** u32, 1 = trained on. */
  readonly mask: Buffer;
  /** f32, multiplied into the loss. */
  readonly isWeights?: Buffer | undefined;
  /** u32 [N+1]. */
  readonly offsets: Buffer;
  /** u32 [T]: row of each token. */
  readonly trajectoryOfToken: Buffer;
  /** f32; an entropy bonus needs it, and without a bonus it gives the metric. */
  readonly entropy?: Buffer | undefined;
}

export interface BindingSlots {
  /** Buffers of the slots 1 to 3. */
  readonly slots: readonly Buffer[];
  /** Copied into the output before the pass. */
  readonly inOutput: Buffer | undefined;
  readonly constants: Readonly<Record<string, number>>;
}

/**
 * Assigns each optional stream a slot. The fourth is copied into the output; a selection's keys are there already.
 * @throws {UnsupportedError} for four streams and a selection
 */
export function assignSlots({ name, plan, klCode }: ResolvedLoss, buffers: LossBuffers): BindingSlots {
  const { oldLogprobs, isWeights, refLogprobs, advantages } = buffers;
  const wanted: [string, Buffer | undefined][] = [
    ["OLD", oldLogprobs],
    ["ADVANTAGE", advantages.level === "token" ? advantages.values : undefined],
    ["WEIGHT", plan.weightsInRows === "all" ? undefined : isWeights],
    ["REF", klCode !== 0 ? refLogprobs : undefined],
  ];
  const streams = wanted.flatMap(([constant, buffer]) => (buffer ? [{ constant, buffer }] : []));
  if (streams.length > 3 && plan.selection)
    throw new UnsupportedError(
      `Cannot take the loss ${name} with old and reference log-probs, importance weights and per-token advantages together: a kernel binds 8 buffers. Give the advantages per row.`,
      { part: "loss", capability: "five optional streams" },
    );
  const places = streams.map(({ constant }, k) => [constant, k < 3 ? k + 1 : SLOT.inOutput] as const);
  return {
    slots: streams.slice(0, 3).map(({ buffer }) => buffer),
    inOutput: streams[3]?.buffer,
    constants: { ...(plan.selection && { SELECT: SLOT.inOutput }), ...Object.fromEntries(places) },
  };
}
