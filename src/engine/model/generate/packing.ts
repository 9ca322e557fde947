/** The host's part of prefill and decoding: where the tokens of sequences lie in the cache, and what prompts keep. */
import { PAGE_TOKENS } from "../kernels/cache_storage.ts";
import type { PageCopy } from "./key_value_cache.ts";
import type { Prompt, Sequence } from "./sequence.ts";

/**
 * The pages of every position below `length`. Positions beyond the end of a sequence, which a chunk computes for nothing,
 * fall into the sequence's last page, which it alone holds.
 */
export function pageTable(running: readonly Sequence[], length: number): Uint32Array {
  const rowPages = Math.ceil(length / PAGE_TOKENS);
  const table = new Uint32Array(running.length * rowPages);
  for (const [row, { pages }] of running.entries())
    for (let i = 0; i < rowPages; i++) table[row * rowPages + i] = pages[Math.min(i, pages.length - 1)]!;
  return table;
}

/** Tokens [from, to) of a prompt. */
export interface PromptPiece {
  readonly prompt: Prompt;
  readonly from: number;
  readonly to: number;
}

/** Pieces end to end. Only the first of them may follow earlier tokens of its prompt. */
export interface PackedPieces {
  readonly tokens: Uint32Array;
  /** Starts of the pieces, [pieces + 1]. */
  readonly offsets: Uint32Array;
  /** Tokens of the first prompt before its piece. */
  readonly first: number;
  /** The place of each token in the cache, those before the first piece included, [first + tokens]. */
  readonly places: Uint32Array;
  /** Start of each prompt among these. */
  readonly starts: Uint32Array;
}

/** Prompts lie in their own pages, then in those of their first sequence. */
export function packPieces(pieces: readonly PromptPiece[]): PackedPieces {
  const offsets = new Uint32Array(pieces.length + 1);
  for (const [i, { from, to }] of pieces.entries()) offsets[i + 1] = offsets[i]! + to - from;
  const tokens = new Uint32Array(offsets[pieces.length]!);
  const first = pieces[0]!.from;
  const places = new Uint32Array(first + tokens.length);
  const starts = new Uint32Array(places.length);
  for (const [i, { prompt, from, to }] of pieces.entries()) {
    const { pages } = [...prompt.members][0]!;
    tokens.set(prompt.ids.slice(from, to), offsets[i]);
    const start = first + offsets[i]! - from;
    starts.fill(start, start, start + to);
    for (let t = 0; t < to; t++)
      places[start + t] = pages[Math.floor(t / PAGE_TOKENS)]! * PAGE_TOKENS + (t % PAGE_TOKENS);
  }
  return { tokens, offsets, first, places, starts };
}

/** Copies of the page that holds the end of a prompt, from the first sequence of that prompt to each of the others. */
export function promptEndCopies(sequences: readonly Sequence[]): PageCopy[] {
  return sequences.flatMap((sequence) => {
    const { ids, pages, members } = sequence.prompt;
    const first = [...members][0]!;
    if (first === sequence || ids.length % PAGE_TOKENS === 0) return [];
    return [{ from: first.pages[pages.length]!, to: sequence.pages[pages.length]! }];
  });
}

/** Gives each prompt its row of the hidden states, [prompts, C]. */
export function keepHidden(prompts: readonly Prompt[], hidden: Float32Array): void {
  const width = hidden.length / prompts.length;
  for (const [i, prompt] of prompts.entries()) prompt.hidden = hidden.subarray(i * width, (i + 1) * width);
}

/** The rows one after another. */
export function concatRows(rows: readonly Float32Array[]): Float32Array {
  const width = rows[0]!.length;
  const packed = new Float32Array(rows.length * width);
  for (const [i, row] of rows.entries()) packed.set(row, i * width);
  return packed;
}
