/** Jobs that are sampled together: whose they are, and what each of them got. */
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import type { PromptScores } from "../../contract/engine.ts";

/** A request for continuations of a prompt, for the prompt's log-probs, or for both. */
export interface SampleJob {
  /** The session that sent it. */
  readonly owner: string;
  readonly prompt: readonly number[];
  readonly requests: readonly SampleRequest[];
  readonly scores?: { readonly topk: number } | undefined;
  done(result: { sequences: readonly SampledSequence[]; scores?: PromptScores | undefined }): void;
  failed(error: unknown): void;
}

/** Most tokens that a job uses: its prompt, and all that it may draw. */
export function mostTokens({ prompt, requests }: SampleJob): number {
  return requests.reduce((sum, { params }) => sum + params.max_tokens, prompt.length);
}

/** A batch that runs. A job is done with the last of its sequences; others may run on. */
export class Batch {
  readonly jobs: SampleJob[] = [];
  scores: ReadonlyMap<SampleJob, PromptScores> = new Map();
  /** Most tokens, by session. */
  private readonly tokens = new Map<string, number>();
  /** The job of each sequence, and the sequence's place in it. */
  private readonly places: (readonly [job: SampleJob, place: number])[] = [];
  private readonly results = new Map<SampleJob, SampledSequence[]>();
  private readonly settled = new Set<SampleJob>();

  add(job: SampleJob): void {
    this.jobs.push(job);
    this.results.set(job, []);
    for (const place of job.requests.keys()) this.places.push([job, place]);
    this.tokens.set(job.owner, this.tokensOf(job.owner) + mostTokens(job));
  }

  tokensOf(owner: string): number {
    return this.tokens.get(owner) ?? 0;
  }

  /** Takes a sequence that is complete, by its place among those of all jobs. */
  end(sequence: SampledSequence, index: number): void {
    const [job, place] = this.places[index]!;
    this.results.get(job)![place] = sequence;
    const isWhole = this.results.get(job)!.filter(() => true).length === job.requests.length;
    if (isWhole) this.settle(job);
  }

  /** Takes all sequences: every job is done. */
  finish(sequences: readonly SampledSequence[]): void {
    for (const [i, [job, place]] of this.places.entries()) this.results.get(job)![place] = sequences[i]!;
    for (const job of this.jobs) this.settle(job);
  }

  private settle(job: SampleJob): void {
    if (this.settled.has(job)) return;
    this.settled.add(job);
    job.done({ sequences: this.results.get(job)!, scores: this.scores.get(job) });
  }

  /** Fails the jobs that are not done. */
  fail(error: unknown): void {
    for (const job of this.jobs) {
      if (this.settled.has(job)) continue;
      this.settled.add(job);
      job.failed(error);
    }
  }

  /** Tokens by session: those of jobs that are done, and all that a failed one might have used. */
  shares(): Map<string, number> {
    const shares = new Map<string, number>();
    for (const job of this.jobs) {
      const own = this.results.get(job)!;
      const used = own.reduce((sum, { tokens }) => sum + tokens.length, job.prompt.length);
      shares.set(
        job.owner,
        (shares.get(job.owner) ?? 0) + (own.length > 0 || job.requests.length === 0 ? used : mostTokens(job)),
      );
    }
    return shares;
  }
}
