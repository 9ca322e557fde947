/** Attempts of the served run: the context of each, as a stage of the loop would make it. */
import type { Task } from "../../train/data/types.ts";
import type { FailureLog } from "../../train/loop/contract.ts";
import type { SampledModel } from "../../train/loop/rollout/agent.ts";
import type { AttemptContext } from "../../train/loop/rollout/attempt.ts";
import type { ServedRun, ServiceOptions } from "./options.ts";
import type { TaskPlace } from "./protocol.ts";

/** Parts that all attempts of a service share. */
export interface AttemptParts extends ServedRun, Pick<ServiceOptions, "onEpisode"> {
  readonly failures: FailureLog;
  readonly warn: (message: string) => void;
}

/** Position of an attempt in the run. */
export interface AttemptAt {
  readonly step: number;
  readonly isValidation: boolean;
  readonly signal: AbortSignal;
}

/** The task of that place; undefined where the run has none. */
export function taskAt({ tasks }: Pick<ServedRun, "tasks">, { split, index }: TaskPlace): Task | undefined {
  return tasks[split][index];
}

/** Tells a task that there is not. */
export function noTask({ tasks }: Pick<ServedRun, "tasks">, { split, index }: TaskPlace): string {
  return `Cannot find the task ${index} of ${split}: the run has ${tasks[split].length}. Train on the rows that grpu wrote for this run.`;
}

/** A failed attempt is always an error here: the cluster's side must learn of it, whatever `raise_on_error` says. */
export function contextOf(parts: AttemptParts, { step, isValidation, signal }: AttemptAt): AttemptContext {
  const { settings, rollout, evaluate, failures, warn } = parts;
  return {
    settings: { ...settings, workflow: { ...settings.workflow, raise_on_error: true } },
    rollout,
    evaluate,
    step,
    isValidation,
    signal,
    warn,
    failures,
    backend: modelOf(parts, step),
  };
}

/** The weights are those of the cluster's step. */
function modelOf({ tokenizer, model }: ServedRun, step: number): SampledModel {
  return {
    name: "cluster",
    tokenizer,
    weightVersion: step,
    model: {
      ...model,
      vocabSize: tokenizer?.vocabSize ?? 0,
      eosTokenIds: tokenizer?.eosTokenIds ?? [],
      parameters: 0,
      trainableParameters: 0,
    },
  };
}

/** Metrics of the user's code as JSON has them: null for what is no finite number. */
export function finiteMetrics(metrics: Readonly<Record<string, unknown>>): Readonly<Record<string, number>> {
  return Object.fromEntries(Object.entries(metrics).map(([name, value]) => [name, Number(value)]));
}

/** The message of what made an attempt fail, without the words that the loop puts around it. */
export function causeOf(error: unknown): string {
  const inner = error instanceof Error && error.cause !== undefined ? error.cause : error;
  return inner instanceof Error ? inner.message : String(inner);
}
