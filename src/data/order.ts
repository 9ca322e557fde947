/** In which order rows are trained on: a pure function of the seed and the number of batches already drawn. */
import { ConfigError } from "../errors.ts";
import { STREAM_SEEDS, shuffledIndices } from "../random.ts";

export interface BatchOrder {
  /** Rows in the data set. */
  readonly size: number;
  readonly batchSize: number;
  readonly seed: number;
}

/**
 * Full batches in one pass over the data; what is left over waits for another epoch's shuffle.
 * @throws {ConfigError} when the data set is smaller than one batch.
 */
export function batchesPerEpoch({ size, batchSize }: BatchOrder): number {
  if (size >= batchSize) return Math.floor(size / batchSize);
  throw new ConfigError(
    `Cannot draw batches as one needs ${batchSize} rows: the training data has ${size}. Add rows, or lower rllm.data.train_batch_size (in asynchronous training rllm.async_training.mini_batch_size).`,
    { path: "rllm.data.train_batch_size" },
  );
}

/** The rows of batch `number` (counted over all epochs), and the epoch that it belongs to. */
export function batchRows(order: BatchOrder, number: number): { rows: Uint32Array; epoch: number } {
  const perEpoch = batchesPerEpoch(order);
  const epoch = Math.floor(number / perEpoch);
  const start = (number % perEpoch) * order.batchSize;
  const rows = epochRows(order.size, STREAM_SEEDS.rowOrder(order.seed, epoch));
  return { rows: rows.slice(start, start + order.batchSize), epoch };
}

/** Asked for one task at a time, a large data set would be shuffled for each of them: the last order is kept. */
let last: { readonly size: number; readonly seed: number; readonly rows: Uint32Array } | undefined;

function epochRows(size: number, seed: number): Uint32Array {
  if (last?.size !== size || last.seed !== seed) last = { size, seed, rows: shuffledIndices(size, seed) };
  return last.rows;
}
