/** Scores and trains packed sequences in passes over whole sequences, smaller ones where memory runs out. */

import { OutOfMemoryError } from "../../../leaves/errors.ts";
import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import type { PackedTokens } from "../../contract/backend.ts";
import type { PromptDraws } from "../../contract/engine.ts";
import type { ForwardState } from "../forward_state.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { longestSequence, packInput } from "../packed_input.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { BackwardPass } from "./backward.ts";
import { drawnTokens } from "./drawn_tokens.ts";
import { HeadPass } from "./head_pass.ts";
import { type PassOptions, PassSize, type RefusedPass } from "./pass_size.ts";
import {
  checkRows,
  nextPass,
  type SequenceRange,
  slicePacked,
  type TargetChoice,
  type Targets,
  targetOffsetsOf,
  targetsOf,
} from "./targets.ts";
import { type TopLogprobs, type TopOptions, topLogprobs } from "./top_logprobs.ts";
import { ValuePass } from "./value_pass.ts";

/** Origin of the targets of a pass. */
interface PassRange {
  /** The batch's sequences in this pass: [from, to). */
  readonly sequences: SequenceRange;
  /** Sequence i of this pass has the targets [offsets[i], offsets[i+1]). */
  readonly offsets: Uint32Array;
}

/** Outputs from which a loss is computed: one value per target, [R]. */
export interface PassOutputs extends PassRange {
  readonly logprobs: Buffer;
  readonly entropies: Buffer;
}

/** Outputs from which a loss of a scalar head is computed. */
export interface ValueOutputs extends PassRange {
  /** One per target, [R]. */
  readonly values: Buffer;
}

/** Common parts of every recorded loss: the data to read after the pass. */
interface RecordedLoss {
  readonly reads: readonly ReadRequest[];
  release(): void;
}

/** A recorded loss with its gradients, [R]. */
export interface PassLoss extends RecordedLoss {
  readonly dlogprobs: Buffer;
  readonly dentropy?: Buffer | undefined;
}

/** A recorded loss of a scalar head with its gradient, [R]. */
export interface ValuePassLoss extends RecordedLoss {
  readonly dvalues: Buffer;
}

export interface TrainingPass<L extends PassLoss = PassLoss> {
  readonly temperature: number;
  /** Sink in which the gradient accumulates. */
  readonly sink: GradientSink;
  /** False for a loss without a gradient in the entropies, which takes less work. Default true. */
  readonly usesEntropies?: boolean | undefined;
  /**
   * Records the loss of one pass. A pass that runs out of memory is repeated over fewer sequences, its loss too; the first
   * one counts for nothing.
   */
  loss(outputs: PassOutputs): L | Promise<L>;
}

/** A scalar head, and the loss over its values. */
export interface ValueTrainingPass<L extends ValuePassLoss = ValuePassLoss> {
  /** The head's weight, [C]. */
  readonly score: Buffer;
  readonly sink: GradientSink;
  /** Records the loss, as in {@link TrainingPass}. */
  loss(outputs: ValueOutputs): L;
}

/** How a pass scores. */
export interface ScorePass {
  readonly temperature: number;
  readonly greedy?: boolean | undefined;
}

/** The loss of a pass that was done, and what it read. */
export interface TrainedPass<L extends RecordedLoss> {
  readonly loss: L;
  readonly data: Data[];
}

/** The part of the rows that one pass takes. */
interface Part {
  readonly rows: PackedTokens;
  readonly targets: Targets;
  /** Offsets as in {@link PassOutputs}. */
  readonly offsets: Uint32Array;
  readonly sequences: SequenceRange;
}

/** A pass that was handed to the device. */
interface Running<R> {
  /** Settles when it is done. */
  readonly done: Promise<R>;
  /** Whether the driver may still refuse memory that it uses. */
  readonly mayBeRefused: boolean;
}

/** The layers of a part, run; what reads `state.hidden` is recorded next. */
interface OpenPass extends PassRange {
  readonly state: ForwardState;
  readonly targets: Targets;
  readonly scratch: Scratch;
}

/** A head and its loss, recorded behind the layers. */
interface HeadLoss<L extends RecordedLoss> {
  readonly loss: L | Promise<L>;
  /** The gradient of the hidden states, [T, C]. */
  backward(loss: L): Buffer;
}

export class Passes {
  readonly transformer: Transformer;
  /** Called with what people should know of. */
  warn: (message: string) => void = () => {};
  private readonly device: Device;
  private readonly size: PassSize;

  constructor(transformer: Transformer, options: PassOptions = {}) {
    this.transformer = transformer;
    this.device = transformer.device;
    this.size = new PassSize(transformer, options);
  }

  /**
   * Log-probability and entropy at every target, [R], in the order of the positions.
   * @param options.greedy also tells where the target is the most likely token (1; else 0).
   * @throws ConfigError for a token outside the vocabulary or a sequence beyond the context.
   */
  async score(
    weights: Weights,
    rows: PackedTokens & TargetChoice,
    options: ScorePass,
  ): Promise<{ logprobs: Float32Array; entropies: Float32Array; greedy?: Float32Array }> {
    const { transformer } = this;
    const scores = await this.inParts(rows, { weights, work: "score" }, (part) =>
      this.scorePart(weights, part, (at) => {
        const { logprobs, entropies, greedy } = new HeadPass(transformer, weights, { ...at, ...options });
        return [logprobs, entropies, ...(greedy ? [greedy] : [])];
      }),
    );
    const joined = (i: number) =>
      join(
        scores.map((part) => part[i] as Float32Array),
        Float32Array,
      );
    return { logprobs: joined(0), entropies: joined(1), ...(options.greedy && { greedy: joined(2) }) };
  }

  /** Adds the gradient of a loss over the targets to the sink. @returns each pass's loss with the data that it requested. */
  train<L extends PassLoss>(
    weights: Weights,
    rows: PackedTokens & TargetChoice,
    options: TrainingPass<L>,
  ): Promise<TrainedPass<L>[]> {
    const { temperature, sink, loss, usesEntropies = true } = options;
    const head = (at: OpenPass): HeadLoss<L> => {
      const { sequences, offsets, state } = at;
      const pass = new HeadPass(this.transformer, weights, { ...at, temperature, gradient: { sink, usesEntropies } });
      const { logprobs, entropies } = pass;
      return {
        loss: loss({ logprobs, entropies, sequences, offsets }),
        backward: ({ dlogprobs, dentropy }) =>
          pass.backward({ logprobs: dlogprobs, entropies: dentropy }, { sink, tokens: state.input.count }),
      };
    };
    return this.inParts(rows, { weights, work: "train on" }, (part, { recomputes }) =>
      this.trainPart(weights, part, { sink, recomputes, head }),
    );
  }

  /**
   * The value of a scalar head at each target's position, [R]. Positions are distinct.
   * @param options.score the head's weight, [C].
   * @throws ConfigError as {@link score}
   */
  async values(
    weights: Weights,
    rows: PackedTokens & TargetChoice,
    { score }: { score: Buffer },
  ): Promise<Float32Array> {
    const parts = await this.inParts(rows, { weights, work: "score" }, (part) =>
      this.scorePart(weights, part, (at) => [this.valuePass(weights, at, score).values]),
    );
    return join(
      parts.map(([values]) => values as Float32Array),
      Float32Array,
    );
  }

  /** Adds the gradient of a loss over a scalar head's values to the sink. @returns as {@link train} */
  trainValues<L extends ValuePassLoss>(
    weights: Weights,
    rows: PackedTokens & TargetChoice,
    { score, sink, loss }: ValueTrainingPass<L>,
  ): Promise<TrainedPass<L>[]> {
    const head = (at: OpenPass): HeadLoss<L> => {
      const { sequences, offsets, state } = at;
      const pass = this.valuePass(weights, at, score);
      return {
        loss: loss({ values: pass.values, sequences, offsets }),
        backward: ({ dvalues }) => pass.backward(dvalues, { sink, tokens: state.input.count }),
      };
    };
    return this.inParts(rows, { weights, work: "train on" }, (part, { recomputes }) =>
      this.trainPart(weights, part, { sink, recomputes, head }),
    );
  }

  private valuePass(weights: Weights, { state, targets, scratch }: OpenPass, score: Buffer): ValuePass {
    return new ValuePass(this.transformer, weights, { state, positions: targets.positions, score, scratch });
  }

  /**
   * The `k` most likely tokens after every position, or with a mask in the place of every token whose mask is 1. The host
   * selects them: meant for small k.
   */
  async top(
    weights: Weights,
    rows: PackedTokens & { readonly mask?: Uint32Array | undefined },
    options: TopOptions,
  ): Promise<TopLogprobs> {
    const { mask } = rows;
    const chosen = mask ? { ...rows, mask } : { ...rows, targets: rows.tokens };
    const tops = await this.inParts(chosen, { weights, work: "score" }, (part) => {
      const positions = mask && part.targets.positions;
      return finished(topLogprobs(this.transformer, weights, { ...options, rows: part.rows, positions }));
    });
    return {
      tokens: join(
        tops.map(({ tokens }) => tokens),
        Uint32Array,
      ),
      logprobs: join(
        tops.map(({ logprobs }) => logprobs),
        Float32Array,
      ),
    };
  }

  /** Tokens drawn after every position of one sequence; see {@link drawnTokens}. */
  async draws(weights: Weights, of: PromptDraws & { readonly tokens: Uint32Array }): Promise<TopLogprobs> {
    const rows = { tokens: of.tokens, offsets: Uint32Array.of(0, of.tokens.length), targets: of.tokens };
    const [drawn] = await this.inParts(rows, { weights, work: "score" }, () =>
      finished(drawnTokens(this.transformer, weights, of)),
    );
    return drawn!;
  }

  /**
   * Runs the parts that have targets, in order. A part is recorded while the device works on the one before it, unless that one may
   * still be refused memory. A part that runs out of memory is repeated in smaller ones; no other has been recorded behind it.
   */
  private async inParts<R>(
    rows: PackedTokens & TargetChoice,
    of: { weights: Weights; work: RefusedPass["work"] },
    run: (part: Part, size: PassSize) => Promise<Running<R>>,
  ): Promise<R[]> {
    checkRows(this.transformer, rows);
    const targets = { offsets: targetOffsetsOf(rows), most: this.transformer.passTargets };
    let { size } = this;
    // Work that others rely on runs before, because a refused pass forgets what was recorded.
    of.weights.prepare();
    this.transformer.ropes.reserve(longestSequence(rows.offsets));
    await this.device.submit();
    const results: Promise<R>[] = [];
    for (let from = 0; from + 1 < rows.offsets.length; ) {
      const sequences = nextPass(from, [{ offsets: rows.offsets, most: size.tokens }, targets]);
      const part = partOf(rows, sequences, targets.offsets);
      from = sequences.to;
      if (part.targets.positions.length === 0) continue;
      const before = results.at(-1);
      try {
        const { done, mayBeRefused } = await run(part, size);
        if (mayBeRefused) await done;
        results.push(done);
        this.reportSize(size);
      } catch (error) {
        await before;
        if (!(error instanceof OutOfMemoryError)) throw error;
        const tokens = part.rows.tokens.length;
        // What such rows take says nothing about the passes of other rows.
        if (part.targets.positions.length > tokens) size = size.ofOneBatch();
        size.reduce(error, { tokens, sequences: sequences.to - sequences.from, work: of.work });
        from = sequences.from;
        continue;
      }
      await before;
    }
    return Promise.all(results);
  }

  private reportSize(size: PassSize): void {
    const warning = size.takeWarning();
    if (warning !== undefined) this.warn(warning);
  }

  /** @param head records the head; returns its results, one per target each. */
  private async scorePart(
    weights: Weights,
    part: Part,
    head: (at: OpenPass) => readonly Buffer[],
  ): Promise<Running<Data[]>> {
    const { transformer, device } = this;
    const scratch = new Scratch(device);
    const release = () => scratch.release();
    const mark = device.mark();
    try {
      const state = transformer.forward(weights, { input: packInput(scratch, part.rows), scratch });
      const of = { type: "f32", length: part.targets.positions.length } as const;
      const reads = head({ ...part, state, scratch }).map((buffer) => ({ buffer, ...of }));
      return this.handOver(reads, { mark, release });
    } catch (error) {
      device.rollback(mark);
      release();
      throw error;
    }
  }

  private async trainPart<L extends RecordedLoss>(
    weights: Weights,
    part: Part,
    of: {
      readonly sink: GradientSink;
      readonly recomputes: boolean;
      readonly head: (at: OpenPass) => HeadLoss<L>;
    },
  ): Promise<Running<TrainedPass<L>>> {
    const { sink, recomputes, head } = of;
    const { transformer, device } = this;
    const scratch = new Scratch(device);
    const mark = device.mark();
    let loss: L | undefined;
    const release = () => {
      loss?.release();
      scratch.release();
    };
    try {
      const input = packInput(scratch, part.rows);
      const keep = recomputes ? "inputs" : "activations";
      const state = transformer.forward(weights, { input, scratch, keep });
      const { loss: recorded, backward } = head({ ...part, state, scratch });
      // Awaited only where it waits itself: otherwise nobody submits a part of the backward pass, which would run twice
      // where memory runs out after it.
      const awaited = recorded instanceof Promise ? await recorded : recorded;
      loss = awaited;
      const hiddenGrad = backward(awaited);
      new BackwardPass(transformer).run(weights, { state, hiddenGrad, sink });
      const { done, mayBeRefused } = this.handOver(awaited.reads, { mark, release });
      return quiet({ done: done.then((data) => ({ loss: awaited, data })), mayBeRefused });
    } catch (error) {
      device.rollback(mark);
      release();
      throw error;
    }
  }

  /** Submits a recorded pass. Its memory is free for the next one at once, or after it where the driver may refuse some. */
  private handOver(
    reads: readonly ReadRequest[],
    { mark, release }: { readonly mark: number; release(): void },
  ): Running<Data[]> {
    const { device } = this;
    const mayBeRefused = device.isSettled !== true;
    const data = device.read(reads);
    if (!mayBeRefused) {
      release();
      return quiet({ done: data, mayBeRefused });
    }
    const done = data.catch((error) => {
      device.rollback(mark);
      throw error;
    });
    return quiet({ done: done.finally(release), mayBeRefused });
  }
}

/** Leaves the error to the code that awaits the pass later, so that it is not unhandled until then. */
function quiet<R>(running: Running<R>): Running<R> {
  running.done.catch(() => {});
  return running;
}

/** Work that waits by itself. */
async function finished<R>(work: Promise<R>): Promise<Running<R>> {
  const value = await work;
  return { done: Promise.resolve(value), mayBeRefused: false };
}

function partOf(rows: PackedTokens & TargetChoice, sequences: SequenceRange, targetOffsets: Uint32Array): Part {
  const part = slicePacked(rows, sequences);
  return { rows: part, sequences, ...targetsOf(rows, { part, range: sequences, targetOffsets }) };
}

function join<A extends Float32Array | Uint32Array>(parts: readonly A[], make: new (length: number) => A): A {
  if (parts.length === 1) return parts[0]!;
  const joined = new make(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}
