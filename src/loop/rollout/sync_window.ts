/** How far generation may run ahead of training, counted in tasks. */

export interface SyncWindowOptions {
  /** Tasks of one training step. */
  readonly batchSize: number;
  /** Share of a window that may be generated ahead. */
  readonly staleness_threshold: number;
  /** Training steps between two synchronisations of the sampler's weights. */
  readonly trigger_parameter_sync_step: number;
}

/**
 * rLLM's quota: between two synchronisations at most (1 + staleness_threshold) trigger_parameter_sync_step batchSize
 * tasks are begun, those counted in that were begun before and not trained on yet. So what is trained on is at most
 * ceil(staleness_threshold) synchronisations old, as long as none is made while tasks are attempted.
 */
export class SyncWindow {
  /** Tasks that a window may hold. */
  readonly quota: number;
  /** Synchronisations so far. */
  version = 0;
  /** Of the quota. */
  used = 0;
  /** Begun and not yet trained on. */
  inFlight = 0;
  stepsSinceSync = 0;
  private readonly trigger: number;

  constructor({ batchSize, staleness_threshold, trigger_parameter_sync_step }: SyncWindowOptions) {
    this.trigger = trigger_parameter_sync_step;
    this.quota = Math.floor((1 + staleness_threshold) * trigger_parameter_sync_step * batchSize);
  }

  get isOpen(): boolean {
    return this.used < this.quota;
  }

  get isSyncDue(): boolean {
    return this.stepsSinceSync >= this.trigger;
  }

  dispatch(): void {
    this.used++;
    this.inFlight++;
  }

  /** A training step takes tasks. */
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
