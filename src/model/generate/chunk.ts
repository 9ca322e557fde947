/** A chunk of decoding steps: what it gets, and what is read back of it. */
import type { Buffer, Data, ReadRequest } from "../../compute/device.ts";
import { gatherTokens } from "../kernels/gather_tokens.ts";
import { SETTING_FLOATS, samplingSettings } from "../kernels/sample.ts";
import { filtersOf } from "../kernels/sample_tiled.ts";
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

/** The last token of each sequence, its place and its settings. */
export function uploadRows(
  running: readonly Sequence[],
  at: {
    scratch: Scratch;
    steps: number;
    /** Tokens that each has drawn before the first step. Default: those that the host has. */
    drawn?: readonly number[] | undefined;
    earlier?: Earlier | undefined;
    /** The token that each row feeds in. Default: the last one that the host has. */
    last?: readonly number[] | undefined;
  },
): DecodeRows {
  const { scratch, steps, drawn = running.map(({ tokens }) => tokens.length), earlier } = at;
  const { last = running.map(({ tokens }) => tokens[tokens.length - 1] ?? 0) } = at;
  const count = running.length;
  const settings = new Float32Array(count * SETTING_FLOATS);
  for (const [i, { request }] of running.entries()) settings.set(samplingSettings(request.params), i * SETTING_FLOATS);
  // Of the last token of each sequence, which the first step reads.
  const positions = Uint32Array.from(running, ({ prompt }, row) => prompt.ids.length + drawn[row]! - 1);
  const table = pageTable(running, Math.max(...positions) + steps);
  const u32 = (of: (it: Sequence) => number, label: string) => scratch.upload(Uint32Array.from(running, of), label);
  return {
    count,
    steps,
    pages: scratch.upload(table, "page table"),
    rowPages: table.length / count,
    positions: scratch.upload(positions, "positions"),
    seeds: u32(({ request }) => request.seed >>> 0, "seeds"),
    settings: scratch.upload(settings, "sampling settings"),
    filters: filtersOf(running.map(({ request }) => request.params)),
    next: earlier ? carried(earlier, scratch) : scratch.upload(Uint32Array.from(last), "next tokens"),
    tokens: scratch.floats(count * steps, "sampled tokens"),
    logprobs: scratch.floats(count * steps, "sampled logprobs"),
  };
}

function carried({ next: previous, sources }: Earlier, scratch: Scratch): Buffer {
  const next = scratch.floats(sources.length, "next tokens");
  const buffers = { sources: scratch.upload(Uint32Array.from(sources), "sources of tokens"), previous, next };
  scratch.device.dispatch(gatherTokens, { buffers, params: { rows: sources.length } });
  return next;
}

/** What a chunk draws for. */
export interface ChunkRows {
  readonly running: readonly Sequence[];
  readonly rows: DecodeRows;
}

/** Reads a chunk's tokens back, and gives each sequence its own up to where it ends. @returns the further reads. */
export async function collect(
  model: Transformer,
  it: ChunkRows & { readonly reads?: readonly ReadRequest[] | undefined },
): Promise<Data[]> {
  return deliver(model, it, await readRows(model, it));
}

/** Runs a chunk. @returns its tokens and log-probs, then the further reads, then logits where the host selects from them */
export function readRows(
  model: Transformer,
  { running, rows, reads = [] }: ChunkRows & { reads?: readonly ReadRequest[] | undefined },
): Promise<Data[]> {
  const length = rows.count * rows.steps;
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
export function deliver(model: Transformer, it: ChunkRows, [tokens, logprobs, ...rest]: readonly Data[]): Data[] {
  const { running, rows } = it;
  const { vocabSize } = model.config;
  const host = hostOf(it);
  const logits = host && rest.pop();
  for (const [row, sequence] of running.entries()) {
    const before = sequence.tokens.length;
    if (host && logits && !sequence.stopped) sequence.top.push(topOf(sequence, { row, logits, rows: host, vocabSize }));
    // A token that was drawn without the mask that it needs is drawn again, at the same place of its random numbers.
    const isOver = () => sequence.stopped || (sequence.isMasked && !rows.host);
    for (let i = row * rows.steps; i < (row + 1) * rows.steps && !isOver(); i++)
      addToken(sequence, tokens![i]!, logprobs![i]!);
    reportTokens(sequence, before);
  }
  return rest;
}
