/** Order in which rows are trained on: a function of the seed and the batch's number alone. */
import { ConfigError } from "../../leaves/errors.ts";
import { STREAM_SEEDS, shuffledIndices } from "../../leaves/random.ts";

export interface BatchOrderOptions {
  /** Rows in the data set. */
  readonly size: number;
  readonly batchSize: number;
  readonly seed: number;
  /** Default true; false: every epoch takes the rows in their own order. */
  readonly isShuffled?: boolean;
}

/** The batches of all epochs; each epoch shuffles the rows again and drops the rest that does not fill a batch. */
export class BatchOrder {
  private readonly options: BatchOrderOptions;
  /** The epoch of the last batch: callers that ask for one task at a time would shuffle a large data set for each. */
  private shuffled: { readonly epoch: number; readonly rows: Uint32Array } | undefined;

  constructor(options: BatchOrderOptions) {
    this.options = options;
  }

  /**
   * Full batches in one pass over the data.
   * @throws {ConfigError} when the data set is smaller than one batch
   */
  get perEpoch(): number {
    const { size, batchSize } = this.options;
    if (size >= batchSize) return Math.floor(size / batchSize);
    throw new ConfigError(
      `Cannot draw batches: one needs ${batchSize} rows, and the training data has ${size}. Add rows, or lower rllm.data.train_batch_size (in asynchronous training rllm.async_training.mini_batch_size).`,
      { path: "rllm.data.train_batch_size" },
    );
  }

  /**
   * The rows of batch `number`, counted from 0 over all epochs, and its epoch.
   * @throws {ConfigError} when the data set is smaller than one batch
   */
  batch(number: number): { rows: Uint32Array; epoch: number } {
    const { perEpoch } = this;
    const { batchSize } = this.options;
    const epoch = Math.floor(number / perEpoch);
    const start = (number % perEpoch) * batchSize;
    return { rows: this.rowsOf(epoch).slice(start, start + batchSize), epoch };
  }

  private rowsOf(epoch: number): Uint32Array {
    const { size, seed, isShuffled = true } = this.options;
    if (!isShuffled) return Uint32Array.from({ length: size }, (_, row) => row);
    if (this.shuffled?.epoch !== epoch)
      this.shuffled = { epoch, rows: shuffledIndices(size, STREAM_SEEDS.rowOrder(seed, epoch)) };
    return this.shuffled.rows;
  }
}
