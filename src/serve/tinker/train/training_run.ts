/** One training client: its model, and its requests in order, one per turn. */
import type { Trainer } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { ServedBaseModel } from "../base_models.ts";
import type { RunRecord } from "../checkpoint/record.ts";
import type { Future, Futures, QueueState } from "../protocol/futures.ts";
import { Refusal, type RequestOutcome, requestFailure } from "../protocol/outcome.ts";
import type { Scheduler, WorkQueue } from "../scheduler.ts";
import { RequestSequence } from "./request_sequence.ts";

export type OperationKind = "create" | "forward" | "forward_backward" | "optim_step" | "save" | "load" | "unload";

export interface Operation {
  readonly kind: OperationKind;
  readonly future: Future;
  /** Whether it may run while a batch of samples pauses: it replaces nothing that the batch uses. Default false. */
  readonly fitsBetween?: boolean;
  run(trainer: Trainer): Promise<RequestOutcome>;
}

export interface TrainingRunOptions {
  readonly model: ServedBaseModel;
  readonly create: () => Promise<Trainer>;
  /** Called when the model could not be made. */
  readonly notCreated: () => void;
  readonly futures: Futures;
  readonly scheduler: Scheduler;
  readonly gapMs: number;
  readonly mostParked: number;
}

export class TrainingRun implements WorkQueue {
  readonly sequence: RequestSequence<Operation>;
  readonly model: ServedBaseModel;
  record: RunRecord;
  trainer: Trainer | undefined;
  /** Optimiser steps that no checkpoint holds. */
  unsavedSteps = 0;
  private readonly options: TrainingRunOptions;
  private readonly ready: Operation[] = [];
  /** Reason why a part of the accumulated gradient is missing. */
  private broken: string | undefined;
  /** Reason why the model can no longer be used. */
  private gone: string | undefined;

  constructor(record: RunRecord, options: TrainingRunOptions) {
    this.record = record;
    this.model = options.model;
    this.options = options;
    this.sequence = new RequestSequence({
      gapMs: options.gapMs,
      most: options.mostParked,
      ready: (operation) => this.enqueue(operation),
      givenUp: (operation, missing) => this.giveUp(operation, missing),
    });
  }

  get name(): string {
    return this.record.id;
  }

  get queued(): number {
    return this.ready.length;
  }

  owners(): Iterable<string> {
    return this.ready.length > 0 ? [this.record.session] : [];
  }

  fitsBetween(): boolean {
    return this.ready[0]?.fitsBetween === true;
  }

  /** A future for a request of this run. */
  open(): Future {
    const { record, name, sequence } = this;
    const state = (): QueueState => ({
      queue_state: "active",
      ...(sequence.parkedCount > 0 && { queue_state_reason: `waiting for seq_id ${sequence.missing}` }),
    });
    return this.options.futures.open({ session: record.session, modelId: name, state });
  }

  enqueue(operation: Operation): void {
    this.ready.push(operation);
    this.options.scheduler.wake(this, this.record.session);
  }

  /** Fails every request that has not begun. */
  refuseQueued(reason: Refusal): void {
    for (const { future } of [...this.ready.splice(0), ...this.sequence.clear()])
      this.options.futures.settle(future, requestFailure(reason));
  }

  async turn(): Promise<undefined> {
    const operation = this.ready.shift() as Operation;
    const outcome = await this.perform(operation).catch(requestFailure);
    if (outcome.kind === "failure" && operation.kind === "forward_backward")
      this.broken ??= `a forward_backward before it failed (${outcome.error})`;
    this.options.futures.settle(operation.future, outcome);
  }

  private async perform(operation: Operation): Promise<RequestOutcome> {
    if (this.gone !== undefined) throw new Refusal(404, this.gone);
    if (operation.kind === "create") return this.make(operation);
    const trainer = this.loaded();
    if (operation.kind === "optim_step") await this.refuseBroken(trainer);
    const outcome = await operation.run(trainer);
    if (operation.kind === "optim_step") this.unsavedSteps++;
    // A load drops the accumulated gradient, and what was missing in it.
    if (operation.kind === "load") this.broken = undefined;
    return outcome;
  }

  /** The trainer; only valid once the model has been made. */
  loaded(): Trainer {
    return this.trainer as Trainer;
  }

  /** Makes the model; on failure nothing of it stays in memory. */
  private async make(operation: Operation): Promise<RequestOutcome> {
    try {
      this.trainer = await this.options.create();
      return await operation.run(this.trainer);
    } catch (error) {
      this.release(`Cannot use the model ${this.name}: it could not be made. ${(error as Error).message}`);
      this.options.notCreated();
      throw error;
    }
  }

  /** A step on a part of the gradient would go unnoticed, so the first one is refused and the gradient is cleared. */
  private async refuseBroken(trainer: Trainer): Promise<void> {
    if (this.broken === undefined) return;
    const reason = this.broken;
    this.broken = undefined;
    await trainer.clearGradients().catch((error: unknown) => {
      this.broken ??= reason;
      throw error;
    });
    throw new ConfigError(
      `Cannot run optim_step: ${reason}. The weights are unchanged and the gradient is cleared. Repeat the step, starting with its forward_backward.`,
    );
  }

  private giveUp({ kind, future }: Operation, missing: bigint): void {
    const seconds = this.options.gapMs / 1000;
    const error = `Cannot run the request: the one before it, seq_id ${missing}, did not arrive within ${seconds} s. Send requests without gaps in seq_id.`;
    if (kind === "forward_backward") this.broken ??= "a forward_backward before it never ran";
    this.options.futures.settle(future, { kind: "failure", error, category: "user" });
  }

  /** Whether the model is gone from the device. */
  get isGone(): boolean {
    return this.gone !== undefined;
  }

  /** Frees the device memory; waiting requests fail with the reason. */
  release(reason: string): void {
    this.gone ??= reason;
    this.refuseQueued(new Refusal(404, this.gone));
    this.trainer?.release();
    this.trainer = undefined;
  }
}
