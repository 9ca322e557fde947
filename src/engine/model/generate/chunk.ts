/** A chunk of decoding steps: what it gets, and what is read back of it. */
import type { Buffer, Data, Device, ReadRequest } from "../../compute/device.ts";
import { CHUNK_KEYS } from "../kernels/attention_chunks.ts";
import { gatherTokens } from "../kernels/gather_tokens.ts";
import { SETTING_FLOATS, samplingSettings } from "../kernels/sample.ts";
import { type Filters, filtersOf } from "../kernels/sample_tiled.ts";
import { logitStride } from "../logit_windows.ts";
import type { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { topOf } from "./host_rows.ts";
import { pageTable } from "./packing.ts";
import { addToken, reportTokens, type Sequence } from "./sequence.ts";
import type { DecodeRows } from "./step_input.ts";

/** Steps per read-back. Longer chunks waste more work on sequences that end inside them. */
export const CHUNK_STEPS = 16;
/** The same where someone reads the tokens while they are drawn. */
const LIVE_CHUNK_STEPS = 4;

export function chunkSteps(running: readonly Sequence[]): number {
  return isLive(running) ? LIVE_CHUNK_STEPS : CHUNK_STEPS;
}

/** Whether someone reads tokens of these sequences while they are drawn. */
export function isLive(running: readonly Sequence[]): boolean {
  return running.some(({ request: { onTokens, isLive = true } }) => onTokens && isLive);
}

/** Rows of an earlier chunk whose tokens the host has not read. */
export interface Earlier {
  /** The last tokens of its rows. */
  readonly next: Buffer;
  /** The row there of each row here. */
  readonly sources: readonly number[];
}

/** Input that rows begin with. */
export interface RowsInput {
  readonly scratch: Scratch;
  readonly steps: number;
  /** Elements between the results of two rows, at least `steps`. Default: `steps`. */
  readonly stride?: number | undefined;
  /** Tokens that each has drawn before the first step. Default: those that the host has. */
  readonly drawn?: readonly number[] | undefined;
  readonly earlier?: Earlier | undefined;
  /** The token that each row feeds in. Default: the last one that the host has. */
  readonly last?: readonly number[] | undefined;
}

/** The last token of each sequence, its place and its settings. */
export function uploadRows(running: readonly Sequence[], at: RowsInput): DecodeRows {
  const { scratch, steps, stride = steps, earlier } = at;
  const count = running.length;
  const { pages, seeds, settings } = ownData(running, at);
  return {
    count,
    steps,
    stride,
    pages: scratch.upload(pages, "page table"),
    rowPages: pages.length / count,
    positions: scratch.upload(positionsOf(running, at), "positions"),
    seeds: scratch.upload(seeds, "seeds"),
    settings: scratch.upload(settings, "sampling settings"),
    filters: filtersOfRows(running),
    next: earlier ? carried(earlier, scratch) : scratch.upload(lastTokens(running, at), "next tokens"),
    tokens: scratch.floats(count * stride, "sampled tokens"),
    logprobs: scratch.floats(count * stride, "sampled logprobs"),
  };
}

/** Puts the next chunk into rows of an earlier one of the same shape. @param at.isMoved whether any row has another sequence than there */
export function rewriteRows(
  rows: DecodeRows,
  running: readonly Sequence[],
  at: Omit<RowsInput, "scratch"> & { readonly device: Device; readonly isMoved: boolean },
): void {
  const { device, isMoved, earlier } = at;
  device.write(rows.positions, positionsOf(running, at));
  // Rows that go on are those of the chunk before, in their order: as many as there are all of them, with their last tokens.
  if (!earlier) device.write(rows.next, lastTokens(running, at));
  if (!isMoved) return;
  const data = ownData(running, at);
  for (const name of ["pages", "seeds", "settings"] as const) device.write(rows[name], data[name]);
}

/** Returns the data that stay the same for a sequence. */
function ownData(running: readonly Sequence[], at: Pick<RowsInput, "drawn" | "steps">) {
  const settings = new Float32Array(running.length * SETTING_FLOATS);
  for (const [i, { request }] of running.entries()) settings.set(samplingSettings(request.params), i * SETTING_FLOATS);
  const seeds = Uint32Array.from(running, ({ request }) => request.seed >>> 0);
  return { pages: pageTable(running, tableTokens(running, at)), seeds, settings };
}

function lastTokens(running: readonly Sequence[], { last }: Pick<RowsInput, "last">): Uint32Array {
  return Uint32Array.from(last ?? running.map(({ tokens }) => tokens[tokens.length - 1] ?? 0));
}

/** Returns the positions of the last token of each sequence, which the first step reads. */
function positionsOf(running: readonly Sequence[], { drawn }: Pick<RowsInput, "drawn">): Uint32Array {
  return Uint32Array.from(
    running,
    ({ prompt, tokens }, row) => prompt.ids.length + (drawn?.[row] ?? tokens.length) - 1,
  );
}

/** Tokens that a table has pages for: whole chunks of attention, so that its shape changes no more often than theirs. */
export function tableTokens(running: readonly Sequence[], at: Pick<RowsInput, "drawn" | "steps">): number {
  return Math.ceil((Math.max(...positionsOf(running, at)) + at.steps) / CHUNK_KEYS) * CHUNK_KEYS;
}

/** Returns the filters that any of the rows has. */
export function filtersOfRows(running: readonly Sequence[]): Filters {
  return filtersOf(running.map(({ request }) => request.params));
}

function carried({ next: previous, sources }: Earlier, scratch: Scratch): Buffer {
  const next = scratch.floats(sources.length, "next tokens");
  const buffers = { sources: scratch.upload(Uint32Array.from(sources), "sources of tokens"), previous, next };
  scratch.device.dispatch(gatherTokens, { buffers, params: { rows: sources.length } });
  return next;
}

/** Rows that a chunk draws for. */
export interface ChunkRows {
  readonly running: readonly Sequence[];
  readonly rows: DecodeRows;
}

/** Reads a chunk's tokens back, and gives each sequence its own up to where it ends. @returns the further reads. */
export async function collect(
  model: Transformer,
  chunk: ChunkRows & { readonly reads?: readonly ReadRequest[] | undefined },
): Promise<Data[]> {
  return deliver(model, chunk, await readChunk(model, chunk));
}

/** Runs a chunk. @returns its tokens and log-probs, then the further reads, then logits where the host selects from them */
export function readChunk(
  model: Transformer,
  { running, rows, reads = [] }: ChunkRows & { reads?: readonly ReadRequest[] | undefined },
): Promise<Data[]> {
  const length = rows.count * rows.stride;
  const host = hostOf({ running, rows });
  return model.device.read([
    { buffer: rows.tokens, type: "u32", length },
    { buffer: rows.logprobs, type: "f32", length },
    ...reads,
    ...(host
      ? [{ buffer: host.logits, type: "f32" as const, length: rows.count * logitStride(model.config.vocabSize) }]
      : []),
  ]);
}

function hostOf({ running, rows }: ChunkRows) {
  return running.some(({ request }) => request.top_logprobs) ? rows.host : undefined;
}

/**
 * Gives each sequence its tokens up to where it ends: none where it ended, or came to need a mask, in the chunk before.
 * @returns the further reads.
 */
export function deliver(model: Transformer, chunk: ChunkRows, [tokens, logprobs, ...rest]: readonly Data[]): Data[] {
  const { running, rows } = chunk;
  const { vocabSize } = model.config;
  const host = hostOf(chunk);
  const logits = host && rest.pop();
  for (const [row, sequence] of running.entries()) {
    const before = sequence.tokens.length;
    if (host && logits && !sequence.stopped) sequence.top.push(topOf(sequence, { row, logits, rows: host, vocabSize }));
    // A token that was drawn without the mask that it needs is drawn again, at the same place of its random numbers.
    const isOver = () => sequence.stopped || (sequence.isMasked && !rows.host);
    const first = row * rows.stride;
    for (let i = first; i < first + rows.steps && !isOver(); i++) addToken(sequence, tokens![i]!, logprobs![i]!);
    reportTokens(sequence, before);
  }
  return rest;
}
