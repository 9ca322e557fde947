/**
 * Fully asynchronous training: a generator attempts tasks all the time, within a quota, while the loop trains on those
 * that are done. To the loop it is another stage `generate`, which takes finished tasks instead of attempting some; the
 * other stages see a whole batch, as ever.
 *
 *     take a batch:  synchronise, where it is due   (rollouts drain first, unless partial_rollout)
 *                    wait until as many tasks are done as a step trains on
 *     meanwhile:     begin tasks while the window has room; keep the finished ones, on disk if so wished
 *
 * The sampler's weights are those of the last synchronisation, however far training has got. Tasks and their random
 * numbers are those of the synchronous run, so that staleness_threshold=0 with trigger_parameter_sync_step=1, where
 * nothing ever overlaps, equals it exactly.
 *
 * @see rLLM's fit_async
 */
import type { Metrics } from "../../contract/backend.ts";
import type { Episode, Task } from "../../data/types.ts";
import { UnsupportedError } from "../../errors.ts";
import { EpisodeStore } from "../../log/episode_store.ts";
import { largest, mean, smallest } from "../../statistics.ts";
import type { GenerationState, LoopState, Run, StageContext, Staged, Stages } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";
import { episodeMetrics } from "../stages/generate.ts";
import { batchSizeOf, taskBatch, totalSteps } from "../state.ts";
import { runAttempt } from "./attempt.ts";
import { Sampler } from "./policy.ts";
import { SyncWindow } from "./sync_window.ts";

/** A task under way or done. */
interface Group {
  readonly number: number;
  readonly task: Task;
  /** Synchronisations before it was begun. */
  readonly version: number;
  readonly episodes: Episode[];
  unfinished: number;
}

export class AsyncGeneration {
  private readonly run: Pick<Run, "backend" | "tasks" | "settings" | "rollout" | "evaluate" | "warn">;
  private readonly settings: LoopSettings;
  private readonly batchSize: number;
  private readonly total: number;
  private readonly window: SyncWindow;
  private readonly sampler: Sampler;
  private readonly store: EpisodeStore<Episode> | undefined;
  private readonly stopper = new AbortController();
  private readonly signal: AbortSignal;
  /** Begun and not yet trained on, by number. */
  private readonly pending = new Map<number, Group>();
  /** Of those, the finished ones, as they finished. */
  private done: Group[] = [];
  /** Attempts that wait for one of `n_parallel_tasks` places. */
  private readonly queue: (() => Promise<void>)[] = [];
  private active = 0;
  private redo: number[] = [];
  private next = 0;
  private isBegun = false;
  private isPaused = false;
  private consumed = 0;
  private filtered = 0;
  private failure: { readonly error: unknown } | undefined;
  private wake: () => void = () => {};

  /** @throws {UnsupportedError} for a backend that cannot hold the sampler's weights where that is asked for. */
  constructor(run: Run) {
    const { backend, settings, tasks } = run;
    const { async_training } = settings;
    this.run = run;
    this.settings = settings;
    this.batchSize = batchSizeOf(settings);
    this.total = totalSteps(tasks.train, settings) * this.batchSize;
    this.window = new SyncWindow({ ...async_training, batchSize: this.batchSize });
    this.signal = AbortSignal.any([run.signal, this.stopper.signal]);
    this.sampler = new Sampler(backend, this.signal, { weights: "published" });
    const dir = async_training.episode_offload_dir;
    this.store = dir === null ? undefined : new EpisodeStore(dir);
    if (this.window.quota > this.batchSize && !backend.publishWeights)
      throw new UnsupportedError(
        `Cannot generate while training as the backend ${backend.name} has no publishWeights: its sampler would change in the middle of a sequence. Set rllm.async_training.staleness_threshold=0 and trigger_parameter_sync_step=1, or give it one`,
        { part: backend.name, capability: "publishWeights" },
      );
  }

  /** The stages of a run that trains on what this generates. */
  stages(stages: Stages): Stages {
    return {
      ...stages,
      generate: (tasks, context) =>
        context.isValidation ? stages.generate(tasks, context) : this.take(context),
      log: ({ metrics, ...report }, context) =>
        stages.log(
          { ...report, metrics: { ...metrics, ...idleRatio(metrics), ...this.filtering(metrics) } },
          context,
        ),
    };
  }

  /** Goes on from a checkpoint, or from the start. Nothing is begun before the first step asks. */
  resume({ step, generation }: LoopState): void {
    this.next = generation?.next ?? step * this.batchSize;
    this.redo = [...(generation?.pending ?? [])];
  }

  get state(): GenerationState {
    const pending = [...this.redo, ...this.pending.keys()].sort((a, b) => a - b);
    return { next: this.next, pending };
  }

  /** Ends what is under way. Settles when no rollout runs any more. */
  async stop(): Promise<void> {
    this.stopper.abort(new Error("The generation was stopped"));
    this.queue.length = 0;
    while (this.active > 0) await this.change();
    await this.store?.clear();
  }

  /** A batch of finished tasks, in the order of their numbers. */
  private async take(context: StageContext): Promise<Staged<Episode[]>> {
    const started = performance.now();
    if (!this.isBegun || this.window.isSyncDue) await this.synchronise();
    const synchronised = performance.now();
    await this.until(() => this.done.length >= this.batchSize);
    const waited = performance.now();
    const groups = this.done.splice(0, this.batchSize).sort((a, b) => a.number - b.number);
    for (const { number } of groups) this.pending.delete(number);
    this.consumed += groups.length;
    this.window.consume(groups.length);
    const episodes = (await Promise.all(groups.map((group, place) => this.episodesOf(group, place)))).flat();
    const metrics = {
      ...episodeMetrics(episodes),
      ...this.metrics(groups, context),
      "time/weight_sync": (synchronised - started) / 1000,
      "time/buffer_wait": (waited - synchronised) / 1000,
    };
    return { value: episodes, metrics };
  }

  /** `task_index` is the place in the batch, which trajectories are grouped by. */
  private async episodesOf({ number, episodes }: Group, task_index: number): Promise<Episode[]> {
    const kept = this.store ? await this.store.take(number) : episodes;
    return kept.map((episode) => ({ ...episode, task_index }));
  }

  /** The sampler gets the weights of this moment, and the window a new quota. */
  private async synchronise(): Promise<void> {
    if (!this.settings.async_training.partial_rollout) {
      this.isPaused = true;
      await this.until(() => this.done.length === this.pending.size);
    }
    await this.run.backend.publishWeights?.();
    if (this.isBegun) this.window.sync();
    this.isBegun = true;
    this.isPaused = false;
    this.dispatch();
  }

  /** Begins tasks while the window has room. */
  private dispatch(): void {
    while (!this.isPaused && this.window.isOpen) {
      const number = this.redo.shift() ?? (this.next < this.total ? this.next++ : undefined);
      if (number === undefined) return;
      this.window.dispatch();
      this.begin(number);
    }
  }

  private begin(number: number): void {
    const { n } = this.settings.rollout;
    const task = this.taskOf(number);
    const group: Group = { number, task, version: this.window.version, episodes: [], unfinished: n };
    this.pending.set(number, group);
    for (let rollout_index = 0; rollout_index < n; rollout_index++)
      this.queue.push(() => this.attempt(group, rollout_index));
    this.fill();
  }

  private taskOf(number: number): Task {
    const { tasks, settings } = this.run;
    return taskBatch(tasks.train, { batch: Math.floor(number / this.batchSize), settings })[
      number % this.batchSize
    ]!;
  }

  /** Starts waiting attempts while there are places. */
  private fill(): void {
    while (this.active < this.settings.workflow.n_parallel_tasks && this.queue.length > 0) {
      const attempt = this.queue.shift() as () => Promise<void>;
      this.active++;
      void attempt()
        .catch((error) => {
          this.failure ??= { error };
        })
        .finally(() => {
          this.active--;
          this.fill();
          this.wake();
        });
    }
  }

  private async attempt(group: Group, rollout_index: number): Promise<void> {
    const { number, task } = group;
    const context = {
      ...this.run,
      signal: this.signal,
      isValidation: false,
      step: Math.floor(number / this.batchSize) + 1,
    };
    const rank = number * this.settings.rollout.n + rollout_index;
    const task_index = number % this.batchSize;
    group.episodes[rollout_index] = await runAttempt(
      { task, task_index, rollout_index },
      { sampler: this.sampler, rank, context },
    );
    if (--group.unfinished > 0) return;
    if (this.store) {
      await this.store.put(number, group.episodes);
      group.episodes.length = 0;
    }
    this.done.push(group);
  }

  /** Waits as long as something may still come. @throws what made an attempt fail, or the signal's reason. */
  private async until(isReady: () => boolean): Promise<void> {
    while (!isReady()) {
      this.signal.throwIfAborted();
      if (this.failure) throw this.failure.error;
      if (this.active === 0) return;
      await this.change();
    }
  }

  /** Until an attempt ends. */
  private change(): Promise<void> {
    return new Promise((resolve) => {
      this.wake = resolve;
    });
  }

  /** Of the groups that were taken, those that the filters left out. */
  private filtering(metrics: Metrics): Metrics {
    const [before, after] = [metrics["batch/groups_before_filter"], metrics["batch/groups_after_filter"]];
    if (before !== undefined && after !== undefined) this.filtered += before - after;
    return { "async/buffer_filtered": this.filtered };
  }

  private metrics(groups: readonly Group[], { backend }: StageContext): Metrics {
    const { window, done, pending } = this;
    const staleness = groups.map(({ version }) => window.version - version);
    return {
      "async/staleness_mean": mean(staleness),
      "async/staleness_min": smallest(staleness),
      "async/staleness_max": largest(staleness),
      "async/groups_consumed": groups.length,
      "async/weight_version": backend.weightVersion,
      "async/dispatched_since_sync": window.used - window.inFlight,
      "async/quota_used": window.used,
      "async/in_flight_groups": window.inFlight,
      "async/steps_since_sync": window.stepsSinceSync,
      "async/max_rollout_quota": window.quota,
      "async/total_syncs": window.version,
      "async/buffer_qsize": done.length,
      "async/buffer_pending": pending.size - done.length,
      "async/buffer_consumed": this.consumed,
    };
  }
}

/** The share of a step in which there was nothing to train on. */
function idleRatio(metrics: Metrics): Metrics {
  const [waited, step] = [metrics["time/buffer_wait"], metrics["time/step"]];
  return waited === undefined || !step ? {} : { "async/trainer_idle_ratio": waited / step };
}
