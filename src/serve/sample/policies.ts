/** The policies that samplers stand on: the base model, saved ones, and snapshots of trainers. */
import type { Engine, Policy } from "../../contract/engine.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { formatPath, parsePath } from "../checkpoint/record.ts";
import { Refusal } from "../protocol/outcome.ts";
import type { Scheduler } from "../scheduler.ts";
import { BatchCost } from "./batch_cost.ts";
import { SamplingQueue, type SamplingQueueOptions } from "./sampling_queue.ts";

interface Held {
  readonly lane: SamplingQueue;
  /** Opens it again; absent for a snapshot, which is gone when it is dropped. */
  readonly reopen?: () => Promise<Policy>;
  policy?: Policy | undefined;
  readonly session?: string;
}

export interface PoliciesOptions {
  readonly engine: Engine;
  readonly checkpoints: Checkpoints;
  readonly scheduler: Scheduler;
  /** Device memory for policies; those used longest ago make room. */
  readonly budgetBytes: number;
  readonly onBatch: SamplingQueueOptions["onBatch"];
  /** Ends the batch in hand; its reason is sent to the clients. */
  readonly signal: AbortSignal;
}

/** Bounds the bookkeeping where snapshots are tiny. */
const MOST_SNAPSHOTS = 1024;

export class Policies {
  private readonly options: PoliciesOptions;
  private readonly pace = new BatchCost();
  /** The one used last comes last. */
  private readonly held = new Map<string, Held>();

  constructor(options: PoliciesOptions) {
    this.options = options;
  }

  get bytes(): number {
    let sum = 0;
    for (const { policy } of this.held.values()) sum += policy?.bytes ?? 0;
    return sum;
  }

  get lanes(): readonly SamplingQueue[] {
    return [...this.held.values()].map(({ lane }) => lane);
  }

  /** Requests that wait. */
  get queued(): number {
    return this.lanes.reduce((sum, lane) => sum + lane.length, 0);
  }

  /** Requests of one session that wait. */
  queuedBy(session: string): number {
    return this.lanes.reduce((sum, lane) => sum + lane.lengthOf(session), 0);
  }

  /** Gives up the requests that have not begun, of a session that ended or of all because the server stops. */
  clear(session?: string): void {
    const reason =
      session === undefined
        ? this.options.signal.reason
        : new Refusal(404, "Cannot sample: the session has ended.");
    for (const job of this.lanes.flatMap((lane) => lane.clear(session))) job.failed(reason);
  }

  base(): SamplingQueue {
    return this.reopenable("base model", () => this.options.engine.openPolicy());
  }

  /** The lane of a saved policy. @throws Refusal where there is none at the path. */
  saved(path: string): SamplingQueue {
    const { checkpoints, engine } = this.options;
    const parsed = parsePath(path);
    const { time } = checkpoints.find(parsed).record;
    const address = formatPath(parsed);
    // A path may be saved again: what was saved then are other weights.
    const name = `${address} of ${time}`;
    for (const [other, { lane, policy }] of this.held)
      if (other.startsWith(`${address} `) && other !== name && !policy && !lane.hasWork())
        this.held.delete(other);
    return this.reopenable(name, async () => {
      const { dir, record } = checkpoints.find(parsed);
      if (record.time === time) return engine.openPolicy(dir);
      throw new Refusal(
        410,
        `Cannot sample from ${address} as it was on ${time}: it was replaced since. Make a new sampling client.`,
      );
    });
  }

  private reopenable(name: string, reopen: () => Promise<Policy>): SamplingQueue {
    const held = this.held.get(name);
    if (held) return held.lane;
    return this.hold(name, { reopen }).lane;
  }

  /** A snapshot's lane; it is dropped with its session, or when newer ones need the room. */
  snapshot(name: string, of: { policy: Policy; session: string }): SamplingQueue {
    const { lane } = this.hold(name, of);
    this.makeRoom(name);
    return lane;
  }

  private hold(name: string, of: Pick<Held, "reopen" | "policy" | "session">): Held {
    const lane = new SamplingQueue(name, {
      open: () => this.use(name),
      onBatch: this.options.onBatch,
      pace: this.pace,
      signal: this.options.signal,
    });
    const held = { lane, ...of };
    this.held.set(name, held);
    return held;
  }

  private async use(name: string): Promise<Policy> {
    const held = this.held.get(name);
    if (!held) throw dropped(name);
    this.held.delete(name);
    this.held.set(name, held);
    if (!held.policy) {
      if (!held.reopen) throw dropped(name);
      held.policy = await held.reopen();
      this.makeRoom(name);
    }
    return held.policy;
  }

  /** Drops policies until the rest fit, but for the one that is wanted now. */
  private makeRoom(wanted: string): void {
    let bytes = this.bytes;
    let snapshots = [...this.held.values()].filter(({ reopen }) => !reopen).length;
    for (const [name, held] of this.held) {
      if (bytes <= this.options.budgetBytes && snapshots <= MOST_SNAPSHOTS) return;
      if (name === wanted || !held.policy || held.lane === this.options.scheduler.current) continue;
      bytes -= held.policy.bytes;
      snapshots -= held.reopen ? 0 : 1;
      this.drop(name, held);
    }
  }

  private drop(name: string, held: Held): void {
    held.policy?.release();
    held.policy = undefined;
    // Without a way to open it again, requests that wait for it meet the error at their turn.
    if (!held.reopen && !held.lane.hasWork()) this.held.delete(name);
  }

  dropSession(session: string): void {
    for (const [name, held] of this.held) if (held.session === session) this.drop(name, held);
  }

  release(): void {
    for (const { policy } of this.held.values()) policy?.release();
    this.held.clear();
  }
}

function dropped(name: string): Refusal {
  return new Refusal(
    410,
    `Cannot sample from ${name} as its weights were dropped to make room for newer snapshots. Take a new snapshot, or keep weights by a name (save_weights_for_sampler(name=...)).`,
  );
}
