/** The passes that score and train packed sequences, in passes of whole sequences. */
import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import type { PackedTokens } from "../../contract/backend.ts";
import { packInput } from "../packed_input.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { BackwardPass } from "./backward.ts";
import type { GradientSink } from "./gradient_sink.ts";
import { HeadPass } from "./head_pass.ts";
import { checkRows, passRanges, slicePacked, type TargetChoice, type Targets, targetsOf } from "./targets.ts";
import { type TopLogprobs, topLogprobs } from "./top_logprobs.ts";

/** What a loss is computed from: one value per target, [R]. */
export interface PassOutputs {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
  /** The batch's sequences in this pass: [from, to). */
  readonly sequences: { readonly from: number; readonly to: number };
  /** Sequence i of this pass has the targets [offsets[i], offsets[i+1]). */
  readonly offsets: Uint32Array;
}

/** A recorded loss: its gradients, [R], and the data to read after the pass. */
export interface PassLoss {
  readonly dlogprobs: Buffer;
  readonly dentropy?: Buffer | undefined;
  readonly reads: readonly ReadRequest[];
  release(): void;
}

export interface TrainingPass {
  readonly temperature: number;
  /** Where the gradient accumulates. */
  readonly sink: GradientSink;
  /** Records the loss of one pass. */
  loss(outputs: PassOutputs): PassLoss | Promise<PassLoss>;
}

const DEFAULT_PASS_TOKENS = 8192;

/** How much of a batch is computed at a time, and what of it is kept. */
export interface PassOptions {
  /**
   * Tokens per pass; larger batches take several passes, a longer sequence takes one alone. Default 8192, or less where one
   * binding covers fewer.
   */
  readonly maxTokensPerPass?: number | undefined;
  /**
   * A training pass keeps only the input of each layer, and runs the layer again before its backward: the same bits, less
   * memory, one more forward pass of work. Default `auto`: off, until something chooses by the memory.
   */
  readonly gradientCheckpointing?: boolean | "auto" | undefined;
}

export class Passes {
  readonly transformer: Transformer;
  private readonly device: Device;
  private readonly maxTokensPerPass: number;
  private readonly recomputes: boolean;

  constructor(transformer: Transformer, options: PassOptions = {}) {
    this.transformer = transformer;
    this.device = transformer.device;
    this.maxTokensPerPass = Math.min(options.maxTokensPerPass ?? DEFAULT_PASS_TOKENS, transformer.passLength);
    this.recomputes = options.gradientCheckpointing === true;
  }

  /**
   * Log-probability and entropy at every target, [R], in the order of the positions.
   * @throws ConfigError for a token outside the vocabulary or a sequence beyond the context.
   */
  async score(
    weights: Weights,
    rows: PackedTokens & TargetChoice,
    { temperature }: { temperature: number },
  ): Promise<{ logprobs: Float32Array; entropies: Float32Array }> {
    checkRows(this.transformer, rows);
    const logprobs: Float32Array[] = [];
    const entropies: Float32Array[] = [];
    for (const range of passRanges(rows.offsets, this.maxTokensPerPass)) {
      const scratch = new Scratch(this.device);
      try {
        const part = slicePacked(rows, range);
        const { targets } = targetsOf(rows, { part, range });
        const input = packInput(scratch, part);
        const state = this.transformer.forward(weights, { input, scratch });
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

  /** Adds the gradient of a loss over the targets to the sink. @returns for each pass the data that the loss requested. */
  async train(weights: Weights, rows: PackedTokens & TargetChoice, options: TrainingPass): Promise<Data[][]> {
    checkRows(this.transformer, rows);
    const results: Data[][] = [];
    for (const range of passRanges(rows.offsets, this.maxTokensPerPass)) {
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
      const state = transformer.forward(weights, { input, scratch, keep: this.recomputes ? "inputs" : "activations" });
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

  /** The `k` most likely tokens after every position, at temperature 1. The host selects them: meant for small k. */
  async top(weights: Weights, rows: PackedTokens, { k }: { k: number }): Promise<TopLogprobs> {
    checkRows(this.transformer, rows);
    const parts = passRanges(rows.offsets, this.maxTokensPerPass).map((range) => slicePacked(rows, range));
    return topLogprobs(this.transformer, weights, { parts, count: rows.tokens.length, k });
  }
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
