/**
 * Fully asynchronous training: attempts run all the time, within a quota, while the loop trains on finished tasks. To the
 * loop it is another stage `generate`, which takes finished tasks; the other stages see a whole batch as always.
 *
 *     take a batch:  synchronise, if due      (running attempts finish first, unless partial_rollout)
 *                    wait until enough tasks for one step are finished
 *     meanwhile:     start tasks while the window is open (sync_window.ts, task_numbers.ts)
 *                    attempt them, n_parallel_tasks at once (job_pool.ts)
 *                    keep the finished ones, in memory or on disk (group_buffer.ts)
 *
 * Attempts sample from the weights of the last synchronisation, however far training is ahead. Tasks and their random
 * numbers are those of the synchronous run, so that staleness_threshold=0 with trigger_parameter_sync_step=1, where
 * nothing overlaps, equals it exactly.
 *
 * @see rLLM's fit_async
 */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import type { Episode } from "../../data/types.ts";
import type { Generation, GenerationState, LoopState, Run, Staged, Stages } from "../contract.ts";
import { batchSizeOf, taskBatch, totalSteps } from "../state.ts";
import { bufferMetrics, droppedGroups, idleRatio, stalenessMetrics, windowMetrics } from "./async_metrics.ts";
import { type AttemptContext, runAttempt } from "./attempt.ts";
import { attemptsAt, attemptsPerTask } from "./attempts_per_task.ts";
import { DrawQueue } from "./draw_queue.ts";
import { episodeMetrics } from "./episode_metrics.ts";
import { withBaselines, withGreedyAttempt } from "./greedy.ts";
import { GroupBuffer } from "./group_buffer.ts";
import { JobPool } from "./job_pool.ts";
import { SyncWindow } from "./sync_window.ts";
import { TaskNumbers } from "./task_numbers.ts";

export class AsyncGeneration implements Generation {
  private readonly run: Run;
  private readonly batchSize: number;
  private readonly window: SyncWindow;
  private readonly numbers: TaskNumbers;
  private readonly buffer: GroupBuffer;
  private readonly pool: JobPool;
  private readonly draws: DrawQueue;
  private readonly stopper = new AbortController();
  private readonly signal: AbortSignal;
  /** Tasks of a step: a batch for each stage `generate` in it. */
  private readonly perStep: number;
  /** The attempts at a task that runs `count` rollouts. */
  private readonly attemptsAt: typeof attemptsAt;
  private dropped = 0;
  /** Version of the weights that attempts sample from. */
  private published: number;

  /**
   * @param options.isGreedyPlayed whether each task is also attempted greedily, for a baseline
   * @throws {UnsupportedError} for a backend that cannot publish weights where sampling overlaps training
   */
  constructor(run: Run, { isGreedyPlayed = false }: { isGreedyPlayed?: boolean } = {}) {
    const { backend, settings, tasks } = run;
    const { async_training, workflow } = settings;
    this.run = run;
    this.batchSize = batchSizeOf(settings);
    this.window = new SyncWindow({ ...async_training, batchSize: this.batchSize });
    if (this.window.quota > this.batchSize && !backend.publishWeights) throw cannotOverlap(backend.name);
    this.perStep = this.batchSize * Math.max(1, settings.pipeline.stages.filter((name) => GENERATE.test(name)).length);
    this.published = backend.weightVersion;
    this.numbers = new TaskNumbers(totalSteps(tasks.train, settings) * this.perStep);
    this.attemptsAt = isGreedyPlayed ? withGreedyAttempt : attemptsAt;
    this.buffer = new GroupBuffer(async_training.episode_offload_dir, {
      ...(isGreedyPlayed && { finish: (episodes) => withBaselines(episodes, settings) }),
    });
    this.pool = new JobPool(workflow.n_parallel_tasks);
    this.signal = AbortSignal.any([run.signal, this.stopper.signal]);
    this.draws = new DrawQueue(backend, this.signal, { weights: "published" });
  }

  /** The stages of a run that trains on the finished tasks. */
  stages(stages: Stages): Stages {
    return {
      ...stages,
      generate: (tasks, context) => (context.isValidation ? stages.generate(tasks, context) : this.take()),
      log: ({ metrics, ...report }, context) => {
        this.dropped += droppedGroups(metrics);
        const asyncMetrics = { ...idleRatio(metrics), "async/buffer_filtered": this.dropped };
        return stages.log({ ...report, metrics: { ...metrics, ...asyncMetrics } }, context);
      },
    };
  }

  /** Starts no task before the first step takes a batch. */
  resume({ step, generation }: LoopState): void {
    const { next = step * this.perStep, pending = [], counts } = generation ?? {};
    const trained = step * this.perStep;
    if (next - pending.length === trained) this.numbers.resume(next, pending);
    else {
      // The numbers are those of batches of another size: continued, they would end before the last step.
      this.numbers.resume(trained, []);
      this.run.warn(otherBatches({ step, before: next - pending.length, now: trained }));
    }
    if (!counts) return;
    this.window.resume(counts.syncs);
    this.buffer.consumed = counts.consumed;
    this.dropped = counts.filtered;
  }

  get state(): GenerationState {
    const counts = { syncs: this.window.version, consumed: this.buffer.consumed, filtered: this.dropped };
    return { ...this.numbers.state(this.buffer.numbers), counts };
  }

  async stop(): Promise<void> {
    this.stopper.abort(new Error("The generation was stopped"));
    await this.pool.stop();
    await this.buffer.clear();
  }

  /** A batch of finished tasks, in the order of their numbers. */
  private async take(): Promise<Staged<Episode[]>> {
    const started = performance.now();
    if (this.window.isSyncDue) await this.synchronise();
    const synchronised = performance.now();
    await this.pool.until(() => this.buffer.finished >= this.batchSize, this.signal);
    const waited = performance.now();
    if (this.buffer.finished === 0) throw noTask(this.perStep);
    const { groups, episodes } = await this.buffer.take(this.batchSize);
    this.window.consume(groups.length);
    const metrics: Metrics = {
      ...episodeMetrics(episodes),
      ...stalenessMetrics(groups, this.window.version),
      "async/weight_version": this.run.backend.weightVersion,
      ...windowMetrics(this.window),
      ...bufferMetrics(this.buffer),
      "time/weight_sync": (synchronised - started) / 1000,
      "time/buffer_wait": (waited - synchronised) / 1000,
    };
    return { value: episodes, metrics };
  }

  /** Publishes the current weights to the sampler and opens the window for a new quota of tasks. */
  private async synchronise(): Promise<void> {
    const { backend, settings } = this.run;
    if (!settings.async_training.partial_rollout)
      await this.pool.until(() => this.buffer.unfinished === 0, this.signal);
    await backend.publishWeights?.();
    this.published = backend.weightVersion;
    this.window.sync();
    while (this.window.isOpen) {
      const number = this.numbers.take();
      if (number === undefined) return;
      this.window.dispatch();
      this.start(number);
    }
  }

  private start(number: number): void {
    const { settings } = this.run;
    const batch = Math.floor(number / this.batchSize);
    const task_index = number % this.batchSize;
    const task = taskBatch(this.run, batch).batch[task_index]!;
    const attempts = this.attemptsAt(task, { task_index, count: attemptsPerTask(settings, false) });
    const group = this.buffer.start(number, { version: this.window.version, attempts: attempts.length });
    const context = this.attemptContext(batch + 1);
    for (const attempt of attempts) {
      const rank = number * attempts.length + attempt.rollout_index;
      const run = () => runAttempt(attempt, { draws: this.draws, rank, context });
      this.pool.add(async () => this.buffer.add(group, attempt.rollout_index, await run()));
    }
  }

  private attemptContext(step: number): AttemptContext {
    const { settings, rollout, evaluate, rewardModel, warn, failures } = this.run;
    const { signal, sampled: backend } = this;
    return { backend, settings, rollout, evaluate, rewardModel, warn, failures, signal, isValidation: false, step };
  }

  /** The backend as attempts sample from it: training is ahead of it. */
  private get sampled(): AttemptContext["backend"] {
    const { name, model, tokenizer, isConstrainable } = this.run.backend;
    const version = () => this.published;
    return {
      ...{ name, model, tokenizer },
      ...(isConstrainable !== undefined && { isConstrainable }),
      get weightVersion() {
        return version();
      },
    };
  }
}

/** `generate`, also in wrappers: `timed(generate)`. */
const GENERATE = /(^|\()generate\)*$/;

function otherBatches({ step, before, now }: { step: number; before: number; now: number }): string {
  return (
    `The size of a batch has changed: ${step} steps took ${before} tasks and would now take ${now}. ` +
    `The run continues with task ${now + 1}; tasks that were waiting for a step are dropped.`
  );
}

function noTask(perStep: number): ConfigError {
  return new ConfigError(
    `Cannot generate: every task of the run was taken. A step takes ${perStep} tasks, as its stages generate in pipeline.stages say. Name each of them there, or call generate once a step.`,
    { path: "pipeline.stages" },
  );
}

function cannotOverlap(backend: string): UnsupportedError {
  return new UnsupportedError(
    `Cannot generate while training: the backend ${backend} has no publishWeights, so its weights would change in the middle of a sequence. Set rllm.async_training.staleness_threshold=0 and trigger_parameter_sync_step=1, or implement publishWeights.`,
    { part: backend, capability: "publishWeights" },
  );
}
