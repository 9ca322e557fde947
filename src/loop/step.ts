/** What a training step has around its stages: their context, and the metrics of the whole. */
import type { Metrics } from "../contract/backend.ts";
import type { StageContext } from "./stages.ts";
import { type LoopState, totalSteps } from "./state.ts";
import type { Run } from "./train.ts";

/** verl's names: tokens of the batch per second of the whole step. */
export function throughput(tokens: number, metrics: Metrics): Metrics {
  const seconds = metrics["time/step"]!;
  return {
    "perf/total_num_tokens": tokens,
    "perf/time_per_step": seconds,
    "perf/throughput": tokens / seconds,
    "perf/update_throughput": tokens / metrics["time/update"]!,
  };
}

export function progress({ step, epoch, totalSteps }: StageContext): Metrics {
  return { "training/global_step": step, "training/epoch": epoch, "progress/done_frac": step / totalSteps };
}

/**
 * The context of the stages that change the weights and of those after them. Its signal never aborts, because a step
 * that has trained has to come to its end: the loop stops after it.
 */
export function toTheEnd(context: StageContext): StageContext {
  return { ...context, signal: new AbortController().signal };
}

/** What the stages of a step may use. */
export function stageContext(run: Run, state: LoopState): StageContext {
  return {
    ...run,
    step: state.step,
    epoch: 0,
    totalSteps: totalSteps(run.tasks.train, run.settings),
    isValidation: false,
  };
}
