/**
 * Steps that feed in several tokens of a sequence: its last one and guesses at those that follow. Every row draws as a step
 * of its own would, with the random number of its position, and the draws count up to the first that differs from the guess
 * after it. A row's bits depend on its sequence alone, so tokens and log-probs are those of decoding without guesses.
 * Keys of wrong guesses stay in the cache behind the sequence's end, where no row looks, until its own tokens replace them.
 */

import { OutOfMemoryError } from "../../../leaves/errors.ts";
import type { Data } from "../../compute/device.ts";
import { formatBytes } from "../../compute/memory.ts";
import type { Speculated } from "../../contract/backend.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { readChunk, uploadRows } from "./chunk.ts";
import type { DecodeStep } from "./decode_step.ts";
import { lookupOf, NgramIndex, type NgramOptions, type SpeculativeOptions } from "./ngram.ts";
import { type GenerationRun, weightsOfRows } from "./run.ts";
import { addToken, reportTokens, type Sequence } from "./sequence.ts";

/** Most rows of a step with guesses: GPUs read the weights for that many at about the cost of one. */
const MOST_ROWS = 64;

const NONE: Speculated = { num_drafts: 0, num_draft_tokens: 0, num_accepted_tokens: 0 };

/** A sequence and guesses at its next tokens. */
interface Guessed {
  readonly sequence: Sequence;
  readonly guess: readonly number[];
}

export class Speculation {
  private readonly model: Transformer;
  private readonly step: DecodeStep;
  private readonly lookup: NgramOptions;
  private readonly warn: (message: string) => void;
  private readonly indices = new WeakMap<Sequence, NgramIndex>();
  /** False once memory has run out for it. */
  private isOn = true;

  constructor(
    model: Transformer,
    options: { step: DecodeStep; speculative: SpeculativeOptions; warn: (message: string) => void },
  ) {
    this.model = model;
    this.step = options.step;
    this.lookup = lookupOf(options.speculative);
    this.warn = options.warn;
  }

  /**
   * Gives each sequence a token at least, and as many more as were guessed.
   * @returns false, and nothing drawn, where no token was guessed or memory was refused
   */
  async advance(run: GenerationRun, running: readonly Sequence[]): Promise<boolean> {
    const guessed = this.isOn ? this.guesses(running) : [];
    if (guessed.every(({ guess }) => guess.length === 0)) return false;
    try {
      await this.verify(run, guessed);
      return true;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.isOn = false;
      this.warn(
        `the device ran out of memory (${error.label}, ${formatBytes(error.bytes)}) for a step with guessed tokens. ` +
          "From now on none are guessed; to start like that, set rollout.speculative_config.method=null",
      );
      return false;
    }
  }

  /** Returns as many guesses as there are rows for; none behind the sequence's limit or from a stop token on. */
  private guesses(running: readonly Sequence[]): Guessed[] {
    let room = Math.min(MOST_ROWS, this.model.passLength) - running.length;
    return running.map((sequence) => {
      const { tokens, limit, request } = sequence;
      sequence.speculated ??= NONE;
      const most = Math.min(this.lookup.most, limit - tokens.length - 1, room);
      if (most < 1) return { sequence, guess: [] };
      const found = this.indexOf(sequence).guess(most);
      const stop = found.findIndex((token) => request.params.stop_token_ids.includes(token));
      const guess = stop < 0 ? found : found.slice(0, stop);
      room -= guess.length;
      return { sequence, guess };
    });
  }

  /** Returns the index of the prompt and all tokens so far. */
  private indexOf(sequence: Sequence): NgramIndex {
    const { prompt, tokens } = sequence;
    const index = this.indices.get(sequence) ?? new NgramIndex(this.lookup);
    this.indices.set(sequence, index);
    for (let i = index.length; i < prompt.ids.length; i++) index.add(prompt.ids[i]!);
    for (let i = index.length - prompt.ids.length; i < tokens.length; i++) index.add(tokens[i]!);
    return index;
  }

  private async verify(run: GenerationRun, guessed: readonly Guessed[]): Promise<void> {
    const running = guessed.flatMap(({ sequence, guess }) => [sequence, ...guess.map(() => sequence)]);
    // Before the pass, whose refusal forgets what it recorded: a fold may be recorded here.
    const weights = weightsOfRows(run, running);
    await Scratch.recording(this.model.device, async (scratch) => {
      const rows = {
        ...uploadRows(running, {
          scratch,
          steps: 1,
          drawn: guessed.flatMap(({ sequence: { tokens }, guess }) => [0, ...guess].map((_, i) => tokens.length + i)),
          last: guessed.flatMap(({ sequence: { tokens }, guess }) => [tokens[tokens.length - 1]!, ...guess]),
        }),
        sharesSequences: true,
      };
      this.step.step(weights, { cache: run.cache, rows, shift: 0 });
      deliver(guessed, await readChunk(this.model, { running, rows }));
    });
  }
}

/** Gives each sequence the draws up to the first that was guessed wrong. */
function deliver(guessed: readonly Guessed[], [tokens, logprobs]: readonly Data[]): void {
  let row = 0;
  for (const { sequence, guess } of guessed) {
    const before = sequence.tokens.length;
    // A token that needs a mask is drawn again with it.
    const isOver = () => sequence.stopped || sequence.isMasked;
    let accepted = 0;
    for (let i = 0; i <= guess.length && !isOver(); i++) {
      addToken(sequence, tokens![row + i]!, logprobs![row + i]!);
      if (tokens![row + i] !== guess[i]) break;
      accepted++;
    }
    count(sequence, { drafted: guess.length, accepted });
    row += 1 + guess.length;
    reportTokens(sequence, before);
  }
}

function count(sequence: Sequence, { drafted, accepted }: { drafted: number; accepted: number }): void {
  if (drafted === 0) return;
  const { num_drafts, num_draft_tokens, num_accepted_tokens } = sequence.speculated ?? NONE;
  sequence.speculated = {
    num_drafts: num_drafts + 1,
    num_draft_tokens: num_draft_tokens + drafted,
    num_accepted_tokens: num_accepted_tokens + accepted,
  };
}
