/** Saving a run and going on from there. The folders themselves are log/checkpoints.ts's work. */
import type { Backend } from "../backend.ts";
import type { Checkpoint, CheckpointStore } from "../log/checkpoint_store.ts";
import type { Logger } from "../log/logger.ts";
import { type LoopState, START } from "./state.ts";

export interface Saving {
  readonly backend: Backend;
  readonly loggers: readonly Logger[];
  readonly checkpoints?: CheckpointStore<LoopState>;
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
  checkpoint: Checkpoint<LoopState> | undefined,
  { backend, loggers }: Saving,
): Promise<LoopState> {
  if (!checkpoint) return START;
  await backend.load(checkpoint.dir);
  for (const [i, logger] of loggers.entries()) await logger.rewind?.(checkpoint.state.logged[i] ?? 0);
  return checkpoint.state;
}
