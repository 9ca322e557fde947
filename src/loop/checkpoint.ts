/** Saving a run and going on from there. The folders themselves are log/checkpoint/folder_checkpoints.ts's work. */
import type { Backend } from "../contract/backend.ts";
import { markOf } from "../data/dataset.ts";
import type { Task } from "../data/types.ts";
import type { Checkpoint, CheckpointStore } from "../log/checkpoint/store.ts";
import type { Logger } from "../log/logger.ts";
import type { LoopState } from "./contract.ts";
import type { LoopSettings } from "./settings.ts";
import { START } from "./state.ts";

export interface Saving {
  readonly backend: Backend;
  readonly loggers: readonly Logger[];
  readonly checkpoints?: CheckpointStore<LoopState> | undefined;
  readonly settings: LoopSettings;
  readonly warn: (message: string) => void;
}

export interface Resuming extends Omit<Saving, "settings"> {
  readonly tasks: { readonly train: readonly Task[] };
}

/** The state after a whole step, bound to the weights and the log lines of this moment. */
export async function seal(
  state: LoopState,
  { backend, loggers }: Pick<Saving, "backend" | "loggers">,
): Promise<LoopState> {
  const logged: Record<string, number> = {};
  for (const [i, logger] of loggers.entries()) logged[nameOf(logger, i)] = (await logger.position?.()) ?? 0;
  return { ...state, weightVersion: backend.weightVersion, logged };
}

/**
 * Saves weights, optimiser and loop under the step's name, marked as the best where it is. Weights that a step changed
 * without coming to its end belong to no state: then nothing is saved, and a warning says so.
 */
export async function saveCheckpoint(
  { backend, checkpoints, settings, warn }: Saving,
  state: LoopState,
): Promise<void> {
  if (!checkpoints) return;
  if (backend.weightVersion !== state.weightVersion) return warn(torn(state));
  const name =
    state.step === 0 && state.warmup > 0 ? `warmup_step_${state.warmup}` : `global_step_${state.step}`;
  const metric = settings.training.metric_for_best_model;
  const best = isBest(state) && metric !== null ? { metric, value: state.best.value } : undefined;
  await checkpoints.save(name, { state, write: (dir) => backend.save(dir), best });
}

function torn({ step }: LoopState): string {
  return `The step after step ${step} is not saved: it was stopped after it had changed the weights and before it was whole. A resumed run goes on from the checkpoint before it`;
}

/** True right after the best validation so far. */
export function isBest(state: LoopState): state is LoopState & Required<Pick<LoopState, "best">> {
  return state.best?.step === state.step;
}

/** Puts backend and logs back to where the checkpoint was made, and warns when the data is no longer the same. */
export async function resumeFrom(
  checkpoint: Checkpoint<LoopState> | undefined,
  { backend, checkpoints, loggers, tasks, warn }: Resuming,
): Promise<LoopState> {
  const data = markOf(tasks.train);
  if (!checkpoint) {
    // What a run wrote that ended before its first checkpoint is written again.
    if (checkpoints) for (const logger of loggers) await logger.rewind?.(0);
    return seal({ ...START, data }, { backend, loggers });
  }
  const { dir, state } = checkpoint;
  await backend.load(dir);
  await rewind(loggers, state);
  const before = state.data;
  if (before && before.hash !== data.hash) {
    const now = data.rows === before.rows ? "rows of other content or order" : `${data.rows} rows`;
    warn(
      `The training data was ${before.rows} rows and is now ${now}: from step ${state.step + 1} on, batches are drawn from the new rows, in another order than that of the run that was begun.`,
    );
  }
  return seal({ ...state, data }, { backend, loggers });
}

/** Takes back what was logged after the state; a logger that was not there then keeps what it has. */
export async function rewind(loggers: readonly Logger[], { logged }: LoopState): Promise<void> {
  for (const [i, logger] of loggers.entries()) {
    const position = logged[nameOf(logger, i)];
    if (position !== undefined) await logger.rewind?.(position);
  }
}

function nameOf({ name }: Logger, place: number): string {
  return name ?? String(place);
}
