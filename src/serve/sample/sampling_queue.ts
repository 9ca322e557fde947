/** Requests to sample from one policy. Those waiting when its turn comes run as one batch. */
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import type { EnginePolicy, PromptScores } from "../../contract/engine.ts";
import { ConfigError, DeviceLostError } from "../../errors.ts";
import type { WorkQueue } from "../scheduler.ts";
import { Batch, mostTokens, type SampleJob } from "./batch.ts";
import type { BatchCost, BatchSize } from "./batch_cost.ts";

/** Sequences in one batch. A larger batch uses the device better, a smaller one frees it sooner. */
const BATCH_SEQUENCES = 128;
/** Prompt tokens scored in one turn, unless a single job has more. */
const BATCH_SCORED_TOKENS = 16_384;
/** Sequences after which no more join a batch: it keeps the results of all until it ends. */
const JOINED_SEQUENCES = 4096;
/** The same after this time, ms. */
const JOINED_MS = 300_000;

export interface SamplingQueueOptions {
  readonly open: () => Promise<EnginePolicy>;
  readonly onBatch: (batch: { sequences: number; sampled: number; scored: number }) => void;
  /** Measured on the device, shared by all queues. */
  readonly batchCost: BatchCost;
  /** Aborts the current batch. */
  readonly signal?: AbortSignal;
  /** Whether requests that arrive while a batch runs may join it now. Absent: never. */
  readonly mayJoin?: () => boolean;
  /** Sequences and time after which no more join a batch. Default 4096, and five minutes. */
  readonly joined?: { readonly sequences: number; readonly ms: number };
}

export class SamplingQueue implements WorkQueue {
  readonly name: string;
  private readonly options: SamplingQueueOptions;
  /** Jobs by session, in the order of arrival; a session without jobs has no entry. */
  private readonly jobs = new Map<string, SampleJob[]>();

  constructor(name: string, options: SamplingQueueOptions) {
    this.name = name;
    this.options = options;
  }

  get length(): number {
    let sum = 0;
    for (const queue of this.jobs.values()) sum += queue.length;
    return sum;
  }

  lengthOf(owner: string): number {
    return this.jobs.get(owner)?.length ?? 0;
  }

  push(job: SampleJob): void {
    const queue = this.jobs.get(job.owner);
    if (queue) queue.push(job);
    else this.jobs.set(job.owner, [job]);
  }

  /** Removes a job that has not begun. @returns whether it was there. */
  cancel(job: SampleJob): boolean {
    const queue = this.jobs.get(job.owner);
    const at = queue?.indexOf(job) ?? -1;
    if (queue && at >= 0) queue.splice(at, 1);
    if (queue?.length === 0) this.jobs.delete(job.owner);
    return at >= 0;
  }

  /** Removes and returns the jobs that have not begun, of one session or of all. */
  clear(owner?: string): SampleJob[] {
    const jobs = [...this.jobs].flatMap(([who, queue]) => (who === (owner ?? who) ? queue : []));
    if (owner === undefined) this.jobs.clear();
    else this.jobs.delete(owner);
    return jobs;
  }

  hasWork(): boolean {
    return this.jobs.size > 0;
  }

  owners(): Iterable<string> {
    return this.jobs.keys();
  }

  async turn(owner: string): Promise<ReadonlyMap<string, number>> {
    const { open, signal, batchCost } = this.options;
    const batch = this.take(owner);
    try {
      const policy = await open();
      const scored = scoredTokens(batch.jobs);
      batch.scores = await scorePrompts(policy, batch);
      signal?.throwIfAborted();
      const started = performance.now();
      const sequences = await this.sampleAccepted(policy, batch);
      batch.finish(sequences);
      batchCost.observe(sizeOf(sequences), performance.now() - started);
      this.report(sequences, scored);
    } catch (error) {
      batch.fail(signal?.aborted ? signal.reason : error);
    }
    return batch.shares();
  }

  /** Samples a batch. A request that the policy refuses fails alone, and the others are sampled without it. */
  private async sampleAccepted(policy: EnginePolicy, batch: Batch): Promise<SampledSequence[]> {
    while (batch.jobs.length > 0) {
      try {
        return await this.sample(policy, batch);
      } catch (error) {
        const refused = batch.jobs.length > 1 ? refusedRequest(error) : undefined;
        if (refused === undefined) throw error;
        batch.refuseAt(refused, error);
      }
    }
    return [];
  }

  /** Samples a batch, and the jobs that join it where they may. */
  private sample(policy: EnginePolicy, batch: Batch): Promise<SampledSequence[]> {
    const { signal, mayJoin, joined = { sequences: JOINED_SEQUENCES, ms: JOINED_MS } } = this.options;
    const requests = batch.jobs.flatMap((job) => job.requests);
    const onFail = (error: unknown, index: number) => batch.failAt(index, error);
    if (!mayJoin) return policy.sample(requests, { signal, onFail });
    const end = performance.now() + joined.ms;
    const isOpen = () => batch.sequences < joined.sequences && performance.now() < end && mayJoin();
    return policy.sample(requests, {
      signal,
      more: (start) => {
        while (isOpen() && this.join(batch, start));
      },
      onEnd: (sequence, index) => batch.end(sequence, index),
      onFail,
    });
  }

  /** Moves one job into a running batch: of the session with the fewest tokens in it. @returns whether one did */
  private join(batch: Batch, start: (request: SampleRequest) => boolean): boolean {
    const who = this.least(batch);
    const job = who === undefined ? undefined : this.jobs.get(who)?.[0];
    // Several requests could start in part, and scores are taken before a batch starts: such a job waits for the next.
    if (!job || job.scores || job.requests.length !== 1) return false;
    try {
      if (!start(job.requests[0]!)) return false;
      this.cancel(job);
      batch.add(job);
    } catch (error) {
      this.cancel(job);
      job.failed(error);
    }
    return true;
  }

  /** Fills a batch, with at least one job: the owner's oldest, then one of the session with the fewest tokens in it so far. */
  private take(owner: string): Batch {
    const batch = new Batch();
    let [sequences, scored, steps, all] = [0, 0, 0, 0];
    for (let who: string | undefined = owner; who !== undefined; who = this.least(batch)) {
      const [job] = this.jobs.get(who) as SampleJob[];
      sequences += job!.requests.length;
      scored += job!.scores ? job!.prompt.length : 0;
      steps = Math.max(steps, ...job!.requests.map(({ params }) => params.max_tokens));
      all += mostTokens(job!) - job!.prompt.length;
      const isFull = sequences > BATCH_SEQUENCES || scored > BATCH_SCORED_TOKENS;
      if (batch.jobs.length > 0 && (isFull || !this.options.batchCost.allows({ steps, tokens: all }))) break;
      this.cancel(job!);
      batch.add(job!);
    }
    return batch;
  }

  /** The session with work that has the fewest tokens in the batch. */
  private least(batch: Batch): string | undefined {
    let best: string | undefined;
    for (const who of this.jobs.keys())
      if (best === undefined || batch.tokensOf(who) < batch.tokensOf(best)) best = who;
    return best;
  }

  private report(sequences: readonly SampledSequence[], scored: number): void {
    const sampled = sequences.reduce((sum, { tokens }) => sum + tokens.length, 0);
    this.options.onBatch({ sequences: sequences.length, sampled, scored });
  }
}

/** The place of the request that a policy refuses before it draws anything, from the error's path. */
function refusedRequest(error: unknown): number | undefined {
  const place = error instanceof ConfigError ? /^requests\[(\d+)\]$/.exec(error.path ?? "")?.[1] : undefined;
  return place === undefined ? undefined : Number(place);
}

function scoredTokens(batch: readonly SampleJob[]): number {
  return batch.reduce((sum, { scores, prompt }) => sum + (scores ? prompt.length : 0), 0);
}

function sizeOf(sequences: readonly SampledSequence[]): BatchSize {
  const lengths = sequences.map(({ tokens }) => tokens.length);
  return { steps: Math.max(0, ...lengths), tokens: lengths.reduce((sum, length) => sum + length, 0) };
}

/** Scores prompts of which the same is wanted together. A prompt that cannot be scored fails its own job. */
async function scorePrompts(policy: EnginePolicy, batch: Batch): Promise<Map<SampleJob, PromptScores>> {
  const results = new Map<SampleJob, PromptScores>();
  for (const jobs of groupByScores(batch.jobs)) {
    const { own, topk } = jobs[0]!.scores!;
    const score = async (some: readonly SampleJob[]) => {
      const prompts = some.map(({ prompt }) => prompt);
      const targets = some.map(({ scores }) => scores?.targets);
      const draws = some.map(({ scores }) => scores?.draws);
      const scores = await policy.scorePrompts(prompts, { own, topk, targets, draws });
      for (const [i, job] of some.entries()) results.set(job, scores[i]!);
    };
    try {
      await score(jobs);
    } catch (error) {
      if (error instanceof DeviceLostError || batch.jobs.length === 1) throw error;
      // Which prompt it was shows when each is scored alone.
      for (const job of jobs) await score([job]).catch((own: unknown) => refuse(batch, { job, error: own }));
    }
  }
  return results;
}

function refuse(batch: Batch, { job, error }: { job: SampleJob; error: unknown }): void {
  if (error instanceof DeviceLostError) throw error;
  batch.refuse(job, error);
}

function groupByScores(batch: readonly SampleJob[]): Iterable<readonly SampleJob[]> {
  const groups = new Map<string, SampleJob[]>();
  for (const job of batch) {
    if (!job.scores) continue;
    const { own = true, topk } = job.scores;
    const key = `${topk} ${own}`;
    groups.set(key, [...(groups.get(key) ?? []), job]);
  }
  return groups.values();
}
