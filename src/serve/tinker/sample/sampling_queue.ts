/**
 * Requests to sample from policies of one engine. Those waiting when its turn comes run as one batch, of several policies
 * where the engine mixes them; others join while it runs.
 */
import type { SampledSequence } from "../../../engine/contract/backend.ts";
import type { BatchOptions, PolicyRequest, StartRequests } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { WorkQueue } from "../scheduler.ts";
import { Batch, type JobPolicy, mostTokens, type SampleJob } from "./batch.ts";
import type { BatchCost } from "./batch_cost.ts";
import { OpenPolicies } from "./open_policies.ts";
import { scoredTokens, scorePrompts } from "./score_prompts.ts";

/** Sequences in one batch. A larger batch uses the device better, a smaller one frees it sooner. */
const BATCH_SEQUENCES = 128;
/** Decay of the demand from one batch to the next: what was wanted once is forgotten. */
const DEMAND_DECAY = 0.8;
/** Prompt tokens scored in one turn, unless a single job has more. */
const BATCH_SCORED_TOKENS = 16_384;
/**
 * Sequences after which no more join a batch, and the same after a time, ms: what is allocated for it is given back then. What waits for
 * its end takes up to twice as long, so this is rare.
 */
const JOINED_SEQUENCES = 65_536;
const JOINED_MS = 20 * 60_000;
/** The same after a shorter time where less than a quarter of its room is wanted. */
const WIDE_MS = 30_000;
const WIDE_FACTOR = 4;

export interface SamplingQueueOptions {
  /** Called while a batch runs, with what is complete since the last call, and at its end, with `batches` 1. */
  readonly onBatch: (batch: { batches: number; sequences: number; sampled: number; scored: number }) => void;
  /** Measured on the device, shared by all queues. */
  readonly batchCost: BatchCost;
  /** Aborts the current batch. */
  readonly signal?: AbortSignal;
  /**
   * Asked between the steps of a batch, given the sequences that run, by owner: whether requests that arrived meanwhile may join it.
   * What it waits for does not count as the batch's time. Absent: never.
   */
  readonly mayJoin?: (running: ReadonlyMap<string, number>) => boolean | Promise<boolean>;
  /** See {@link WorkQueue.isDeferred}. Absent: never. */
  readonly isDeferred?: () => boolean;
  /** Sequences and time after which no more join a batch. Default 65,536, and 20 minutes. */
  readonly joined?: { readonly sequences: number; readonly ms: number };
}

export class SamplingQueue implements WorkQueue {
  readonly name: string;
  private readonly options: SamplingQueueOptions;
  /** Jobs by session, in the order of arrival; a session without jobs has no entry. */
  private readonly jobs = new Map<string, SampleJob[]>();
  /** Sequences that ran and waited together at most in the last batches. */
  private demand = 0;

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

  /** Waiting jobs for a policy. */
  lengthFor(policy: JobPolicy): number {
    let count = 0;
    for (const queue of this.jobs.values()) for (const job of queue) if (job.policy === policy) count++;
    return count;
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

  isDeferred(): boolean {
    return this.options.isDeferred?.() === true;
  }

  async turn(owner: string): Promise<ReadonlyMap<string, number>> {
    const { signal } = this.options;
    const batch = this.take(owner);
    const policies = new OpenPolicies();
    try {
      await this.open(policies, batch);
      const scored = scoredTokens(batch.jobs);
      batch.scores = await scorePrompts(policies, batch);
      signal?.throwIfAborted();
      const sequences = await this.sampleAccepted(policies, batch);
      batch.finish(sequences);
      this.report(batch, { batches: 1, scored });
    } catch (error) {
      batch.fail(signal?.aborted ? signal.reason : error);
    } finally {
      policies.close();
    }
    return batch.shares();
  }

  /** Opens the policies of a batch. A job fails whose policy cannot be opened, and waits where it cannot be mixed with the first. */
  private async open(policies: OpenPolicies, batch: Batch): Promise<void> {
    const later: SampleJob[] = [];
    for (const job of batch.jobs) {
      try {
        if (await policies.add(job.policy)) continue;
        batch.remove(job);
        later.push(job);
      } catch (error) {
        batch.refuse(job, error);
      }
    }
    for (const job of later.reverse()) this.jobs.set(job.owner, [job, ...(this.jobs.get(job.owner) ?? [])]);
  }

  /** Samples a batch. A request that the policy refuses fails alone, and the others are sampled without it. */
  private async sampleAccepted(policies: OpenPolicies, batch: Batch): Promise<SampledSequence[]> {
    while (batch.jobs.length > 0) {
      try {
        return await this.sample(policies, batch);
      } catch (error) {
        const refused = batch.jobs.length > 1 ? refusedRequest(error) : undefined;
        if (refused === undefined) throw error;
        batch.refuseAt(refused, error);
      }
    }
    return [];
  }

  /** Samples a batch, and the jobs that join it where they may. */
  private async sample(policies: OpenPolicies, batch: Batch): Promise<SampledSequence[]> {
    const { batchCost } = this.options;
    const first = batch.sequences;
    const started = performance.now();
    const requests = batch.jobs.flatMap((job) => requestsOf(policies, job));
    const sequences = await policies.lead!.sample(requests, this.batchOptions(policies, batch));
    // What joined ran for a part of the time.
    if (batch.sequences === first) {
      batch.finish(sequences);
      const { longest, tokens } = batch.complete;
      batchCost.observe({ steps: longest, tokens }, performance.now() - started - batch.pausedMs);
    }
    return sequences;
  }

  private batchOptions(policies: OpenPolicies, batch: Batch): BatchOptions {
    const { signal, mayJoin, joined = { sequences: JOINED_SEQUENCES, ms: JOINED_MS } } = this.options;
    const onFail = (error: unknown, index: number) => batch.failAt(index, error);
    if (!mayJoin) return { signal, onFail };
    this.demand = Math.max(this.demand * DEMAND_DECAY, this.wanted(batch));
    const began = performance.now();
    const room = Math.max(batch.sequences, Math.min(Math.ceil(this.demand), BATCH_SEQUENCES));
    const isWide = () => performance.now() > began + WIDE_MS && this.wanted(batch) * WIDE_FACTOR < room;
    // A batch has the room that it took at its start. One that took all that waited may be too small for what comes.
    const tookAll = !this.hasWork();
    let isFull = false;
    const isOver = () => batch.sequences >= joined.sequences || performance.now() >= began + joined.ms || isWide();
    const isOpen = () => !isFull && this.hasWork() && !isOver();
    return {
      signal,
      expected: Math.min(Math.ceil(this.demand), BATCH_SEQUENCES),
      keepsResults: false,
      more: async (start) => {
        this.demand = Math.max(this.demand, this.wanted(batch));
        this.report(batch, { batches: 0, scored: 0 });
        const asked = performance.now();
        const mayJoinNow = await mayJoin(batch.running);
        batch.pausedMs += performance.now() - asked;
        while (mayJoinNow && isOpen() && (await this.join(policies, { batch, start })));
        isFull ||= tookAll && this.length > batch.jobs.length;
      },
      onEnd: (sequence, index) => batch.end(sequence, index),
      onFail,
    };
  }

  /** Sequences that run or wait. */
  private wanted({ running }: Batch): number {
    const counts = [...running.values(), ...[...this.jobs.values()].flat().map(({ requests }) => requests.length)];
    return counts.reduce((sum, count) => sum + count, 0);
  }

  /** Moves one job into a running batch: of the session with the fewest tokens in it. @returns whether another may follow */
  private async join(
    policies: OpenPolicies,
    { batch, start }: { batch: Batch; start: StartRequests },
  ): Promise<boolean> {
    const who = this.least(batch);
    const job = who === undefined ? undefined : this.jobs.get(who)?.[0];
    // Scores are taken before a batch starts: such a job waits for the next.
    if (!job || job.scores) return false;
    try {
      policies.keep(new Set(batch.jobs.map(({ policy }) => policy)));
      if (!(await policies.add(job.policy))) return false;
      // It may have been cancelled meanwhile.
      if (!this.has(job)) return true;
      if (!start(requestsOf(policies, job))) return false;
      this.cancel(job);
      batch.add(job);
    } catch (error) {
      if (this.cancel(job)) job.failed(error);
    }
    return true;
  }

  private has(job: SampleJob): boolean {
    return this.jobs.get(job.owner)?.includes(job) === true;
  }

  /** Fills a batch, with at least one job: the owner's oldest, then one of the session with the fewest tokens in it so far. */
  private take(owner: string): Batch {
    const batch = new Batch();
    let [sequences, scored, steps, total] = [0, 0, 0, 0];
    for (let who: string | undefined = owner; who !== undefined; who = this.least(batch)) {
      const [job] = this.jobs.get(who) as SampleJob[];
      sequences += job!.requests.length;
      scored += job!.scores ? job!.prompt.length : 0;
      steps = Math.max(steps, ...job!.requests.map(({ params }) => params.max_tokens));
      total += mostTokens(job!) - job!.prompt.length;
      const isFull = sequences > BATCH_SEQUENCES || scored > BATCH_SCORED_TOKENS;
      if (batch.jobs.length > 0 && (isFull || !this.options.batchCost.allows({ steps, tokens: total }))) break;
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

  private report(batch: Batch, { batches, scored }: { batches: number; scored: number }): void {
    const { sequences, tokens: sampled } = batch.takeCounts();
    if (batches + sequences > 0) this.options.onBatch({ batches, sequences, sampled, scored });
  }
}

/** The job's requests, which name their policy where the batch's is another. */
function requestsOf(policies: OpenPolicies, { policy: source, requests }: SampleJob): readonly PolicyRequest[] {
  const policy = policies.of(source);
  return policy === policies.lead ? requests : requests.map((request) => ({ ...request, policy }));
}

/** The place of the request that a policy refuses before it draws anything, from the error's path. */
function refusedRequest(error: unknown): number | undefined {
  const place = error instanceof ConfigError ? /^requests\[(\d+)\]$/.exec(error.path ?? "")?.[1] : undefined;
  return place === undefined ? undefined : Number(place);
}
