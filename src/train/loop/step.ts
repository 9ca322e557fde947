/** One training step: `trainStep` is the eight stages in a row. Below it: what every kind of step shares. */
import type { Backend, Metrics } from "../../engine/contract/backend.ts";
import type { Task } from "../data/types.ts";
import type { LoopState, Run, StageContext, Staged } from "./contract.ts";
import { taskBatch, totalSteps } from "./state.ts";
import { afterStep } from "./untrained.ts";
import { utilisation } from "./utilisation.ts";

/** One step over the eight stages. Returns the state after it. */
export async function trainStep(run: Run, state: LoopState): Promise<LoopState> {
  const { stages } = run;
  const { tasks, context, metrics, note } = startStep(run, state);

  const episodes = note("generate", await stages.generate(tasks, context));
  const groups = note("transform", await stages.transform(episodes, context));
  const candidates = { episodes, groups, held: state.held };
  const { groups: kept, held } = note("reject", await stages.reject(candidates, context));
  if (kept.length > 0) {
    const rows = note("batch", await stages.batch(kept, context));
    const processed = note("process", await stages.process(rows, context));
    const trainable = note("advantages", await stages.advantages(processed, context));
    note("update", await stages.update(trainable, toTheEnd(context)));
    Object.assign(metrics, await performanceOf(context.backend, rows.tokens.length, metrics));
  }
  const report = { metrics: { ...metrics, ...progress(context) }, episodes, groups: kept };
  await stages.log(report, toTheEnd(context));
  return afterStep(state, { step: context.step, held, report, context });
}

/** A step about to run: its tasks, the context of its stages, and its metrics so far. */
export interface StartedStep {
  readonly tasks: readonly Task[];
  readonly context: StageContext;
  readonly metrics: Metrics;
  /** Adds the metrics of a stage that has just ended, and the seconds it took. Returns its value. */
  note<T>(stage: string, result: Staged<T>): T;
}

export function startStep(run: Run, state: LoopState): StartedStep {
  const { batch: tasks, epoch } = taskBatch(run, state.step);
  const versionBefore = run.backend.weightVersion;
  const context = { ...stageContext(run, state), step: state.step + 1, epoch, versionBefore };
  const metrics: Metrics = {};
  let since = performance.now();
  const note = <T>(stage: string, { value, metrics: stageMetrics }: Staged<T>): T => {
    const now = performance.now();
    Object.assign(metrics, stageMetrics);
    run.onPhase?.({ name: stage, start: since, end: now });
    for (const name of [`time/${stage}`, "time/step"]) metrics[name] = (metrics[name] ?? 0) + (now - since) / 1000;
    since = now;
    return value;
  };
  return { tasks, context, metrics, note };
}

/** verl's names: tokens of the batch per second of the whole step, and utilisation. */
export async function performanceOf(backend: Backend, tokens: number, metrics: Metrics): Promise<Metrics> {
  const seconds = metrics["time/step"]!;
  return {
    "perf/total_num_tokens": tokens,
    "perf/time_per_step": seconds,
    "perf/throughput": tokens / seconds,
    "perf/update_throughput": tokens / metrics["time/update"]!,
    ...(await utilisation(backend, seconds)),
  };
}

export function progress({ step, epoch, totalSteps }: StageContext): Metrics {
  return { "training/global_step": step, "training/epoch": epoch, "progress/done_frac": step / totalSteps };
}

/**
 * The context of the stages that change the weights, and of those after them. Its signal never aborts, because a step
 * that has trained must finish; the loop stops after it.
 */
export function toTheEnd(context: StageContext): StageContext {
  return { ...context, signal: new AbortController().signal };
}

/** The parts of a run that its stages may use, outside of a training step. */
export function stageContext(run: Run, { step }: LoopState): StageContext {
  const { backend, settings, rollout, evaluate, estimate, grouping, rejection } = run;
  const { warn, failures, loggers, signal, teacher, rewardModel } = run;
  return {
    ...{ backend, settings, rollout, evaluate, estimate, grouping, rejection },
    ...{ warn, failures, loggers, signal, teacher, rewardModel },
    step,
    epoch: 0,
    totalSteps: totalSteps(run.tasks.train, settings),
    isValidation: false,
  };
}
