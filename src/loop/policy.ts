/**
 * The policy that rollouts call. Each rollout is an ordinary async function; their model calls are gathered here and
 * drawn together, as soon as every running rollout waits for one (or nothing new has come for a moment).
 */
import type { Backend, SampledSequence, SampleRequest, SamplingParams } from "../backend.ts";
import { seedOf } from "../data/random.ts";
import { UnsupportedError } from "../errors.ts";
import { type Completion, type Policy, Termination } from "../task/rollout.ts";

/** A rollout that does something else than sampling (a tool, a network call) holds the others up for at most this. */
const LINGER_MS = 10;

interface Draw {
  readonly request: SampleRequest;
  /** Order of requests within a batch, so that timing never changes it. */
  readonly rank: number;
  readonly resolve: (sequence: SampledSequence) => void;
  readonly reject: (error: unknown) => void;
}

/** Gathers model calls into batches. */
export class Sampler {
  private readonly backend: Backend;
  private readonly signal: AbortSignal;
  private waiting: Draw[] = [];
  private running = 0;
  private isDrawing = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** Set when the backend itself failed: no rollout's fault, and nothing to retry. */
  failure: unknown;

  constructor(backend: Backend, signal: AbortSignal) {
    this.backend = backend;
    this.signal = signal;
  }

  /** Runs one rollout, so that the sampler knows how many may still ask. */
  async during<T>(rollout: () => Promise<T>): Promise<T> {
    this.running++;
    try {
      return await rollout();
    } finally {
      this.running--;
      this.consider();
    }
  }

  draw(request: SampleRequest, rank: number): Promise<SampledSequence> {
    return new Promise((resolve, reject) => {
      this.waiting.push({ request, rank, resolve, reject });
      this.consider();
    });
  }

  /** Looks again once everything that can run now has run: what starts together is drawn together. */
  private consider(): void {
    clearTimeout(this.timer);
    if (this.isDrawing || this.waiting.length === 0) return;
    this.timer = setTimeout(() => {
      if (this.waiting.length >= this.running) void this.flush();
      else this.timer = setTimeout(() => void this.flush(), LINGER_MS);
    });
  }

  private async flush(): Promise<void> {
    const draws = this.waiting.sort((a, b) => a.rank - b.rank);
    this.waiting = [];
    this.isDrawing = true;
    try {
      const requests = draws.map((draw) => draw.request);
      const sequences = await this.backend.sample(requests, { signal: this.signal });
      draws.forEach((draw, i) => void draw.resolve(sequences[i]));
    } catch (error) {
      this.failure ??= error;
      for (const draw of draws) draw.reject(error);
    } finally {
      this.isDrawing = false;
    }
    this.consider();
  }
}

export interface PolicyOptions {
  readonly sampler: Sampler;
  readonly backend: Backend;
  readonly params: SamplingParams;
  readonly maxPromptLength: number;
  readonly isValidation: boolean;
  readonly signal: AbortSignal;
  /** Of this attempt; each call mixes its own number in. */
  readonly seed: number;
  readonly rank: number;
}

/**
 * One attempt's view of the model.
 * @throws {UnsupportedError} when the backend has no tokenizer.
 */
export function createPolicy(options: PolicyOptions): Policy {
  const { backend, sampler, signal, isValidation } = options;
  const { tokenizer } = backend;
  if (!tokenizer) {
    throw new UnsupportedError(
      `Cannot run rollouts on text as the backend ${backend.name} has no tokenizer`,
      {
        part: backend.name,
        capability: "tokenizer",
      },
    );
  }
  let calls = 0;
  return {
    tokenizer,
    isValidation,
    signal,
    async complete(prompt, overrides): Promise<Completion> {
      const prompt_ids = typeof prompt === "string" ? tokenizer.encode(prompt) : [...prompt];
      const params = fitParams({ ...options.params, ...overrides }, { prompt_ids, options });
      const request = { prompt_ids, params, seed: seedOf(options.seed, calls++) };
      const { tokens, logprobs, finish_reason, weight_version } = await sampler.draw(request, options.rank);
      return {
        prompt_ids,
        response_ids: tokens,
        logprobs,
        ...(typeof prompt === "string" && { prompt }),
        model_response: tokenizer.decode(tokens),
        reward: 0,
        done: false,
        weight_version,
        finish_reason,
      };
    },
  };
}

function fitParams(
  params: SamplingParams,
  it: { prompt_ids: readonly number[]; options: PolicyOptions },
): SamplingParams {
  const room = it.options.backend.model.contextLength - it.prompt_ids.length;
  if (it.prompt_ids.length > it.options.maxPromptLength || room < 1) {
    throw new Termination("max_prompt_length_exceeded");
  }
  return { ...params, max_tokens: Math.min(params.max_tokens, room) };
}
