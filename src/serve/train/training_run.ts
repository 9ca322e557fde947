/** One training client: its requests in order, one a turn. */
import type { Trainer } from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";
import type { RunRecord } from "../checkpoint/record.ts";
import type { Future, Futures } from "../protocol/futures.ts";
import { failureOf, type Outcome, Refusal } from "../protocol/outcome.ts";
import type { Scheduler, WorkQueue } from "../scheduler.ts";
import { Sequence } from "./sequence.ts";

export type OperationKind =
  | "create"
  | "forward"
  | "forward_backward"
  | "optim_step"
  | "save"
  | "load"
  | "unload";

export interface Operation {
  readonly kind: OperationKind;
  readonly future: Future;
  run(trainer: Trainer): Promise<Outcome>;
}

export class TrainingRun implements WorkQueue {
  readonly sequence: Sequence<Operation>;
  record: RunRecord;
  trainer: Trainer | undefined;
  /** Optimiser steps that no checkpoint holds. */
  unsavedSteps = 0;
  private readonly futures: Futures;
  private readonly ready: Operation[] = [];
  private readonly scheduler: Scheduler;
  private readonly create: () => Promise<Trainer>;
  private readonly notCreated: () => void;
  /** Why the gradient that has gathered is not what the client thinks it is. */
  private broken: string | undefined;
  private gone: string | undefined;

  constructor(
    record: RunRecord,
    options: {
      create: () => Promise<Trainer>;
      /** Told when the request that makes the model has failed. */
      notCreated: () => void;
      futures: Futures;
      scheduler: Scheduler;
      gapMs: number;
      mostParked: number;
    },
  ) {
    this.record = record;
    this.create = options.create;
    this.notCreated = options.notCreated;
    this.futures = options.futures;
    this.scheduler = options.scheduler;
    this.sequence = new Sequence({
      gapMs: options.gapMs,
      most: options.mostParked,
      ready: (operation) => this.enqueue(operation),
      givenUp: (operation, missing) => this.giveUp(operation, { missing, gapMs: options.gapMs }),
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

  enqueue(operation: Operation): void {
    this.ready.push(operation);
    this.scheduler.wake(this, this.record.session);
  }

  /** Gives up all requests that have not begun. */
  refuseQueued(reason: Refusal): void {
    for (const { future } of [...this.ready.splice(0), ...this.sequence.clear()])
      this.futures.settle(future, failureOf(reason));
  }

  async turn(): Promise<undefined> {
    const operation = this.ready.shift() as Operation;
    const outcome = await this.perform(operation).catch(failureOf);
    if (outcome.kind === "failure" && operation.kind === "forward_backward")
      this.broken ??= `a forward_backward before it failed (${outcome.error})`;
    this.futures.settle(operation.future, outcome);
  }

  private async perform(operation: Operation): Promise<Outcome> {
    if (this.gone !== undefined) throw new Refusal(404, this.gone);
    if (operation.kind === "create") return this.make(operation);
    const trainer = this.loaded();
    if (operation.kind === "optim_step") this.refuseBroken(trainer);
    const outcome = await operation.run(trainer);
    if (operation.kind === "optim_step") this.unsavedSteps++;
    return outcome;
  }

  /** The trainer of a model that has been made. */
  loaded(): Trainer {
    return this.trainer as Trainer;
  }

  /** What fails on the way leaves nothing behind. */
  private async make(operation: Operation): Promise<Outcome> {
    try {
      this.trainer = await this.create();
      return await operation.run(this.trainer);
    } catch (error) {
      this.release(`Cannot use the model ${this.name}: it could not be made. ${(error as Error).message}`);
      this.notCreated();
      throw error;
    }
  }

  /** A step on a part of the gradient would pass unnoticed: it is refused, once, and the gradient is cleared. */
  private refuseBroken(trainer: Trainer): void {
    if (this.broken === undefined) return;
    const reason = this.broken;
    this.broken = undefined;
    trainer.clearGradients();
    throw new ConfigError(
      `Cannot take the optimiser step as ${reason}. The weights are unchanged and the gradient is cleared: repeat the step from its forward_backward on.`,
    );
  }

  private giveUp({ kind, future }: Operation, { missing, gapMs }: { missing: bigint; gapMs: number }): void {
    const error = `Cannot run the request as the one before it, seq_id ${missing}, did not arrive within ${gapMs / 1000} s: send requests without gaps.`;
    if (kind === "forward_backward") this.broken ??= "a forward_backward before it never ran";
    this.futures.settle(future, { kind: "failure", error, category: "user" });
  }

  /** Frees the device memory. What waits gets the reason as its error. */
  release(reason: string): void {
    this.gone ??= reason;
    this.refuseQueued(new Refusal(404, this.gone));
    this.trainer?.release();
    this.trainer = undefined;
  }
}
