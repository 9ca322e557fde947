/**
 * The output end of a pass, forward and backward: selected rows of the hidden states, the final norm, logits in windows
 * that fit one binding, log-probabilities and entropies. Only the targets' positions are multiplied by the output matrix,
 * each once: several targets of a position share its logits.
 */
import type { Buffer } from "../../compute/device.ts";
import type { ForwardState } from "../forward_state.ts";
import { chooseLogprob, greedyHits, inverseTemperature, type LogprobKernels } from "../kernels/logprob.ts";
import { logitStride, logitWindows, projectLogits } from "../logit_windows.ts";
import { type RowRun, rowsOf } from "../row_windows.ts";
import type { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { FinalRows } from "./final_rows.ts";
import type { GradientSink } from "./gradient_sink.ts";
import { LogitCopies, type TargetLogits } from "./logit_copies.ts";
import { groupTargets, type TargetGroups, type Targets } from "./targets.ts";

export class HeadPass {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
  /** 1 where a target is the most likely token, else 0; where asked for. */
  readonly greedy: Buffer | undefined;
  /** Targets, R. */
  readonly count: number;
  private readonly model: Transformer;
  private readonly kernels: LogprobKernels;
  private readonly weights: Weights;
  private readonly scratch: Scratch;
  private readonly temperature: number;
  private readonly groups: TargetGroups;
  private readonly targetBuffer: Buffer;
  private readonly final: FinalRows;
  private readonly logSumExps: Buffer;
  private readonly logits: Buffer;
  /** Of the positions, P. */
  private readonly windows: readonly RowRun[];
  /** Absent where each position has one target. */
  private readonly copies: LogitCopies | undefined;

  /** Frees `state.hidden` as soon as its rows are gathered. */
  constructor(
    model: Transformer,
    weights: Weights,
    of: { state: ForwardState; targets: Targets; temperature: number; scratch: Scratch; greedy?: boolean | undefined },
  ) {
    const { scratch, targets } = of;
    this.model = model;
    this.kernels = chooseLogprob(model.device.info);
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
    for (const window of this.windows) this.forward(window);
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
      device.dispatch(this.kernels.forward, {
        buffers: { logits, targets, logprobs, entropies, logSumExps },
        params,
      });
      if (greedy) device.dispatch(greedyHits, { buffers: { logits, targets, greedy }, params });
    }
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
  backward(
    grads: { logprobs: Buffer; entropies?: Buffer | undefined },
    to: { sink: GradientSink; tokens: number },
  ): Buffer {
    const { scratch } = this;
    const { hiddenSize: C } = this.model.config;
    const entropyGrads = grads.entropies ?? this.zeros(this.count);
    const normedGrad = scratch.floats(this.rows * C, "gradient");
    for (const window of this.windows) {
      // The logits of a single window are still in the buffer; several windows overwrite each other.
      if (this.windows.length > 1) this.project(window);
      this.windowBackward(window, {
        logprobs: grads.logprobs,
        entropies: entropyGrads,
        normedGrad,
        sink: to.sink,
      });
    }
    scratch.free(this.logits, this.logSumExps, this.targetBuffer);
    this.copies?.release();
    return this.final.backward(normedGrad, to);
  }

  private windowBackward(
    window: RowRun,
    at: { logprobs: Buffer; entropies: Buffer; normedGrad: Buffer; sink: GradientSink },
  ): void {
    const { model, targetBuffer: targets, entropies, logSumExps } = this;
    const { hiddenSize: C } = model.config;
    const stride = logitStride(model.config.vocabSize);
    this.copies?.clear();
    for (const part of this.targetLogits(window)) {
      model.device.dispatch(this.kernels.backward, {
        buffers: {
          logits: part.logits,
          targets,
          logSumExps,
          entropies,
          logprobGrads: at.logprobs,
          entropyGrads: at.entropies,
        },
        params: this.params(part),
      });
      this.copies?.addGradients(part, window);
    }
    const dy = this.copies?.gradients ?? this.logits;
    const m = window.rows;
    at.sink.matrix(model.head, { dy, x: rowsOf(this.final.normed, window, C), m, stride });
    this.weights.applyBackward(model.head, { dy, dx: rowsOf(at.normedGrad, window, C), m, stride });
  }

  private zeros(length: number): Buffer {
    const buffer = this.scratch.floats(length, "gradient");
    this.model.device.clear(buffer);
    return buffer;
  }
}
