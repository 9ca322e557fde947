/**
 * The output end of a pass, forward and backward: selected rows of the hidden states, the final norm, logits in windows
 * that fit one binding, log-probabilities and entropies. Only the targets' positions are multiplied by the output matrix,
 * each once: several targets of a position share its logits.
 *
 * A gradient needs the logits again, and those of one window overwrite another's, so that they would be computed twice. But where the
 * output matrix does not train, the gradient of a row is a multiple of that of its log-prob, dx_r = a_r d(logprob_r)/dx_r. That is
 * computed while the window's logits are there, and multiplied by a, the loss's gradient, when this is known.
 */
import type { Buffer } from "../../compute/device.ts";
import type { ForwardState } from "../forward_state.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { scaleRows } from "../kernels/elementwise.ts";
import { chooseGreedyHits, chooseLogprobBackward, inverseTemperature, recordLogprob } from "../kernels/logprob.ts";
import { logitStride, logitWindows, projectLogits } from "../logit_windows.ts";
import { bufferRows, type RowRun } from "../row_windows.ts";
import type { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { FinalRows } from "./final_rows.ts";
import { LogitCopies, type TargetLogits } from "./logit_copies.ts";
import { groupTargets, type TargetGroups, type Targets } from "./targets.ts";

interface HeadOptions {
  readonly state: ForwardState;
  readonly targets: Targets;
  readonly temperature: number;
  readonly scratch: Scratch;
  readonly greedy?: boolean | undefined;
  /** Sink of the gradients, where {@link HeadPass.backward} follows. */
  readonly gradient?: { readonly sink: GradientSink; readonly usesEntropies: boolean } | undefined;
}

/** Gradients of the log-probs and the entropies, [R]. */
interface HeadGradients {
  readonly logprobs: Buffer;
  readonly entropies?: Buffer | undefined;
}

type LogitGradients = Required<Record<keyof HeadGradients, Buffer>>;

/** Gradients of the log-probs themselves. */
interface Slopes {
  /** d(logprob_r)/d(normed[r]), [P, C]. */
  readonly rows: Buffer;
  /** A loss's gradient of log-probs and entropies, [R], that leaves them as they are. */
  readonly ones: Buffer;
  readonly zeros: Buffer;
}

export class HeadPass {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
  /** 1 where a target is the most likely token, else 0; where asked for. */
  readonly greedy: Buffer | undefined;
  /** Targets, R. */
  readonly count: number;
  private readonly model: Transformer;
  private readonly weights: Weights;
  private readonly scratch: Scratch;
  private readonly temperature: number;
  private readonly groups: TargetGroups;
  private readonly targetBuffer: Buffer;
  private readonly final: FinalRows;
  private readonly logSumExps: Buffer;
  private readonly logits: Buffer;
  /** Windows of the positions, P. */
  private readonly windows: readonly RowRun[];
  /** Absent where each position has one target. */
  private readonly copies: LogitCopies | undefined;
  /** d(logprob)/d(normed row), [P, C], where it is computed with the log-probs. */
  private readonly slopes: Slopes | undefined;

  /** Frees `state.hidden` as soon as its rows are gathered. */
  constructor(model: Transformer, weights: Weights, of: HeadOptions) {
    const { scratch, targets } = of;
    this.model = model;
    this.weights = weights;
    this.scratch = scratch;
    this.temperature = of.temperature;
    this.groups = groupTargets(targets.positions);
    this.count = targets.positions.length;
    this.targetBuffer = scratch.upload(targets.tokens, "targets");
    this.final = new FinalRows(model, weights, { state: of.state, positions: this.groups.rows, scratch });
    this.logprobs = scratch.floats(this.count, "logprobs");
    this.entropies = scratch.floats(this.count, "entropies");
    if (of.greedy) this.greedy = scratch.floats(this.count, "greedy");
    this.logSumExps = scratch.floats(this.count, "log-sum-exps");
    this.windows = logitWindows(model, this.rows);
    this.logits = scratch.floats((this.windows[0]?.rows ?? 0) * logitStride(model.config.vocabSize), "logits");
    if (this.rows < this.count) this.copies = new LogitCopies(model, { groups: this.groups, scratch });
    if (of.gradient && this.computesSlopes(of.gradient)) this.slopes = this.openSlopes();
    for (const window of this.windows) this.forward(window);
  }

  private computesSlopes({ sink, usesEntropies }: NonNullable<HeadOptions["gradient"]>): boolean {
    return this.windows.length > 1 && !this.copies && !usesEntropies && !sink.trains(this.model.head);
  }

  private openSlopes(): Slopes {
    const ones = this.scratch.upload(new Float32Array(this.count).fill(1), "ones");
    return {
      ones,
      zeros: this.zeros(this.count),
      rows: this.scratch.floats(this.rows * this.model.config.hiddenSize, "gradient"),
    };
  }

  /** Positions with targets, P. */
  private get rows(): number {
    return this.groups.rows.length;
  }

  private forward(window: RowRun): void {
    this.project(window);
    const { device } = this.model;
    const { targetBuffer: targets, logprobs, entropies, logSumExps, greedy } = this;
    for (const part of this.targetLogits(window)) {
      const { logits } = part;
      const params = this.params(part);
      const buffers = { logits, targets, logprobs, entropies, logSumExps };
      recordLogprob(device, { buffers, params, scratch: this.scratch });
      if (greedy) device.dispatch(chooseGreedyHits(device.info), { buffers: { logits, targets, greedy }, params });
    }
    if (this.slopes) this.slopesOf(window, this.slopes);
  }

  /** Replaces the window's logits. */
  private slopesOf(window: RowRun, { ones, zeros, rows }: Slopes): void {
    const grads = { logprobs: ones, entropies: zeros };
    this.logitGradients({ ...window, logits: this.logits }, grads);
    this.throughOutput(window, { dy: this.logits, to: rows });
  }

  /** The logits of a window with a row per target: those of the window, or copies of its rows. */
  private targetLogits(window: RowRun): Iterable<TargetLogits> {
    return this.copies?.of(window, this.logits) ?? [{ ...window, logits: this.logits }];
  }

  private project(window: RowRun): void {
    projectLogits(this.model, this.weights, { normed: this.final.normed, logits: this.logits, window });
  }

  private params({ first, rows }: RowRun) {
    const { vocabSize } = this.model.config;
    return {
      rows,
      first_row: first,
      vocabulary: vocabSize,
      stride: logitStride(vocabSize),
      inverse_temperature: inverseTemperature(this.temperature),
    };
  }

  /**
   * Frees everything but the log-probabilities and entropies.
   * @param grads of the log-probs and, optionally, the entropies, [R].
   * @returns the gradient of the hidden states, [T, C].
   */
  backward(grads: HeadGradients, to: { sink: GradientSink; tokens: number }): Buffer {
    const { scratch } = this;
    const isScaled = this.slopes && !grads.entropies;
    const normedGrad = isScaled ? this.scaled(this.slopes, grads) : this.windowsBackward(grads, to.sink);
    scratch.free(this.logits, this.logSumExps, this.targetBuffer);
    this.copies?.release();
    return this.final.backward(normedGrad, to);
  }

  private scaled({ rows: x, ones, zeros }: Slopes, { logprobs: factors }: HeadGradients): Buffer {
    const params = { rows: this.rows, width: this.model.config.hiddenSize };
    this.model.device.dispatch(scaleRows, { buffers: { x, factors }, params });
    this.scratch.free(ones, zeros);
    return x;
  }

  /** The gradient of the normed rows, [P, C]. */
  private windowsBackward({ logprobs, entropies }: HeadGradients, sink: GradientSink): Buffer {
    const normedGrad = this.scratch.floats(this.rows * this.model.config.hiddenSize, "gradient");
    const grads = { logprobs, entropies: entropies ?? this.zeros(this.count) };
    for (const window of this.windows) {
      // The logits of a single window are still in the buffer; several windows overwrite each other.
      if (this.windows.length > 1) this.project(window);
      this.windowBackward(window, { grads, normedGrad, sink });
    }
    return normedGrad;
  }

  private windowBackward(window: RowRun, at: { grads: LogitGradients; normedGrad: Buffer; sink: GradientSink }): void {
    const { model } = this;
    this.copies?.clear();
    for (const part of this.targetLogits(window)) {
      this.logitGradients(part, at.grads);
      this.copies?.addGradients(part, window);
    }
    const dy = this.copies?.gradients ?? this.logits;
    const x = bufferRows(this.final.normed, window, model.config.hiddenSize);
    at.sink.matrix(model.head, { dy, x, m: window.rows, stride: logitStride(model.config.vocabSize) });
    this.throughOutput(window, { dy, to: at.normedGrad });
  }

  /** Replaces logits by their gradient. */
  private logitGradients(part: TargetLogits, { logprobs, entropies }: LogitGradients): void {
    const { targetBuffer: targets, logSumExps } = this;
    const softmaxInputs = { logits: part.logits, targets, logSumExps, entropies: this.entropies };
    const { device } = this.model;
    device.dispatch(chooseLogprobBackward(device.info), {
      buffers: { ...softmaxInputs, logprobGrads: logprobs, entropyGrads: entropies },
      params: this.params(part),
    });
  }

  /** The gradient of a window's normed rows from that of its logits. */
  private throughOutput(window: RowRun, { dy, to }: { dy: Buffer; to: Buffer }): void {
    const { hiddenSize: C, vocabSize } = this.model.config;
    const dx = bufferRows(to, window, C);
    this.weights.applyBackward(this.model.head, { dy, dx, m: window.rows, stride: logitStride(vocabSize) });
  }

  private zeros(length: number): Buffer {
    const buffer = this.scratch.floats(length, "gradient");
    this.model.device.clear(buffer);
    return buffer;
  }
}
