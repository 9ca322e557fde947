/** Rows of each step of supervised training: batches of a number of rows, or of tokens. */
import { STREAM_SEEDS, shuffledIndices } from "../../leaves/random.ts";

export interface RowOrderOptions {
  /** Tokens of each row. */
  readonly lengths: readonly number[];
  readonly seed: number;
  /** False: every epoch takes the rows in their own order. */
  readonly isShuffled: boolean;
  /** Rows of a batch; a last one that is not full is dropped. */
  readonly rows: number;
  /** Most tokens of a batch, in place of `rows`. No row is dropped; a longer row is a batch of its own. */
  readonly tokens?: number | undefined;
}

/** The batches of all epochs, a pure function of the options: each epoch shuffles the rows again. */
export class RowOrder {
  private readonly options: RowOrderOptions;
  /** Batches by epoch, each the rows of a batch. */
  private readonly epochs: (readonly Uint32Array[])[] = [];
  /** State of {@link tokensBefore}: steps ask in order. */
  private counted = { number: 0, tokens: 0 };

  constructor(options: RowOrderOptions) {
    this.options = options;
  }

  /** Batches of the first `epochs` epochs. */
  stepsIn(epochs: number): number {
    let steps = 0;
    for (let epoch = 0; epoch < epochs; epoch++) steps += this.batchesOf(epoch).length;
    return steps;
  }

  /** The rows of batch `number`, counted from 0 over all epochs, and its epoch. There must be one in every epoch. */
  batch(number: number): { rows: Uint32Array; epoch: number } {
    let left = number;
    for (let epoch = 0; ; epoch++) {
      const batches = this.batchesOf(epoch);
      if (left < batches.length) return { rows: batches[left]!, epoch };
      left -= batches.length;
    }
  }

  /** Tokens in the batches before batch `number`. */
  tokensBefore(number: number): number {
    if (number < this.counted.number) this.counted = { number: 0, tokens: 0 };
    for (; this.counted.number < number; this.counted.number++)
      for (const row of this.batch(this.counted.number).rows) this.counted.tokens += this.options.lengths[row]!;
    return this.counted.tokens;
  }

  private batchesOf(epoch: number): readonly Uint32Array[] {
    const { lengths, seed, isShuffled, rows, tokens } = this.options;
    const cached = this.epochs[epoch];
    if (cached) return cached;
    const size = lengths.length;
    const order = isShuffled
      ? shuffledIndices(size, STREAM_SEEDS.rowOrder(seed, epoch))
      : Uint32Array.from({ length: size }, (_, row) => row);
    const batches = tokens === undefined ? byRows(order, rows) : byTokens(order, { lengths, most: tokens });
    this.epochs[epoch] = batches;
    return batches;
  }
}

function byRows(order: Uint32Array, rows: number): Uint32Array[] {
  return Array.from({ length: Math.floor(order.length / rows) }, (_, i) => order.slice(i * rows, (i + 1) * rows));
}

/** Batches the rows in the order of the epoch: a row that does not fit begins the next batch. */
function byTokens(order: Uint32Array, { lengths, most }: { lengths: readonly number[]; most: number }): Uint32Array[] {
  const batches: Uint32Array[] = [];
  let [first, sum] = [0, 0];
  order.forEach((row, i) => {
    if (i > first && sum + lengths[row]! > most) {
      batches.push(order.slice(first, i));
      [first, sum] = [i, 0];
    }
    sum += lengths[row]!;
  });
  if (order.length > first) batches.push(order.slice(first));
  return batches;
}
