/** Records a preference loss on a device: log-probs stay in GPU buffers, a few numbers per row are read back. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import { allocTogether, type Buffer, type Data, type Device, type Recorded } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import type { LossResult } from "../loss/resolve.ts";
import { structValues } from "../loss/settings_struct.ts";
import { maxWindow } from "../loss/workspace.ts";
import { likelihoodScale } from "./host.ts";
import { preferenceResult } from "./metrics.ts";
import { type PreferenceRows, type PreferenceSpec, type ResolvedPreference, resolvePreference } from "./resolve.ts";
import { COLUMNS, type RowSums } from "./unit.ts";

/** Pairs or labelled rows on the device. Per-token buffers hold T elements. */
export interface PreferenceBuffers {
  readonly logprobs: Buffer;
  readonly refLogprobs?: Buffer | undefined;
  /** u32, 1 at the tokens of the completion. */
  readonly mask: Buffer;
  /** u32; see {@link PreferenceRows}. */
  readonly nllMask?: Buffer | undefined;
  /** u32 [N+1]. */
  readonly offsets: Buffer;
  /** u32 [N], for `kto`. */
  readonly labels?: Buffer | undefined;
}

/** A preference loss in GPU buffers. */
export interface RecordedPreference extends Recorded<LossResult> {
  /** f32 [T], d(loss)/d(logprob). */
  readonly dlogprobs: Buffer;
}

/**
 * Records value, gradient and metrics of a preference loss. Nothing waits: submit or read when the step is complete.
 * @param batch buffers on the device, and the layout of their rows on the host
 * @throws {ConfigError} for an unknown loss or setting, and rows that the loss cannot use
 * @throws {UnsupportedError} for more tokens than one binding holds
 */
export function recordPreferenceLoss(
  device: Device,
  spec: PreferenceSpec,
  { buffers, rows }: { readonly buffers: PreferenceBuffers; readonly rows: PreferenceRows },
): RecordedPreference {
  const plan = resolvePreference(spec, { ...rows, refLogprobs: buffers.refLogprobs });
  const { tokens, trained } = plan.counts;
  refuseSeveralBindings(device, tokens);
  const [table, dlogprobs] = allocTogether(device, [
    { byteLength: trained.length * COLUMNS.length * F32_BYTES, label: "preference rows" },
    { byteLength: tokens * F32_BYTES, label: "dlogprobs" },
  ]) as [Buffer, Buffer];
  dispatchPairs(device, plan, { buffers, table, dlogprobs });
  return {
    dlogprobs,
    reads: [{ buffer: table, type: "f32", length: trained.length * COLUMNS.length }],
    decode: ([data]) => preferenceResult(plan, rowsIn(data!), rows),
    release: () => device.release(table, dlogprobs),
  };
}

function dispatchPairs(
  device: Device,
  plan: ResolvedPreference,
  { buffers, table, dlogprobs }: { buffers: PreferenceBuffers; table: Buffer; dlogprobs: Buffer },
): void {
  const { loss, params, units, scale } = plan;
  const { logprobs, mask, offsets } = buffers;
  device.dispatch(loss.form.kernel, {
    buffers: {
      ...{ logprobs, mask, offsets, rows: table, dlogprobs },
      ref_logprobs: buffers.refLogprobs ?? logprobs,
      nll_mask: buffers.nllMask ?? mask,
      labels: buffers.labels ?? mask,
    },
    params: { units, scale, nll_scale: likelihoodScale(plan), padding: 0, ...structValues(loss.form.params, params) },
    constants: { PAIRS: Number(loss.unit === "pair"), REFERENCE: Number(loss.hasReference), MEAN: Number(loss.isMean) },
  });
}

function rowsIn(data: Data): RowSums[] {
  const width = COLUMNS.length;
  const row = (at: number) => Object.fromEntries(COLUMNS.map((name, k) => [name, data[at + k]!])) as unknown as RowSums;
  return Array.from({ length: data.length / width }, (_, i) => row(i * width));
}

function refuseSeveralBindings(device: Device, tokens: number): void {
  const held = maxWindow(device);
  if (tokens <= held) return;
  throw new UnsupportedError(
    `Cannot take a preference loss over ${tokens} tokens at once: one binding holds ${held}. Split the batch between pairs, with global_batch_size as the number of pairs in all parts.`,
    { part: "loss", capability: "preference losses over several bindings" },
  );
}
