/** Validation: attempts on held-out tasks, scored and never trained on. */
import type { Metrics } from "../contract/backend.ts";
import type { Episode, Task } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import { mean } from "../statistics.ts";
import type { LoopState, Run } from "./contract.ts";
import { groupBy } from "./group_by.ts";
import type { LoopSettings } from "./settings.ts";
import { rewardMetrics } from "./stages/advantage_metrics.ts";
import { stageContext } from "./step.ts";

/**
 * Runs every validation task `rollout.n_val` times and logs the scores; the state after it. When it is stopped, loggers
 * that take partial scores get those of the attempts that had ended.
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
  // Before anything is written: it refuses a metric that is not measured.
  const best = bestOf(state, { metrics: whole.metrics, training: settings.training });
  for (const logger of loggers) await logger.log(whole);
  return { ...state, validated: state.step, ...best };
}

/** Every attempt, batch by batch. `seen` gathers episodes as they end. */
async function attemptAll(run: Run, state: LoopState, seen: Episode[]) {
  const { settings, stages, loggers, tasks } = run;
  const size = settings.data.val_batch_size > 0 ? settings.data.val_batch_size : tasks.val.length;
  const total = tasks.val.length * settings.rollout.n_val;
  const episodes: Episode[] = [];
  const rewards: Metrics[] = [];
  for (let from = 0; from < tasks.val.length; from += size) {
    // Task indexes restart with every batch; within the whole set they go on.
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

/** Reward metrics of each role. */
async function rewardsOf(episodes: readonly Episode[], run: Run, state: LoopState): Promise<Metrics[]> {
  const context = { ...stageContext(run, state), isValidation: true };
  const { value: groups } = await run.stages.transform(episodes, context);
  return Array.from(
    groupBy(groups, (group) => group.group_role),
    ([role, members]) => {
      const values = members.flatMap((group) => group.trajectories.map(({ reward }) => reward));
      return rewardMetrics(role, values);
    },
  );
}

function scores(
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

/**
 * This validation, where `metric_for_best_model` says that it is better than those before. The best is one of the run's
 * own steps: the model before the first of them is neither a candidate nor a bar.
 */
function bestOf(
  { best, step }: LoopState,
  { metrics, training }: { metrics: Metrics; training: LoopSettings["training"] },
): Pick<LoopState, "best"> {
  const { metric_for_best_model: name, greater_is_better } = training;
  if (name === null) return {};
  const value = metrics[name];
  if (value === undefined) {
    throw new ConfigError(
      `Cannot choose the best checkpoint as validation does not measure ${name}: it measures ${Object.keys(metrics).join(", ")}`,
      { path: "training.metric_for_best_model" },
    );
  }
  if (step === 0) return {};
  // Of equals the first; a value that is not a number is never the best.
  const isBetter = best === undefined || (greater_is_better ? value > best.value : value < best.value);
  return isBetter && Number.isFinite(value) ? { best: { step, value } } : {};
}

function meanOfEach(measured: readonly Metrics[]): Metrics {
  const names = new Set(measured.flatMap((metrics) => Object.keys(metrics)));
  const average = (name: string) =>
    mean(measured.map((metrics) => metrics[name]).filter((value) => value !== undefined));
  return Object.fromEntries(Array.from(names, (name) => [`val/${name}`, average(name)]));
}

/**
 * By data source: `pass@1`, the share of correct attempts; `pass@k` for the powers of two below `n` and for `n`; and
 * the mean of what the rollouts reported. Masked episodes count too. At k = n, pass@k is the share of tasks that any
 * attempt solved.
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
    for (const k of passSizes(n)) {
      metrics[`val/${source}/pass@${k}`] = mean(tasks.map((task) => passAtK(k, task)));
    }
    for (const name of new Set(members.flatMap((episode) => Object.keys(episode.metrics)))) {
      const values = members
        .map((episode) => episode.metrics[name])
        .filter((value) => typeof value === "number");
      metrics[`val/${source}/${name}`] = mean(values);
    }
  }
  return metrics;
}

/** 1, 2, 4, ... and `n`. */
function passSizes(n: number): number[] {
  const sizes: number[] = [];
  for (let k = 1; k < n; k *= 2) sizes.push(k);
  return [...sizes, n];
}

/**
 * The chance that one of `k` attempts is correct, estimated without bias from n attempts of which c are:
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

function dataSource(task: Task): string {
  return String(task.metadata.data_source ?? "unknown");
}
