/** A lost GPU device in the middle of a run: the state to return to, and the way back. */
import type { Resumable } from "../../engine/contract/reward_model.ts";
import { DeviceLostError, RemoteError } from "../../leaves/errors.ts";
import { resumeFrom, rewind } from "./checkpoint.ts";
import type { LoopState, Run } from "./contract.ts";

interface Trained {
  readonly backend: Resumable;
}

/** Position of the loop. */
export interface LoopCursor {
  /** After the last whole step. */
  state: LoopState;
  saved: LoopState;
  /** The state of the weights that the backend kept. */
  kept: LoopState;
  keptAt: number;
  losses: Losses;
}

/** Losses in a row, without a further step between them. */
interface Losses {
  readonly count: number;
  /** How far the run had come at the last of them. */
  readonly reached: number;
}

export function cursorAt(state: LoopState): LoopCursor {
  return {
    state,
    saved: state,
    kept: state,
    keptAt: Number.NEGATIVE_INFINITY,
    losses: { count: 0, reached: -1 },
  };
}

/** Quick steps are not read back each; after a loss some of them are repeated. */
const KEEP_INTERVAL_MS = 1000;

/** Makes `state` the present one. The weights are kept first, so that a loss on the way leaves the state before it. */
export async function advance({ backend }: Trained, at: LoopCursor, state: LoopState): Promise<void> {
  if (backend.keep && performance.now() - at.keptAt > KEEP_INTERVAL_MS) {
    await backend.keep();
    at.kept = state;
    at.keptAt = performance.now();
  }
  at.state = state;
}

const MOST_LOSSES = 3;

/**
 * Counts a loss.
 * @throws the error itself where the backend cannot recover; RemoteError after too many losses without progress
 */
export function countLoss(error: unknown, { backend, warn }: Trained & Pick<Run, "warn">, at: LoopCursor): void {
  if (!(error instanceof DeviceLostError) || !backend.recover) throw error;
  const reached = at.state.warmup + at.state.step + at.state.validated;
  const count = reached > at.losses.reached ? 1 : at.losses.count + 1;
  at.losses = { count, reached: Math.max(reached, at.losses.reached) };
  const place = `after ${stepOf(at.state)}`;
  if (count >= MOST_LOSSES)
    throw new RemoteError(
      `Cannot continue: the GPU device was lost ${count} times in a row ${place} (${error.why}). Check the driver's log, lower training.max_tokens_per_pass, then resume from the last checkpoint.`,
      { retryable: false },
    );
  warn(`The GPU device was lost ${place} (${error.why}). It is opened again, loss ${count} of at most ${MOST_LOSSES}.`);
}

/** Opens the device again and returns the run to the last whole state: the one in memory, else the last checkpoint. */
export async function comeBack(
  run: Trained & Pick<Run, "checkpoints" | "loggers" | "tasks" | "teacher" | "rewardModel" | "warn">,
  at: LoopCursor,
): Promise<void> {
  const { backend, checkpoints, loggers, teacher, rewardModel, warn } = run;
  const isKept = await backend.recover!();
  await teacher?.recover?.();
  await rewardModel?.recover();
  if (isKept) {
    await rewind(loggers, at.kept);
    at.state = at.kept;
  } else {
    const checkpoint = checkpoints?.lastSaved ?? (await checkpoints?.find());
    if (checkpoint) at.saved = await resumeFrom(checkpoint, run);
    else await rewind(loggers, at.saved);
    at.state = at.saved;
    at.kept = at.saved;
  }
  warn(`The GPU device is open again. The run continues after ${stepOf(at.state)}.`);
}

function stepOf({ step, warmup }: LoopState): string {
  return step === 0 && warmup > 0 ? `warm-up step ${warmup}` : `step ${step}`;
}
