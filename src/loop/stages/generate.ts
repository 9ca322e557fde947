/** Stage 1, generate: every task of the batch is attempted `rollout.n` times, all attempts at once. */
import type { Metrics } from "../../contract/backend.ts";
import { type Episode, type Task, TERMINATION_REASONS } from "../../data/types.ts";
import { mean } from "../../statistics.ts";
import type { StageContext, Staged } from "../contract.ts";
import { type Attempt, runAttempt } from "../rollout/attempt.ts";
import { Sampler } from "../rollout/policy.ts";

/** Attempts every task `rollout.n` times, at most `workflow.n_parallel_tasks` of them at once (see attempt.ts). */
export async function generate(tasks: readonly Task[], context: StageContext): Promise<Staged<Episode[]>> {
  const { rollout, workflow } = context.settings;
  const n = context.isValidation ? rollout.n_val : rollout.n;
  const attempts = tasks.flatMap((task, task_index) =>
    Array.from({ length: n }, (_, rollout_index): Attempt => ({ task, task_index, rollout_index })),
  );
  const sampler = new Sampler(context.backend, context.signal);
  const episodes = await mapConcurrently(attempts, workflow.n_parallel_tasks, async (attempt, rank) => {
    const episode = await runAttempt(attempt, { sampler, rank, context });
    context.onEpisode?.(episode);
    return episode;
  });
  return { value: episodes, metrics: episodeMetrics(episodes) };
}

/**
 * `batch/<name>` of what the rollouts reported, `batch/termination_reason/<reason>` as shares of all episodes, and
 * `batch/rollouts_failed`, how many ended in an error.
 */
export function episodeMetrics(episodes: readonly Episode[]): Metrics {
  const metrics: Metrics = {};
  for (const name of new Set(episodes.flatMap((episode) => Object.keys(episode.metrics)))) {
    const values = episodes.map((episode) => episode.metrics[name]);
    metrics[`batch/${name}`] = mean(values.filter((value) => typeof value === "number"));
  }
  const failed = episodes.filter(({ termination_reason }) => termination_reason === "error").length;
  metrics["batch/rollouts_failed"] = failed;
  for (const reason of TERMINATION_REASONS) {
    const share =
      episodes.filter((episode) => episode.termination_reason === reason).length / episodes.length;
    metrics[`batch/termination_reason/${reason}`] = episodes.length > 0 ? share : 0;
  }
  return metrics;
}

/** `Promise.all` of `map` with at most `limit` running. The first failure rejects once nothing runs any more. */
async function mapConcurrently<T, R>(
  items: readonly T[],
  limit: number,
  map: (item: T, index: number) => Promise<R>,
): Promise<R[]> {
  const results = new Array<R>(items.length);
  const failures: unknown[] = [];
  let next = 0;
  const worker = async () => {
    while (next < items.length && failures.length === 0) {
      const index = next++;
      try {
        results[index] = await map(items[index]!, index);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, worker));
  if (failures.length > 0) throw failures[0];
  return results;
}
