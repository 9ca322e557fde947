/** Training on a store that a gateway keeps filling: each step takes the newest complete groups that no step took. */
import type { SessionSummary } from "../../../engine/contract/trace.ts";
import type { Task } from "../../data/types.ts";
import type { EpisodeSource, GenerationState, LoopState, StageContext } from "../contract.ts";
import { isStale } from "../stages/staleness.ts";
import { checkRecorded } from "./check.ts";
import type { RecordedRun } from "./fixed_set.ts";
import { loadEpisodes, type RecordedOptions } from "./load.ts";
import { groupSessions, type RecordedGroup, scanSessions, type TrainableSession } from "./scan.ts";

/** Sessions that one look at the store considers, newest first. */
const MOST_SESSIONS = 10_000;

export interface LatestOptions extends RecordedOptions {
  /** Groups of a step. */
  readonly batchSize: number;
  /** Sessions of a complete group: `rllm.rollout.n`. */
  readonly groupSize: number;
  /** Seconds between looks at the store. Default 1. */
  readonly pollSeconds?: number;
}

/** The tasks are slots: which sessions fill them is decided in each step. */
export function openLatest(options: LatestOptions): RecordedRun {
  const slot = (_: unknown, i: number): Task => ({ id: `slot ${i}`, instruction: "", metadata: {} });
  return { tasks: Array.from({ length: options.batchSize }, slot), source: new Latest(options) };
}

class Latest implements EpisodeSource {
  private readonly options: LatestOptions;
  private trained = new Set<string>();
  /** Sessions that were read: a store does not change them once they have ended with a reward. */
  private readonly known = new Map<string, TrainableSession>();
  /** Sessions that cannot be trained on, as they were when they were read: a reward or a call may still come. */
  private readonly skipped = new Map<string, string>();

  constructor(options: LatestOptions) {
    this.options = options;
  }

  get state(): GenerationState {
    return { next: 0, pending: [], trained: [...this.trained] };
  }

  resume({ generation }: LoopState): void {
    this.trained = new Set([...(generation?.sessions ?? []), ...(generation?.trained ?? [])]);
  }

  async stop(): Promise<void> {}

  async generate(_: readonly Task[], context: StageContext) {
    const groups = await this.wait(context);
    const staged = await loadEpisodes(groups, { ...this.options, context });
    for (const { sessions } of groups) for (const { session_id } of sessions) this.trained.add(session_id);
    return staged;
  }

  /** Looks until there are enough groups. */
  private async wait(context: StageContext): Promise<RecordedGroup[]> {
    const { batchSize, groupSize, pollSeconds = 1 } = this.options;
    for (;;) {
      const complete = await this.look(context);
      if (complete.length >= batchSize) return complete.slice(0, batchSize);
      context.warn?.(
        `Waiting for traces: a step needs ${batchSize} groups of ${groupSize} sessions with a reward (${complete.length} so far).`,
      );
      await pause(pollSeconds * 1000, context.signal);
    }
  }

  /** Complete groups that no step took, the newest first. Sessions of which the step would train nothing do not count. */
  private async look(context: StageContext): Promise<RecordedGroup[]> {
    const { store, groupSize } = this.options;
    const listed = await store.sessions({ limit: MOST_SESSIONS });
    const fresh = listed.filter(({ session_id }) => !this.trained.has(session_id));
    await this.read(
      fresh.filter((session) => this.isNew(session)),
      context,
    );
    const ready = fresh
      .flatMap(({ session_id }) => this.known.get(session_id) ?? [])
      .filter((session) => !isWhollyStale(session, context));
    const groups = groupSessions(ready).flatMap(({ sessions }) => completeParts(sessions, groupSize));
    return groups.sort((a, b) => endOf(b) - endOf(a));
  }

  private isNew(session: SessionSummary): boolean {
    const { session_id, outcome } = session;
    if (outcome === undefined || this.known.has(session_id)) return false;
    return this.skipped.get(session_id) !== stateOf(session);
  }

  private async read(sessions: readonly SessionSummary[], { backend, settings, warn }: StageContext): Promise<void> {
    const scanned = await scanSessions(sessions, this.options);
    const sampling = settings.rollout.train;
    for (const warning of checkRecorded(scanned.facts, backend, { sampling })) warn?.(warning);
    for (const session of scanned.sessions) this.known.set(session.session_id, session);
    for (const session of sessions)
      if (!this.known.has(session.session_id)) this.skipped.set(session.session_id, stateOf(session));
  }
}

function isWhollyStale({ weightVersions }: TrainableSession, context: StageContext): boolean {
  const stale = weightVersions.map((version) => isStale(version, context));
  const isDropped = context.settings.training.max_off_policy_strategy === "drop";
  return isDropped ? stale.includes(true) : !stale.includes(false);
}

function stateOf({ outcome, trace_count }: SessionSummary): string {
  return JSON.stringify([outcome, trace_count]);
}

/** Parts of `size` sessions in the order of their creation; a rest is not complete yet. */
function completeParts(sessions: readonly TrainableSession[], size: number): RecordedGroup[] {
  const byTime = sessions.toSorted((a, b) => a.created_at - b.created_at);
  const parts: RecordedGroup[] = [];
  for (let from = 0; from + size <= byTime.length; from += size)
    parts.push(...groupSessions(byTime.slice(from, from + size)));
  return parts;
}

function endOf({ sessions }: RecordedGroup): number {
  return Math.max(...sessions.map(({ ended_at }) => ended_at));
}

/** @throws the signal's reason when it aborts */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
