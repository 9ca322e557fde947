/** The training loop, whole: `trainStep` is the eight stages in a row, `train` decides what comes next. */
import type { Backend, Metrics } from "../contract/backend.ts";
import type { Task } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import type { CheckpointStore } from "../log/checkpoint/store.ts";
import type { Logger } from "../log/logger.ts";
import type { Evaluate, Example, Rollout } from "../task/rollout.ts";
import { checkSettings, checkThinking } from "./check_settings.ts";
import { isBest, resumeFrom, rewind, saveCheckpoint, seal } from "./checkpoint.ts";
import { isPublishedOrder, pipelineStep } from "./pipeline/pipeline.ts";
import { AsyncGeneration } from "./rollout/async.ts";
import { Failures } from "./rollout/failures.ts";
import { type LoopSettings, loopSettings, type Partly } from "./settings.ts";
import type { EstimateAdvantages } from "./stages/advantages.ts";
import { estimateAdvantages } from "./stages/estimate.ts";
import type { RejectionFunction } from "./stages/reject.ts";
import type { GroupingHook } from "./stages/transform.ts";
import { STAGES, type Staged, type Stages } from "./stages.ts";
import { type LoopState, nextBatch, totalSteps } from "./state.ts";
import { progress, stageContext, throughput, toTheEnd } from "./step.ts";
import { afterStep, checkUntrained } from "./untrained.ts";
import { validate } from "./validate.ts";
import { warmupStep } from "./warmup.ts";

/** A run with every choice made. */
export interface Run {
  readonly backend: Backend;
  readonly settings: LoopSettings;
  readonly tasks: { readonly train: readonly Task[]; readonly val: readonly Task[] };
  /** How a task is attempted and judged. */
  readonly rollout: Rollout;
  /** Judges each episode after its rollout: a reward for trajectories that have none, signals, metrics. */
  readonly evaluate?: Evaluate;
  /** Rewards to advantages, by the estimator's name. */
  readonly estimate: EstimateAdvantages;
  /** Prompts with worked answers, for the warm-up. */
  readonly examples: readonly Example[];
  readonly stages: Stages;
  /** One training step over the stages: `trainStep`, or the list that `pipeline.stages` names. */
  readonly step: typeof trainStep;
  /** What the stage `generate` takes from, in asynchronous training. */
  readonly generation?: AsyncGeneration;
  /** Which trajectories are compared with each other. Default: those of one task and one name. */
  readonly grouping?: GroupingHook;
  /** Which groups train, in place of the mode of `rejection_sample`. */
  readonly rejection?: RejectionFunction;
  /** Tells the person something once. Default: every logger that can. */
  readonly warn: (message: string) => void;
  /** Shows and counts what rollouts throw. Default: by `warn`. */
  readonly failures: Failures;
  readonly loggers: readonly Logger[];
  readonly checkpoints?: CheckpointStore<LoopState>;
  /** Ends the run after a checkpoint, leaving the step in hand. */
  readonly signal: AbortSignal;
}

type Choices = "estimate" | "examples" | "stages" | "step" | "loggers" | "signal" | "warn" | "failures";

/** What `train` needs; the rest has defaults. */
export interface TrainOptions
  extends Omit<Run, "settings" | "generation" | Choices>,
    Partial<Pick<Run, Choices>> {
  readonly settings?: Partly<LoopSettings>;
}

export interface TrainOutcome {
  /** After the last whole step. */
  readonly state: LoopState;
  /** False when the signal stopped the run before its last step. */
  readonly isComplete: boolean;
}

/**
 * Trains to the last step, or to the signal. A step counts when it is whole: an aborted one leaves no trace, so that
 * the resumed run equals the uninterrupted one bit for bit. The signal stops a step before its update and lets it come to
 * its end after that; where a stage throws the signal's reason even so, the step is not saved, and a warning says so.
 */
export async function train(options: TrainOptions): Promise<TrainOutcome> {
  const run = withDefaults(options);
  const { settings, signal } = run;
  const { test_freq, save_freq, val_before_train, val_only } = settings.trainer;
  const total = totalSteps(run.tasks.train, settings);
  if (val_only) checkHeldOut(run.tasks.val);

  let state = await resumeFrom(await run.checkpoints?.find(), run);
  let saved = state;
  let hasValidated = false;
  run.generation?.resume(state);
  const isValidationDue = () => {
    if (val_only) return true;
    if (run.tasks.val.length === 0 || state.validated === state.step) return false;
    if (state.step === 0) return val_before_train;
    return test_freq > 0 && (state.step % test_freq === 0 || state.step === total);
  };

  try {
    while (state.warmup < settings.warmup.steps && !val_only) {
      signal.throwIfAborted();
      state = await seal(await warmupStep(run, state), run);
    }
    if (state.warmup > saved.warmup) {
      await saveCheckpoint(run, state);
      saved = state;
    }
    if (state.step === 0 && settings.algorithm.kl_beta > 0 && !val_only) run.backend.freezeReference?.();
    for (;;) {
      if (isValidationDue()) {
        state = await seal(await validate(run, state), run);
        hasValidated = true;
      }
      if (state.step >= total || val_only) break;
      const isSaveDue = (save_freq > 0 && state.step % save_freq === 0) || isBest(state);
      if (isSaveDue && state.step > saved.step) {
        await saveCheckpoint(run, state);
        saved = state;
      }
      signal.throwIfAborted();
      state = await seal(await run.step(run, state), run);
      if (run.generation) state = { ...state, generation: run.generation.state };
      checkUntrained(state, { settings, total });
    }
  } catch (error) {
    if (!signal.aborted || error !== signal.reason) throw error;
    await rewind(run.loggers, state);
  } finally {
    await run.generation?.stop();
    run.failures.finish();
  }
  if (state !== saved && !val_only) await saveCheckpoint(run, state);
  for (const logger of run.loggers) await logger.finish?.();
  return { state, isComplete: val_only ? hasValidated : state.step >= total };
}

function checkHeldOut(tasks: readonly Task[]): void {
  if (tasks.length > 0) return;
  throw new ConfigError("Cannot validate: there are no held-out tasks. Set data.val_files.", {
    path: "data.val_files",
  });
}

/** One step over the eight stages; the state after it. */
export async function trainStep(run: Run, state: LoopState): Promise<LoopState> {
  const { stages } = run;
  const { batch: tasks, epoch } = nextBatch(run.tasks.train, { state, settings: run.settings });
  const context = { ...stageContext(run, state), step: state.step + 1, epoch };
  const { metrics, note } = startStep();

  const episodes = note("generate", await stages.generate(tasks, context));
  const groups = note("transform", await stages.transform(episodes, context));
  const { groups: kept, held } = note(
    "reject",
    await stages.reject({ episodes, groups, held: state.held }, context),
  );
  if (kept.length > 0) {
    const rows = note("batch", await stages.batch(kept, context));
    const processed = note("process", await stages.process(rows, context));
    const trainable = note("advantages", await stages.advantages(processed, context));
    note("update", await stages.update(trainable, toTheEnd(context)));
    Object.assign(metrics, throughput(rows.tokens.length, metrics));
  }
  Object.assign(metrics, progress(context));
  const report = { metrics, episodes, groups: kept };
  await stages.log(report, toTheEnd(context));
  return afterStep(state, { step: context.step, held, report });
}

/** Collects the metrics of the stages, and the seconds that each took. */
function startStep() {
  const metrics: Metrics = {};
  let since = performance.now();
  const note = <T>(stage: string, { value, metrics: own }: Staged<T>): T => {
    const now = performance.now();
    Object.assign(metrics, own, { [`time/${stage}`]: (now - since) / 1000 });
    metrics["time/step"] = (metrics["time/step"] ?? 0) + (now - since) / 1000;
    since = now;
    return value;
  };
  return { metrics, note };
}

/** What JavaScript may forget. */
function checkParts({ backend, tasks, rollout }: TrainOptions): void {
  const parts: readonly (readonly [string, boolean, string])[] = [
    ["backend", typeof backend?.sample === "function", "an object; see defineBackend"],
    ["tasks", Array.isArray(tasks?.train) && Array.isArray(tasks?.val), "{ train: [...], val: [...] }"],
    ["rollout", typeof rollout === "function", "a function of a task and a policy"],
  ];
  for (const [part, isThere, what] of parts)
    if (!isThere) throw new ConfigError(`Cannot train without ${part}: ${what}`, { path: part });
}

function withDefaults(options: TrainOptions): Run {
  checkParts(options);
  const settings = loopSettings(options.settings);
  const { estimate = estimateAdvantages } = options;
  const { stages = STAGES } = options;
  checkSettings(settings, estimate);
  checkThinking(settings, options.backend.tokenizer);
  const warn = options.warn ?? warnOnce(options.loggers ?? []);
  const run: Run = {
    estimate,
    examples: [],
    stages,
    step: trainStep,
    loggers: [],
    signal: new AbortController().signal,
    warn,
    failures: new Failures(warn),
    ...options,
    settings,
  };
  const generation = settings.async_training.enable ? new AsyncGeneration(run) : undefined;
  return withStep({ ...run, ...(generation && { generation, stages: generation.stages(stages) }) }, options);
}

/** The step that the options bring, else the one that `pipeline.stages` names. */
function withStep(run: Run, { step }: TrainOptions): Run {
  const { stages: names } = run.settings.pipeline;
  const named = isPublishedOrder(names) ? trainStep : pipelineStep(names, run.stages);
  return { ...run, step: step ?? named };
}

function warnOnce(loggers: readonly Logger[]): (message: string) => void {
  const said = new Set<string>();
  return (message) => {
    if (said.has(message)) return;
    said.add(message);
    for (const logger of loggers) logger.warn?.(message);
  };
}
