/** A chunk of decoding steps: what it gets, and what is read back of it. */
import type { Data, ReadRequest } from "../../compute/device.ts";
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
  return running.some(({ request: { onTokens, isLive = true } }) => onTokens && isLive)
    ? LIVE_CHUNK_STEPS
    : CHUNK_STEPS;
}

/** The last token of each sequence, its place and its settings. */
export function uploadRows(
  running: readonly Sequence[],
  { scratch, steps }: { scratch: Scratch; steps: number },
): DecodeRows {
  const count = running.length;
  const settings = new Float32Array(count * SETTING_FLOATS);
  for (const [i, { request }] of running.entries()) settings.set(samplingSettings(request.params), i * SETTING_FLOATS);
  // Of the last token of each sequence, which the first step reads.
  const positions = Uint32Array.from(running, ({ prompt, tokens }) => prompt.ids.length + tokens.length - 1);
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
    next: u32(({ tokens }) => tokens[tokens.length - 1] ?? 0, "next tokens"),
    tokens: scratch.floats(count * steps, "sampled tokens"),
    logprobs: scratch.floats(count * steps, "sampled logprobs"),
  };
}

/** Reads a chunk's tokens back, and gives each sequence its own up to where it ends. @returns the further reads. */
export async function collect(
  model: Transformer,
  it: { running: readonly Sequence[]; rows: DecodeRows; reads?: readonly ReadRequest[] | undefined },
): Promise<Data[]> {
  const { running, rows, reads = [] } = it;
  const length = rows.count * rows.steps;
  const { vocabSize } = model.config;
  const host = running.some(({ request }) => request.top_logprobs) ? rows.host : undefined;
  const [tokens, logprobs, ...rest] = await model.device.read([
    { buffer: rows.tokens, type: "u32", length },
    { buffer: rows.logprobs, type: "f32", length },
    ...reads,
    ...(host ? [{ buffer: host.logits, type: "f32" as const, length: rows.count * logitStride(vocabSize) }] : []),
  ]);
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
