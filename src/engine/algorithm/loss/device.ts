/** Records the policy loss on a device: everything stays in GPU buffers, only the partial sums are read back. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import {
  allocTogether,
  type Buffer,
  type Data,
  type Device,
  type ReadRequest,
  type Recorded,
} from "../../compute/device.ts";
import { checkAdvantages } from "../advantage/level.ts";
import { F32_BYTES, finiteF32 } from "../f32.ts";
import { type RowCounts, trainedTokens } from "../rows.ts";
import { rowWeights, TOKEN_GROUPS } from "./aggregation.ts";
import { assignSlots, type BindingSlots, type LossBuffers } from "./binding_slots.ts";
import type { Selection } from "./definition.ts";
import { lossEntropy } from "./entropy_kernel.ts";
import { checkTerms } from "./host.ts";
import { SUM_COUNT } from "./pass.ts";
import { PASS_CONSTANTS, PASS_GROUPS, type PassKernel } from "./pass_kernel.ts";
import { type LossResult, lossResult, type PolicyLossSpec, type ResolvedLoss, resolveLoss } from "./resolve.ts";
import type { RowStatistic } from "./row_statistic.ts";
import { recordSelection } from "./selection_kernels.ts";
import { structValues } from "./settings_struct.ts";
import { addPartials, type LossLayout, layOutWorkspace, maxWindow, type Window, windowsOf } from "./workspace.ts";

/** A policy loss in GPU buffers: its gradient per token, and partial sums to read back. */
export interface RecordedLoss extends Recorded<LossResult> {
  /** f32 [T], d(loss)/d(logprob); 0 where mask = 0. */
  readonly dlogprobs: Buffer;
  /** f32 [T], d(loss)/d(entropy), where the batch holds entropies; 0 where mask = 0. */
  readonly dentropy?: Buffer | undefined;
  /**
   * Loss and metrics.
   * @throws {ConfigError} when trained tokens held values that are not finite
   */
  decode(data: readonly Data[]): LossResult;
}

/** How a loss is recorded. */
export interface RecordOptions {
  /** Tokens per dispatch, a multiple of 64. Default: what one binding holds. */
  readonly windowTokens?: number | undefined;
}

/** Input of {@link recordPolicyLoss}: buffers on the device, and the layout of rows on the host. */
export interface DeviceLossBatch extends RecordOptions {
  readonly buffers: LossBuffers;
  /** Counts of {@link countRows}. */
  readonly counts: RowCounts;
}

/**
 * Records value, gradient and metrics of a policy loss. Nothing waits: submit or read when the step is complete.
 * @param spec the loss under its published name; see {@link PolicyLossSpec}
 * @throws {ConfigError} for an unknown loss, setting or mode, an input that the loss needs and the batch lacks, or
 * advantages whose buffer does not hold what their level says
 * @throws {UnsupportedError} for a loss that is a function of the host, or inputs that do not fit one kernel
 */
export function recordPolicyLoss(device: Device, spec: PolicyLossSpec, batch: DeviceLossBatch): RecordedLoss {
  const loss = resolveLoss(spec, batch.counts);
  checkTerms(loss, batch.buffers);
  return new Recording(device, loss, batch).record();
}

/** One call of {@link recordPolicyLoss}. */
class Recording {
  private readonly device: Device;
  private readonly loss: ResolvedLoss;
  private readonly buffers: LossBuffers;
  private readonly counts: RowCounts;
  private readonly kernel: PassKernel;
  private readonly windows: readonly Window[];
  private readonly layout: LossLayout;
  private readonly workspace: Buffer;
  private readonly dlogprobs: Buffer;
  private readonly dentropy: Buffer | undefined;
  private readonly isPerToken: boolean;

  constructor(device: Device, loss: ResolvedLoss, { buffers, counts, windowTokens }: DeviceLossBatch) {
    const { tokens, trained } = counts;
    const size = windowTokens ?? maxWindow(device);
    const length = (buffer: Buffer) => buffer.byteLength / F32_BYTES;
    this.device = device;
    this.loss = loss;
    this.buffers = buffers;
    this.counts = counts;
    this.kernel = passKernel(loss);
    this.windows = windowsOf(tokens, size);
    this.isPerToken = checkAdvantages(buffers.advantages, { rows: trained.length, tokens, length }).level === "token";
    this.layout = layOutWorkspace(tokens, trained.length, size);
    const byteLength = tokens * F32_BYTES;
    const [workspace, dlogprobs, dentropy] = allocTogether(device, [
      { byteLength: this.layout.length * F32_BYTES, label: "loss workspace" },
      { byteLength, label: "dlogprobs" },
      ...(buffers.entropy ? [{ byteLength, label: "dentropy" }] : []),
    ]);
    this.workspace = workspace!;
    this.dlogprobs = dlogprobs!;
    this.dentropy = dentropy;
  }

  record(): RecordedLoss {
    const { plan } = this.loss;
    if (plan.rows || plan.selection) this.refuseSeveralBindings();
    this.fillTable();
    if (plan.rows) this.recordRows(plan.rows);
    if (plan.selection) this.recordSelection(plan.selection);
    const slots = assignSlots(this.loss, this.buffers);
    for (const [index, window] of this.windows.entries()) this.recordPass(slots, index, window);
    const { dlogprobs, dentropy } = this;
    if (this.buffers.entropy && dentropy) this.recordEntropy(this.buffers.entropy, dentropy);
    return {
      dlogprobs,
      dentropy,
      reads: [this.partials()],
      decode: ([data]) => this.decode(data!),
      release: () => this.device.release(this.workspace, dlogprobs, ...(dentropy ? [dentropy] : [])),
    };
  }

  /** The part of the workspace that the host reads. */
  private partials(): ReadRequest {
    const { partialsAt, thresholdAt } = this.layout;
    const bytes = (thresholdAt - partialsAt) * F32_BYTES;
    return { buffer: this.workspace.slice(partialsAt * F32_BYTES, bytes), type: "f32" };
  }

  /** Row weights and per-row advantages: columns 0 and 1. */
  private fillTable(): void {
    const { weight, termWeight } = this.loss;
    const byRow = weight.byRow ? weight : termWeight;
    if (byRow.byRow) this.device.write(this.workspace, rowWeights(byRow, this.counts));
    if (this.isPerToken) return;
    const bytes = this.counts.trained.length * F32_BYTES;
    const column = this.workspace.slice(this.layout.rowStride * F32_BYTES, bytes);
    this.device.copy(this.buffers.advantages.values, column, bytes);
  }

  private recordRows({ kernel, params }: RowStatistic): void {
    const { workspace, isPerToken } = this;
    const { logprobs, oldLogprobs, isWeights, mask, offsets, advantages } = this.buffers;
    this.device.dispatch(kernel, {
      buffers: {
        logprobs,
        old: oldLogprobs ?? logprobs,
        mask,
        offsets,
        advantages: isPerToken ? advantages.values : logprobs,
        is_weights: isWeights ?? logprobs,
        workspace,
      },
      params: {
        rows: this.counts.trained.length,
        row_stride: this.layout.rowStride,
        spare0: 0,
        spare1: 0,
        ...structValues(params, this.loss.plan.params),
      },
      constants: {
        OLD: flag(oldLogprobs),
        TOKEN_ADVANTAGE: flag(isPerToken),
        WEIGHT: flag(isWeights),
      },
    });
  }

  private recordSelection(selection: Selection): void {
    const { buffers, counts, workspace, dlogprobs: keys } = this;
    const { rowStride, thresholdAt } = this.layout;
    recordSelection(this.device, selection, { buffers, counts, keys, workspace, rowStride, thresholdAt });
  }

  private refuseSeveralBindings(): void {
    const { tokens } = this.counts;
    const held = maxWindow(this.device);
    if (tokens <= held) return;
    throw new UnsupportedError(
      `Cannot take the loss ${this.loss.name} over ${tokens} tokens at once: it couples tokens, and one binding holds ${held}. Split the batch by rows.`,
      { part: "loss", capability: "coupled losses over several bindings" },
    );
  }

  private recordPass({ slots, inOutput, constants }: BindingSlots, index: number, { first, tokens }: Window): void {
    const { loss, buffers, layout, workspace } = this;
    const window = (buffer: Buffer) =>
      tokens === this.counts.tokens ? buffer : buffer.slice(first * F32_BYTES, tokens * F32_BYTES);
    const [logprobs, dlogprobs] = [window(buffers.logprobs), window(this.dlogprobs)];
    if (inOutput) this.device.copy(window(inOutput), dlogprobs, tokens * F32_BYTES);
    const slot = (k: number) => (slots[k] ? window(slots[k]) : logprobs);
    this.device.dispatch(this.kernel, {
      buffers: {
        logprobs,
        mask: window(buffers.mask),
        row_of_token: window(buffers.trajectoryOfToken),
        slot1: slot(0),
        slot2: slot(1),
        slot3: slot(2),
        workspace,
        dlogprobs,
      },
      params: {
        tokens,
        row_stride: layout.rowStride,
        partials_at: layout.partialsAt + index * PASS_GROUPS * SUM_COUNT,
        threshold_at: layout.thresholdAt,
        weight: loss.weight.uniform,
        kl_weight: loss.termWeight.uniform,
        kl_coef: loss.klCoef,
        kl_bound: finiteF32(loss.klBound),
        ...structValues(loss.plan.form.params, loss.plan.params),
      },
      constants: { ...this.constants(), ...constants },
    });
  }

  private constants(): Record<keyof typeof PASS_CONSTANTS, number> {
    const { plan, weight, termWeight, klCode } = this.loss;
    return {
      ...PASS_CONSTANTS,
      KL: klCode,
      MASKED: flag(trainedTokens(this.counts) < this.counts.tokens),
      ROW_WEIGHTED: flag(weight.byRow),
      KL_ROW_WEIGHTED: flag(klCode !== 0 && termWeight.byRow),
      ROW_ADVANTAGE: flag(!this.isPerToken),
      ROW_COUPLED: flag(plan.rows),
      WEIGHTED_SLOPE: flag(plan.weightsInRows !== "slope"),
    };
  }

  private recordEntropy(entropy: Buffer, dentropy: Buffer): void {
    const { loss, buffers, device, workspace } = this;
    for (const [index, { first, tokens }] of this.windows.entries()) {
      const window = (buffer: Buffer) => buffer.slice(first * F32_BYTES, tokens * F32_BYTES);
      device.dispatch(lossEntropy, {
        buffers: {
          entropy: window(entropy),
          mask: window(buffers.mask),
          row_of_token: window(buffers.trajectoryOfToken),
          workspace,
          dentropy: window(dentropy),
        },
        params: {
          tokens,
          partials_at: this.layout.entropyAt + index * TOKEN_GROUPS,
          weight: loss.termWeight.uniform,
          coef: loss.entropyCoef,
        },
        constants: { ROW_WEIGHTED: flag(loss.termWeight.byRow) },
      });
    }
  }

  private decode(data: Data): LossResult {
    const { sums, entropy } = addPartials(data, this.layout);
    const measured = this.buffers.entropy ? entropy : undefined;
    return lossResult(this.loss, sums, { rows: this.counts, entropy: measured });
  }
}

function passKernel({ name, plan }: ResolvedLoss): PassKernel {
  if (plan.form.kernel) return plan.form.kernel;
  throw new UnsupportedError(
    `Cannot take the loss ${name} on the device: it is a function of the host. Use computePolicyLoss, or write it in WGSL.`,
    { part: "loss", capability: name },
  );
}

function flag(present: unknown): number {
  return present ? 1 : 0;
}
