/** Requests to sample from one policy: those that are there when its turn comes run as one batch. */
import type { SampledSequence, SampleRequest } from "../backend.ts";
import type { Policy, PromptScores } from "../engine.ts";
import type { Lane } from "./turns.ts";

/** Sequences in one batch. A larger batch makes better use of the device, a smaller one lets others have it sooner. */
const BATCH_SEQUENCES = 128;
/** Prompt tokens scored in one turn, from the first job on. */
const BATCH_SCORED_TOKENS = 16_384;

/** One request: a number of continuations of a prompt, the prompt's own log-probs, or both. */
export interface SampleJob {
  readonly prompt: readonly number[];
  readonly requests: readonly SampleRequest[];
  readonly scores?: { readonly topk: number };
  done(result: { sequences: readonly SampledSequence[]; scores?: PromptScores }): void;
  failed(error: unknown): void;
}

export class SamplingLane implements Lane {
  readonly name: string;
  private readonly open: () => Promise<Policy>;
  private readonly jobs: SampleJob[] = [];
  private readonly onBatch: (batch: { sequences: number; sampled: number; scored: number }) => void;

  constructor(name: string, options: { open: () => Promise<Policy>; onBatch: SamplingLane["onBatch"] }) {
    this.name = name;
    this.open = options.open;
    this.onBatch = options.onBatch;
  }

  get length(): number {
    return this.jobs.length;
  }

  push(job: SampleJob): void {
    this.jobs.push(job);
  }

  /** Takes a job out that has not begun. */
  cancel(job: SampleJob): boolean {
    const at = this.jobs.indexOf(job);
    if (at >= 0) this.jobs.splice(at, 1);
    return at >= 0;
  }

  hasWork(): boolean {
    return this.jobs.length > 0;
  }

  async turn(): Promise<void> {
    const batch = this.take();
    try {
      const policy = await this.open();
      const scores = await scorePrompts(policy, batch);
      const sequences = await policy.sample(batch.flatMap(({ requests }) => requests));
      this.report(batch, sequences);
      let at = 0;
      for (const job of batch) {
        const own = sequences.slice(at, at + job.requests.length);
        at += own.length;
        job.done({ sequences: own, scores: scores.get(job) });
      }
    } catch (error) {
      for (const job of batch) job.failed(error);
    }
  }

  /** The oldest jobs that fit a batch, at least one. */
  private take(): SampleJob[] {
    let [sequences, scored, count] = [0, 0, 0];
    for (const { requests, scores, prompt } of this.jobs) {
      sequences += requests.length;
      scored += scores ? prompt.length : 0;
      if (count > 0 && (sequences > BATCH_SEQUENCES || scored > BATCH_SCORED_TOKENS)) break;
      count++;
    }
    return this.jobs.splice(0, count);
  }

  private report(batch: readonly SampleJob[], sequences: readonly SampledSequence[]): void {
    const sampled = sequences.reduce((sum, { tokens }) => sum + tokens.length, 0);
    const scored = batch.reduce((sum, { scores, prompt }) => sum + (scores ? prompt.length : 0), 0);
    this.onBatch({ sequences: sequences.length, sampled, scored });
  }
}

/** Prompts that want the same `topk` are scored together. */
async function scorePrompts(
  policy: Policy,
  batch: readonly SampleJob[],
): Promise<Map<SampleJob, PromptScores>> {
  const results = new Map<SampleJob, PromptScores>();
  for (const [topk, jobs] of groupByTopk(batch)) {
    const scores = await policy.scorePrompts(
      jobs.map(({ prompt }) => prompt),
      { topk },
    );
    for (const [i, job] of jobs.entries()) results.set(job, scores[i]);
  }
  return results;
}

function groupByTopk(batch: readonly SampleJob[]): Map<number, SampleJob[]> {
  const groups = new Map<number, SampleJob[]>();
  for (const job of batch)
    if (job.scores) groups.set(job.scores.topk, [...(groups.get(job.scores.topk) ?? []), job]);
  return groups;
}
