/**
 * Batched sampling with a key/value cache. Each sequence holds a slot of the cache; between chunks of steps, complete
 * sequences give theirs to waiting ones. A chunk is recorded whole and read back once, so tokens stay on the device
 * between its steps. Requests with the same prompt share its prefill.
 */
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import { SETTING_FLOATS, samplingSettings } from "../kernels/sample.ts";
import { gatherRows } from "../logit_windows.ts";
import { packInput } from "../packed_input.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { DecodeStep } from "./decode_step.ts";
import { allocateCache, appendToCache, copySlots, type KeyValueCache } from "./key_value_cache.ts";
import { addToken, checkRequest, groupByPrompt, type Sequence, sampled, startSequence } from "./sequence.ts";
import type { DecodeRows } from "./step_input.ts";

/** Steps per read-back. Longer chunks waste more work on sequences that end inside them. */
const CHUNK_STEPS = 16;
/** Prompt tokens in one prefill pass. */
const PREFILL_TOKENS = 8192;

interface Waiting {
  readonly request: SampleRequest;
  readonly index: number;
}

export class BatchSampler {
  private readonly model: Transformer;
  private readonly decodeStep: DecodeStep;

  constructor(model: Transformer) {
    this.model = model;
    this.decodeStep = new DecodeStep(model);
  }

  /**
   * Draws every request with the given weights, in the order of the requests.
   * @throws ConfigError for an empty prompt, a token outside the vocabulary, or a prompt that fills the context.
   */
  async sample(
    weights: Weights,
    requests: readonly SampleRequest[],
    options: { weightVersion: number; signal?: AbortSignal | undefined },
  ): Promise<SampledSequence[]> {
    for (const [i, request] of requests.entries()) checkRequest(this.model, request, i);
    const results: SampledSequence[] = new Array(requests.length);
    if (requests.length === 0) return results;
    const scratch = new Scratch(this.model.device);
    try {
      const cache = this.allocate(requests, scratch);
      const waiting = requests.map((request, index) => ({ request, index })).reverse();
      const free = Array.from({ length: cache.slots }, (_, slot) => slot).reverse();
      let running: Sequence[] = [];
      while (waiting.length > 0 || running.length > 0) {
        options.signal?.throwIfAborted();
        const admitted = this.admit(waiting, free);
        if (admitted.length > 0) await this.prefill(weights, { cache, admitted });
        running.push(...admitted);
        const unfinished = running.filter(({ stopped }) => !stopped);
        if (unfinished.length > 0) await this.decode(weights, { cache, running: unfinished });
        for (const sequence of running.filter(({ stopped }) => stopped)) {
          free.push(sequence.slot);
          results[sequence.index] = sampled(sequence, options.weightVersion);
        }
        running = running.filter(({ stopped }) => !stopped);
      }
      return results;
    } finally {
      scratch.release();
    }
  }

  private allocate(requests: readonly SampleRequest[], scratch: Scratch): KeyValueCache {
    const lengths = requests.map(({ prompt_ids, params }) => prompt_ids.length + params.max_tokens);
    const maxLength = Math.min(Math.max(...lengths), this.model.contextLength);
    return allocateCache(this.model.config, scratch, { sequences: requests.length, maxLength });
  }

  /** Moves waiting requests into free slots, up to one prefill pass of distinct prompts. */
  private admit(waiting: Waiting[], free: number[]): Sequence[] {
    const { contextLength, passLength } = this.model;
    const most = Math.min(PREFILL_TOKENS, passLength);
    const admitted: Sequence[] = [];
    const prompts = new Set<string>();
    let tokens = 0;
    while (waiting.length > 0 && free.length > 0) {
      const { request, index } = waiting[waiting.length - 1]!;
      const key = request.prompt_ids.join();
      if (!prompts.has(key)) tokens += request.prompt_ids.length;
      if (tokens > most && admitted.length > 0) break;
      prompts.add(key);
      waiting.pop();
      admitted.push(startSequence(request, { index, slot: free.pop()!, contextLength }));
    }
    return admitted;
  }

  /** Runs each distinct prompt once, fills the cache, and draws each sequence's first token. */
  private async prefill(
    weights: Weights,
    { cache, admitted }: { cache: KeyValueCache; admitted: readonly Sequence[] },
  ): Promise<void> {
    const { model } = this;
    const { config, device } = model;
    const scratch = new Scratch(device);
    try {
      const groups = groupByPrompt(admitted);
      const { tokens, offsets, slotOfToken } = packPrompts(groups);
      const input = packInput(scratch, { tokens, offsets });
      const slots = scratch.upload(slotOfToken, "slots");
      const { positions } = input;
      const { hidden } = model.forward(weights, {
        input,
        scratch,
        visit: (layer, qkv) =>
          appendToCache(device, cache, { config, layer, qkv, rows: tokens.length, slots, positions }),
      });
      copySlots(cache, sharedPrompts(groups), { config, scratch });
      const ends = new Map(groups.flatMap((group, i) => group.map((it) => [it, offsets[i + 1]! - 1] as const)));
      const rows = this.uploadRows(admitted, { scratch, steps: 1 });
      const lastPositions = Uint32Array.from(admitted, (it) => ends.get(it)!);
      const last = gatherRows(model, { from: hidden, positions: lastPositions, scratch });
      this.decodeStep.draw(weights, { hidden: last, rows, shift: 0, scratch });
      await this.collect(admitted, rows);
    } finally {
      scratch.release();
    }
  }

  /** One chunk of steps for every running sequence. */
  private async decode(
    weights: Weights,
    { cache, running }: { cache: KeyValueCache; running: readonly Sequence[] },
  ): Promise<void> {
    const most = Math.max(...running.map(({ limit, tokens }) => limit - tokens.length));
    const scratch = new Scratch(this.model.device);
    try {
      const rows = this.uploadRows(running, { scratch, steps: Math.min(most, CHUNK_STEPS) });
      for (let shift = 0; shift < rows.steps; shift++) this.decodeStep.step(weights, { cache, rows, shift });
      await this.collect(running, rows);
    } finally {
      scratch.release();
    }
  }

  private uploadRows(
    running: readonly Sequence[],
    { scratch, steps }: { scratch: Scratch; steps: number },
  ): DecodeRows {
    const count = running.length;
    const settings = new Float32Array(count * SETTING_FLOATS);
    for (const [i, { request }] of running.entries())
      settings.set(samplingSettings(request.params), i * SETTING_FLOATS);
    const u32 = (of: (it: Sequence) => number, label: string) => scratch.upload(Uint32Array.from(running, of), label);
    return {
      count,
      steps,
      slots: u32(({ slot }) => slot, "slots"),
      // Of the last token of each sequence, which the first step reads.
      positions: u32(({ request, tokens }) => request.prompt_ids.length + tokens.length - 1, "positions"),
      seeds: u32(({ request }) => request.seed >>> 0, "seeds"),
      settings: scratch.upload(settings, "sampling settings"),
      next: u32(({ tokens }) => tokens[tokens.length - 1] ?? 0, "next tokens"),
      tokens: scratch.floats(count * steps, "sampled tokens"),
      logprobs: scratch.floats(count * steps, "sampled logprobs"),
    };
  }

  /** Reads a chunk's tokens back, and gives each sequence its own up to where it ends. */
  private async collect(running: readonly Sequence[], rows: DecodeRows): Promise<void> {
    const length = rows.count * rows.steps;
    const [tokens, logprobs] = await this.model.device.read([
      { buffer: rows.tokens, type: "u32", length },
      { buffer: rows.logprobs, type: "f32", length },
    ]);
    for (const [row, sequence] of running.entries())
      for (let i = row * rows.steps; i < (row + 1) * rows.steps && !sequence.stopped; i++)
        addToken(sequence, tokens![i]!, logprobs![i]!);
  }
}

/** Copies from the slot that a prompt's prefill filled to those of the other sequences with that prompt. */
function sharedPrompts(groups: readonly (readonly Sequence[])[]) {
  return groups.flatMap(([first, ...others]) => {
    const { slot: from, request } = first!;
    return others.map(({ slot: to }) => ({ from, to, length: request.prompt_ids.length }));
  });
}

/** The first sequence of each group end to end, and the slot of each token. */
function packPrompts(groups: readonly (readonly Sequence[])[]) {
  const offsets = new Uint32Array(groups.length + 1);
  for (const [i, [first]] of groups.entries()) offsets[i + 1] = offsets[i]! + first!.request.prompt_ids.length;
  const tokens = new Uint32Array(offsets[groups.length]!);
  const slotOfToken = new Uint32Array(tokens.length);
  for (const [i, [first]] of groups.entries()) {
    tokens.set(first!.request.prompt_ids, offsets[i]);
    slotOfToken.fill(first!.slot, offsets[i], offsets[i + 1]);
  }
  return { tokens, offsets, slotOfToken };
}
