/** Records the policy loss on a device: everything stays in GPU buffers, only the partial sums are read back. */

import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import type { Advantages } from "../../contract/backend.ts";
import { UnsupportedError } from "../../errors.ts";
import { checkAdvantages } from "../advantage/level.ts";
import { type RowCounts, trainedTokens, weightOfRow } from "./aggregation.ts";
import { missing } from "./host.ts";
import {
  ENTROPY_GROUPS,
  finiteF32,
  lossEntropy,
  lossPolicy,
  lossRows,
  PASS_CONSTANTS,
  PASS_GROUPS,
  ROW_STATISTICS,
  SETTING_NAMES,
  SLOT,
} from "./kernels.ts";
import { SUM_COUNT } from "./pass.ts";
import {
  type LossResult,
  lossResult,
  type PolicyLossSpec,
  type ResolvedLoss,
  resolveLoss,
} from "./resolve.ts";
import { recordSelection } from "./selection_kernels.ts";

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
  /** f32: needed for an entropy bonus; given without one, only the metric is taken. */
  readonly entropy?: Buffer | undefined;
}

export interface RecordedLoss {
  /** f32 [T], d(loss)/d(logprob); 0 where mask = 0. */
  readonly dlogprobs: Buffer;
  /** f32 [T], d(loss)/d(entropy), where the batch holds entropies; 0 where mask = 0. */
  readonly dentropy?: Buffer | undefined;
  /** What to read back, with whatever else the caller reads at the end of its step. */
  readonly reads: readonly ReadRequest[];
  /**
   * Loss and metrics from what `reads` brought.
   * @throws ConfigError when trained tokens held non-finite values.
   */
  decode(data: readonly Data[]): LossResult;
  /** Gives the buffers above back. */
  release(): void;
}

export interface RecordOptions {
  /** Tokens per dispatch, a multiple of 64. Default: what one binding holds. */
  readonly windowTokens?: number;
}

const F32_BYTES = 4;
/** Elements per slice alignment. */
const ALIGNMENT = 64;
const TABLE_COLUMNS = 4;

/**
 * Records value, gradient and metrics of a policy loss. Nothing waits: submit or read when the step is complete.
 * @param spec the loss under its published name; see {@link PolicyLossSpec}
 * @param batch buffers, and the counts of the rows as {@link countRows} gives them
 * @throws ConfigError for an unknown loss, setting or mode, an input that the loss needs and the batch lacks, or
 * advantages whose buffer does not hold what their level says
 */
export function recordPolicyLoss(
  device: Device,
  spec: PolicyLossSpec,
  batch: { readonly buffers: LossBuffers; readonly counts: RowCounts } & RecordOptions,
): RecordedLoss {
  const loss = resolveLoss(spec, batch.counts);
  if (loss.klCode !== 0 && !batch.buffers.refLogprobs) throw missing("refLogprobs", "the KL term");
  if (loss.entropyCoef !== 0 && !batch.buffers.entropy) throw missing("entropy", "the entropy bonus");
  return new Recording(device, loss, batch).record();
}

interface Layout {
  readonly rowStride: number;
  readonly partialsAt: number;
  readonly windows: number;
  readonly entropyAt: number;
  readonly thresholdAt: number;
  readonly length: number;
}

/** One call of {@link recordPolicyLoss}. */
class Recording {
  private readonly device: Device;
  private readonly loss: ResolvedLoss;
  private readonly buffers: LossBuffers;
  private readonly counts: RowCounts;
  private readonly kernel: typeof lossPolicy;
  private readonly windowTokens: number;
  private readonly layout: Layout;
  private readonly workspace: Buffer;
  private readonly dlogprobs: Buffer;
  private readonly advantages: Advantages<Buffer>;

  constructor(
    device: Device,
    loss: ResolvedLoss,
    batch: { readonly buffers: LossBuffers; readonly counts: RowCounts } & RecordOptions,
  ) {
    this.device = device;
    this.loss = loss;
    this.buffers = batch.buffers;
    this.counts = batch.counts;
    this.kernel = passKernel(loss);
    const { tokens, trained } = batch.counts;
    this.windowTokens = batch.windowTokens ?? maxWindow(device);
    this.advantages = checkAdvantages(batch.buffers.advantages, {
      rows: trained.length,
      tokens,
      length: (buffer) => buffer.byteLength / F32_BYTES,
    });
    this.layout = layOut(tokens, trained.length, this.windowTokens);
    this.workspace = device.alloc(this.layout.length * F32_BYTES, "loss workspace");
    this.dlogprobs = device.alloc(tokens * F32_BYTES, "dlogprobs");
  }

  private get perToken(): boolean {
    return this.advantages.level === "token";
  }

  record(): RecordedLoss {
    const { plan } = this.loss;
    if (plan.rows || plan.selection) this.refuseSeveralBindings();
    this.fillTable();
    if (plan.rows) this.recordRows();
    if (plan.selection) this.recordSelection(plan.selection);
    for (const [index, window] of this.windows().entries()) this.recordPass(index, window);
    const dentropy = this.buffers.entropy && this.recordEntropy(this.buffers.entropy);
    return {
      dlogprobs: this.dlogprobs,
      dentropy,
      reads: [this.partials()],
      decode: ([data]) => this.decode(data!),
      release: () => this.device.release(this.workspace, this.dlogprobs, ...(dentropy ? [dentropy] : [])),
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
    if (byRow.byRow)
      this.device.write(
        this.workspace,
        Float32Array.from(this.counts.trained, (n) => weightOfRow(byRow, n)),
      );
    if (this.perToken) return;
    const bytes = this.counts.trained.length * F32_BYTES;
    const column = this.workspace.slice(this.layout.rowStride * F32_BYTES, bytes);
    this.device.copy(this.advantages.values, column, bytes);
  }

  private recordRows(): void {
    const { buffers, loss, layout } = this;
    const { low, high, delta } = loss.settings;
    this.device.dispatch(lossRows, {
      buffers: {
        logprobs: buffers.logprobs,
        old: buffers.oldLogprobs ?? buffers.logprobs,
        mask: buffers.mask,
        offsets: buffers.offsets,
        advantages: this.perToken ? this.advantages.values : buffers.logprobs,
        is_weights: buffers.isWeights ?? buffers.logprobs,
        workspace: this.workspace,
      },
      params: { rows: this.counts.trained.length, row_stride: layout.rowStride, low, high, delta },
      constants: {
        STATISTIC: ROW_STATISTICS.indexOf(loss.plan.rows!),
        OLD: flag(buffers.oldLogprobs),
        TOKEN_ADVANTAGE: flag(this.perToken),
        WEIGHT: flag(buffers.isWeights),
      },
    });
  }

  private recordSelection(selection: NonNullable<ResolvedLoss["plan"]["selection"]>): void {
    recordSelection(this.device, selection, {
      buffers: this.buffers,
      counts: this.counts,
      keys: this.dlogprobs,
      workspace: this.workspace,
      rowStride: this.layout.rowStride,
      thresholdAt: this.layout.thresholdAt,
    });
  }

  private refuseSeveralBindings(): void {
    const { tokens } = this.counts;
    const held = maxWindow(this.device);
    if (tokens > held)
      throw new UnsupportedError(
        `Cannot take the loss ${this.loss.name} over ${tokens} tokens at once: it couples tokens, and one binding holds ${held}. Split the batch by rows.`,
        { part: "loss", capability: "coupled losses over several bindings" },
      );
  }

  private windows(): { first: number; tokens: number }[] {
    const windows: { first: number; tokens: number }[] = [];
    for (let first = 0; first < this.counts.tokens; first += this.windowTokens)
      windows.push({ first, tokens: Math.min(this.windowTokens, this.counts.tokens - first) });
    return windows;
  }

  private recordPass(index: number, { first, tokens }: { first: number; tokens: number }): void {
    const { loss, buffers, layout } = this;
    const window = (buffer: Buffer) =>
      tokens === this.counts.tokens ? buffer : buffer.slice(first * F32_BYTES, tokens * F32_BYTES);
    const dlogprobs = window(this.dlogprobs);
    const seats = this.seat();
    if (seats.riding) this.device.copy(window(seats.riding), dlogprobs, tokens * F32_BYTES);
    const logprobs = window(buffers.logprobs);
    const slot = (k: number) => (seats.slots[k] ? window(seats.slots[k]) : logprobs);
    this.device.dispatch(this.kernel, {
      buffers: {
        logprobs,
        mask: window(buffers.mask),
        row_of_token: window(buffers.trajectoryOfToken),
        slot1: slot(0),
        slot2: slot(1),
        slot3: slot(2),
        workspace: this.workspace,
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
        ...settingParams(loss),
      },
      constants: { ...this.constants(), ...seats.constants },
    });
  }

  private constants(): Record<keyof typeof PASS_CONSTANTS, number> {
    const { plan, weight, termWeight, klCode } = this.loss;
    return {
      ...PASS_CONSTANTS,
      LOSS: plan.code,
      KL: klCode,
      MASKED: flag(trainedTokens(this.counts) < this.counts.tokens),
      ROW_WEIGHTED: flag(weight.byRow),
      KL_ROW_WEIGHTED: flag(klCode !== 0 && termWeight.byRow),
      ROW_ADVANTAGE: flag(!this.perToken),
      ROW_COUPLED: flag(plan.rows),
      WEIGHTED_SLOPE: flag(plan.weightsInRows !== "slope"),
    };
  }

  /** Gives each optional stream a slot. The fourth rides in the output; a selection's keys already lie there. */
  private seat() {
    const { oldLogprobs, isWeights, refLogprobs } = this.buffers;
    const { plan, klCode } = this.loss;
    const wanted: [string, Buffer | undefined][] = [
      ["OLD", oldLogprobs],
      ["ADVANTAGE", this.perToken ? this.advantages.values : undefined],
      ["WEIGHT", plan.weightsInRows === "all" ? undefined : isWeights],
      ["REF", klCode !== 0 ? refLogprobs : undefined],
    ];
    const seated = wanted.filter(([, buffer]) => buffer !== undefined) as [string, Buffer][];
    if (seated.length > 3 && plan.selection)
      throw new UnsupportedError(
        `Cannot take the loss ${this.loss.name} with old and reference log-probs, importance weights and per-token advantages together: a kernel binds 8 buffers. Give the advantages per row.`,
        { part: "loss", capability: "five optional streams" },
      );
    const constants: Record<string, number> = plan.selection ? { SELECT: SLOT.inOutput } : {};
    for (const [k, [name]] of seated.entries()) constants[name] = k < 3 ? k + 1 : SLOT.inOutput;
    return { slots: seated.slice(0, 3).map(([, buffer]) => buffer), riding: seated[3]?.[1], constants };
  }

  private recordEntropy(entropy: Buffer): Buffer {
    const { loss, counts, buffers, device } = this;
    const dentropy = device.alloc(counts.tokens * F32_BYTES, "dentropy");
    for (const [index, { first, tokens }] of this.windows().entries()) {
      const window = (buffer: Buffer) => buffer.slice(first * F32_BYTES, tokens * F32_BYTES);
      device.dispatch(lossEntropy, {
        buffers: {
          entropy: window(entropy),
          mask: window(buffers.mask),
          row_of_token: window(buffers.trajectoryOfToken),
          workspace: this.workspace,
          dentropy: window(dentropy),
        },
        params: {
          tokens,
          partials_at: this.layout.entropyAt + index * ENTROPY_GROUPS,
          weight: loss.termWeight.uniform,
          coef: loss.entropyCoef,
        },
        constants: { ROW_WEIGHTED: flag(loss.termWeight.byRow) },
      });
    }
    return dentropy;
  }

  private decode(data: Data): LossResult {
    const { partialsAt, windows } = this.layout;
    const entropyAt = this.layout.entropyAt - partialsAt;
    const groups = windows * PASS_GROUPS;
    const sums = new Float64Array(SUM_COUNT);
    for (let group = 0; group < groups; group++)
      for (let k = 0; k < SUM_COUNT; k++) sums[k]! += data[group * SUM_COUNT + k]!;
    if (!this.buffers.entropy) return lossResult(this.loss, sums, this.counts);
    let entropy = 0;
    for (let group = 0; group < windows * ENTROPY_GROUPS; group++) entropy += data[entropyAt + group]!;
    return lossResult(this.loss, sums, this.counts, entropy);
  }
}

/** Tokens that one binding holds, in whole slices. */
function maxWindow(device: Device): number {
  return Math.floor(device.info.limits.maxBindingBytes / F32_BYTES / ALIGNMENT) * ALIGNMENT;
}

function layOut(tokens: number, rows: number, windowTokens: number): Layout {
  const rowStride = Math.max(Math.ceil(rows / ALIGNMENT) * ALIGNMENT, ALIGNMENT);
  const windows = Math.ceil(tokens / windowTokens);
  const partialsAt = TABLE_COLUMNS * rowStride;
  const entropyAt = partialsAt + windows * PASS_GROUPS * SUM_COUNT;
  const thresholdAt = entropyAt + windows * ENTROPY_GROUPS;
  return { rowStride, partialsAt, windows, entropyAt, thresholdAt, length: thresholdAt + ALIGNMENT };
}

function passKernel({ name, plan }: ResolvedLoss): typeof lossPolicy {
  if (plan.custom === null)
    throw new UnsupportedError(
      `Cannot take the loss ${name} on the device: it is a function of the host. Use computePolicyLoss, or write it in WGSL.`,
      { part: "loss", capability: name },
    );
  return (plan.custom?.kernel ?? lossPolicy) as typeof lossPolicy;
}

function settingParams({ settings, plan }: ResolvedLoss) {
  if (plan.custom) return plan.custom.params as ReturnType<typeof builtInParams>;
  return builtInParams(settings);
}

function builtInParams(settings: ResolvedLoss["settings"]) {
  const values = Object.fromEntries(SETTING_NAMES.map((name) => [name, finiteF32(settings[name])]));
  return { ...values, spare: 0 } as Record<(typeof SETTING_NAMES)[number] | "spare", number>;
}

function flag(present: unknown): number {
  return present ? 1 : 0;
}
