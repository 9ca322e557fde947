/**
 * Where the model calls of rollouts meet. Each rollout is an ordinary async function; their calls are gathered here and
 * drawn together, as soon as every running rollout waits for one (or nothing new has come for a moment). Time decides who is
 * drawn with whom, and no more: a local model's draw has the same bits in any company.
 */
import type { Backend, SampledSequence, SampleRequest } from "../../contract/backend.ts";

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
  private readonly weights: "current" | "published";
  private waiting: Draw[] = [];
  private running = 0;
  private isDrawing = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** Set when the backend itself failed: no rollout's fault, and nothing to retry. */
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
      const { signal, weights } = this;
      const sequences = await this.backend.sample(requests, { signal, weights });
      draws.forEach((draw, i) => void draw.resolve(sequences[i]!));
    } catch (error) {
      this.failure ??= error;
      for (const draw of draws) draw.reject(error);
    } finally {
      this.isDrawing = false;
    }
    this.consider();
  }
}
