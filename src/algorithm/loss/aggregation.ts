/** How per-token losses become one number: the published `loss_agg_mode`s as one weight per trained token. */
import { ConfigError } from "../../errors.ts";

export const AGGREGATION_MODES = [
  "token-mean",
  "token-sum",
  "seq-mean-token-sum",
  "seq-mean-token-mean",
  "seq-mean-token-sum-norm",
] as const;

export type AggregationMode = (typeof AGGREGATION_MODES)[number];

/** Denominators of a whole optimiser step that is split over calls or ranks. Each defaults to this call's own. */
export interface Normalisers {
  /** Data-parallel ranks, when their gradients are averaged afterwards. Default 1. */
  readonly dp_size?: number | undefined;
  /** Trained tokens of the step (`token-mean`). */
  readonly batch_num_tokens?: number | undefined;
  /** Sequences of the step (`seq-mean-*`). Default: the rows with at least one trained token. */
  readonly global_batch_size?: number | undefined;
  /** Divisor of `seq-mean-token-sum-norm`. Default: the longest row. */
  readonly loss_scale_factor?: number | undefined;
  /** `verl-2026-01` leaves `seq-mean-token-sum-norm` without its division by sequences and ranks. */
  readonly compat?: "verl-2026-01" | undefined;
}

/** What aggregation needs to know of a batch: how long its rows are and how much of each is trained on. */
export interface RowCounts {
  /** Tokens in all rows, T. */
  readonly tokens: number;
  /** Trained tokens of each row (mask = 1), [N]. */
  readonly trained: Uint32Array;
  /** Tokens of the longest row. */
  readonly longest: number;
}

/** The weight of a trained token: `uniform`, or `uniform / (n_i + 1e-8)` in row i where `byRow`. */
export interface TokenWeights {
  readonly uniform: number;
  readonly byRow: boolean;
}

/** verl's masked means add it to every count. */
export const COUNT_EPSILON = 1e-8;

/**
 * Weight of every token's loss under a mode.
 * An empty denominator is refused here: the published code divides by zero and trains on NaN.
 * @throws ConfigError for an unknown mode or a batch without a trained token.
 * @see verl core_algos.agg_loss
 */
export function tokenWeights(mode: string, rows: RowCounts, given: Normalisers = {}): TokenWeights {
  const ranks = given.dp_size ?? 1;
  const sequences = () => denominator("global_batch_size", given.global_batch_size ?? filledRows(rows));
  const byMode: Record<AggregationMode, () => TokenWeights> = {
    "token-mean": () => ({
      uniform: ranks / denominator("batch_num_tokens", given.batch_num_tokens ?? trainedTokens(rows)),
      byRow: false,
    }),
    "token-sum": () => ({ uniform: ranks, byRow: false }),
    "seq-mean-token-sum": () => ({ uniform: ranks / sequences(), byRow: false }),
    "seq-mean-token-mean": () => ({ uniform: ranks / sequences(), byRow: true }),
    "seq-mean-token-sum-norm": () => {
      const scale = denominator("loss_scale_factor", given.loss_scale_factor ?? rows.longest);
      const uniform = given.compat === "verl-2026-01" ? 1 / scale : ranks / sequences() / scale;
      return { uniform, byRow: false };
    },
  };
  if (!Object.hasOwn(byMode, mode))
    throw new ConfigError(
      `Cannot aggregate the loss as ${JSON.stringify(mode)}: use ${AGGREGATION_MODES.join(", ")}.`,
      { path: "loss_agg_mode" },
    );
  return byMode[mode as AggregationMode]();
}

/** The weight of a token of row i. */
export function weightOfRow(weights: TokenWeights, trained: number): number {
  return weights.byRow ? weights.uniform / (trained + COUNT_EPSILON) : weights.uniform;
}

/** Trained tokens of all rows. */
export function trainedTokens(rows: RowCounts): number {
  return rows.trained.reduce((sum, n) => sum + n, 0);
}

/** Rows with at least one trained token. */
export function filledRows(rows: RowCounts): number {
  return rows.trained.reduce((sum, n) => sum + (n > 0 ? 1 : 0), 0);
}

/** Counts of a packed batch on the host. */
export function countRows(offsets: Uint32Array, mask: Uint32Array): RowCounts {
  const rows = offsets.length - 1;
  const trained = new Uint32Array(rows);
  let longest = 0;
  for (let row = 0; row < rows; row++) {
    longest = Math.max(longest, offsets[row + 1]! - offsets[row]!);
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) trained[row]! += mask[t] === 0 ? 0 : 1;
  }
  return { tokens: offsets[rows]!, trained, longest };
}

function denominator(name: string, value: number): number {
  if (value > 0 && Number.isFinite(value)) return value;
  throw new ConfigError(
    `Cannot aggregate the loss as ${name} must be above 0: ${value}. The batch has no trained token (mask = 1); drop it before the update.`,
    { path: name },
  );
}
