/** Results of accepted requests, which clients retrieve later. */
import { Refusal, type RequestOutcome } from "./outcome.ts";

export interface Future {
  readonly id: string;
  readonly session: string;
  /** The model of a training request. */
  readonly modelId?: string;
  /** Returns the reason why there is no result yet, for the client's log. */
  state(): QueueState;
}

export interface QueueState {
  readonly queue_state: "active" | "paused_capacity" | "paused_rate_limit";
  readonly queue_state_reason?: string;
}

/** The answer to an accepted request. */
export function futureBody({ id, modelId }: Future): { request_id: string; model_id?: string } {
  return { request_id: id, ...(modelId && { model_id: modelId }) };
}

interface Entry {
  readonly future: Future;
  outcome?: RequestOutcome;
  bytes: number;
  wasRead: boolean;
  readonly waiters: Set<() => void>;
  /** Called when the result can no longer be read. */
  readonly dropped?: (() => void) | undefined;
}

/** Memory of an entry in addition to its result's content; most of a small result. */
const ENTRY_BYTES = 2048;

/**
 * Keeps every result until its session ends; it can be read any number of times. Results beyond the budget are dropped:
 * those already read before others, older before newer.
 */
export class Futures {
  private readonly entries = new Map<string, Entry>();
  private readonly budgetBytes: number;
  private next = 0;
  /** Memory of all entries. */
  bytes = 0;
  /** Requests without a result yet. */
  pending = 0;

  constructor(options: { budgetBytes: number }) {
    this.budgetBytes = options.budgetBytes;
  }

  /** @param of.dropped called when the result can no longer be read */
  open({
    dropped,
    ...of
  }: {
    session: string;
    modelId?: string;
    state: () => QueueState;
    dropped?: () => void;
  }): Future {
    const future = { id: `${of.session}:${(this.next++).toString(36)}`, ...of };
    this.entries.set(future.id, { future, bytes: 0, wasRead: false, waiters: new Set(), dropped });
    this.pending++;
    return future;
  }

  /** Sets a future's result once; later ones are ignored, because a request that was given up may still finish. */
  settle(future: Future, outcome: RequestOutcome): void {
    const entry = this.entries.get(future.id);
    if (!entry || entry.outcome) return;
    entry.outcome = outcome;
    entry.bytes = ENTRY_BYTES + sizeOf(outcome);
    this.pending--;
    this.bytes += entry.bytes;
    for (const wake of entry.waiters) wake();
    entry.waiters.clear();
    this.fit();
  }

  isSettled(future: Future): boolean {
    return this.entries.get(future.id)?.outcome !== undefined;
  }

  /** Calls `done` when there is a result or there will be none, possibly twice. */
  whenSettled(future: Future, done: () => void): void {
    const entry = this.entries.get(future.id);
    if (!entry || entry.outcome) done();
    else entry.waiters.add(done);
  }

  find(id: string): Future {
    const entry = this.entries.get(id);
    if (entry) return entry.future;
    const detail = `Cannot retrieve ${id}: there is no such request. Its session has ended, its result was dropped to free memory, or the server was restarted. Repeat it; after a restart, open a new session and load the last checkpoint.`;
    throw new Refusal(404, detail);
  }

  /** The result, or undefined if there is none within `holdMs`. @throws Refusal 404 for an unknown id. */
  async wait(id: string, options: { holdMs: number; signal?: AbortSignal }): Promise<RequestOutcome | undefined> {
    this.find(id);
    const entry = this.entries.get(id) as Entry;
    if (!entry.outcome && options.holdMs > 0 && !options.signal?.aborted) await held(entry.waiters, options);
    if (entry.outcome) entry.wasRead = true;
    return entry.outcome;
  }

  dropSession(session: string): void {
    for (const [id, entry] of this.entries) if (entry.future.session === session) this.drop(id, entry);
  }

  /** Ends every wait, because the server stops. */
  wakeAll(): void {
    for (const { waiters } of this.entries.values()) for (const wake of waiters) wake();
  }

  private drop(id: string, entry: Entry): void {
    this.entries.delete(id);
    this.bytes -= entry.bytes;
    if (!entry.outcome) this.pending--;
    for (const wake of entry.waiters) wake();
    entry.dropped?.();
  }

  private fit(): void {
    for (const onlyRead of [true, false])
      for (const [id, entry] of this.entries) {
        if (this.bytes <= this.budgetBytes) return;
        if (entry.outcome && (entry.wasRead || !onlyRead)) this.drop(id, entry);
      }
  }
}

function sizeOf(outcome: RequestOutcome): number {
  if (outcome.kind === "proto") return outcome.bytes.byteLength;
  return outcome.kind === "failure" ? outcome.error.length : JSON.stringify(outcome.body).length;
}

function held(waiters: Set<() => void>, at: { holdMs: number; signal?: AbortSignal }): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      waiters.delete(end);
      at.signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, at.holdMs);
    waiters.add(end);
    at.signal?.addEventListener("abort", end);
  });
}
