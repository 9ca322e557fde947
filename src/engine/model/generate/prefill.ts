/**
 * Prompts of sequences that start: their keys and values go to the cache, and the first token of each sequence is drawn. While other
 * sequences decode, a prompt is computed in pieces between their chunks of steps. A piece attends to the keys of the earlier
 * ones as the cache has them, in the order of a whole prompt, so that no bit depends on where a prompt is cut.
 */

import { OutOfMemoryError } from "../../../leaves/errors.ts";
import type { Buffer, Data, ReadRequest } from "../../compute/device.ts";
import { formatBytes } from "../../compute/memory.ts";
import type { KeysVisitor } from "../blocks/block.ts";
import { PAGE_TOKENS } from "../kernels/cache_storage.ts";
import { gatherRows } from "../logit_windows.ts";
import { packInput } from "../packed_input.ts";
import { Scratch } from "../scratch.ts";
import { type PassOptions, PassSize } from "../train/pass_size.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { collect, isLive, uploadRows } from "./chunk.ts";
import type { DecodeStep } from "./decode_step.ts";
import { drawGroups, hostRows } from "./host_rows.ts";
import { appendToCache, copyPages, gatherFromCache } from "./key_value_cache.ts";
import { byPolicy, weightsOf } from "./mixed_weights.ts";
import { concatRows, keepHidden, type PackedPieces, type PromptPiece, packPieces, promptEndCopies } from "./packing.ts";
import { type GenerationRun, ordered, weightsOfRows } from "./run.ts";
import type { Prompt, Sequence } from "./sequence.ts";

/** Prompt tokens between two chunks whose tokens are read as they are drawn. Software adapters compute so many in seconds. */
const LIVE_BATCHED_TOKENS = { tiled: 512, scalar: 64 } as const;

export interface PrefillOptions extends PassOptions {
  /**
   * Most prompt tokens computed together, in pieces of whole pages of 16, and while others decode between two of their chunks: what
   * those wait for a prompt. Default: 512 on GPUs and 64 on software adapters while a sequence is decoded whose tokens are read
   * as they are drawn. Otherwise prompts are computed whole, which ends a batch earlier.
   */
  readonly maxBatchedTokens?: number | undefined;
}

interface Pass {
  readonly pieces: readonly PromptPiece[];
  readonly keepsHidden: boolean;
}

/** The weights of prompts whose policies lie together, a row for each token. */
function pieceWeights({ policy }: GenerationRun, pieces: readonly PromptPiece[]): Weights {
  return weightsOf(pieces.map(({ prompt, from, to }) => ({ policy: prompt.policy ?? policy, rows: to - from })));
}

function wholePages(tokens: number): number {
  return Math.max(Math.floor(tokens / PAGE_TOKENS), 1) * PAGE_TOKENS;
}

/** Whether the first token of a sequence is still to be drawn. */
function isWaiting({ stopped, tokens }: Sequence): boolean {
  return !stopped && tokens.length === 0;
}

export class Prefill {
  private readonly model: Transformer;
  private readonly step: DecodeStep;
  private readonly size: PassSize;
  private readonly warn: (message: string) => void;
  private readonly between: number | undefined;
  /** Most tokens of one prompt in a pass; fewer once memory has run out. */
  private most: number;

  constructor(model: Transformer, options: PrefillOptions & { step: DecodeStep; warn: (message: string) => void }) {
    this.model = model;
    this.step = options.step;
    this.warn = options.warn;
    this.size = new PassSize(model, options);
    this.between = options.maxBatchedTokens;
    this.most = options.maxBatchedTokens ?? Number.POSITIVE_INFINITY;
  }

  /**
   * Computes prompts of sequences that have no token, all of them or as many tokens as the decoding ones wait for, and draws
   * the first token of those whose prompt is complete.
   * @param at.keepsHidden whether further sequences may start with the same prompts
   */
  async advance(run: GenerationRun, { running, keepsHidden }: { running: readonly Sequence[]; keepsHidden: boolean }) {
    const waiting = running.filter(isWaiting);
    const late = ordered(
      run,
      waiting.filter(({ prompt }) => prompt.hidden),
    );
    let left = this.tokensFor(running.filter((sequence) => !sequence.stopped && !isWaiting(sequence)));
    for (let prompts = this.pending(run, waiting); prompts.length > 0 && left >= PAGE_TOKENS; ) {
      const pieces = this.nextPieces(prompts, left);
      const tokens = pieces.reduce((sum, { from, to }) => sum + to - from, 0);
      if (await this.tryPass(run, { pieces, keepsHidden, tokens })) left -= tokens;
      prompts = this.pending(run, waiting);
    }
    await this.drawLate(run, late);
  }

  /** Prompt tokens that may be computed before the next chunk of these sequences. */
  private tokensFor(decoding: readonly Sequence[]): number {
    if (decoding.length === 0) return Number.POSITIVE_INFINITY;
    const live = isLive(decoding) ? LIVE_BATCHED_TOKENS[this.model.device.info.family] : Number.POSITIVE_INFINITY;
    return Math.max(this.between ?? live, PAGE_TOKENS);
  }

  /** Prompts that are not complete. One of which a part is done comes first, and the others of its policy with it. */
  private pending(run: GenerationRun, waiting: readonly Sequence[]): readonly Prompt[] {
    const prompts = new Set(
      waiting.filter((sequence) => isWaiting(sequence) && !sequence.prompt.hidden).map(({ prompt }) => prompt),
    );
    // A prompt that was computed for nobody: all its sequences failed meanwhile.
    for (const prompt of prompts) if (prompt.computed === prompt.ids.length) prompt.computed = 0;
    const begun = [...prompts].filter(({ computed }) => computed > 0);
    return byPolicy([...new Set([...begun, ...prompts])], ({ policy }) => policy ?? run.policy);
  }

  /**
   * Returns the pieces of the next pass: whole prompts within its size, or one beyond it; where `left` or memory limits
   * it, up to a page's end.
   */
  private nextPieces(prompts: readonly Prompt[], left: number): PromptPiece[] {
    const most = Math.min(left, this.most);
    const isCut = Number.isFinite(most);
    const alone = isCut ? wholePages(Math.min(most, this.size.tokens)) : most;
    const pieces: PromptPiece[] = [];
    // Keys of all its tokens lie together.
    const bindable = this.model.passLength - prompts[0]!.computed;
    let total = 0;
    for (const prompt of prompts) {
      const { computed: from, ids } = prompt;
      const room = total === 0 ? alone : Math.min(isCut ? alone : this.size.tokens, bindable) - total;
      const rest = ids.length - from;
      const cut = isCut && room >= PAGE_TOKENS ? wholePages(room) : 0;
      const tokens = rest <= room ? rest : cut;
      if (tokens > 0) pieces.push({ prompt, from, to: from + tokens });
      if (tokens < rest) break;
      total += tokens;
    }
    return pieces;
  }

  /** @returns false where memory was refused, and the next try takes less */
  private async tryPass(run: GenerationRun, pass: Pass & { tokens: number }): Promise<boolean> {
    const { pieces } = pass;
    // Work that others rely on runs before, because a refused pass forgets what was recorded.
    pieceWeights(run, pieces).prepare();
    await this.model.device.submit();
    try {
      await this.pass(run, pass);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.reduce(error, pass);
      return false;
    }
    for (const { prompt, to } of pieces) prompt.computed = to;
    const warning = this.size.takeWarning();
    if (warning !== undefined) this.warn(warning);
    return true;
  }

  private reduce(error: OutOfMemoryError, { pieces, tokens }: Pass & { tokens: number }): void {
    if (pieces.length > 1 || tokens <= PAGE_TOKENS) {
      const { length } = pieces[0]!.prompt.ids;
      const refused = pieces.length > 1 ? tokens : length;
      this.size.reduce(error, { tokens: refused, sequences: pieces.length, work: "sample after" });
      return;
    }
    this.most = wholePages(tokens / 2);
    this.warn(
      `the device ran out of memory (${error.label}, ${formatBytes(error.bytes)}), and a part of a prompt was repeated. ` +
        `From now on ${this.most} tokens of a prompt are computed at a time; to start like that, set rollout.max_num_batched_tokens=${this.most}`,
    );
  }

  /** Runs pieces once, fills the cache, and draws the first token of the sequences of prompts that are complete then. */
  private pass(run: GenerationRun, { pieces, keepsHidden }: Pass): Promise<void> {
    return Scratch.recording(this.model.device, async (scratch) => {
      const packed = packPieces(pieces);
      const { tokens, offsets, first } = packed;
      const { hidden } = this.model.forward(pieceWeights(run, pieces), {
        input: packInput(scratch, { tokens, offsets, first }),
        scratch,
        visit: this.fill(run, { packed, scratch }),
      });
      const rows = { from: hidden, scratch };
      const ends = new Map<Prompt, number>();
      for (const [i, { prompt, to }] of pieces.entries())
        if (to === prompt.ids.length) ends.set(prompt, offsets[i + 1]! - 1);
      const prompts = [...ends.keys()];
      // A pass that is repeated draws for those that have no token yet.
      const sequences = prompts.flatMap(({ members }) => [...members]).filter(isWaiting);
      if (sequences.length === 0) return this.model.device.submit();
      let reads: readonly ReadRequest[] = keepsHidden
        ? [{ buffer: gatherRows(this.model, { ...rows, positions: Uint32Array.from(ends.values()) }), type: "f32" }]
        : [];
      for (const group of drawGroups(this.model, sequences)) {
        const positions = Uint32Array.from(group, ({ prompt }) => ends.get(prompt)!);
        const last = gatherRows(this.model, { ...rows, positions });
        const [kept] = await this.drawFirst(run, { sequences: group, hidden: last, scratch, reads });
        if (reads.length > 0) keepHidden(prompts, kept as Float32Array);
        reads = [];
      }
    });
  }

  /** Fills the cache, and gives attention what it keeps, where a pass alone would not have the same keys. */
  private fill({ cache }: GenerationRun, { packed, scratch }: { packed: PackedPieces; scratch: Scratch }): KeysVisitor {
    const { device } = this.model;
    const { first, places, starts, tokens } = packed;
    const allPlaces = scratch.upload(places, "places in the cache");
    const sequencePlaces = first === 0 ? allPlaces : scratch.upload(places.slice(first), "places in the cache");
    const reads = first > 0 || cache.dtype !== "float32";
    const sequenceStart = reads ? scratch.upload(starts, "sequence starts") : undefined;
    return (at, projected) => {
      appendToCache(device, cache, { at, projected, rows: tokens.length, places: sequencePlaces });
      if (!sequenceStart) return undefined;
      const { k, v } = gatherFromCache(cache, { layer: at.layer, rows: places.length, places: allPlaces, scratch });
      return { k, v, first, sequenceStart };
    };
  }

  /** Draws the first token of sequences that start with a prompt that is complete. */
  private async drawLate(run: GenerationRun, late: readonly Sequence[]): Promise<void> {
    if (late.length === 0) return;
    for (const group of drawGroups(this.model, late))
      await Scratch.recording(this.model.device, async (scratch) => {
        const hidden = scratch.upload(concatRows(group.map(({ prompt }) => prompt.hidden!)), "hidden rows");
        await this.drawFirst(run, { sequences: group, hidden, scratch });
      });
  }

  /**
   * Draws each sequence's first token from the hidden states of its prompt's last, [sequences, C], and copies the end of
   * its prompt. Both run now: a later refusal of memory would forget a copy that is only recorded.
   */
  private async drawFirst(
    run: GenerationRun,
    at: { sequences: readonly Sequence[]; hidden: Buffer; scratch: Scratch; reads?: readonly ReadRequest[] },
  ): Promise<Data[]> {
    const { sequences, hidden, scratch } = at;
    copyPages(run.cache, promptEndCopies(sequences), { scratch });
    const host = hostRows(this.model, sequences, scratch);
    const rows = { ...uploadRows(sequences, { scratch, steps: 1 }), host };
    this.step.draw(weightsOfRows(run, sequences), { hidden, rows, shift: 0, scratch });
    return collect(this.model, { running: sequences, rows, reads: at.reads });
  }
}
