/** The training loop: warm-up, then training steps, with validation and checkpoints between them. */
import type { Task } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import { isBest, resumeFrom, rewind, saveRun, seal } from "./checkpoint.ts";
import type { TrainOptions, TrainOutcome } from "./contract.ts";
import { runFrom } from "./run.ts";
import { totalSteps } from "./state.ts";
import { checkUntrained } from "./untrained.ts";
import { validate } from "./validate.ts";
import { warmupStep } from "./warmup.ts";

/**
 * Trains to the last step, or until the signal aborts. Only whole steps count: an aborted step leaves no trace, so that a
 * resumed run equals an uninterrupted one bit for bit. The signal stops a step before its update, never after; if a stage
 * throws the signal's reason after the update anyway, the step is not saved, and a warning says so.
 * @throws {ConfigError} for options that cannot work, and for a run that trains on nothing
 */
export async function train(options: TrainOptions): Promise<TrainOutcome> {
  const run = runFrom(options);
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
      await saveRun(run, state);
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
        await saveRun(run, state);
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
  if (state !== saved && !val_only) await saveRun(run, state);
  for (const logger of run.loggers) await logger.finish?.();
  return { state, isComplete: val_only ? hasValidated : state.step >= total };
}

function checkHeldOut(tasks: readonly Task[]): void {
  if (tasks.length > 0) return;
  throw new ConfigError("Cannot validate: there are no held-out tasks. Set data.val_files.", {
    path: "data.val_files",
  });
}
