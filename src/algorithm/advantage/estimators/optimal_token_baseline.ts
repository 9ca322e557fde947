/** The optimal token baseline, and its form for multi-turn rows whose trained tokens are aligned by their count. */
import type { Groups } from "../groups.ts";

const EPSILON = 1e-8;

interface Options {
  /** Columns count trained tokens only (multi-turn) instead of all tokens of the row. */
  readonly compact: boolean;
  /** The row that is longest alone (by trained tokens) has no baseline from the second longest's count on. */
  readonly zeroTail: boolean;
}

type Floats = Float32Array | Float64Array;

interface Rows {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
}

interface Table {
  /** Rewards to go. */
  readonly returns: Floats;
  readonly power: Floats;
  /** Written at trained tokens. */
  readonly advantages: Floats;
}

/**
 * A_t = (G_t - b_t) m_t, with b_t = sum_j G_jt W_jt / (sum_j W_jt + 1e-8) over the group's rows j at column t and
 * W the running power of the score function.
 * @see verl core_algos.compute_optimal_token_baseline_advantage
 */
export function baselineAdvantages(
  batch: Rows & { readonly groups: Groups },
  table: Table,
  options: Options,
): void {
  const { offsets, members } = batch.groups;
  for (let group = 0; group + 1 < offsets.length; group++) {
    const columns = Array.from(members.subarray(offsets[group], offsets[group + 1]), (row) =>
      columnsOf(batch, row, options.compact),
    ).filter((tokens) => !options.compact || tokens.length > 0);
    subtractBaseline(columns, batch.mask, table, options);
  }
}

/** Tokens of a row by column. */
function columnsOf({ offsets, mask }: Rows, row: number, compact: boolean): number[] {
  const tokens: number[] = [];
  for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (!compact || mask[t] !== 0) tokens.push(t);
  return tokens;
}

/** W_t: the running sum, over a row's trained tokens, of (1 - 2 p_old + sum pi^2) times the squared weight. */
export function runningPower(
  batch: Rows & {
    readonly oldLogprobs: ArrayLike<number>;
    readonly sumPiSquared: ArrayLike<number>;
    readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  },
): Float64Array {
  const { offsets, mask, oldLogprobs, sumPiSquared, rolloutIsWeights } = batch;
  const power = new Float64Array(offsets[offsets.length - 1]!);
  for (let row = 0; row + 1 < offsets.length; row++) {
    let sum = 0;
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
      const weight = rolloutIsWeights ? rolloutIsWeights[t]! ** 2 : 1;
      if (mask[t] !== 0) sum += (1 - 2 * Math.exp(oldLogprobs[t]!) + sumPiSquared[t]!) * weight;
      power[t] = sum;
    }
  }
  return power;
}

function subtractBaseline(
  columns: readonly number[][],
  mask: Uint32Array,
  table: Table,
  options: Options,
): void {
  const { returns, power, advantages } = table;
  const lengths = columns.map((tokens) => trainedCount(tokens, mask));
  const [first, second] = lengths.toSorted((x, y) => y - x);
  const lonely = options.zeroTail && first! > second! ? columns[lengths.indexOf(first!)] : undefined;
  const alone = columns.length < 2;
  const longest = Math.max(0, ...columns.map((tokens) => tokens.length));
  for (let column = 0; column < longest; column++) {
    const tokens = columns.filter((row) => column < row.length).map((row) => row[column]!);
    const trained = tokens.filter((t) => mask[t] !== 0);
    const weight = trained.reduce((sum, t) => sum + power[t]!, 0) + EPSILON;
    const weighted = trained.reduce((sum, t) => sum + returns[t]! * power[t]!, 0);
    const baseline = alone ? 0 : weighted / weight;
    for (const t of trained) advantages[t] = returns[t]! - baseline;
    const tail = column >= second! ? lonely?.[column] : undefined;
    if (tail !== undefined && mask[tail] !== 0) advantages[tail] = returns[tail]!;
  }
}

/** Trained tokens of a row. */
function trainedCount(tokens: readonly number[], mask: Uint32Array): number {
  return tokens.reduce((n, t) => n + (mask[t] === 0 ? 0 : 1), 0);
}
