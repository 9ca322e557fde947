/** How far generation may run ahead of training, in tasks. */

export interface SyncWindowOptions {
  /** Tasks of one training step. */
  readonly batchSize: number;
  /** Share of a window that may start ahead. */
  readonly staleness_threshold: number;
  /** Training steps between two synchronisations of the sampler's weights. */
  readonly trigger_parameter_sync_step: number;
}

/**
 * rLLM's quota: between two synchronisations at most (1 + staleness_threshold) trigger_parameter_sync_step batchSize
 * tasks are in flight or start. So groups are at most ceil(staleness_threshold) synchronisations old when a step trains
 * on them, unless attempts run on during a synchronisation.
 */
export class SyncWindow {
  /** Tasks that a window may hold. */
  readonly quota: number;
  /** Number of the last synchronisation, from 0; -1 before it. */
  version = -1;
  /** Used part of the quota. */
  used = 0;
  /** Started and not yet trained on. */
  inFlight = 0;
  stepsSinceSync = 0;
  private readonly trigger: number;

  constructor({ batchSize, staleness_threshold, trigger_parameter_sync_step }: SyncWindowOptions) {
    this.trigger = trigger_parameter_sync_step;
    this.quota = Math.floor((1 + staleness_threshold) * trigger_parameter_sync_step * batchSize);
  }

  get isOpen(): boolean {
    return this.version >= 0 && this.used < this.quota;
  }

  get isSyncDue(): boolean {
    return this.version < 0 || this.stepsSinceSync >= this.trigger;
  }

  /** Continues the count of a run's earlier part. A synchronisation is due, because nothing is in flight. */
  resume(version: number): void {
    this.version = version;
    this.stepsSinceSync = this.trigger;
  }

  dispatch(): void {
    this.used++;
    this.inFlight++;
  }

  /** A training step takes `tasks` finished tasks. */
  consume(tasks: number): void {
    this.inFlight -= tasks;
    this.stepsSinceSync++;
  }

  sync(): void {
    this.version++;
    this.stepsSinceSync = 0;
    this.used = this.inFlight;
  }
}
