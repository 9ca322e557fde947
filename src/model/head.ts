/**
 * The output end of a pass, forward and backward: selected rows of the hidden states, the final norm, logits in windows
 * that fit one binding, log-probabilities and entropies. Only the targets' rows are multiplied by the output matrix.
 */
import type { Buffer } from "../compute/device.ts";
import { embedding } from "./kernels/embedding.ts";
import { chooseLogprob, inverseTemperature, type LogprobKernels } from "./kernels/logprob.ts";
import { plainRows } from "./kernels/norm.ts";
import { alignedRows } from "./row_windows.ts";
import type { Scratch } from "./scratch.ts";
import { BackwardPass } from "./train/backward.ts";
import type { GradientSink } from "./train/gradient_sink.ts";
import { FINAL_NORM, type ForwardState, type Transformer } from "./transformer.ts";
import type { Weights } from "./weights.ts";

/** Distinct ascending positions, and for each the next token whose log-probability is wanted, [R]. */
export interface Targets {
  readonly positions: Uint32Array;
  readonly tokens: Uint32Array;
}

/** Logits of one window stay below this, to fit caches as well as a binding. */
const MAX_WINDOW_BYTES = 64 * 2 ** 20;

/** A run of rows whose logits are computed together. */
export interface Window {
  readonly first: number;
  readonly rows: number;
}

/** Elements from one row of logits to the next: whole vec4s. */
export function logitStride(vocabSize: number): number {
  return Math.ceil(vocabSize / 4) * 4;
}

export class HeadPass {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
  readonly count: number;
  private readonly model: Transformer;
  private readonly kernels: LogprobKernels;
  private readonly weights: Weights;
  private readonly scratch: Scratch;
  private readonly temperature: number;
  private readonly targets: Targets;
  private readonly targetBuffer: Buffer;
  private readonly hiddenRows: Buffer;
  private readonly normed: Buffer;
  private readonly inverse: Buffer;
  private readonly logSumExps: Buffer;
  private readonly logits: Buffer;
  private readonly windows: readonly Window[];

  constructor(
    model: Transformer,
    weights: Weights,
    of: { state: ForwardState; targets: Targets; temperature: number; scratch: Scratch },
  ) {
    const { scratch, targets } = of;
    this.model = model;
    this.kernels = chooseLogprob(model.device.info);
    this.weights = weights;
    this.scratch = scratch;
    this.temperature = of.temperature;
    this.targets = targets;
    this.count = targets.positions.length;
    this.targetBuffer = scratch.upload(targets.tokens, "targets");
    this.hiddenRows = gatherRows(model, { from: of.state.hidden, positions: targets.positions, scratch });
    const norm = model.norm(weights, { name: FINAL_NORM, x: this.hiddenRows, rows: this.count, scratch });
    this.normed = norm.normed;
    this.inverse = norm.inverse;
    this.logprobs = scratch.floats(this.count, "logprobs");
    this.entropies = scratch.floats(this.count, "entropies");
    this.logSumExps = scratch.floats(this.count, "log-sum-exps");
    this.windows = logitWindows(model, this.count);
    this.logits = scratch.floats(
      (this.windows[0]?.rows ?? 0) * logitStride(model.config.vocabSize),
      "logits",
    );
    for (const window of this.windows) this.forward(window);
  }

  private forward(window: Window): void {
    this.project(window);
    const { targetBuffer: targets, logprobs, entropies, logSumExps, logits } = this;
    this.model.device.dispatch(this.kernels.forward, {
      buffers: { logits, targets, logprobs, entropies, logSumExps },
      params: this.params(window),
    });
  }

  private project(window: Window): void {
    projectLogits(this.model, this.weights, { normed: this.normed, logits: this.logits, window });
  }

  private params({ first, rows }: Window) {
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
   * @param grads of the log-probs and, optionally, the entropies, [R].
   * @returns the gradient of the hidden states, [T, C].
   */
  backward(
    grads: { logprobs: Buffer; entropies?: Buffer | undefined },
    to: { sink: GradientSink; tokens: number },
  ): Buffer {
    const { model, weights, scratch } = this;
    const { hiddenSize: C } = model.config;
    const pass = new BackwardPass(model);
    const entropyGrads = grads.entropies ?? this.zeros(this.count);
    const normedGrad = scratch.floats(this.count * C, "gradient");
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
    const rowsGrad = scratch.floats(this.count * C, "gradient");
    pass.normBackward(weights, {
      name: FINAL_NORM,
      layout: plainRows(this.count, C),
      x: this.hiddenRows,
      inverse: this.inverse,
      yGrad: normedGrad,
      xGrad: rowsGrad,
      accumulate: false,
      sink: to.sink,
      scratch,
    });
    const hiddenGrad = this.zeros(to.tokens * C);
    const each = Uint32Array.from({ length: this.count + 1 }, (_, i) => i);
    pass.scatterRows(rowsGrad, {
      table: hiddenGrad,
      rowCount: to.tokens,
      groups: { rows: this.targets.positions, offsets: each, positions: each.subarray(0, this.count) },
    });
    return hiddenGrad;
  }

  private windowBackward(
    window: Window,
    at: { logprobs: Buffer; entropies: Buffer; normedGrad: Buffer; sink: GradientSink },
  ): void {
    const { model, logits, targetBuffer: targets, entropies, logSumExps } = this;
    const width = model.config.hiddenSize * 4;
    const stride = logitStride(model.config.vocabSize);
    model.device.dispatch(this.kernels.backward, {
      buffers: {
        logits,
        targets,
        logSumExps,
        entropies,
        logprobGrads: at.logprobs,
        entropyGrads: at.entropies,
      },
      params: this.params(window),
    });
    const [from, bytes] = [window.first * width, window.rows * width];
    at.sink.matrix(model.head, { dy: logits, x: this.normed.slice(from, bytes), m: window.rows, stride });
    this.weights.applyBackward(model.head, {
      dy: logits,
      dx: at.normedGrad.slice(from, bytes),
      m: window.rows,
      stride,
    });
  }

  private zeros(length: number): Buffer {
    const buffer = this.scratch.floats(length, "gradient");
    this.model.device.clear(buffer);
    return buffer;
  }
}

/** out[r, :] = from[positions[r], :]. */
export function gatherRows(
  model: Transformer,
  at: { from: Buffer; positions: Uint32Array; scratch: Scratch },
): Buffer {
  const { hiddenSize: width } = model.config;
  const out = at.scratch.floats(at.positions.length * width, "hidden rows");
  model.device.dispatch(embedding, {
    buffers: { tokens: at.scratch.upload(at.positions, "row positions"), table: at.from, out },
    params: { tokens: at.positions.length, width, first_row: 0, row_count: 2 ** 32 - 1 },
  });
  return out;
}

/** logits [rows, logitStride] of a window's rows of the normed hidden states. */
export function projectLogits(
  model: Transformer,
  weights: Weights,
  io: { normed: Buffer; logits: Buffer; window: Window },
): void {
  const { first, rows } = io.window;
  const width = model.config.hiddenSize * 4;
  weights.apply(model.head, {
    x: io.normed.slice(first * width, rows * width),
    y: io.logits,
    m: rows,
    stride: logitStride(model.config.vocabSize),
  });
}

/** Runs of rows whose logits fit the limit, and whose slices of the hidden states are aligned. */
export function logitWindows(model: Transformer, count: number): Window[] {
  const { vocabSize, hiddenSize } = model.config;
  const limit = Math.min(MAX_WINDOW_BYTES, model.device.info.limits.maxBindingBytes);
  const step = alignedRows(hiddenSize);
  const fitting = Math.floor(limit / (logitStride(vocabSize) * 4) / step) * step;
  const rows = Math.max(fitting, step);
  const windows: Window[] = [];
  for (let first = 0; first < count; first += rows)
    windows.push({ first, rows: Math.min(rows, count - first) });
  return windows;
}
