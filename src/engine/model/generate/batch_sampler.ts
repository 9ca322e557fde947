/**
 * Batched sampling with a paged key/value cache. Between chunks of steps, complete sequences give their pages to waiting
 * ones, whose prompts are computed then, long ones in pieces. A chunk is recorded whole and read back once, so tokens stay on
 * the device between its steps. Requests with the same prompt share its prefill and the pages that it fills.
 */
import type { SampledSequence } from "../../contract/backend.ts";
import type { BatchOptions } from "../../contract/engine.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { Admission, type Admitted, PolicyNumbers, type Waiting, waitingRequests } from "./admission.ts";
import { CHUNK_STEPS } from "./chunk.ts";
import { DecodeStep } from "./decode_step.ts";
import { type Ahead, Decoding } from "./decoding.ts";
import { KeptRows } from "./kept_rows.ts";
import { allocateCache, type CacheOptions, type KeyValueCache } from "./key_value_cache.ts";
import type { OfPolicy } from "./mixed_weights.ts";
import type { SpeculativeOptions } from "./ngram.ts";
import { Prefill, type PrefillOptions } from "./prefill.ts";
import { checkRequest, type DrawRequest, noteAbort, type Sequence, settle } from "./sequence.ts";

/** A batch that others may join has room for so many of them at least, as large as its largest. */
const SPARE_SEQUENCES = 15;

export interface SamplerOptions extends PrefillOptions {
  /** Guesses at tokens, verified several in a step. No bit changes. Chunks are then not pipelined. Default: none. */
  readonly speculative?: SpeculativeOptions | undefined;
  readonly cache?: CacheOptions | undefined;
  /**
   * Whether a chunk of steps is submitted before the tokens of the one before it are read. Default: on GPUs. A software
   * adapter computes on the host's cores, so that nothing is gained there and the steps of ended sequences are lost.
   */
  readonly pipelined?: boolean | undefined;
}

/** How a batch runs; requests that join name their policies. */
export interface DrawOptions extends Omit<BatchOptions, "more"> {
  readonly weightVersion: number;
  readonly more?: ((start: (requests: readonly DrawRequest[]) => boolean) => void | Promise<void>) | undefined;
}

export class BatchSampler {
  /** Called with what people should know of. */
  warn: (message: string) => void = () => {};
  private readonly model: Transformer;
  private readonly cache: CacheOptions;
  private readonly prefill: Prefill;
  private readonly decoding: Decoding;

  constructor(model: Transformer, options: SamplerOptions = {}) {
    this.model = model;
    this.cache = options.cache ?? {};
    const [step, warn] = [new DecodeStep(model), (message: string) => this.warn(message)];
    this.prefill = new Prefill(model, { ...options, step, warn });
    this.decoding = new Decoding(model, {
      step,
      isPipelined: options.pipelined ?? model.device.info.family === "tiled",
      speculative: options.speculative,
      warn,
    });
  }

  /**
   * Draws every request with the weights of its policy, in the order of the requests. What runs together changes no bit.
   * @throws ConfigError for an empty prompt, a token outside the vocabulary, a prompt that fills the context, or a request
   *   whose keys and values do not fit: before anything is drawn, and with the request's place in the error's `path`.
   */
  async sample(policy: OfPolicy, requests: readonly DrawRequest[], options: DrawOptions): Promise<SampledSequence[]> {
    for (const [i, request] of requests.entries()) checkRequest(this.model, request, i);
    const results: SampledSequence[] = [];
    if (requests.length === 0) return results;
    const scratch = new Scratch(this.model.device);
    const { signal, more, keepsResults = true } = options;
    const kept = new KeptRows(this.model.device);
    let ahead: Ahead | undefined;
    try {
      const policies = new PolicyNumbers();
      const spare = more ? Math.max(SPARE_SEQUENCES, (options.expected ?? 0) - requests.length) : 0;
      const { cache, admission } = this.open(requests, { scratch, policies, spare });
      const run = { policy, cache, kept };
      let running: Sequence[] = [];
      while (admission.waits || running.length > 0) {
        signal?.throwIfAborted();
        const admitted = admission.admit();
        // Requests that wait come first: those that join need pages as well.
        if (more && !admission.waits) await this.join(more, { admission, admitted, policies });
        running.push(...admitted.sequences);
        for (const sequence of running) noteAbort(sequence);
        await this.prefill.advance(run, { running, keepsHidden: admission.waits || more !== undefined });
        const decoding = running.filter(({ stopped, tokens }) => !stopped && tokens.length > 0);
        if (decoding.length > 0) ahead = await this.decoding.advance(run, decoding, ahead);
        for (const sequence of running.filter(({ stopped }) => stopped)) {
          admission.end(sequence);
          const result = settle(sequence, options);
          if (keepsResults) results[sequence.index] = result;
        }
        running = running.filter(({ stopped }) => !stopped);
      }
      return results;
    } finally {
      kept.release();
      scratch.release();
    }
  }

  /** @param at.spare further sequences to have room for, as large as the largest. */
  private open(
    requests: readonly DrawRequest[],
    { scratch, spare, policies }: { scratch: Scratch; spare: number; policies: PolicyNumbers },
  ): { cache: KeyValueCache; admission: Admission } {
    const { config, passLength } = this.model;
    const waiting = this.prepare(requests, policies);
    const largest = waiting.reduce((need, other) => (need.shared + need.own < other.shared + other.own ? other : need));
    const joining = Array.from({ length: spare }, (_, i) => ({ ...largest, key: `spare ${i}` }));
    const needs = [...waiting, ...joining];
    const cache = allocateCache({ config, options: this.cache }, { needs, mostRows: passLength, scratch });
    return { cache, admission: new Admission(waiting, cache) };
  }

  /** The requests with what they need, and tables of rotary positions that are long enough for them. */
  private prepare(requests: readonly DrawRequest[], policies: PolicyNumbers): Waiting[] {
    const waiting = waitingRequests(requests, this.model.contextLength, policies);
    const lengths = waiting.map(({ request, limit }) => request.prompt_ids.length + limit);
    // A chunk computes on for sequences that have ended in it.
    this.model.ropes.reserve(Math.max(...lengths) + CHUNK_STEPS);
    return waiting;
  }

  /** Starts further requests, while there is room for them. */
  private async join(
    more: NonNullable<DrawOptions["more"]>,
    { admission, admitted, policies }: { admission: Admission; admitted: Admitted; policies: PolicyNumbers },
  ): Promise<void> {
    await more((requests) => {
      for (const request of requests) checkRequest(this.model, request, admission.count);
      const waiting = this.prepare(requests, policies);
      if (!admission.fitTogether(waiting)) return false;
      for (const each of waiting) admission.add(each);
      const { sequences, prompts } = admission.admit();
      admitted.sequences.push(...sequences);
      admitted.prompts.push(...prompts);
      return true;
    });
  }
}
