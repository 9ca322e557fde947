/** The optimal token baseline, and its form for multi-turn rows, whose trained tokens are aligned by their count. */
import { forEachRow, totalTokens, trainedIn } from "../../../packing/offsets.ts";
import type { MaskedRows } from "../../rows.ts";
import { type AdvantageBatch, type Estimate, type Estimator, type EstimatorSettings, needs } from "../definition.ts";
import { type Groups, memberRows } from "../groups.ts";
import { type FloatOutput, rewardsToGo } from "./returns.ts";

/** Added to a column's weight. */
const EPSILON = 1e-8;

interface Options {
  /** Columns count trained tokens only (multi-turn) instead of all tokens of the row. */
  readonly compact: boolean;
  /** The row that alone has most trained tokens has no baseline from the second longest's count on. */
  readonly zeroTail: boolean;
}

/** All [T]. */
interface Table {
  /** Rewards to go. */
  readonly returns: FloatOutput;
  readonly power: FloatOutput;
  /** Written at trained tokens. */
  readonly advantages: FloatOutput;
}

/**
 * A_t = (G_t - b_t) m_t, with b_t = sum_j G_jt W_jt / (sum_j W_jt + 1e-8) over the group's rows j at column t and
 * W the {@link runningPower} of the score function. A group of one has no baseline.
 * @see verl core_algos.compute_optimal_token_baseline_advantage
 */
export function baselineAdvantages(
  batch: MaskedRows & { readonly groups: Pick<Groups, "offsets" | "members"> },
  table: Table,
  options: Options,
): void {
  for (const rows of memberRows(batch.groups)) {
    const columns = Array.from(rows, (row) => columnsOf(batch, row, options.compact));
    const held = options.compact ? columns.filter((tokens) => tokens.length > 0) : columns;
    subtractBaseline(held, batch.mask, { table, zeroTail: options.zeroTail });
  }
}

/** Tokens of a row by column. */
function columnsOf({ offsets, mask }: MaskedRows, row: number, compact: boolean): number[] {
  const [first, end] = [offsets[row]!, offsets[row + 1]!];
  if (compact) return trainedIn(mask, first, end);
  const tokens: number[] = [];
  for (let t = first; t < end; t++) tokens.push(t);
  return tokens;
}

/** W_t: the running sum, over a row's trained tokens, of (1 - 2 p_old + sum pi^2) times the squared weight, [T]. */
export function runningPower(
  batch: MaskedRows & {
    readonly oldLogprobs: ArrayLike<number>;
    readonly sumPiSquared: ArrayLike<number>;
    readonly rolloutIsWeights?: ArrayLike<number> | undefined;
  },
): Float64Array {
  const { offsets, mask, oldLogprobs, sumPiSquared, rolloutIsWeights } = batch;
  const power = new Float64Array(totalTokens(offsets));
  forEachRow(offsets, (_, first, end) => {
    let sum = 0;
    for (let t = first; t < end; t++) {
      const weight = rolloutIsWeights ? rolloutIsWeights[t]! ** 2 : 1;
      if (mask[t] !== 0) sum += (1 - 2 * Math.exp(oldLogprobs[t]!) + sumPiSquared[t]!) * weight;
      power[t] = sum;
    }
  });
  return power;
}

/** @param columns the tokens of each of the group's rows by column */
function subtractBaseline(
  columns: readonly number[][],
  mask: Uint32Array,
  { table, zeroTail }: { table: Table; zeroTail: boolean },
): void {
  const { returns, power, advantages } = table;
  const tail = zeroTail ? lonelyTail(columns, mask) : undefined;
  const width = Math.max(0, ...columns.map((tokens) => tokens.length));
  for (let column = 0; column < width; column++) {
    let [weight, weighted] = [EPSILON, 0];
    let shift: number | undefined;
    const trained: number[] = [];
    for (const row of columns) {
      const t = row[column];
      if (t === undefined || mask[t] === 0) continue;
      trained.push(t);
      shift ??= returns[t]!;
      weight += power[t]!;
      weighted += (returns[t]! - shift) * power[t]!;
    }
    // Distances from the first return: equal returns do not cancel.
    const baseline = columns.length < 2 || shift === undefined ? 0 : shift + (weighted - shift * EPSILON) / weight;
    const lonely = tail && column >= tail.from ? tail.row[column] : undefined;
    for (const t of trained) advantages[t] = returns[t]! - (t === lonely ? 0 : baseline);
  }
}

/** The row with most trained tokens, where it is alone with that number, and the second longest's number. */
function lonelyTail(
  columns: readonly number[][],
  mask: Uint32Array,
): { row: readonly number[]; from: number } | undefined {
  const lengths = columns.map((tokens) => tokens.filter((t) => mask[t] !== 0).length);
  const [first = 0, second = first] = lengths.toSorted((x, y) => y - x);
  if (first <= second) return undefined;
  return { row: columns[lengths.indexOf(first)]!, from: second };
}

function estimate(batch: AdvantageBatch, compact: boolean, settings: EstimatorSettings): Estimate {
  const returns = rewardsToGo(batch);
  const advantages = new Float64Array(returns.length);
  const power = runningPower({
    ...batch,
    oldLogprobs: needs(batch.oldLogprobs, "optimal_token_baseline", "old_logprobs"),
    sumPiSquared: needs(batch.sumPiSquared, "optimal_token_baseline", "sum_pi_squared"),
  });
  const options = { compact, zeroTail: settings.handle_zero_tail === true };
  baselineAdvantages(batch, { returns, power, advantages }, options);
  return { level: "token", values: advantages, returns };
}

export const optimalTokenBaseline: Estimator = {
  name: "optimal_token_baseline",
  describe: "at each place of a group, returns less their mean weighted by the score function's power",
  sources: ["verl core_algos.compute_optimal_token_baseline_advantage"],
  elsewhere: { verl: "optimal_token_baseline" },
  settings: { handle_zero_tail: true },
  scope: "group",
  estimate: (batch, settings) => estimate(batch, false, settings),
  record: (r) => r.optimalBaseline({ compact: false }),
};

/** @see verl core_algos.compute_multi_turn_optimal_token_baseline_advantage */
export const tirOptimalTokenBaseline: Estimator = {
  name: "tir_optimal_token_baseline",
  describe: "optimal_token_baseline over several turns: places count trained tokens alone",
  sources: ["verl core_algos.compute_multi_turn_optimal_token_baseline_advantage"],
  elsewhere: { verl: "tir_optimal_token_baseline" },
  settings: { handle_zero_tail: true },
  scope: "group",
  estimate: (batch, settings) => estimate(batch, true, settings),
  record: (r) => r.optimalBaseline({ compact: true }),
};
