/** The first state of a run, and which tasks each step trains on. */
import { BatchOrder } from "../data/order.ts";
import type { Task } from "../data/types.ts";
import type { Held, LoopState, Run } from "./contract.ts";
import type { LoopSettings } from "./settings.ts";

export const NOTHING_HELD: Held = { groups: [], solvePartial: 0 };

export const START_STATE: LoopState = {
  warmup: 0,
  step: 0,
  validated: -1,
  held: NOTHING_HELD,
  weightVersion: 0,
  logged: {},
};

/** Tasks of a training step. Asynchronous training has a batch size of its own: `async_training.mini_batch_size`. */
export function batchSizeOf({ data, rejection_sample, async_training }: LoopSettings): number {
  const size = async_training.enable ? async_training.mini_batch_size : data.train_batch_size;
  return size * rejection_sample.multiplier;
}

/** The order of a run's training tasks. */
export function trainingOrder(
  tasks: readonly Task[],
  settings: LoopSettings,
  { isShuffled = true }: { readonly isShuffled?: boolean } = {},
): BatchOrder {
  return new BatchOrder({ size: tasks.length, batchSize: batchSizeOf(settings), seed: settings.data.seed, isShuffled });
}

/**
 * `total_batches`, or the number of batches in all epochs; 0 when the run only validates.
 * @throws {ConfigError} when the data set is smaller than one batch
 */
export function totalSteps(tasks: readonly Task[], settings: LoopSettings): number {
  const { total_batches, total_epochs, val_only } = settings.trainer;
  if (val_only) return 0;
  const { perEpoch } = trainingOrder(tasks, settings);
  return total_batches > 0 ? total_batches : perEpoch * total_epochs;
}

/** The tasks of batch `number`, from 0, and their epoch. */
export function taskBatch(
  { tasks, order }: Pick<Run, "tasks" | "order">,
  number: number,
): { batch: Task[]; epoch: number } {
  const { rows, epoch } = order.batch(number);
  return { batch: Array.from(rows, (row) => tasks.train[row]!), epoch };
}
