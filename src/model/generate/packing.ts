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

/** Where prompts begin, end to end, [prompts + 1]. */
export function promptOffsets(prompts: readonly Prompt[]): Uint32Array {
  const offsets = new Uint32Array(prompts.length + 1);
  for (const [i, { ids }] of prompts.entries()) offsets[i + 1] = offsets[i]! + ids.length;
  return offsets;
}

/** Prompts end to end, and the place of each token in the cache: in pages of the prompt, then of its first sequence. */
export function packPrompts(prompts: readonly Prompt[]) {
  const offsets = promptOffsets(prompts);
  const tokens = new Uint32Array(offsets[prompts.length]!);
  const places = new Uint32Array(tokens.length);
  for (const [i, { ids, members }] of prompts.entries()) {
    const { pages } = [...members][0]!;
    tokens.set(ids, offsets[i]);
    for (let t = 0; t < ids.length; t++)
      places[offsets[i]! + t] = pages[Math.floor(t / PAGE_TOKENS)]! * PAGE_TOKENS + (t % PAGE_TOKENS);
  }
  return { tokens, offsets, places };
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
export function joined(rows: readonly Float32Array[]): Float32Array {
  const width = rows[0]!.length;
  const all = new Float32Array(rows.length * width);
  for (const [i, row] of rows.entries()) all.set(row, i * width);
  return all;
}
