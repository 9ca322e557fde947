/** Stage 1, generate: attempts every task of the batch `rollout.n` times (and greedily, for `remax`), all attempts at once. */
import type { Episode, Task } from "../../data/types.ts";
import type { StageContext, Staged } from "../contract.ts";
import { reportMoment } from "../moment.ts";
import { runAttempt } from "../rollout/attempt.ts";
import { type Attempt, attemptsAt, attemptsPerTask } from "../rollout/attempts_per_task.ts";
import { DrawQueue } from "../rollout/draw_queue.ts";
import { episodeMetrics } from "../rollout/episode_metrics.ts";
import { withBaselines, withGreedyAttempt } from "../rollout/greedy.ts";
import { JobPool } from "../rollout/job_pool.ts";
import { playsGreedy } from "./greedy.ts";

/** Runs at most `workflow.n_parallel_tasks` attempts at once (see rollout/attempt.ts). */
export async function generate(tasks: readonly Task[], context: StageContext): Promise<Staged<Episode[]>> {
  const { settings, isValidation } = context;
  const count = attemptsPerTask(settings, isValidation);
  const isGreedyPlayed = !isValidation && playsGreedy(settings);
  const attemptsOf = isGreedyPlayed ? withGreedyAttempt : attemptsAt;
  const attempts = tasks.flatMap((task, task_index) => attemptsOf(task, { task_index, count }));
  const attempted = await attemptEach(attempts, reported(context, attempts.length));
  const ofTask = (_: Task, i: number) => attempted.slice(i * (count + 1), (i + 1) * (count + 1));
  const episodes = isGreedyPlayed ? tasks.map(ofTask).flatMap((each) => withBaselines(each, settings)) : attempted;
  return { value: episodes, metrics: episodeMetrics(episodes) };
}

/** The context, with the attempts that ended reported to the loggers. */
function reported(context: StageContext, total: number): StageContext {
  let done = 0;
  const report = () => reportMoment(context, { doing: "generating", done, total, unit: "attempts" });
  report();
  const onEpisode = (episode: Episode) => {
    done++;
    report();
    context.onEpisode?.(episode);
  };
  return { ...context, onEpisode };
}

/** These attempts alone, of any tasks; episodes in their order. */
export async function attemptEach(attempts: readonly Attempt[], context: StageContext): Promise<Episode[]> {
  const { backend, settings, signal } = context;
  const draws = new DrawQueue(backend, signal);
  const pool = new JobPool(settings.workflow.n_parallel_tasks);
  const episodes = new Array<Episode>(attempts.length);
  for (const [rank, attempt] of attempts.entries()) {
    pool.add(async () => {
      const episode = await runAttempt(attempt, { draws, rank, context });
      episodes[rank] = episode;
      context.onEpisode?.(episode);
    });
  }
  await pool.finish();
  return episodes;
}
