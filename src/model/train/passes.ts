/** The passes that score and train packed sequences with given weights, in micro-batches of whole sequences. */

import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import type { PackedTokens } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import { gatherRows, HeadPass, logitStride, logitWindows, projectLogits, type Targets } from "../head.ts";
import { Scratch } from "../scratch.ts";
import { FINAL_NORM, type GradientSink, packInput, type Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { BackwardPass } from "./backward.ts";

/**
 * What a pass asks of the positions: the following token wherever that one's mask is 1 (mask [T]; a first token never
 * counts), or any token at all at every position (targets [T]).
 */
export type Asked = { readonly mask: Uint32Array } | { readonly targets: Uint32Array };

/** The per-token results of a training pass that a loss is taken of, one per target. */
export interface PassOutputs {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
  /** Which of the batch's sequences this pass holds. */
  readonly sequences: { readonly from: number; readonly to: number };
  /** Rows of the targets: sequence i of this pass owns targets[offsets[i] .. offsets[i+1]). */
  readonly offsets: Uint32Array;
}

/** A loss, recorded: gradients to send back and what to read at the end. */
export interface PassLoss {
  readonly dlogprobs: Buffer;
  readonly dentropy?: Buffer | undefined;
  readonly reads: readonly ReadRequest[];
  release(): void;
}

export interface TrainingPass {
  readonly temperature: number;
  /** Where the gradient gathers. */
  readonly sink: GradientSink;
  /** Records the loss of one pass; passes hold whole sequences. */
  loss(outputs: PassOutputs): PassLoss | Promise<PassLoss>;
}

/** The likeliest tokens after each position, best first: [positions, k] row-major. */
export interface TopLogprobs {
  readonly tokens: Uint32Array;
  readonly logprobs: Float32Array;
}

const DEFAULT_MICRO_BATCH_TOKENS = 8192;

export class Passes {
  readonly transformer: Transformer;
  private readonly device: Device;
  private readonly microBatchTokens: number;

  /**
   * @param options.microBatchTokens tokens per pass, 8192 by default, fewer where a binding covers fewer; longer
   *   sequences get a pass of their own.
   */
  constructor(transformer: Transformer, options: { microBatchTokens?: number } = {}) {
    this.transformer = transformer;
    this.device = transformer.device;
    this.microBatchTokens = Math.min(
      options.microBatchTokens ?? DEFAULT_MICRO_BATCH_TOKENS,
      transformer.passLength,
    );
  }

  /**
   * Log-probability and entropy at every target, in the order of the positions.
   * @throws ConfigError for a token outside the vocabulary or a sequence beyond the context.
   */
  async score(
    weights: Weights,
    rows: PackedTokens & Asked,
    { temperature }: { temperature: number },
  ): Promise<{ logprobs: Float32Array; entropies: Float32Array }> {
    checkRows(this.transformer, rows);
    const logprobs: Float32Array[] = [];
    const entropies: Float32Array[] = [];
    for (const range of this.microBatches(rows.offsets)) {
      const scratch = new Scratch(this.device);
      try {
        const part = slicePacked(rows, range);
        const { targets } = targetsOf(rows, { part, range });
        const input = packInput(scratch, part);
        const state = this.transformer.forward(weights, { input, scratch, save: false });
        const head = new HeadPass(this.transformer, weights, { state, targets, temperature, scratch });
        const [p, h] = await this.device.read([
          { buffer: head.logprobs, type: "f32", length: head.count },
          { buffer: head.entropies, type: "f32", length: head.count },
        ]);
        logprobs.push(p as Float32Array);
        entropies.push(h as Float32Array);
      } finally {
        scratch.release();
      }
    }
    return { logprobs: joinFloats(logprobs), entropies: joinFloats(entropies) };
  }

  /** Adds the gradient of a loss over the targets to the sink. @returns for each pass what the loss asked to read. */
  async train(weights: Weights, rows: PackedTokens & Asked, options: TrainingPass): Promise<Data[][]> {
    checkRows(this.transformer, rows);
    const results: Data[][] = [];
    for (const range of this.microBatches(rows.offsets)) {
      const part = slicePacked(rows, range);
      const { targets, offsets } = targetsOf(rows, { part, range });
      if (targets.positions.length === 0) continue;
      results.push(await this.trainPart(weights, part, { ...options, targets, offsets, sequences: range }));
    }
    return results;
  }

  private async trainPart(
    weights: Weights,
    rows: PackedTokens,
    at: TrainingPass & Pick<PassOutputs, "offsets" | "sequences"> & { targets: Targets },
  ): Promise<Data[]> {
    const { targets, temperature, offsets, sequences, sink } = at;
    const { transformer } = this;
    const scratch = new Scratch(this.device);
    try {
      const input = packInput(scratch, rows);
      const state = transformer.forward(weights, { input, scratch, save: true });
      const head = new HeadPass(transformer, weights, { state, targets, temperature, scratch });
      const loss = await at.loss({ logprobs: head.logprobs, entropies: head.entropies, sequences, offsets });
      const grads = { logprobs: loss.dlogprobs, entropies: loss.dentropy };
      const hiddenGrad = head.backward(grads, { sink, tokens: input.count });
      new BackwardPass(transformer).run(weights, { state, hiddenGrad, sink });
      const data = await this.device.read(loss.reads);
      loss.release();
      return data;
    } finally {
      scratch.release();
    }
  }

  /** The `k` likeliest tokens after every position, at temperature 1. The choice is the host's: for small k and now and then. */
  async top(weights: Weights, rows: PackedTokens, { k }: { k: number }): Promise<TopLogprobs> {
    checkRows(this.transformer, rows);
    const count = rows.tokens.length;
    const top = { tokens: new Uint32Array(count * k), logprobs: new Float32Array(count * k).fill(-Infinity) };
    const { vocabSize } = this.transformer.config;
    const stride = logitStride(vocabSize);
    let done = 0;
    for (const range of this.microBatches(rows.offsets)) {
      const part = slicePacked(rows, range);
      for await (const { logits, rows: windowRows } of this.logits(weights, part))
        for (let row = 0; row < windowRows; row++, done++)
          likeliest(logits.subarray(row * stride, row * stride + vocabSize), {
            tokens: top.tokens.subarray(done * k, (done + 1) * k),
            logprobs: top.logprobs.subarray(done * k, (done + 1) * k),
          });
    }
    return top;
  }

  private async *logits(
    weights: Weights,
    rows: PackedTokens,
  ): AsyncGenerator<{ logits: Float32Array; rows: number }> {
    const { transformer } = this;
    const scratch = new Scratch(this.device);
    try {
      const input = packInput(scratch, rows);
      const { hidden } = transformer.forward(weights, { input, scratch, save: false });
      const positions = Uint32Array.from(rows.tokens.keys());
      const x = gatherRows(transformer, { from: hidden, positions, scratch });
      const { normed } = transformer.norm(weights, { name: FINAL_NORM, x, rows: input.count, scratch });
      const windows = logitWindows(transformer, input.count);
      const stride = logitStride(transformer.config.vocabSize);
      const logits = scratch.floats((windows[0]?.rows ?? 0) * stride, "logits");
      for (const window of windows) {
        projectLogits(transformer, weights, { normed, logits, window });
        const length = window.rows * stride;
        const [data] = await this.device.read([{ buffer: logits, type: "f32", length }]);
        yield { logits: data as Float32Array, rows: window.rows };
      }
    } finally {
      scratch.release();
    }
  }

  /** Whole sequences in runs of at most `microBatchTokens`, or one sequence where it is longer. */
  private microBatches(offsets: Uint32Array): { from: number; to: number }[] {
    const ranges: { from: number; to: number }[] = [];
    let from = 0;
    for (let i = 1; i < offsets.length; i++) {
      const isLast = i === offsets.length - 1;
      if (!isLast && offsets[i + 1]! - offsets[from]! <= this.microBatchTokens) continue;
      if (offsets[i]! > offsets[from]!) ranges.push({ from, to: i });
      from = i;
    }
    return ranges;
  }
}

/** @throws ConfigError for a token or target outside the vocabulary, or a sequence beyond the context. */
function checkRows(model: Transformer, rows: PackedTokens & Partial<{ targets: Uint32Array }>): void {
  const { vocabSize } = model.config;
  const { tokens, offsets, targets } = rows;
  for (let i = 0; i + 1 < offsets.length; i++) {
    const length = offsets[i + 1]! - offsets[i]!;
    if (length <= model.contextLength) continue;
    throw new ConfigError(`Cannot run sequence ${i} as the model's context is ${model.context}: ${length}`);
  }
  for (const [what, ids] of [
    ["token", tokens],
    ["target", targets],
  ] as const) {
    const outside = ids?.findIndex((id) => id >= vocabSize) ?? -1;
    if (ids && outside >= 0)
      throw new ConfigError(
        `Cannot run ${what} ${outside} as ids must lie in [0, ${vocabSize}): ${ids[outside]}`,
      );
  }
}

/** Sequences [from, to) with offsets from 0. */
export function slicePacked(rows: PackedTokens, { from, to }: { from: number; to: number }): PackedTokens {
  const start = rows.offsets[from]!;
  return {
    tokens: rows.tokens.subarray(start, rows.offsets[to]),
    offsets: rows.offsets.subarray(from, to + 1).map((offset) => offset - start),
  };
}

function targetsOf(
  rows: PackedTokens & Asked,
  { part, range }: { part: PackedTokens; range: { from: number; to: number } },
): { targets: Targets; offsets: Uint32Array } {
  const slice = (of: Uint32Array) => of.subarray(rows.offsets[range.from], rows.offsets[range.to]);
  if ("mask" in rows) return maskedTargets(part, slice(rows.mask));
  const tokens = slice(rows.targets);
  return { targets: { positions: Uint32Array.from(tokens.keys()), tokens }, offsets: part.offsets };
}

/** The masked tokens, each as the position before it; a sequence's first token has none and never counts. */
function maskedTargets(
  { tokens, offsets }: PackedTokens,
  mask: Uint32Array,
): { targets: Targets; offsets: Uint32Array } {
  const positions: number[] = [];
  const counts = new Uint32Array(offsets.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    for (let t = offsets[i]! + 1; t < offsets[i + 1]!; t++) if (mask[t] === 1) positions.push(t - 1);
    counts[i + 1] = positions.length;
  }
  const targets = {
    positions: Uint32Array.from(positions),
    tokens: Uint32Array.from(positions, (p) => tokens[p + 1]!),
  };
  return { targets, offsets: counts };
}

/** Fills one row of the k likeliest tokens; of equal logits the lowest id comes first. */
function likeliest(logits: Float32Array, into: { tokens: Uint32Array; logprobs: Float32Array }): void {
  const k = into.tokens.length;
  let kept = 0;
  let max = -Infinity;
  for (let id = 0; id < logits.length; id++) {
    max = Math.max(max, logits[id]!);
    if (kept === k && logits[id]! <= into.logprobs[k - 1]!) continue;
    let at = kept < k ? kept++ : k - 1;
    for (; at > 0 && logits[id]! > into.logprobs[at - 1]!; at--) {
      into.logprobs[at] = into.logprobs[at - 1]!;
      into.tokens[at] = into.tokens[at - 1]!;
    }
    into.logprobs[at] = logits[id]!;
    into.tokens[at] = id;
  }
  let total = 0;
  for (const logit of logits) total += Math.exp(logit - max);
  const logSumExp = max + Math.log(total);
  for (let i = 0; i < kept; i++) into.logprobs[i]! -= logSumExp;
}

function joinFloats(parts: readonly Float32Array[]): Float32Array {
  if (parts.length === 1) return parts[0]!;
  const joined = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}
