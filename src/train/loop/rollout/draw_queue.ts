/**
 * Batches the model calls of concurrent rollouts. Each rollout is an ordinary async function; its calls wait here and are
 * sampled together as soon as every running rollout waits for one, or after a short delay. Timing decides only which calls
 * share a batch: a local model samples the same bits in any batch.
 */
import type { Backend, SampledSequence, SampleRequest } from "../../../engine/contract/backend.ts";

/** The longest time for which a rollout that does not sample (a tool, a network call) delays the others. */
const LINGER_MS = 10;

/** Sampler of the model calls of attempts. */
export interface Draws {
  /** Runs one rollout, which counts as running until it settles. */
  during<T>(rollout: () => Promise<T>): Promise<T>;
  /** @param rank orders calls that are sampled together */
  draw(request: SampleRequest, rank: number): Promise<SampledSequence>;
  /** Set when sampling failed. No rollout caused it, so none is retried. */
  readonly failure: unknown;
}

interface Draw {
  readonly request: SampleRequest;
  /** Orders the requests of a batch, so that timing cannot. */
  readonly rank: number;
  readonly resolve: (sequence: SampledSequence) => void;
  readonly reject: (error: unknown) => void;
}

export class DrawQueue implements Draws {
  private readonly backend: Backend;
  private readonly signal: AbortSignal;
  private readonly weights: "current" | "published";
  private waiting: Draw[] = [];
  private running = 0;
  private isSampling = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  failure: unknown;

  constructor(
    backend: Backend,
    signal: AbortSignal,
    { weights = "current" }: { weights?: "current" | "published" } = {},
  ) {
    this.backend = backend;
    this.signal = signal;
    this.weights = weights;
  }

  async during<T>(rollout: () => Promise<T>): Promise<T> {
    this.running++;
    try {
      return await rollout();
    } finally {
      this.running--;
      this.schedule();
    }
  }

  draw(request: SampleRequest, rank: number): Promise<SampledSequence> {
    return new Promise((resolve, reject) => {
      this.waiting.push({ request, rank, resolve, reject });
      this.schedule();
    });
  }

  /** Checks in a later task, so that rollouts that start together are sampled together. */
  private schedule(): void {
    clearTimeout(this.timer);
    if (this.isSampling || this.waiting.length === 0) return;
    this.timer = setTimeout(() => {
      if (this.waiting.length >= this.running) void this.flush();
      else this.timer = setTimeout(() => void this.flush(), LINGER_MS);
    });
  }

  private async flush(): Promise<void> {
    const draws = this.waiting.sort((a, b) => a.rank - b.rank);
    this.waiting = [];
    this.isSampling = true;
    try {
      const requests = draws.map((draw) => draw.request);
      const { signal, weights } = this;
      const sequences = await this.backend.sample(requests, { signal, weights });
      draws.forEach((draw, i) => void draw.resolve(sequences[i]!));
    } catch (error) {
      this.failure ??= error;
      for (const draw of draws) draw.reject(error);
    } finally {
      this.isSampling = false;
    }
    this.schedule();
  }
}
