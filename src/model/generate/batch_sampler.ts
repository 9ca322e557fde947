/**
 * Batched sampling with a paged key/value cache. Between chunks of steps, complete sequences give their pages to waiting
 * ones. A chunk is recorded whole and read back once, so tokens stay on the device between its steps. Requests with the
 * same prompt share its prefill and the pages that it fills.
 */
import type { Buffer, Data, ReadRequest } from "../../compute/device.ts";
import type { SampledSequence } from "../../contract/backend.ts";
import type { BatchOptions } from "../../contract/engine.ts";
import { OutOfMemoryError } from "../../errors.ts";
import { gatherRows } from "../logit_windows.ts";
import { packInput } from "../packed_input.ts";
import { Scratch } from "../scratch.ts";
import { type PassOptions, PassSize } from "../train/pass_size.ts";
import { nextPass } from "../train/targets.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { Admission, type Admitted, PolicyNumbers, type Waiting, waitingRequests } from "./admission.ts";
import { CHUNK_STEPS, collect, uploadRows } from "./chunk.ts";
import { DecodeStep } from "./decode_step.ts";
import { type Ahead, Decoding, ordered, type Run, weightsOfRows } from "./decoding.ts";
import { drawGroups, hostRows } from "./host_rows.ts";
import { allocateCache, appendToCache, type CacheOptions, copyPages, type KeyValueCache } from "./key_value_cache.ts";
import { byPolicy, type OfPolicy, weightsOf } from "./mixed_weights.ts";
import { joined, keepHidden, packPrompts, promptEndCopies, promptOffsets } from "./packing.ts";
import { checkRequest, type DrawRequest, type Prompt, type Sequence, settle } from "./sequence.ts";

/** A batch that others may join has room for so many of them at least, as large as its largest. */
const SPARE_SEQUENCES = 15;

export interface SamplerOptions extends PassOptions {
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

/** The weights of prompts whose policies lie together, a row for each token. */
function promptWeights({ policy }: Run, prompts: readonly Prompt[]): Weights {
  return weightsOf(prompts.map((prompt) => ({ policy: prompt.policy ?? policy, rows: prompt.ids.length })));
}

export class BatchSampler {
  /** Called with what people should know of. */
  warn: (message: string) => void = () => {};
  private readonly model: Transformer;
  private readonly cache: CacheOptions;
  private readonly size: PassSize;
  private readonly decodeStep: DecodeStep;
  private readonly decoding: Decoding;

  constructor(model: Transformer, options: SamplerOptions = {}) {
    this.model = model;
    this.cache = options.cache ?? {};
    this.size = new PassSize(model, options);
    this.decodeStep = new DecodeStep(model);
    this.decoding = new Decoding(model, {
      step: this.decodeStep,
      isPipelined: options.pipelined ?? model.device.info.family === "tiled",
      warn: (message) => this.warn(message),
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
    let ahead: Ahead | undefined;
    try {
      const policies = new PolicyNumbers();
      const spare = more ? Math.max(SPARE_SEQUENCES, (options.expected ?? 0) - requests.length) : 0;
      const { cache, admission } = this.open(requests, { scratch, policies, spare });
      const run = { policy, cache };
      let running: Sequence[] = [];
      while (admission.waits || running.length > 0) {
        signal?.throwIfAborted();
        const admitted = admission.admit();
        // Requests that wait come first: those that join need pages as well.
        if (more && !admission.waits) await this.join(more, { admission, admitted, policies });
        await this.begin(run, admitted, { keepsHidden: admission.waits || more !== undefined });
        running.push(...admitted.sequences);
        const unfinished = running.filter(({ stopped }) => !stopped);
        if (unfinished.length > 0) ahead = await this.decoding.advance(run, unfinished, ahead);
        for (const sequence of running.filter(({ stopped }) => stopped)) {
          admission.end(sequence);
          const result = settle(sequence, options);
          if (keepsResults) results[sequence.index] = result;
        }
        running = running.filter(({ stopped }) => !stopped);
      }
      return results;
    } finally {
      ahead?.release();
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
    const largest = waiting.reduce((one, other) => (one.shared + one.own < other.shared + other.own ? other : one));
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

  /** Fills the cache with the prompts of new sequences, and draws the first token of each. */
  private async begin(run: Run, admitted: Admitted, { keepsHidden }: { keepsHidden: boolean }): Promise<void> {
    const prompts = byPolicy(admitted.prompts, ({ policy }) => policy ?? run.policy);
    const late = ordered(
      run,
      admitted.sequences.filter(({ prompt }) => prompt.hidden),
    );
    if (prompts.length > 0) await this.prefill(run, { prompts, keepsHidden });
    if (late.length === 0) return;
    for (const group of drawGroups(this.model, late))
      await Scratch.recording(this.model.device, async (scratch) => {
        const hidden = scratch.upload(joined(group.map(({ prompt }) => prompt.hidden!)), "hidden rows");
        await this.drawFirst(run, { sequences: group, hidden, scratch });
      });
  }

  /** Runs prompts in passes. A pass that runs out of memory is repeated with fewer prompts. */
  private async prefill(run: Run, at: { prompts: readonly Prompt[]; keepsHidden: boolean }): Promise<void> {
    const { prompts, keepsHidden } = at;
    // Work that others rely on runs before, because a refused pass forgets what was recorded.
    promptWeights(run, prompts).prepare();
    await this.model.device.submit();
    const offsets = promptOffsets(prompts);
    for (let from = 0; from < prompts.length; ) {
      const { to } = nextPass(from, [{ offsets, most: this.size.tokens }]);
      const tokens = offsets[to]! - offsets[from]!;
      try {
        await this.prefillPass(run, { prompts: prompts.slice(from, to), keepsHidden });
        from = to;
        this.tell();
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        this.size.reduce(error, { tokens, sequences: to - from, work: "sample after" });
      }
    }
  }

  private tell(): void {
    const warning = this.size.takeWarning();
    if (warning !== undefined) this.warn(warning);
  }

  /** Runs each prompt once, fills the cache, and draws the first token of its sequences. */
  private prefillPass(run: Run, at: { prompts: readonly Prompt[]; keepsHidden: boolean }): Promise<void> {
    const { prompts } = at;
    const { config, device } = this.model;
    return Scratch.recording(this.model.device, async (scratch) => {
      const { tokens, offsets, places } = packPrompts(prompts);
      const placed = scratch.upload(places, "places in the cache");
      const { hidden } = this.model.forward(promptWeights(run, prompts), {
        input: packInput(scratch, { tokens, offsets }),
        scratch,
        visit: (layer, qkv) =>
          appendToCache(device, run.cache, { config, layer, qkv, rows: tokens.length, places: placed }),
      });
      const rows = { from: hidden, scratch };
      const ends = prompts.map((_, i) => offsets[i + 1]! - 1);
      let reads: readonly ReadRequest[] = at.keepsHidden
        ? [{ buffer: gatherRows(this.model, { ...rows, positions: Uint32Array.from(ends) }), type: "f32" }]
        : [];
      // A pass that is repeated draws for those that have no token yet.
      const sequences = prompts.flatMap(({ members }) => [...members]).filter((it) => it.tokens.length === 0);
      const endOf = new Map(prompts.map((prompt, i) => [prompt, ends[i]!]));
      for (const group of drawGroups(this.model, sequences)) {
        const positions = Uint32Array.from(group, ({ prompt }) => endOf.get(prompt)!);
        const last = gatherRows(this.model, { ...rows, positions });
        const [kept] = await this.drawFirst(run, { sequences: group, hidden: last, scratch, reads });
        if (reads.length > 0) keepHidden(prompts, kept as Float32Array);
        reads = [];
      }
    });
  }

  /**
   * Draws each sequence's first token from the hidden states of its prompt's last, [sequences, C], and copies the end of
   * its prompt. Both run now: a later refusal of memory would forget a copy that is only recorded.
   */
  private async drawFirst(
    run: Run,
    at: { sequences: readonly Sequence[]; hidden: Buffer; scratch: Scratch; reads?: readonly ReadRequest[] },
  ): Promise<Data[]> {
    const { sequences, hidden, scratch } = at;
    copyPages(run.cache, promptEndCopies(sequences), { config: this.model.config, scratch });
    const host = hostRows(this.model, sequences, scratch);
    const rows = { ...uploadRows(sequences, { scratch, steps: 1 }), host };
    this.decodeStep.draw(weightsOfRows(run, sequences), { hidden, rows, shift: 0, scratch });
    return collect(this.model, { running: sequences, rows, reads: at.reads });
  }
}
