/** Common parts of training by reinforcement and by examples: steps, with validations and checkpoints between them. */
import type { Resumable } from "../../engine/contract/reward_model.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Task } from "../data/types.ts";
import { isBest, resumeFrom, rewind, saveRun, seal } from "./checkpoint.ts";
import type { LoopState, Run, TrainOutcome } from "./contract.ts";
import { advance, comeBack, countLoss, cursorAt, type LoopCursor } from "./device_lost.ts";
import { usesReference } from "./distill/choices.ts";
import { inPhase } from "./phase.ts";
import { checkHeld, checkUntrained } from "./untrained.ts";

type Parts =
  | "settings"
  | "tasks"
  | "loggers"
  | "checkpoints"
  | "signal"
  | "warn"
  | "generation"
  | "teacher"
  | "rewardModel"
  | "onPhase";

/** A run as the driver sees it: what a step, a supervised step of the warm-up and a validation do, and how many there are. */
export interface Course extends Pick<Run, Parts> {
  readonly backend: Resumable;
  /** Training steps of the whole run. */
  readonly total: number;
  /** Each takes the state before it and returns the state after it. */
  warmUp(state: LoopState): Promise<LoopState>;
  step(state: LoopState): Promise<LoopState>;
  validate(state: LoopState): Promise<LoopState>;
  /** Called when the run has ended or was stopped. */
  finish?(): void;
}

/**
 * Drives a run to its last step, or until its signal aborts. Only whole steps count: an aborted step leaves no trace, so
 * that a resumed run equals an uninterrupted one bit for bit. A run whose GPU device is lost opens it again and continues
 * from the last whole state, where its backend can.
 * @param open makes the run; called again after the loss of a device, with the `warn` of the first run
 */
export async function drive(open: (before?: Pick<Run, "warn">) => Course): Promise<TrainOutcome> {
  const run = open();
  if (run.settings.trainer.val_only) checkHeldOut(run.tasks.val);
  const { signal, loggers } = run;
  const reportStop = () => {
    for (const logger of loggers) logger.stopping?.();
  };
  signal.addEventListener("abort", reportStop, { once: true });
  try {
    return await driveToTheEnd(run, open);
  } finally {
    signal.removeEventListener("abort", reportStop);
  }
}

async function driveToTheEnd(opened: Course, open: (before: Pick<Run, "warn">) => Course): Promise<TrainOutcome> {
  let run = opened;
  const start = await resumeFrom(await run.checkpoints?.find(), run);
  const at = cursorAt(start);
  let isWhole: boolean | undefined;
  for (let isLost = false; isWhole === undefined; ) {
    try {
      if (isLost) await comeBack(run, at);
      isWhole = await driveFrom(run, at);
    } catch (error) {
      countLoss(error, run, at);
      isLost = true;
      // Generation cannot start a second time.
      run = open(run);
    }
  }
  for (const logger of run.loggers) await logger.finish?.();
  return { state: at.state, isComplete: isWhole };
}

/**
 * Drives from the state of the cursor to the last step, and to the last checkpoint. Returns whether the run came to its
 * end.
 */
async function driveFrom(run: Course, at: LoopCursor): Promise<boolean> {
  const { signal, total } = run;
  const { val_only } = run.settings.trainer;
  const begun = at.state;
  // The first call measures the device, which is idle only here.
  if (!val_only) await run.backend.takeWork?.();
  run.generation?.resume(begun);
  try {
    if (val_only) at.state = await seal(await inPhase(run, "validate", () => run.validate(at.state)), run);
    else {
      await advance(run, at, at.state);
      await takeSteps(run, at);
    }
  } catch (error) {
    if (!signal.aborted || error !== signal.reason) throw error;
    await rewind(run.loggers, at.state);
  } finally {
    await run.generation?.stop();
    run.finish?.();
  }
  if (val_only) return at.state !== begun;
  await save(run, at);
  const isWhole = at.state.step >= total;
  if (isWhole) checkHeld(at.state, run);
  return isWhole;
}

async function takeSteps(run: Course, at: LoopCursor): Promise<void> {
  const { settings, signal, total } = run;
  await warmUp(run, at);
  if (at.state.step === 0 && usesReference(settings)) run.backend.freezeReference?.();
  for (;;) {
    if (isValidationDue(run, at.state)) at.state = await seal(await validated(run, at), run);
    if (at.state.step >= total) return;
    if (isSaveDue(run, at)) await save(run, at);
    signal.throwIfAborted();
    // Only the step's own work counts, not that of a validation before it.
    await run.backend.takeWork?.();
    const state = await seal(await inPhase(run, "step", () => run.step(at.state)), run);
    await advance(run, at, run.generation ? { ...state, generation: run.generation.state } : state);
    checkUntrained(at.state, { settings, total });
  }
}

/** A validation that is refused for its settings loses no step: the run continues from here once they are corrected. */
async function validated(run: Course, at: LoopCursor): Promise<LoopState> {
  try {
    return await inPhase(run, "validate", () => run.validate(at.state));
  } catch (error) {
    if (error instanceof ConfigError) await save(run, at);
    throw error;
  }
}

async function warmUp(run: Course, at: LoopCursor): Promise<void> {
  while (at.state.warmup < run.settings.warmup.steps) {
    run.signal.throwIfAborted();
    await advance(run, at, await seal(await inPhase(run, "warmup", () => run.warmUp(at.state)), run));
  }
  await save(run, at);
}

function isValidationDue({ tasks, settings, total }: Course, state: LoopState): boolean {
  const { test_freq, val_before_train } = settings.trainer;
  if (tasks.val.length === 0 || state.validated === state.step) return false;
  if (state.step === 0) return val_before_train;
  return test_freq > 0 && (state.step % test_freq === 0 || state.step === total);
}

function isSaveDue({ settings }: Course, { state, saved }: LoopCursor): boolean {
  const { save_freq } = settings.trainer;
  return state.step > saved.step && ((save_freq > 0 && state.step % save_freq === 0) || isBest(state));
}

async function save(run: Course, at: LoopCursor): Promise<void> {
  // What is not written cannot be returned to after the loss of a device.
  if (!run.checkpoints) return;
  if (at.state !== at.saved) await inPhase(run, "save", () => saveRun(run, at.state));
  at.saved = at.state;
}

function checkHeldOut(tasks: readonly Task[]): void {
  if (tasks.length > 0) return;
  throw new ConfigError("Cannot validate: there are no held-out tasks. Set data.val_files.", {
    path: "data.val_files",
  });
}
