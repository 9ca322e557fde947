/** The training loop: warm-up, then training steps, with validation and checkpoints between them. */
import type { Task } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import { isBest, resumeFrom, rewind, saveRun, seal } from "./checkpoint.ts";
import type { LoopState, Run, TrainOptions, TrainOutcome } from "./contract.ts";
import { advance, type Cursor, comeBack, countLoss, cursorAt } from "./device_loss.ts";
import { runFrom } from "./run.ts";
import { totalSteps } from "./state.ts";
import { checkHeld, checkUntrained } from "./untrained.ts";
import { validate } from "./validate.ts";
import { warmupStep } from "./warmup.ts";

/**
 * Trains to the last step, or until the signal aborts. Only whole steps count: an aborted step leaves no trace, so that a
 * resumed run equals an uninterrupted one bit for bit. The signal stops a step before its update, never after; if a stage
 * throws the signal's reason after the update anyway, the step is not saved, and a warning says so. A run whose GPU device
 * is lost opens it again and continues from the last whole state, where its backend can.
 * @throws {ConfigError} for options that cannot work, and for a run that trains on nothing
 */
export async function train(options: TrainOptions): Promise<TrainOutcome> {
  let run = runFrom(options);
  const { val_only } = run.settings.trainer;
  const total = totalSteps(run.tasks.train, run.settings);
  if (val_only) checkHeldOut(run.tasks.val);
  const start = await resumeFrom(await run.checkpoints?.find(), run);
  const at = cursorAt(start);
  let isWhole: boolean | undefined;
  for (let isLost = false; isWhole === undefined; ) {
    try {
      if (isLost) await comeBack(run, at);
      isWhole = await trainFrom(run, at, total);
    } catch (error) {
      countLoss(error, run, at);
      isLost = true;
      // Generation cannot start a second time.
      run = runFrom({ ...options, warn: run.warn });
    }
  }
  for (const logger of run.loggers) await logger.finish?.();
  return { state: at.state, isComplete: isWhole };
}

/** From the state of the cursor to the last step, and to the last checkpoint. Returns whether the run came to its end. */
async function trainFrom(run: Run, at: Cursor, total: number): Promise<boolean> {
  const { signal } = run;
  const { val_only } = run.settings.trainer;
  const begun = at.state;
  run.generation?.resume(begun);
  try {
    if (val_only) at.state = await seal(await validate(run, at.state), run);
    else {
      await advance(run, at, at.state);
      await trainSteps(run, at, total);
    }
  } catch (error) {
    if (!signal.aborted || error !== signal.reason) throw error;
    await rewind(run.loggers, at.state);
  } finally {
    await run.generation?.stop();
    run.failures.finish();
  }
  if (val_only) return at.state !== begun;
  await save(run, at);
  const isWhole = at.state.step >= total;
  if (isWhole) checkHeld(at.state, run);
  return isWhole;
}

async function trainSteps(run: Run, at: Cursor, total: number): Promise<void> {
  const { settings, signal } = run;
  await warmUp(run, at);
  if (at.state.step === 0 && settings.algorithm.kl_beta > 0) run.backend.freezeReference?.();
  for (;;) {
    if (isValidationDue(run, at.state, total)) at.state = await seal(await validate(run, at.state), run);
    if (at.state.step >= total) return;
    if (isSaveDue(run, at)) await save(run, at);
    signal.throwIfAborted();
    const state = await seal(await run.step(run, at.state), run);
    await advance(run, at, run.generation ? { ...state, generation: run.generation.state } : state);
    checkUntrained(at.state, { settings, total });
  }
}

async function warmUp(run: Run, at: Cursor): Promise<void> {
  while (at.state.warmup < run.settings.warmup.steps) {
    run.signal.throwIfAborted();
    await advance(run, at, await seal(await warmupStep(run, at.state), run));
  }
  await save(run, at);
}

function isValidationDue({ tasks, settings }: Run, state: LoopState, total: number): boolean {
  const { test_freq, val_before_train } = settings.trainer;
  if (tasks.val.length === 0 || state.validated === state.step) return false;
  if (state.step === 0) return val_before_train;
  return test_freq > 0 && (state.step % test_freq === 0 || state.step === total);
}

function isSaveDue({ settings }: Run, { state, saved }: Cursor): boolean {
  const { save_freq } = settings.trainer;
  return state.step > saved.step && ((save_freq > 0 && state.step % save_freq === 0) || isBest(state));
}

async function save(run: Run, at: Cursor): Promise<void> {
  // What is not written cannot be returned to after the loss of a device.
  if (!run.checkpoints) return;
  if (at.state !== at.saved) await saveRun(run, at.state);
  at.saved = at.state;
}

function checkHeldOut(tasks: readonly Task[]): void {
  if (tasks.length > 0) return;
  throw new ConfigError("Cannot validate: there are no held-out tasks. Set data.val_files.", {
    path: "data.val_files",
  });
}
