/** The policies of samplers: the base model, saved weights, and snapshots of trainers. */
import type { Engine, EnginePolicy } from "../../contract/engine.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { formatPath, parsePath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";
import type { Scheduler } from "../scheduler.ts";
import { BatchCost } from "./batch_cost.ts";
import { SamplingQueue, type SamplingQueueOptions } from "./sampling_queue.ts";

interface Held {
  readonly queue: SamplingQueue;
  /** Opens the policy again after it was dropped; absent for a snapshot. */
  readonly reopen?: () => Promise<EnginePolicy>;
  policy?: EnginePolicy | undefined;
  readonly session?: string;
}

export interface PoliciesOptions {
  readonly engine: Engine;
  readonly checkpoints: Checkpoints;
  readonly scheduler: Scheduler;
  /** Device memory for policies; the least recently used ones are dropped. */
  readonly budgetBytes: number;
  readonly onBatch: SamplingQueueOptions["onBatch"];
  /** Aborts the current batch; clients get its reason. */
  readonly signal: AbortSignal;
}

/** Bounds the number of entries if snapshots are tiny. */
const MOST_SNAPSHOTS = 1024;

export class Policies {
  private readonly options: PoliciesOptions;
  private readonly batchCost = new BatchCost();
  /** In the order of use, the latest last. */
  private readonly held = new Map<string, Held>();

  constructor(options: PoliciesOptions) {
    this.options = options;
  }

  get bytes(): number {
    let sum = 0;
    for (const { policy } of this.held.values()) sum += policy?.bytes ?? 0;
    return sum;
  }

  get queues(): readonly SamplingQueue[] {
    return [...this.held.values()].map(({ queue }) => queue);
  }

  /** Waiting requests. */
  get queued(): number {
    return this.queues.reduce((sum, queue) => sum + queue.length, 0);
  }

  /** Waiting requests of one session. */
  queuedBy(session: string): number {
    return this.queues.reduce((sum, queue) => sum + queue.lengthOf(session), 0);
  }

  /** Fails waiting requests: those of a session that ended, or all of them because the server stops. */
  clear(session?: string): void {
    const reason =
      session === undefined ? this.options.signal.reason : new Refusal(404, "Cannot sample: the session has ended.");
    for (const job of this.queues.flatMap((queue) => queue.clear(session))) job.failed(reason);
  }

  base(): SamplingQueue {
    return this.reopenable("base model", () => this.options.engine.openPolicy());
  }

  /** The queue of a saved policy. @throws Refusal 404 for a path without a checkpoint. */
  saved(path: string): SamplingQueue {
    const { checkpoints, engine } = this.options;
    const parsed = parsePath(path);
    const { time } = checkpoints.find(parsed).record;
    const address = formatPath(parsed);
    // The time is part of the name because a path can be overwritten with other weights.
    const name = `${address} of ${time}`;
    for (const [other, { queue, policy }] of this.held)
      if (other.startsWith(`${address} `) && other !== name && !policy && !queue.hasWork()) this.held.delete(other);
    return this.reopenable(name, async () => {
      const { dir, record } = checkpoints.find(parsed);
      if (record.time === time) return engine.openPolicy(dir);
      throw new Refusal(
        410,
        `Cannot sample from ${address} as saved at ${time}: it has been overwritten. Create a new sampling client.`,
      );
    });
  }

  private reopenable(name: string, reopen: () => Promise<EnginePolicy>): SamplingQueue {
    const held = this.held.get(name);
    if (held) return held.queue;
    return this.hold(name, { reopen }).queue;
  }

  /** The queue of a snapshot, which is dropped with its session or to free memory for newer ones. */
  snapshot(name: string, of: { policy: EnginePolicy; session: string }): SamplingQueue {
    const { queue } = this.hold(name, of);
    this.makeRoom(name);
    return queue;
  }

  /** The queue of weights that later calls with this name replace, for requests that have not begun too. */
  publish(name: string, of: { policy: EnginePolicy; session: string }): SamplingQueue {
    const held = this.held.get(name);
    if (!held) return this.snapshot(name, of);
    held.policy?.release();
    held.policy = of.policy;
    this.markUsed(name, held);
    this.makeRoom(name);
    return held.queue;
  }

  private markUsed(name: string, held: Held): void {
    this.held.delete(name);
    this.held.set(name, held);
  }

  private hold(name: string, of: Pick<Held, "reopen" | "policy" | "session">): Held {
    const queue = new SamplingQueue(name, {
      open: () => this.use(name),
      onBatch: this.options.onBatch,
      batchCost: this.batchCost,
      signal: this.options.signal,
    });
    const held = { queue, ...of };
    this.held.set(name, held);
    return held;
  }

  private async use(name: string): Promise<EnginePolicy> {
    const held = this.held.get(name);
    if (!held) throw dropped(name);
    this.markUsed(name, held);
    if (!held.policy) {
      if (!held.reopen) throw dropped(name);
      held.policy = await held.reopen();
      this.makeRoom(name);
    }
    return held.policy;
  }

  /** Drops policies until the rest fit, except the wanted one and the one in use. */
  private makeRoom(wanted: string): void {
    let bytes = this.bytes;
    let snapshots = [...this.held.values()].filter(({ reopen }) => !reopen).length;
    for (const [name, held] of this.held) {
      if (bytes <= this.options.budgetBytes && snapshots <= MOST_SNAPSHOTS) return;
      if (name === wanted || !held.policy || held.queue === this.options.scheduler.current) continue;
      bytes -= held.policy.bytes;
      snapshots -= held.reopen ? 0 : 1;
      this.drop(name, held);
    }
  }

  private drop(name: string, held: Held): void {
    held.policy?.release();
    held.policy = undefined;
    // A snapshot with waiting requests stays listed: each of them fails at its turn.
    if (!held.reopen && !held.queue.hasWork()) this.held.delete(name);
  }

  dropSession(session: string): void {
    for (const [name, held] of this.held) if (held.session === session) this.drop(name, held);
  }

  /** After the loss of the device: saved policies are opened again at their next use, snapshots are gone. */
  lose(): void {
    for (const [name, held] of this.held) this.drop(name, held);
  }

  release(): void {
    for (const { policy } of this.held.values()) policy?.release();
    this.held.clear();
  }
}

function dropped(name: string): Refusal {
  return new Refusal(
    410,
    `Cannot sample from ${name}: its weights were dropped to free memory for newer snapshots, or lost with the GPU device. Take a new snapshot, or save the weights under a name (save_weights_for_sampler(name=...)).`,
  );
}
