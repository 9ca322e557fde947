/** The policies of samplers: the base model, saved weights, and snapshots of trainers. */
import type { EnginePolicy } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { BaseModels, ServedBaseModel } from "../base_models.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { formatPath, parsePath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";
import type { Scheduler } from "../scheduler.ts";
import type { JobPolicy } from "./batch.ts";
import { BatchCost } from "./batch_cost.ts";
import { SamplingQueue, type SamplingQueueOptions } from "./sampling_queue.ts";

interface Held {
  readonly source: JobPolicy;
  /** Queue of all policies of the base model, so that one batch can have several. */
  readonly queue: SamplingQueue;
  readonly model: ServedBaseModel;
  /** Opens the policy again after it was dropped; absent for a snapshot. */
  readonly reopen?: () => Promise<EnginePolicy>;
  policy?: EnginePolicy | undefined;
  readonly session?: string;
  /** Whether a batch that runs has it: then it is released after the batch. */
  isInUse: boolean;
  isDropped: boolean;
}

/** A policy, the queue of its jobs, and the base model that it belongs to. */
export type PolicyQueue = Pick<Held, "source" | "queue" | "model">;

/** Weights of a training client as they were. */
export interface Snapshot {
  readonly model: ServedBaseModel;
  readonly policy: EnginePolicy;
  readonly session: string;
}

export interface PoliciesOptions {
  readonly models: BaseModels;
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

export class SampledPolicies {
  private readonly options: PoliciesOptions;
  private readonly batchCost = new BatchCost();
  private readonly byModel = new Map<ServedBaseModel, SamplingQueue>();
  /** Policies in the order of use, the latest last. */
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
    return [...this.byModel.values()];
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

  base(model: ServedBaseModel): PolicyQueue {
    const isOnly = this.options.models.all.length === 1;
    const name = isOnly ? "base model" : `base model ${model.names[0]}`;
    return this.reopenable(name, { model, reopen: () => model.engine.openPolicy() });
  }

  /** The queue of a saved policy. @throws Refusal 404 for a path without a checkpoint. */
  saved(path: string): PolicyQueue {
    const { checkpoints, models } = this.options;
    const parsed = parsePath(path);
    const { time } = checkpoints.findReadable(parsed).record;
    const address = formatPath(parsed);
    const model = models.ofCheckpoint(address, () => checkpoints.findRun(parsed.run));
    // The time is part of the name because a path can be overwritten with other weights.
    const name = `${address} of ${time}`;
    for (const [other, held] of this.held)
      if (other.startsWith(`${address} `) && other !== name && !held.policy && !isWaitedFor(held))
        this.held.delete(other);
    const reopen = () =>
      checkpoints.read(parsed, async (dir, record) => {
        if (record.time === time) return model.engine.openPolicy(dir);
        throw new Refusal(
          410,
          `Cannot sample from ${address} as saved at ${time}: it has been overwritten. Create a new sampling client.`,
        );
      });
    return this.reopenable(name, { model, reopen });
  }

  private reopenable(name: string, of: Required<Pick<Held, "model" | "reopen">>): PolicyQueue {
    return this.held.get(name) ?? this.hold(name, of);
  }

  /** The queue of a snapshot, which is dropped with its session or to free memory for newer ones. */
  snapshot(name: string, of: Snapshot): PolicyQueue {
    const held = this.hold(name, of);
    this.makeRoom(name);
    return held;
  }

  /** The queue of weights that later calls with this name replace, for requests that have not begun too. */
  publish(name: string, of: Snapshot): PolicyQueue {
    const held = this.held.get(name);
    if (!held) return this.snapshot(name, of);
    held.policy?.release();
    held.policy = of.policy;
    this.markUsed(name, held);
    this.makeRoom(name);
    return held;
  }

  private markUsed(name: string, held: Held): void {
    this.held.delete(name);
    this.held.set(name, held);
  }

  private hold(name: string, of: Pick<Held, "model" | "reopen" | "policy" | "session">): Held {
    const source = { name, open: () => this.use(name), close: () => this.leave(name, held) };
    const held: Held = { source, queue: this.queueOf(of.model), isInUse: false, isDropped: false, ...of };
    this.held.set(name, held);
    return held;
  }

  private queueOf(model: ServedBaseModel): SamplingQueue {
    const existing = this.byModel.get(model);
    if (existing) return existing;
    const { onBatch, signal, scheduler, models } = this.options;
    const queue = new SamplingQueue(`the samplers of ${model.names[0]}`, {
      onBatch,
      batchCost: this.batchCost,
      signal,
      mayJoin: async (running) => (await scheduler.pause(running)) && model.engine.isLost !== true,
      isDeferred: () => models.isDeferred(model),
    });
    this.byModel.set(model, queue);
    return queue;
  }

  private async use(name: string): Promise<EnginePolicy> {
    const held = this.held.get(name);
    if (!held) throw dropped(name);
    this.markUsed(name, held);
    if (!held.policy && !held.reopen) throw dropped(name);
    held.isInUse = true;
    try {
      return await this.options.models.use(held.model, async () => held.policy ?? (await this.reopened(name, held)));
    } catch (error) {
      this.leave(name, held);
      throw error;
    }
  }

  private leave(name: string, held: Held): void {
    held.isInUse = false;
    if (!held.isDropped) return;
    held.isDropped = false;
    this.drop(name, held);
  }

  private async reopened(name: string, held: Held): Promise<EnginePolicy> {
    const policy = await held.reopen!();
    if (this.held.get(name) !== held) {
      // Nothing lists it any more: it would never be released.
      policy.release();
      throw new Refusal(
        410,
        `Cannot sample from ${name}: it was replaced while it was opened. Create a new sampling client.`,
      );
    }
    held.policy = policy;
    this.makeRoom(name);
    if (this.bytes > this.options.budgetBytes && this.isShared(held)) {
      this.dropNow(name, held);
      throw new ConfigError(`Cannot add ${name} to the batch: its policies fill the memory for them. It runs alone.`, {
        path: "base_model",
      });
    }
    return policy;
  }

  /** Whether the batch that a policy is opened for has others: alone, one may be larger than the budget. */
  private isShared(held: Held): boolean {
    return [...this.held.values()].some((other) => other !== held && other.isInUse);
  }

  /** Drops policies until the rest fit, except the wanted one and those in use. */
  private makeRoom(wanted: string): void {
    let bytes = this.bytes;
    let snapshots = [...this.held.values()].filter(({ reopen }) => !reopen).length;
    for (const [name, held] of this.held) {
      if (bytes <= this.options.budgetBytes && snapshots <= MOST_SNAPSHOTS) return;
      if (name === wanted || !held.policy || held.isInUse) continue;
      bytes -= held.policy.bytes;
      snapshots -= held.reopen ? 0 : 1;
      this.drop(name, held);
    }
  }

  private drop(name: string, held: Held): void {
    held.isDropped = held.isInUse;
    if (!held.isInUse) this.dropNow(name, held);
  }

  private dropNow(name: string, held: Held): void {
    held.policy?.release();
    held.policy = undefined;
    // A snapshot with waiting requests stays listed: each of them fails at its turn.
    if (!held.reopen && !isWaitedFor(held)) this.held.delete(name);
  }

  dropSession(session: string): void {
    for (const [name, held] of this.held) if (held.session === session) this.drop(name, held);
  }

  /** Whether a snapshot keeps the model loaded. */
  needs(model: ServedBaseModel): boolean {
    return [...this.held.values()].some((held) => held.model === model && held.policy && !held.reopen);
  }

  /** Drops the policies of a model that can be opened again. */
  close(model: ServedBaseModel): void {
    for (const [name, held] of this.held) if (held.model === model && held.reopen) this.drop(name, held);
  }

  /** After the loss of these models' device: saved policies are opened again at their next use, snapshots are gone. */
  lose(lost: readonly ServedBaseModel[]): void {
    for (const [name, held] of this.held) if (lost.includes(held.model)) this.drop(name, held);
  }

  release(): void {
    for (const { policy } of this.held.values()) policy?.release();
    this.held.clear();
  }
}

function isWaitedFor({ queue, source }: Held): boolean {
  return queue.lengthFor(source) > 0;
}

function dropped(name: string): Refusal {
  return new Refusal(
    410,
    `Cannot sample from ${name}: its weights were dropped to free memory for newer snapshots, or lost with the GPU device. Take a new snapshot, or save the weights under a name (save_weights_for_sampler(name=...)).`,
  );
}
