/** Attempts that need not be made again: a stage `generate` that asks a store first. */
import type { Episode, Task } from "../data/types.ts";
import type { StageContext, Stages } from "../loop/contract.ts";
import { type Attempt, attemptsAt, attemptsPerTask } from "../loop/rollout/attempts_per_task.ts";
import { episodeMetrics } from "../loop/rollout/episode_metrics.ts";
import { attemptEach } from "../loop/stages/generate.ts";

/** Keeps the episodes of an evaluation. `task_index` counts over all tasks. */
export interface AttemptStore {
  find(attempt: Attempt): Episode | undefined;
  add(episode: Episode): void;
}

/** The episodes of all attempts; undefined where the store lacks one. */
export function knownEpisodes(store: AttemptStore, { tasks, n }: { tasks: readonly Task[]; n: number }) {
  const attempts = tasks.flatMap((task, task_index) => attemptsAt(task, { task_index, count: n }));
  const episodes = attempts.map((attempt) => store.find(attempt));
  return episodes.every((episode) => episode !== undefined) ? episodes : undefined;
}

/**
 * Attempts only what the store lacks, and adds each episode when it ends. Validation draws by seed, task and attempt, and rows do not
 * depend on their batch, so that the episodes are those of an evaluation without a store.
 */
export function remembering(store: AttemptStore): Stages["generate"] {
  return async (tasks, context) => {
    const { firstTask = 0, settings, isValidation } = context;
    const count = attemptsPerTask(settings, isValidation);
    const attempts = tasks.flatMap((task, task_index) => attemptsAt(task, { task_index, count }));
    const found = attempts.map((attempt) => findIn(store, attempt, firstTask));
    for (const episode of found) if (episode) context.onEpisode?.(episode);
    const missing = attempts.filter((_, i) => !found[i]);
    const made = await attemptEach(missing, adding(store, { context, firstTask }));
    const value = found.map((episode) => episode ?? made.shift()!);
    return { value, metrics: episodeMetrics(value) };
  };
}

function findIn(store: AttemptStore, attempt: Attempt, firstTask: number): Episode | undefined {
  const { task_index } = attempt;
  const episode = store.find({ ...attempt, task_index: task_index + firstTask });
  return episode && { ...episode, task_index };
}

function adding(store: AttemptStore, request: { context: StageContext; firstTask: number }): StageContext {
  const onEpisode = (episode: Episode) => {
    store.add({ ...episode, task_index: episode.task_index + request.firstTask });
    request.context.onEpisode?.(episode);
  };
  return { ...request.context, onEpisode };
}
