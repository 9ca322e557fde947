/** Saving and resuming a run. The checkpoint store writes the folders (log/checkpoint/). */
import type { Resumable } from "../../engine/contract/reward_model.ts";
import { markOf } from "../data/dataset.ts";
import type { Task } from "../data/types.ts";
import type { Checkpoint, CheckpointStore } from "../log/checkpoint/store.ts";
import type { Logger } from "../log/logger.ts";
import type { LoopState } from "./contract.ts";
import type { LoopSettings } from "./settings.ts";
import { START_STATE } from "./state.ts";

export interface Saving {
  readonly backend: Resumable;
  readonly loggers: readonly Logger[];
  readonly checkpoints?: CheckpointStore<LoopState> | undefined;
  readonly settings: LoopSettings;
  readonly warn: (message: string) => void;
}

export interface Resuming extends Omit<Saving, "settings"> {
  readonly tasks: { readonly train: readonly Task[] };
}

/** Adds the current weight version and log positions to the state after a whole step. */
export async function seal(
  state: LoopState,
  { backend, loggers }: Pick<Saving, "backend" | "loggers">,
): Promise<LoopState> {
  const logged: Record<string, number> = {};
  for (const [i, logger] of loggers.entries()) logged[nameOf(logger, i)] = (await logger.position?.()) ?? 0;
  const { weightVersion, critic } = backend;
  // Of the run before, which may have had a critic where this one has none.
  const { criticVersion: _, ...kept } = state;
  return { ...kept, weightVersion, ...(critic && { criticVersion: critic.version }), logged };
}

/**
 * Saves weights, optimiser and state under the name of the step; the best so far gets a mark. Saves nothing, with a
 * warning, after a step that changed the weights and did not finish: its weights belong to no state.
 */
export async function saveRun({ backend, checkpoints, settings, warn }: Saving, state: LoopState): Promise<void> {
  if (!checkpoints) return;
  const isTorn = backend.weightVersion !== state.weightVersion || backend.critic?.version !== state.criticVersion;
  if (isTorn) return warn(torn(state));
  const name = state.step === 0 && state.warmup > 0 ? `warmup_step_${state.warmup}` : `global_step_${state.step}`;
  const metric = settings.training.metric_for_best_model;
  const best = isBest(state) && metric !== null ? { metric, value: state.best.value } : undefined;
  await checkpoints.save(name, { state, write: (dir) => backend.save(dir), best });
}

function torn({ step }: LoopState): string {
  return `Step ${step + 1} is not saved: it stopped after it changed the weights and before it was whole. A resumed run continues from the checkpoint before it.`;
}

/** True directly after the best validation so far. */
export function isBest(state: LoopState): state is LoopState & Required<Pick<LoopState, "best">> {
  return state.best?.step === state.step;
}

/** Returns backend and logs to the checkpoint; warns when the training data has changed since. */
export async function resumeFrom(
  checkpoint: Checkpoint<LoopState> | undefined,
  { backend, checkpoints, loggers, tasks, warn }: Resuming,
): Promise<LoopState> {
  const data = markOf(tasks.train);
  if (!checkpoint) {
    // Lines of a run that ended before its first checkpoint are written again.
    if (checkpoints) for (const logger of loggers) await logger.rewind?.(0);
    return seal({ ...START_STATE, data }, { backend, loggers });
  }
  const { dir, state } = checkpoint;
  await backend.load(dir);
  if (backend.critic && state.criticVersion === undefined && state.step > 0)
    warn("The checkpoint has no critic: a new one starts from here.");
  await rewind(loggers, state);
  const before = state.data;
  if (before && before.hash !== data.hash) {
    const now = data.rows === before.rows ? "rows with other content or in another order" : `${data.rows} rows`;
    warn(
      `The training data has changed from ${before.rows} rows to ${now}: from step ${state.step + 1} on, batches come from the new rows, in a new order.`,
    );
  }
  return seal({ ...state, data }, { backend, loggers });
}

/** Removes log lines written after the state. Loggers added since then are not rewound. */
export async function rewind(loggers: readonly Logger[], { logged }: LoopState): Promise<void> {
  for (const [i, logger] of loggers.entries()) {
    const position = logged[nameOf(logger, i)];
    if (position !== undefined) await logger.rewind?.(position);
  }
}

function nameOf({ name }: Logger, place: number): string {
  return name ?? String(place);
}
