/** Validation: attempts at held-out tasks, which are scored and never trained on. */
import type { Metrics } from "../../engine/contract/backend.ts";
import { mean } from "../../leaves/statistics.ts";
import type { Episode, Task, TrajectoryGroup } from "../data/types.ts";
import { bestOf } from "./best.ts";
import type { LoopState, Run } from "./contract.ts";
import { groupBy } from "./group_by.ts";
import type { LoopSettings } from "./settings.ts";
import { rewardMetrics } from "./stages/advantage_metrics.ts";
import { stageContext } from "./step.ts";

/**
 * Attempts every validation task `rollout.n_val` times and logs the scores. Returns the state after it. When the signal
 * stops it, loggers that take partial scores get those of the finished attempts.
 * @throws {ConfigError} when it does not measure `training.metric_for_best_model`
 */
export async function validate(run: Run, state: LoopState): Promise<LoopState> {
  const { settings, loggers } = run;
  const started = performance.now();
  const seen: Episode[] = [];
  const record = (metrics: Metrics, episodes: readonly Episode[]) => ({
    phase: "val" as const,
    step: state.step,
    totalSteps: stageContext(run, state).totalSteps,
    metrics: { ...metrics, "time/testing": (performance.now() - started) / 1000 },
    episodes,
  });
  const { episodes, rewards } = await attemptAll(run, state, seen).catch(async (error) => {
    if (run.signal.aborted && loggers.some((logger) => logger.partial)) {
      const metrics = scores([...(await rewardsOf(seen, run, state))], { episodes: seen, settings });
      for (const logger of loggers) logger.partial?.(record(metrics, seen));
    }
    throw error;
  });
  const whole = record(scores(rewards, { episodes, settings }), episodes);
  // Before anything is logged, because it may throw.
  const best = bestOf(state, { metrics: whole.metrics, training: settings.training });
  for (const logger of loggers) await logger.log(whole);
  return { ...state, validated: state.step, ...best };
}

/** Every attempt, batch by batch. Adds episodes to `seen` as they end. */
async function attemptAll(run: Run, state: LoopState, seen: Episode[]) {
  const { settings, stages, loggers, tasks } = run;
  const size = validationBatchSize(settings, tasks.val.length);
  const total = tasks.val.length * settings.rollout.n_val;
  const episodes: Episode[] = [];
  const rewards: Metrics[] = [];
  for (let from = 0; from < tasks.val.length; from += size) {
    // Task indexes restart with every batch; make them count over the whole set.
    const placed = (episode: Episode) => ({ ...episode, task_index: episode.task_index + from });
    const onEpisode = (episode: Episode) => {
      seen.push(placed(episode));
      for (const logger of loggers) logger.progress?.(seen.length, total);
    };
    const context = { ...stageContext(run, state), isValidation: true, firstTask: from, onEpisode };
    const batch = await stages.generate(tasks.val.slice(from, from + size), context);
    rewards.push(...(await rewardsOf(batch.value, run, state)));
    episodes.push(...batch.value.map(placed));
  }
  return { episodes, rewards };
}

/** Tasks that are attempted at once: all of them without `data.val_batch_size`. */
export function validationBatchSize({ data: { val_batch_size } }: LoopSettings, rows: number): number {
  return val_batch_size > 0 ? val_batch_size : rows;
}

/** Reward metrics of each role. */
async function rewardsOf(episodes: readonly Episode[], run: Run, state: LoopState): Promise<Metrics[]> {
  const context = { ...stageContext(run, state), isValidation: true };
  const { value: groups } = await run.stages.transform(episodes, context);
  return roleRewards(groups);
}

/** Reward metrics of each role among these groups. */
export function roleRewards(groups: readonly TrajectoryGroup[]): Metrics[] {
  return Array.from(
    groupBy(groups, (group) => group.group_role),
    ([role, members]) => {
      const values = members.flatMap((group) => group.trajectories.map(({ reward }) => reward));
      return rewardMetrics(role, values);
    },
  );
}

/** @param rewards metrics of each role's rewards */
export function scores(
  rewards: readonly Metrics[],
  { episodes, settings }: { episodes: readonly Episode[]; settings: LoopSettings },
): Metrics {
  const failed = episodes.filter(({ termination_reason }) => termination_reason === "error").length;
  return {
    ...meanOfEach(rewards),
    ...passRates(episodes, settings.rollout.n_val),
    ...(failed > 0 && { "val/rollouts_failed": failed }),
  };
}

function meanOfEach(measured: readonly Metrics[]): Metrics {
  const names = new Set(measured.flatMap((metrics) => Object.keys(metrics)));
  const average = (name: string) =>
    mean(measured.map((metrics) => metrics[name]).filter((value) => value !== undefined));
  return Object.fromEntries(Array.from(names, (name) => [`val/${name}`, average(name)]));
}

/**
 * Returns rates by data source: `pass@1`, the share of correct attempts; `pass@k` for the powers of two below `n` and
 * for `n`; the means of the rollouts' metrics. Masked episodes count too. At k = n, pass@k is the share of tasks that
 * at least one attempt solved.
 */
export function passRates(episodes: readonly Episode[], n: number): Metrics {
  const metrics: Metrics = {};
  for (const [source, members] of groupBy(episodes, ({ task }) => dataSource(task))) {
    const tasks = Array.from(
      groupBy(members, (episode) => episode.task_index).values(),
      (tries): Attempts => ({
        attempts: tries.length,
        correct: tries.filter((episode) => episode.is_correct).length,
      }),
    );
    for (const k of powersOfTwoUpTo(n)) {
      metrics[`val/${source}/pass@${k}`] = mean(tasks.map((task) => passAtK(k, task)));
    }
    for (const name of new Set(members.flatMap((episode) => Object.keys(episode.metrics)))) {
      const values = members.map((episode) => episode.metrics[name]).filter((value) => typeof value === "number");
      metrics[`val/${source}/${name}`] = mean(values);
    }
  }
  return metrics;
}

/** 1, 2, 4, ... and `n`. */
export function powersOfTwoUpTo(n: number): number[] {
  const sizes: number[] = [];
  for (let k = 1; k < n; k *= 2) sizes.push(k);
  return [...sizes, n];
}

/**
 * Unbiased estimate, from n attempts with c correct, of the chance that one of `k` attempts is correct:
 * 1 - C(n - c, k) / C(n, k), as a product that does not overflow. With fewer than `k` attempts: whether any is correct.
 * @see Chen et al. 2021, https://arxiv.org/abs/2107.03374, equation 1
 */
export function passAtK(k: number, { attempts: n, correct: c }: Attempts): number {
  if (k === 1) return n > 0 ? c / n : 0;
  if (n - c < k) return c > 0 ? 1 : 0;
  let allWrong = 1;
  for (let i = n - c + 1; i <= n; i++) allWrong *= 1 - k / i;
  return 1 - allWrong;
}

interface Attempts {
  readonly attempts: number;
  readonly correct: number;
}

/** The data set that a task comes from: scores are kept apart by it. */
export function dataSource(task: Task): string {
  return String(task.metadata.data_source ?? "unknown");
}
