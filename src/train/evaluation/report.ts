/** The scores of one model or of several, side by side: plain JSON, which the table, `--json` and the page share. */
import type { Episode } from "../data/types.ts";
import { groupBy } from "../loop/group_by.ts";
import type { Estimates, EvaluationReport, ShownAttempt, TaskRow } from "./contract.ts";
import { estimate, estimateShare, pairedDifference } from "./estimate.ts";
import { episodeReward, type MeasuredTask, type Measures, measureTasks } from "./measures.ts";

/** A model with its attempts. */
export interface EvaluatedModel {
  readonly name: string;
  readonly episodes: readonly Episode[];
}

export function evaluationReport(models: readonly EvaluatedModel[], measures: Measures): EvaluationReport {
  const measured = models.map(({ name, episodes }) => ({ name, episodes, tasks: measureTasks(episodes, measures) }));
  const [baseline] = measured;
  return {
    models: measured.map(({ name, episodes, tasks }) => ({
      model: name,
      attempts: episodes.length,
      sources: bySource(tasks, estimatesOf),
    })),
    differences: measured.slice(1).map(({ name, tasks }) => ({
      model: name,
      baseline: baseline!.name,
      sources: bySource(tasks, (members) => differencesOf(members, baseline!.tasks)),
    })),
  };
}

/** The tasks with all attempts, for the page. */
export function taskRows(models: readonly EvaluatedModel[]): TaskRow[] {
  const byModel = models.map(({ episodes }) => groupBy(episodes, ({ task_index }) => task_index));
  const indexes = new Set(byModel.flatMap((tasks) => [...tasks.keys()]));
  return [...indexes]
    .sort((a, b) => a - b)
    .map((index) => {
      const tries = byModel.map((tasks) => tasks.get(index) ?? []);
      const { task } = tries.flat()[0]!;
      const source = String(task.metadata.data_source ?? "unknown");
      return { id: task.id, source, prompt: task.instruction, models: tries.map((each) => each.map(shown)) };
    });
}

function shown(episode: Episode): ShownAttempt {
  const { is_correct, termination_reason, metadata } = episode;
  const texts = episode.trajectories.flatMap(({ steps }) => steps.map(({ model_response }) => model_response));
  return {
    reward: episodeReward(episode),
    is_correct,
    ...(typeof metadata.answer === "string" && { answer: metadata.answer }),
    response: texts.join("\n\n"),
    termination_reason,
  };
}

function bySource(tasks: readonly MeasuredTask[], use: (tasks: readonly MeasuredTask[]) => Estimates) {
  return Object.fromEntries(
    Array.from(
      groupBy(tasks, ({ source }) => source),
      ([name, members]) => [name, use(members)],
    ),
  );
}

function estimatesOf(tasks: readonly MeasuredTask[]): Estimates {
  const names = Object.keys(tasks[0]?.values ?? {});
  const of = (name: string) => (name === "reward" ? estimate : estimateShare)(tasks.map(({ values }) => values[name]!));
  return Object.fromEntries(names.map((name) => [name, of(name)]));
}

function differencesOf(tasks: readonly MeasuredTask[], baseline: readonly MeasuredTask[]): Estimates {
  const before = new Map(baseline.map((task) => [task.index, task.values]));
  const shared = tasks.flatMap(({ index, values }) => {
    const other = before.get(index);
    return other ? [{ values, other }] : [];
  });
  const names = Object.keys(shared[0]?.values ?? {}).filter((name) => shared[0]!.other[name] !== undefined);
  return Object.fromEntries(
    names.map((name) => [name, pairedDifference(shared.map(({ values, other }) => [values[name]!, other[name]!]))]),
  );
}
