/**
 * Batched sampling with a key/value cache. Sequences hold a slot of the cache each; finished ones make room for
 * waiting ones between chunks of steps. A chunk is recorded whole and read back once, tokens never leave the device
 * between its steps. Requests with the same prompt share its prefill.
 */

import type { Device } from "../../compute/device.ts";
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import { gatherRows } from "../head.ts";
import { cacheCopy } from "../kernels/cache.ts";
import { SETTING_FLOATS, samplingSettings } from "../kernels/sample.ts";
import { Scratch } from "../scratch.ts";
import { packInput, type Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { type Cache, Decoder, type Rows } from "./decode_step.ts";

/** Steps recorded ahead of one read-back. Longer ones waste more on sequences that end inside. */
const CHUNK_STEPS = 16;
/** Sequences decoded together at most. */
const MAX_SLOTS = 256;
/** Of the memory that is free, the part that the cache may take: passes need the rest. */
const CACHE_SHARE = 0.5;
/** Prompt tokens in one prefill pass. */
const PREFILL_TOKENS = 8192;

interface Running {
  readonly index: number;
  readonly request: SampleRequest;
  readonly slot: number;
  /** Tokens it may still get. */
  readonly limit: number;
  readonly tokens: number[];
  readonly logprobs: number[];
  stopped: boolean;
  /** By a stop token or by the request's own rule. */
  ended: boolean;
}

export class BatchSampler {
  private readonly model: Transformer;
  private readonly device: Device;
  private readonly decoder: Decoder;

  constructor(model: Transformer) {
    this.model = model;
    this.device = model.device;
    this.decoder = new Decoder(model);
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
    for (const [i, request] of requests.entries()) this.check(request, i);
    const results: SampledSequence[] = new Array(requests.length);
    if (requests.length === 0) return results;
    const scratch = new Scratch(this.device);
    try {
      const cache = this.allocateCache(requests, scratch);
      const waiting = requests.map((request, index) => ({ request, index })).reverse();
      const free = Array.from({ length: cache.slots }, (_, slot) => slot).reverse();
      let running: Running[] = [];
      while (waiting.length > 0 || running.length > 0) {
        options.signal?.throwIfAborted();
        const admitted = this.admit(waiting, free);
        if (admitted.length > 0) await this.prefill(weights, { cache, admitted });
        running.push(...admitted);
        if (running.some((it) => !it.stopped))
          await this.decode(weights, { cache, running: running.filter((it) => !it.stopped) });
        for (const it of running.filter(({ stopped }) => stopped)) {
          free.push(it.slot);
          results[it.index] = finish(it, options.weightVersion);
        }
        running = running.filter(({ stopped }) => !stopped);
      }
      return results;
    } finally {
      scratch.release();
    }
  }

  private check({ prompt_ids, params }: SampleRequest, index: number): void {
    const { contextLength, context } = this.model;
    const { vocabSize } = this.model.config;
    const where = { path: `requests[${index}]` };
    if (prompt_ids.length === 0)
      throw new ConfigError(
        "Cannot sample from an empty prompt: give at least one token (the model's bos).",
        where,
      );
    const outside = prompt_ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
    if (outside !== undefined)
      throw new ConfigError(`Cannot sample as token ids must lie in [0, ${vocabSize}): ${outside}`, where);
    if (prompt_ids.length >= contextLength)
      throw new ConfigError(
        `Cannot sample as the prompt must leave room in the context of ${context}: ${prompt_ids.length}`,
        where,
      );
    const { temperature, top_p, max_tokens } = params;
    if (!(temperature >= 0) || !Number.isFinite(temperature))
      throw new ConfigError(`Cannot sample as temperature must be at least 0: ${temperature}`, where);
    if (!(top_p > 0 && top_p <= 1))
      throw new ConfigError(`Cannot sample as top_p must lie in (0, 1]: ${top_p}`, where);
    if (!(Number.isInteger(max_tokens) && max_tokens >= 1))
      throw new ConfigError(
        `Cannot sample as max_tokens must be a whole number above 0: ${max_tokens}`,
        where,
      );
  }

  private allocateCache(requests: readonly SampleRequest[], scratch: Scratch): Cache {
    const { layers, kvHeads, headDim } = this.model.config;
    const longest = Math.max(
      ...requests.map(({ prompt_ids, params }) => prompt_ids.length + params.max_tokens),
    );
    const maxLength = Math.min(longest, this.model.contextLength);
    const slotBytes = maxLength * kvHeads * headDim * 4;
    const { memory, info } = this.device;
    const bindable = Math.floor(info.limits.maxBindingBytes / slotBytes);
    const affordable = Math.floor((CACHE_SHARE * (memory.budget - memory.live)) / (2 * layers * slotBytes));
    const slots = Math.max(Math.min(requests.length, MAX_SLOTS, bindable, affordable), 1);
    const allocate = (label: string) =>
      Array.from({ length: layers }, () => scratch.floats(slots * maxLength * kvHeads * headDim, label));
    return { slots, maxLength, keys: allocate("key cache"), values: allocate("value cache") };
  }

  private admit(waiting: { request: SampleRequest; index: number }[], free: number[]): Running[] {
    const admitted: Running[] = [];
    const prompts = new Set<string>();
    let tokens = 0;
    while (waiting.length > 0 && free.length > 0) {
      const { request, index } = waiting[waiting.length - 1]!;
      const key = request.prompt_ids.join();
      if (!prompts.has(key)) tokens += request.prompt_ids.length;
      if (tokens > Math.min(PREFILL_TOKENS, this.model.passLength) && admitted.length > 0) break;
      prompts.add(key);
      waiting.pop();
      const room = this.model.contextLength - request.prompt_ids.length;
      admitted.push({
        index,
        request,
        slot: free.pop()!,
        limit: Math.min(request.params.max_tokens, room),
        tokens: [],
        logprobs: [],
        stopped: false,
        ended: false,
      });
    }
    return admitted;
  }

  /** Runs the prompts once each, fills the cache, and draws each sequence's first token. */
  private async prefill(weights: Weights, at: { cache: Cache; admitted: readonly Running[] }): Promise<void> {
    const { cache, admitted } = at;
    const scratch = new Scratch(this.device);
    try {
      const prompts = uniquePrompts(admitted);
      const { tokens, offsets, slots } = packPrompts(prompts);
      const input = packInput(scratch, { tokens, offsets });
      const slotOfToken = scratch.upload(slots, "slots");
      const { hidden } = this.model.forward(weights, {
        input,
        scratch,
        save: false,
        visit: (layer, qkv) =>
          this.decoder.append({
            cache,
            layer,
            qkv,
            rows: tokens.length,
            slots: slotOfToken,
            positions: input.positions,
            shift: 0,
          }),
      });
      this.shareCache(cache, prompts, scratch);
      const lastOf = new Map(
        prompts.flatMap((group, i) => group.map((it) => [it, offsets[i + 1]! - 1] as const)),
      );
      const rows = this.uploadRows(admitted, { scratch, steps: 1 });
      const last = gatherRows(this.model, {
        from: hidden,
        positions: Uint32Array.from(admitted, (it) => lastOf.get(it)!),
        scratch,
      });
      this.decoder.draw(weights, { hidden: last, rows, shift: 0, scratch });
      await this.collect(admitted, rows);
    } finally {
      scratch.release();
    }
  }

  /** Copies each prompt's cache from the slot that was filled to those of the other sequences with that prompt. */
  private shareCache(cache: Cache, prompts: readonly (readonly Running[])[], scratch: Scratch): void {
    const copies = prompts.flatMap(([first, ...others]) =>
      others.flatMap((other) => [first!.slot, other.slot, first!.request.prompt_ids.length]),
    );
    if (copies.length === 0) return;
    const longest = Math.max(...prompts.map(([first]) => first!.request.prompt_ids.length));
    const table = scratch.upload(Uint32Array.from(copies), "cache copies");
    const { kvHeads, headDim } = this.model.config;
    for (const [layer, keys] of cache.keys.entries())
      this.device.dispatch(cacheCopy, {
        buffers: { copies: table, keys, values: cache.values[layer]! },
        params: { copies: copies.length / 3, longest, width: kvHeads * headDim, max_length: cache.maxLength },
      });
  }

  /** A chunk of steps for every running sequence. */
  private async decode(weights: Weights, at: { cache: Cache; running: readonly Running[] }): Promise<void> {
    const { cache, running } = at;
    const most = Math.max(...running.map(({ limit, tokens }) => limit - tokens.length));
    const scratch = new Scratch(this.device);
    try {
      const rows = this.uploadRows(running, { scratch, steps: Math.min(most, CHUNK_STEPS) });
      for (let step = 0; step < rows.steps; step++) this.decoder.step(weights, { cache, rows, shift: step });
      await this.collect(running, rows);
    } finally {
      scratch.release();
    }
  }

  /** Positions are those of the last token each sequence has: the one that a step feeds in. */
  private uploadRows(running: readonly Running[], at: { scratch: Scratch; steps: number }): Rows {
    const { scratch, steps } = at;
    const count = running.length;
    const settings = new Float32Array(count * SETTING_FLOATS);
    for (const [i, { request }] of running.entries())
      settings.set(samplingSettings(request.params), i * SETTING_FLOATS);
    const u32 = (of: (it: Running) => number, label: string) =>
      scratch.upload(Uint32Array.from(running, of), label);
    return {
      count,
      steps,
      slots: u32(({ slot }) => slot, "slots"),
      positions: u32(({ request, tokens }) => request.prompt_ids.length + tokens.length - 1, "positions"),
      seeds: u32(({ request }) => request.seed >>> 0, "seeds"),
      settings: scratch.upload(settings, "sampling settings"),
      next: u32(({ tokens }) => tokens[tokens.length - 1] ?? 0, "next tokens"),
      tokens: scratch.floats(count * steps, "sampled tokens"),
      logprobs: scratch.floats(count * steps, "sampled logprobs"),
    };
  }

  /** Reads a chunk's tokens and takes each sequence's up to where it ends. */
  private async collect(running: readonly Running[], rows: Rows): Promise<void> {
    const length = rows.count * rows.steps;
    const [tokens, logprobs] = await this.device.read([
      { buffer: rows.tokens, type: "u32", length },
      { buffer: rows.logprobs, type: "f32", length },
    ]);
    for (const [row, it] of running.entries())
      for (let step = 0; step < rows.steps && !it.stopped; step++) {
        const token = tokens![row * rows.steps + step]!;
        it.tokens.push(token);
        it.logprobs.push(logprobs![row * rows.steps + step]!);
        it.ended = it.request.params.stop_token_ids.includes(token) || it.request.ends?.(it.tokens) === true;
        it.stopped = it.ended || it.tokens.length >= it.limit;
      }
  }
}

function finish({ tokens, logprobs, ended }: Running, weight_version: number): SampledSequence {
  return { tokens, logprobs, finish_reason: ended ? "stop" : "length", weight_version };
}

/** Sequences by prompt, in order of first appearance. */
function uniquePrompts(admitted: readonly Running[]): Running[][] {
  const groups = new Map<string, Running[]>();
  for (const it of admitted) {
    const key = it.request.prompt_ids.join();
    const group = groups.get(key);
    if (group) group.push(it);
    else groups.set(key, [it]);
  }
  return [...groups.values()];
}

function packPrompts(prompts: readonly (readonly Running[])[]) {
  const lengths = prompts.map(([first]) => first!.request.prompt_ids.length);
  const offsets = new Uint32Array(prompts.length + 1);
  for (const [i, length] of lengths.entries()) offsets[i + 1] = offsets[i]! + length;
  const tokens = new Uint32Array(offsets[prompts.length]!);
  const slots = new Uint32Array(tokens.length);
  for (const [i, [first]] of prompts.entries()) {
    tokens.set(first!.request.prompt_ids, offsets[i]);
    slots.fill(first!.slot, offsets[i], offsets[i + 1]);
  }
  return { tokens, offsets, slots };
}
