/**
 * Batched sampling with a key/value cache. Sequences hold a slot of the cache each; finished ones make room for
 * waiting ones between chunks of steps. A chunk is recorded whole and read back once, tokens never leave the device
 * between its steps. Requests with the same prompt share its prefill.
 */
import type { SampledSequence, SampleRequest } from "../backend.ts";
import type { Buffer, Device } from "../compute/device.ts";
import { fusesInput } from "../compute/matmul.ts";
import { ConfigError } from "../errors.ts";
import { gatherRows, logitStride, logitWindows } from "./head.ts";
import { cacheAppend, cacheCopy } from "./kernels/cache.ts";
import { embedding } from "./kernels/embedding.ts";
import { ropeAppend } from "./kernels/rope_append.ts";
import { chooseSample, SETTING_FLOATS } from "./kernels/sample.ts";
import { swiglu } from "./kernels/swiglu.ts";
import { Scratch } from "./scratch.ts";
import {
  EMBEDDING,
  FINAL_NORM,
  type LayerName,
  layerNames,
  packInput,
  type Transformer,
} from "./transformer.ts";
import type { Weights } from "./weights.ts";

/** Steps recorded ahead of one read-back. Longer ones waste more on sequences that end inside. */
const CHUNK_STEPS = 16;
/** Sequences decoded together at most. */
const MAX_SLOTS = 256;
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
}

interface Cache {
  readonly slots: number;
  readonly maxLength: number;
  /** Per layer, [slots, maxLength, KV D]. */
  readonly keys: readonly Buffer[];
  readonly values: readonly Buffer[];
}

/** Per-row inputs of the steps of one chunk. */
interface Rows {
  readonly count: number;
  readonly slots: Buffer;
  readonly positions: Buffer;
  readonly seeds: Buffer;
  readonly settings: Buffer;
  readonly next: Buffer;
  readonly tokens: Buffer;
  readonly logprobs: Buffer;
  readonly steps: number;
}

export class Sampler {
  private readonly model: Transformer;
  private readonly device: Device;
  /** Whether norms and activations ride along with the products that follow them. */
  private readonly fused: boolean;

  constructor(model: Transformer) {
    this.model = model;
    this.device = model.device;
    this.fused = fusesInput(this.device);
  }

  /**
   * Draws every request with the given weights, in the order of the requests.
   * @throws ConfigError for an empty prompt, a token outside the vocabulary, or a prompt that fills the context.
   */
  async sample(
    weights: Weights,
    requests: readonly SampleRequest[],
    options: { weightVersion: number; signal?: AbortSignal },
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
    const { vocabSize, contextLength } = this.model.config;
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
        `Cannot sample as the prompt must leave room in the context of ${contextLength} tokens: ${prompt_ids.length}`,
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
    const { layers, kvHeads, headDim, contextLength } = this.model.config;
    const longest = Math.max(
      ...requests.map(({ prompt_ids, params }) => prompt_ids.length + params.max_tokens),
    );
    const maxLength = Math.min(longest, contextLength);
    const slotBytes = maxLength * kvHeads * headDim * 4;
    const fitting = Math.floor(this.device.info.limits.maxBindingBytes / slotBytes);
    const slots = Math.max(Math.min(requests.length, MAX_SLOTS, fitting), 1);
    const allocate = (label: string) =>
      Array.from({ length: layers }, () => scratch.floats(slots * maxLength * kvHeads * headDim, label));
    return { slots, maxLength, keys: allocate("key cache"), values: allocate("value cache") };
  }

  private admit(waiting: { request: SampleRequest; index: number }[], free: number[]): Running[] {
    const admitted: Running[] = [];
    const prompts = new Set<string>();
    let tokens = 0;
    while (waiting.length > 0 && free.length > 0) {
      const { request, index } = waiting[waiting.length - 1];
      const key = request.prompt_ids.join();
      if (!prompts.has(key)) tokens += request.prompt_ids.length;
      if (tokens > PREFILL_TOKENS && admitted.length > 0) break;
      prompts.add(key);
      waiting.pop();
      const room = this.model.config.contextLength - request.prompt_ids.length;
      admitted.push({
        index,
        request,
        slot: free.pop()!,
        limit: Math.min(request.params.max_tokens, room),
        tokens: [],
        logprobs: [],
        stopped: false,
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
          this.append({
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
        prompts.flatMap((group, i) => group.map((it) => [it, offsets[i + 1] - 1] as const)),
      );
      const rows = this.uploadRows(admitted, { scratch, steps: 1 });
      const last = gatherRows(this.model, {
        from: hidden,
        positions: Uint32Array.from(admitted, (it) => lastOf.get(it)!),
        scratch,
      });
      this.draw(weights, { hidden: last, rows, shift: 0, scratch });
      await this.collect(admitted, rows);
    } finally {
      scratch.release();
    }
  }

  /** Copies each prompt's cache from the slot that was filled to those of the other sequences with that prompt. */
  private shareCache(cache: Cache, prompts: readonly (readonly Running[])[], scratch: Scratch): void {
    const copies = prompts.flatMap(([first, ...others]) =>
      others.flatMap((other) => [first.slot, other.slot, first.request.prompt_ids.length]),
    );
    if (copies.length === 0) return;
    const longest = Math.max(...prompts.map(([first]) => first.request.prompt_ids.length));
    const table = scratch.upload(Uint32Array.from(copies), "cache copies");
    const { kvHeads, headDim } = this.model.config;
    for (const [layer, keys] of cache.keys.entries())
      this.device.dispatch(cacheCopy, {
        buffers: { copies: table, keys, values: cache.values[layer] },
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
      for (let step = 0; step < rows.steps; step++) this.step(weights, { cache, rows, shift: step });
      await this.collect(running, rows);
    } finally {
      scratch.release();
    }
  }

  private step(weights: Weights, at: { cache: Cache; rows: Rows; shift: number }): void {
    const { rows, shift } = at;
    const { hiddenSize: C, layers, vocabSize } = this.model.config;
    const scratch = new Scratch(this.device);
    let x = scratch.floats(rows.count * C, "residual");
    this.device.dispatch(embedding, {
      buffers: { tokens: rows.next, table: weights.values.get(EMBEDDING), out: x },
      params: { tokens: rows.count, width: C, first_row: 0, row_count: vocabSize },
    });
    for (let layer = 0; layer < layers; layer++) x = this.layer(weights, { ...at, layer, x, scratch });
    this.draw(weights, { hidden: x, rows, shift, scratch });
    scratch.release();
  }

  private layer(
    weights: Weights,
    at: { cache: Cache; rows: Rows; shift: number; layer: number; x: Buffer; scratch: Scratch },
  ): Buffer {
    const { rows, layer, x, scratch } = at;
    const { hiddenSize: C, intermediateSize: F } = this.model.config;
    const [name, count] = [layerNames(layer), rows.count];
    const attended = this.attend(weights, { ...at, name });
    const middle = scratch.floats(count * C, "residual");
    weights.apply(name("self_attn.o_proj.weight"), { x: attended, y: middle, m: count, addend: x });
    const gateUp = scratch.floats(count * 2 * F, "gate and up");
    this.normAndApply(weights, {
      norm: name("post_attention_layernorm.weight"),
      matrix: name("mlp.gate_up.weight"),
      x: middle,
      y: gateUp,
      rows: count,
      scratch,
    });
    const out = scratch.floats(count * C, "residual");
    const down = name("mlp.down_proj.weight");
    if (this.fused) {
      weights.apply(down, { x: gateUp, y: out, m: count, addend: middle, input: { kind: "swiglu" } });
      return out;
    }
    const active = scratch.floats(count * F, "activation");
    this.device.dispatch(swiglu, { buffers: { gateUp, out: active }, params: { rows: count, width: F } });
    weights.apply(down, { x: active, y: out, m: count, addend: middle });
    return out;
  }

  private attend(
    weights: Weights,
    at: {
      cache: Cache;
      rows: Rows;
      shift: number;
      layer: number;
      x: Buffer;
      scratch: Scratch;
      name: LayerName;
    },
  ): Buffer {
    const { rows, layer, x, scratch, cache, shift, name } = at;
    const { heads, kvHeads, headDim, qkNorm, qkvBias } = this.model.config;
    const count = rows.count;
    const raw = scratch.floats(count * this.model.qkvWidth, "qkv");
    const norm = name("input_layernorm.weight");
    this.normAndApply(weights, {
      norm,
      matrix: name("self_attn.qkv.weight"),
      x,
      y: raw,
      rows: count,
      scratch,
    });
    if (qkvBias) this.model.addBias(weights, { name, qkv: raw, rows: count });
    const qkv = qkNorm ? this.model.normHeads(weights, { name, qkvRaw: raw, rows: count, scratch }).qkv : raw;
    this.turnAndAppend({ cache, layer, qkv, rows, shift });
    const attended = scratch.floats(count * heads * headDim, "attention output");
    this.device.dispatch(this.model.attention.decode, {
      buffers: {
        q: qkv,
        keys: cache.keys[layer],
        values: cache.values[layer],
        slots: rows.slots,
        positions: rows.positions,
        out: attended,
      },
      params: {
        rows: count,
        heads,
        key_heads: kvHeads,
        q_stride: this.model.qkvWidth,
        q_offset: 0,
        max_length: cache.maxLength,
        shift,
        scale: 1 / Math.sqrt(headDim),
      },
      constants: this.model.attention.decodeConstants,
    });
    return attended;
  }

  /** y = norm(x) W^T. */
  private normAndApply(
    weights: Weights,
    at: {
      norm: string;
      matrix: string;
      x: Buffer;
      y: Buffer;
      rows: number;
      scratch: Scratch;
      stride?: number;
    },
  ): void {
    const { norm: name, matrix, x, y, rows, scratch, stride } = at;
    if (this.fused) {
      const weight = weights.values.get(name);
      const epsilon = this.model.config.rmsNormEps;
      weights.apply(matrix, { x, y, m: rows, stride, input: { kind: "rms-norm", weight, epsilon } });
      return;
    }
    const { normed } = this.model.norm(weights, { name, x, rows, scratch });
    weights.apply(matrix, { x: normed, y, m: rows, stride });
  }

  private turnAndAppend(at: { cache: Cache; layer: number; qkv: Buffer; rows: Rows; shift: number }): void {
    const { cache, layer, rows } = at;
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(ropeAppend, {
      buffers: {
        slots: rows.slots,
        positions: rows.positions,
        angles: this.model.angles,
        qkv: at.qkv,
        keys: cache.keys[layer],
        values: cache.values[layer],
      },
      params: {
        rows: rows.count,
        heads,
        key_heads: kvHeads,
        width: headDim,
        max_length: cache.maxLength,
        shift: at.shift,
      },
    });
  }

  private append(at: {
    cache: Cache;
    layer: number;
    qkv: Buffer;
    rows: number;
    slots: Buffer;
    positions: Buffer;
    shift: number;
  }): void {
    const { cache, layer, qkv } = at;
    const { heads, kvHeads, headDim } = this.model.config;
    this.device.dispatch(cacheAppend, {
      buffers: {
        k: qkv,
        v: qkv,
        slots: at.slots,
        positions: at.positions,
        keys: cache.keys[layer],
        values: cache.values[layer],
      },
      params: {
        rows: at.rows,
        width: kvHeads * headDim,
        k_stride: this.model.qkvWidth,
        k_offset: heads * headDim,
        v_stride: this.model.qkvWidth,
        v_offset: (heads + kvHeads) * headDim,
        max_length: cache.maxLength,
        shift: at.shift,
      },
    });
  }

  /** Norm, logits and a token for each row of hidden states. */
  private draw(weights: Weights, at: { hidden: Buffer; rows: Rows; shift: number; scratch: Scratch }): void {
    const { rows, shift, scratch } = at;
    const { vocabSize } = this.model.config;
    const stride = logitStride(vocabSize);
    const windows = logitWindows(this.model, rows.count);
    const logits = scratch.floats((windows[0]?.rows ?? 0) * stride, "logits");
    const width = this.model.config.hiddenSize * 4;
    for (const window of windows) {
      this.normAndApply(weights, {
        norm: FINAL_NORM,
        matrix: this.model.head,
        x: at.hidden.slice(window.first * width, window.rows * width),
        y: logits,
        rows: window.rows,
        stride,
        scratch,
      });
      this.device.dispatch(chooseSample(this.device.info), {
        buffers: {
          logits,
          seeds: rows.seeds,
          positions: rows.positions,
          settings: rows.settings,
          next: rows.next,
          tokens: rows.tokens,
          logprobs: rows.logprobs,
        },
        params: {
          rows: window.rows,
          first_row: window.first,
          vocabulary: vocabSize,
          stride,
          shift,
          history_stride: rows.steps,
        },
      });
    }
  }

  /** Positions are those of the last token each sequence has: the one that a step feeds in. */
  private uploadRows(running: readonly Running[], at: { scratch: Scratch; steps: number }): Rows {
    const { scratch, steps } = at;
    const count = running.length;
    const settings = new Float32Array(count * SETTING_FLOATS);
    for (const [i, { request }] of running.entries()) {
      const { temperature, top_p, top_k } = request.params;
      settings.set([temperature, top_p, top_k], i * SETTING_FLOATS);
    }
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
        const token = tokens[row * rows.steps + step];
        it.tokens.push(token);
        it.logprobs.push(logprobs[row * rows.steps + step]);
        it.stopped = it.tokens.length >= it.limit || it.request.params.stop_token_ids.includes(token);
      }
  }
}

function finish({ request, tokens, logprobs }: Running, weight_version: number): SampledSequence {
  const stop = request.params.stop_token_ids.includes(tokens[tokens.length - 1]);
  return { tokens, logprobs, finish_reason: stop ? "stop" : "length", weight_version };
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
  const lengths = prompts.map(([first]) => first.request.prompt_ids.length);
  const offsets = new Uint32Array(prompts.length + 1);
  for (const [i, length] of lengths.entries()) offsets[i + 1] = offsets[i] + length;
  const tokens = new Uint32Array(offsets[prompts.length]);
  const slots = new Uint32Array(tokens.length);
  for (const [i, [first]] of prompts.entries()) {
    tokens.set(first.request.prompt_ids, offsets[i]);
    slots.fill(first.slot, offsets[i], offsets[i + 1]);
  }
  return { tokens, offsets, slots };
}
