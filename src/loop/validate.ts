/** Validation: attempts on held-out tasks, scored and never trained on. */
import type { Metrics } from "../backend.ts";
import type { Episode, Task } from "../data/types.ts";
import { rewardMetrics } from "./advantages.ts";
import type { LoopState } from "./state.ts";
import { groupBy, mean } from "./statistics.ts";
import { type Run, stageContext } from "./train.ts";

/** Runs every validation task `rollout.n_val` times and logs the scores; the state after it. */
export async function validate(run: Run, state: LoopState): Promise<LoopState> {
  const { settings, stages, loggers, tasks } = run;
  const started = performance.now();
  const context = { ...stageContext(run, state), isValidation: true };
  const size = settings.data.val_batch_size > 0 ? settings.data.val_batch_size : tasks.val.length;
  const episodes: Episode[] = [];
  const rewards: Metrics[] = [];
  for (let from = 0; from < tasks.val.length; from += size) {
    const batch = await stages.generate(tasks.val.slice(from, from + size), context);
    const { value: groups } = await stages.transform(batch.value, context);
    const roles = groupBy(groups, (group) => group.group_role);
    for (const [role, members] of roles) {
      const values = members.flatMap((group) => group.trajectories.map(({ reward }) => reward));
      rewards.push(rewardMetrics(role, values));
    }
    // Task indexes restart with every batch; within the whole set they go on.
    episodes.push(...batch.value.map((episode) => ({ ...episode, task_index: episode.task_index + from })));
  }
  const metrics = {
    ...meanOfEach(rewards),
    ...passRates(episodes, settings.rollout.n_val),
    "time/testing": (performance.now() - started) / 1000,
  };
  for (const logger of loggers) {
    await logger.log({ phase: "val", step: state.step, totalSteps: context.totalSteps, metrics, episodes });
  }
  return { ...state, validated: state.step };
}

function meanOfEach(measured: readonly Metrics[]): Metrics {
  const names = new Set(measured.flatMap((metrics) => Object.keys(metrics)));
  const average = (name: string) =>
    mean(measured.map((metrics) => metrics[name]).filter((value) => value !== undefined));
  return Object.fromEntries(Array.from(names, (name) => [`val/${name}`, average(name)]));
}

/**
 * By data source: `pass@1`, the share of correct attempts; `pass@n`, the share of tasks that any attempt solved; and
 * the mean of what the rollouts reported. Masked episodes count too.
 */
export function passRates(episodes: readonly Episode[], n: number): Metrics {
  const metrics: Metrics = {};
  for (const [source, members] of groupBy(episodes, ({ task }) => dataSource(task))) {
    const tasks = [...groupBy(members, (episode) => episode.task_index).values()];
    const isSolved = (attempts: readonly Episode[]) => attempts.some((episode) => episode.is_correct);
    metrics[`val/${source}/pass@${n}`] = tasks.filter(isSolved).length / tasks.length;
    metrics[`val/${source}/pass@1`] = members.filter((episode) => episode.is_correct).length / members.length;
    for (const name of new Set(members.flatMap((episode) => Object.keys(episode.metrics)))) {
      const values = members
        .map((episode) => episode.metrics[name])
        .filter((value) => typeof value === "number");
      metrics[`val/${source}/${name}`] = mean(values);
    }
  }
  return metrics;
}

function dataSource(task: Task): string {
  return String(task.metadata.data_source ?? "unknown");
}
