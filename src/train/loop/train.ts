/** The training loop: warm-up, then training steps, with validation and checkpoints between them. */
import type { Run, TrainOptions, TrainOutcome } from "./contract.ts";
import { checkTeacher } from "./distill/teacher.ts";
import { type Course, drive } from "./drive.ts";
import { runFrom } from "./run.ts";
import { totalSteps } from "./state.ts";
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
  await checkTeacher(options);
  return drive((before) => courseOf(runFrom({ ...options, ...(before && { warn: before.warn }) })));
}

function courseOf(run: Run): Course {
  return {
    ...run,
    total: totalSteps(run.tasks.train, run.settings),
    warmUp: (state) => warmupStep(run, state),
    step: (state) => run.step(run, state),
    validate: (state) => validate(run, state),
    finish: () => run.failures.finish(),
  };
}
