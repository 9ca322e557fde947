/** Jobs that are sampled together: whose they are, and what each of them got. */
import type { SampledSequence, SampleRequest } from "../../../engine/contract/backend.ts";
import type { EnginePolicy, PromptDraws, PromptScores, PromptTargets } from "../../../engine/contract/engine.ts";
import { DeviceLostError } from "../../../leaves/errors.ts";

/** Scored tokens of a prompt: its own unless `own` is false, the most likely ones, given ones and drawn ones. */
export interface PromptScoring {
  readonly own?: boolean | undefined;
  readonly topk: number;
  readonly targets?: PromptTargets | undefined;
  readonly draws?: PromptDraws | undefined;
}

/** Policy that jobs sample from. */
export interface JobPolicy {
  readonly name: string;
  /** The weights, for a turn: they are held until {@link close}. */
  open(): Promise<EnginePolicy>;
  close(): void;
}

/** A request for continuations of a prompt, for the prompt's log-probs, or for both. */
export interface SampleJob {
  /** Owner whose turn it takes: a session, or an agent's key. */
  readonly owner: string;
  readonly policy: JobPolicy;
  readonly prompt: readonly number[];
  readonly requests: readonly SampleRequest[];
  readonly scores?: PromptScoring | undefined;
  done(result: { sequences: readonly SampledSequence[]; scores?: PromptScores | undefined }): void;
  failed(error: unknown): void;
}

/** Most tokens that a job uses: its prompt, and all that it may draw. */
export function mostTokens({ prompt, requests }: SampleJob): number {
  return requests.reduce((sum, { params }) => sum + params.max_tokens, prompt.length);
}

/** A batch that runs. A job leaves it with the last of its sequences; others may run on. */
export class Batch {
  /** The log-probs of prompts, where jobs ask for them. */
  scores: ReadonlyMap<SampleJob, PromptScores> = new Map();
  /** Milliseconds in which others had the device. */
  pausedMs = 0;
  /** Sequences so far, of all jobs. */
  sequences = 0;
  /** Counts of the complete sequences: their number, their tokens, and those of the longest. */
  readonly complete = { sequences: 0, tokens: 0, longest: 0 };
  private taken = { sequences: 0, tokens: 0 };
  /** Jobs that are not done, with their complete sequences. */
  private readonly open = new Map<SampleJob, SampledSequence[]>();
  /** The job of each sequence that is not complete, and its place in it. */
  private readonly places = new Map<number, readonly [job: SampleJob, place: number]>();
  /** Most tokens, by owner. */
  private readonly tokens = new Map<string, number>();
  /** Tokens of jobs that are done or failed, by owner. */
  private readonly used = new Map<string, number>();

  add(job: SampleJob): void {
    this.open.set(job, []);
    this.number(job);
    this.tokens.set(job.owner, this.tokensOf(job.owner) + mostTokens(job));
  }

  private number(job: SampleJob): void {
    for (const place of job.requests.keys()) this.places.set(this.sequences++, [job, place]);
  }

  /** Jobs that are not done. */
  get jobs(): readonly SampleJob[] {
    return [...this.open.keys()];
  }

  tokensOf(owner: string): number {
    return this.tokens.get(owner) ?? 0;
  }

  /** Sequences that are not complete, by owner. */
  get running(): Map<string, number> {
    const counts = new Map<string, number>();
    for (const [{ owner }] of this.places.values()) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    return counts;
  }

  /** Takes a sequence that is complete, by its place among those of all jobs. */
  end(sequence: SampledSequence, index: number): void {
    const job = this.put(sequence, index);
    const open = job && this.open.get(job);
    if (open && open.filter(() => true).length === job.requests.length) this.settle(job, open);
  }

  private put(sequence: SampledSequence, index: number): SampleJob | undefined {
    const [job, place] = this.places.get(index) ?? [];
    if (this.places.delete(index)) this.count(sequence);
    const open = job && this.open.get(job);
    if (open) open[place!] = sequence;
    return job;
  }

  /** Returns the counts of what is complete since the last call. */
  takeCounts(): { sequences: number; tokens: number } {
    const { sequences, tokens } = this.complete;
    const more = { sequences: sequences - this.taken.sequences, tokens: tokens - this.taken.tokens };
    this.taken = { sequences, tokens };
    return more;
  }

  private count({ tokens }: SampledSequence): void {
    this.complete.sequences++;
    this.complete.tokens += tokens.length;
    this.complete.longest = Math.max(this.complete.longest, tokens.length);
  }

  /** Takes all sequences that {@link end} has not had: every job is done. Those of failed jobs may be absent. */
  finish(sequences: readonly SampledSequence[]): void {
    for (const index of [...this.places.keys()]) {
      const sequence = sequences[index];
      if (sequence) this.put(sequence, index);
    }
    for (const [job, open] of this.open) this.settle(job, open);
  }

  private settle(job: SampleJob, sequences: readonly SampledSequence[]): void {
    this.open.delete(job);
    this.charge(
      job,
      sequences.reduce((sum, { tokens }) => sum + tokens.length, job.prompt.length),
    );
    job.done({ sequences, scores: this.scores.get(job) });
  }

  private charge({ owner }: SampleJob, tokens: number): void {
    this.used.set(owner, (this.used.get(owner) ?? 0) + tokens);
  }

  /** Fails the jobs that are not done. */
  fail(error: unknown): void {
    for (const job of this.open.keys()) this.failJob(job, error);
  }

  /** Fails the job of one sequence. */
  failAt(index: number, error: unknown): void {
    const job = this.places.get(index)?.[0];
    this.places.delete(index);
    if (job && this.open.has(job)) this.failJob(job, error);
  }

  private failJob(job: SampleJob, error: unknown): void {
    this.open.delete(job);
    this.charge(job, mostTokens(job));
    job.failed(error);
  }

  /** Fails the job of a sequence before anything is drawn; see {@link remove}. */
  refuseAt(index: number, error: unknown): void {
    const job = this.places.get(index)?.[0];
    if (job) this.refuse(job, error);
  }

  /** Fails a job before anything is drawn. @throws a DeviceLostError, which concerns all jobs */
  refuse(job: SampleJob, error: unknown): void {
    if (error instanceof DeviceLostError) throw error;
    this.remove(job);
    job.failed(error);
  }

  /** Takes a job out before anything is drawn, and numbers the sequences of the others again. */
  remove(job: SampleJob): void {
    this.open.delete(job);
    this.tokens.set(job.owner, this.tokensOf(job.owner) - mostTokens(job));
    this.places.clear();
    this.sequences = 0;
    for (const other of this.open.keys()) this.number(other);
  }

  /** Tokens by owner: those of jobs that are done, and all that a failed one might have used. */
  shares(): Map<string, number> {
    return new Map([...this.tokens.keys()].map((owner) => [owner, this.used.get(owner) ?? 0]));
  }
}
