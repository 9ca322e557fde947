/** A service's figures: judgements, rollouts, failures. */
import { Histogram } from "../../leaves/http/prometheus.ts";
import type { FailureLog } from "../../train/loop/contract.ts";
import { kindOf } from "../../train/loop/rollout/failures.ts";
import type { ServiceFailure } from "./options.ts";

/** How a rollout ended. `empty`: without a token to train on; `given_up`: by its client, or because the service closes. */
export const ROLLOUT_ENDS = ["done", "failed", "empty", "given_up", "silent"] as const;

/** One of {@link ROLLOUT_ENDS}. */
export type RolloutEnd = (typeof ROLLOUT_ENDS)[number];

/** Failures with one cause. */
export interface FailureKind {
  readonly first: ServiceFailure;
  readonly count: number;
}

/** A service's figures at a moment. */
export interface ServiceStats {
  readonly judgements: { readonly total: number; readonly failed: number; readonly waiting: number };
  readonly rollouts: { readonly open: number; readonly started: number } & Readonly<Record<RolloutEnd, number>>;
  /** Model calls that the cluster answered, and their tokens. */
  readonly calls: number;
  readonly tokens: number;
  /** Response tokens of rows longer than `max_response_length`: they are not trained on. */
  readonly cut_tokens: number;
  /** Requests that were sent again, and answered without doing their work again. */
  readonly repeats: number;
  /** Held by answers for such requests. */
  readonly answer_bytes: number;
  /** Tries of rollouts and judgements that failed, those that were repeated included. */
  readonly failed_tries: number;
  /** Failures of judgements and rollouts, most frequent first. */
  readonly failures: readonly FailureKind[];
}

/** Kinds of failures whose first message is kept. */
const MOST_KINDS = 100;

export class ServiceFigures {
  readonly judgements = { total: 0, failed: 0, waiting: 0 };
  readonly ends: Record<RolloutEnd, number> = { done: 0, failed: 0, empty: 0, given_up: 0, silent: 0 };
  readonly judgementSeconds = new Histogram();
  /** Refused requests by status. */
  readonly refusals = new Map<number, number>();
  started = 0;
  calls = 0;
  tokens = 0;
  cutTokens = 0;
  failedTries = 0;
  private readonly kinds = new Map<string, { first: ServiceFailure; count: number }>();
  private readonly listeners: ((failure: ServiceFailure) => void)[] = [];

  get failures(): FailureKind[] {
    return [...this.kinds.values()].sort((a, b) => b.count - a.count);
  }

  onFailure(listener: (failure: ServiceFailure) => void): void {
    this.listeners.push(listener);
  }

  failed(failure: ServiceFailure): void {
    const kind = `${failure.kind} ${kindOf(failure.message)}`;
    const counter = this.kinds.get(kind);
    if (counter) counter.count++;
    else if (this.kinds.size < MOST_KINDS) this.kinds.set(kind, { first: failure, count: 1 });
    for (const listener of this.listeners) listener(failure);
  }

  refused(status: number): void {
    this.refusals.set(status, (this.refusals.get(status) ?? 0) + 1);
  }

  /** Counts each failed try, and passes it on. */
  triesInto(log: FailureLog): FailureLog {
    return {
      add: (error, where) => {
        this.failedTries++;
        log.add(error, where);
      },
      finish: () => log.finish(),
    };
  }
}
