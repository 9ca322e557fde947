/** Saving a run and going on from there. The files themselves are log/run_folder.ts's work. */
import type { Backend } from "../backend.ts";
import type { Logger } from "./logger.ts";
import { type LoopState, START } from "./state.ts";

export interface Checkpoint {
  /** Holds what `backend.save` wrote. */
  readonly dir: string;
  readonly state: LoopState;
}

/** Where checkpoints are kept. */
export interface CheckpointStore {
  /**
   * Makes a checkpoint called `name` of what `write` puts into an empty folder, and of `state`. It is there whole or
   * not at all: when writing fails, the checkpoints before it are as they were.
   */
  save(name: string, contents: { state: LoopState; write: (dir: string) => Promise<void> }): Promise<void>;
  /** The checkpoint to go on from; undefined to start afresh. */
  find(): Promise<Checkpoint | undefined>;
}

export interface Saving {
  readonly backend: Backend;
  readonly loggers: readonly Logger[];
  readonly checkpoints?: CheckpointStore;
}

/** Saves weights, optimiser and loop under the step's name. */
export async function saveCheckpoint(
  { backend, checkpoints, loggers }: Saving,
  state: LoopState,
): Promise<void> {
  if (!checkpoints) return;
  const name =
    state.step === 0 && state.warmup > 0 ? `warmup_step_${state.warmup}` : `global_step_${state.step}`;
  const logged: number[] = [];
  for (const logger of loggers) logged.push((await logger.position?.()) ?? 0);
  await checkpoints.save(name, { state: { ...state, logged }, write: (dir) => backend.save(dir) });
}

/** Puts backend and logs back to where the checkpoint was made. */
export async function resumeFrom(
  checkpoint: Checkpoint | undefined,
  { backend, loggers }: Saving,
): Promise<LoopState> {
  if (!checkpoint) return START;
  await backend.load(checkpoint.dir);
  for (const [i, logger] of loggers.entries()) await logger.rewind?.(checkpoint.state.logged[i] ?? 0);
  return checkpoint.state;
}
