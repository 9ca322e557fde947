/** How per-token losses become one number: the published `loss_agg_mode`s as one weight per trained token. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { forEachRow } from "../../packing/offsets.ts";
import { COUNT_EPSILON, filledRows, type MaskedRows, type RowCounts, trainedTokens } from "../rows.ts";

/** The published ways to make one number of the token losses (`loss_agg_mode`). */
export const AGGREGATION_MODES = [
  "token-mean",
  "token-sum",
  "seq-mean-token-sum",
  "seq-mean-token-mean",
  "seq-mean-token-sum-norm",
] as const;

/** One of {@link AGGREGATION_MODES}. */
export type AggregationMode = (typeof AGGREGATION_MODES)[number];

/** Denominators of a whole optimiser step that is split over calls or ranks. Each defaults to this call's own. */
export interface Normalisers {
  /** Data-parallel ranks, when their gradients are averaged afterwards. Default 1. */
  readonly dp_size?: number | undefined;
  /** Trained tokens of the step (`token-mean`). */
  readonly batch_num_tokens?: number | undefined;
  /** Sequences of the step (`seq-mean-*`). Default: the rows with at least one trained token. */
  readonly global_batch_size?: number | undefined;
  /** Rows of the step, those without a trained token too (TRL's losses, `geo_mean`). */
  readonly all_rows?: number | undefined;
  /** Divisor of `seq-mean-token-sum-norm`. Default: the longest row. */
  readonly loss_scale_factor?: number | undefined;
  /** `verl-2026-01` leaves `seq-mean-token-sum-norm` without its division by sequences and ranks. */
  readonly compat?: "verl-2026-01" | undefined;
}

/** The weight of a trained token: `uniform`, or `uniform / (n_i + 1e-8)` in row i where `byRow`. */
export interface TokenWeights {
  readonly uniform: number;
  readonly byRow: boolean;
}

/**
 * Weight of every token's loss under a mode; the loss is the sum of weight times token loss over trained tokens.
 *
 *     token-mean                1 / trained tokens
 *     token-sum                 1
 *     seq-mean-token-sum        1 / rows
 *     seq-mean-token-mean       1 / rows / (trained tokens of the row + 1e-8)
 *     seq-mean-token-sum-norm   1 / rows / loss_scale_factor
 *
 * all times `dp_size`. An empty denominator is an error here: the published code divides by zero and trains on NaN.
 * @throws {ConfigError} for an unknown mode or a batch without a trained token
 * @see verl core_algos.agg_loss
 */
export function tokenWeights(mode: string, rows: RowCounts, normalisers: Normalisers = {}): TokenWeights {
  const ranks = normalisers.dp_size ?? 1;
  const sequences = () => denominator("global_batch_size", normalisers.global_batch_size ?? filledRows(rows));
  const byMode: Record<AggregationMode, () => TokenWeights> = {
    "token-mean": () => ({
      uniform: ranks / denominator("batch_num_tokens", normalisers.batch_num_tokens ?? trainedTokens(rows)),
      byRow: false,
    }),
    "token-sum": () => ({ uniform: ranks, byRow: false }),
    "seq-mean-token-sum": () => ({ uniform: ranks / sequences(), byRow: false }),
    "seq-mean-token-mean": () => ({ uniform: ranks / sequences(), byRow: true }),
    "seq-mean-token-sum-norm": () => {
      const scale = denominator("loss_scale_factor", normalisers.loss_scale_factor ?? rows.longest);
      const uniform = normalisers.compat === "verl-2026-01" ? 1 / scale : ranks / sequences() / scale;
      return { uniform, byRow: false };
    },
  };
  if (!Object.hasOwn(byMode, mode))
    throw new ConfigError(
      `Cannot aggregate the loss: there is no mode ${JSON.stringify(mode)}. Use ${AGGREGATION_MODES.join(", ")}.`,
      { path: "loss_agg_mode" },
    );
  return byMode[mode as AggregationMode]();
}

/** The weight of a token of row i. */
export function weightOfRow(weights: TokenWeights, trained: number): number {
  return weights.byRow ? weights.uniform / (trained + COUNT_EPSILON) : weights.uniform;
}

/** Calls `of` for every trained token, in order, with its weight. */
export function forEachWeighted(
  { offsets, mask }: MaskedRows,
  { weights, rows }: { weights: TokenWeights; rows: RowCounts },
  of: (t: number, weight: number) => void,
): void {
  forEachRow(offsets, (row, first, end) => {
    const weight = weightOfRow(weights, rows.trained[row]!);
    for (let t = first; t < end; t++) if (mask[t] !== 0) of(t, weight);
  });
}

/** Workgroups of `loss/parts/tokens.wgsl`, whatever the size: sums are added in one order on every device. */
export const TOKEN_GROUPS = 64;

/** Weights by row, [N], uploaded for a kernel; a placeholder where the aggregation does not need them. */
export function uploadRowWeights(device: Device, weights: TokenWeights, rows: RowCounts): Buffer {
  const table = weights.byRow ? rowWeights(weights, rows) : new Float32Array(1);
  return device.upload(table, "row weights");
}

/** The weight of a token of each row, [N]. */
export function rowWeights(weights: TokenWeights, rows: RowCounts): Float32Array {
  return Float32Array.from(rows.trained, (n) => weightOfRow(weights, n));
}

function denominator(name: string, value: number): number {
  if (value > 0 && Number.isFinite(value)) return value;
  throw new ConfigError(
    `Cannot aggregate the loss: ${name} must be above 0 (${value}). Where the batch has no trained token (mask = 1), drop it before the update.`,
    { path: name },
  );
}
