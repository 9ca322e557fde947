/** Turns the options of `train` into a run with every choice made. */
import { ConfigError } from "../../leaves/errors.ts";
import type { Logger } from "../log/logger.ts";
import { checkCritic, checkSettings, checkThinking } from "./check_settings.ts";
import type { EpisodeSource, Run, Stages, TrainOptions } from "./contract.ts";
import { chooseTeacher } from "./distill/teacher.ts";
import { isPublishedOrder, pipelineStep } from "./pipeline/pipeline.ts";
import { AsyncGeneration } from "./rollout/async_generation.ts";
import { RolloutFailures } from "./rollout/failures.ts";
import { RewardQueue } from "./rollout/reward_queue.ts";
import { loopSettings } from "./settings.ts";
import { estimateAdvantages } from "./stages/estimate.ts";
import { playsGreedy } from "./stages/greedy.ts";
import { STAGES } from "./stages.ts";
import { trainingOrder } from "./state.ts";
import { trainStep } from "./step.ts";

/** @throws {ConfigError} for missing parts, unknown settings and pipelines that cannot work. */
export function runFrom(options: TrainOptions): Run {
  checkParts(options);
  const settings = loopSettings(options.settings);
  const { estimate = estimateAdvantages, stages = STAGES, loggers = [], source, rewardModel, ...parts } = options;
  checkSettings(settings, estimate);
  checkCritic(settings, options.backend);
  checkThinking(settings, options.backend.tokenizer);
  const teacher = chooseTeacher(settings, options);
  const warn = options.warn ?? warnOnce(loggers);
  options.backend.onWarning?.(warn);
  const run: Run = {
    estimate,
    examples: [],
    stages,
    step: trainStep,
    loggers,
    signal: new AbortController().signal,
    warn,
    failures: new RolloutFailures(warn),
    ...parts,
    teacher,
    ...(rewardModel && { rewardModel: new RewardQueue(rewardModel) }),
    tasks: { train: options.tasks.train, val: options.tasks.val ?? [] },
    settings,
    order: trainingOrder(options.tasks.train, settings, { isShuffled: source === undefined }),
  };
  if (source && settings.async_training.enable) throw cannotGenerate();
  if (source && playsGreedy(settings)) throw noGreedy();
  if (source) return withStep({ ...run, generation: source, stages: recordedStages(stages, source) }, options);
  const generation = settings.async_training.enable
    ? new AsyncGeneration(run, { isGreedyPlayed: playsGreedy(settings) })
    : undefined;
  return withStep({ ...run, ...(generation && { generation, stages: generation.stages(stages) }) }, options);
}

function cannotGenerate(): ConfigError {
  return new ConfigError(
    "Cannot train on recorded episodes asynchronously: nothing is generated. Set rllm.async_training.enable=false.",
    { path: "rllm.async_training.enable" },
  );
}

function noGreedy(): ConfigError {
  return new ConfigError(
    "Cannot estimate remax on recorded episodes: no greedy attempt at their tasks is recorded for a baseline. Choose another estimator, such as rloo.",
    { path: "rllm.algorithm.adv_estimator" },
  );
}

function recordedStages(stages: Stages, source: EpisodeSource): Stages {
  return {
    ...stages,
    generate: (tasks, context) => (context.isValidation ? stages : source).generate(tasks, context),
  };
}

/** Checks for untyped callers. */
function checkParts({ backend, tasks, rollout }: TrainOptions): void {
  const parts: readonly (readonly [string, boolean, string])[] = [
    ["backend", typeof backend?.sample === "function", "an object; see defineBackend"],
    ["tasks", Array.isArray(tasks?.train) && Array.isArray(tasks.val ?? []), "{ train: [...], val: [...] }"],
    ["rollout", typeof rollout === "function", "a function of a task and a policy"],
  ];
  for (const [part, isThere, what] of parts)
    if (!isThere) throw new ConfigError(`Cannot train without ${part}: it must be ${what}.`, { path: part });
}

/** The step in the options, else the one that `pipeline.stages` names. */
function withStep(run: Run, { step }: TrainOptions): Run {
  const { stages: names } = run.settings.pipeline;
  const named = isPublishedOrder(names) ? trainStep : pipelineStep(names, run.stages);
  return { ...run, step: step ?? named };
}

/** Shows each distinct message once, in every logger that can. */
export function warnOnce(loggers: readonly Logger[]): (message: string) => void {
  const shown = new Set<string>();
  return (message) => {
    if (shown.has(message)) return;
    shown.add(message);
    for (const logger of loggers) logger.warn?.(message);
  };
}
