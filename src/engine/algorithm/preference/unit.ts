/** One unit of a preference loss in float64, a pair of rows or one labelled row: what preference/pairs.wgsl computes. */
import { type PairFunction, type PreferenceSettings, pairScores, rowScore } from "./pair.ts";

/** Inputs of each token, [T], and the layout of rows. */
export interface PreferenceStreams {
  readonly logprobs: ArrayLike<number>;
  readonly ref?: ArrayLike<number> | undefined;
  readonly mask: ArrayLike<number>;
  readonly nllMask: ArrayLike<number>;
  readonly offsets: ArrayLike<number>;
  readonly labels?: ArrayLike<number> | undefined;
}

/** Sums of a row that the loss and the metrics need. */
export interface RowSums {
  /** Sum of the log-probs over the completion. */
  readonly logps: number;
  /** Sum of log-prob minus reference; 0 without one. */
  readonly ratio: number;
  /** Sum of the negative log-likelihoods of the likelihood term; 0 where the row has no part in it. */
  readonly nll: number;
  /** Loss of the unit that begins with the row; 0 at rejected rows. */
  readonly value: number;
}

/** The columns of a row in the table that the kernel writes. */
export const COLUMNS = ["logps", "ratio", "nll", "value"] as const;

/** The part of a resolved loss that a unit needs. */
export interface UnitPlan {
  readonly loss: {
    readonly unit: "pair" | "row";
    readonly hasReference: boolean;
    readonly isMean: boolean;
    readonly form: { readonly pair: PairFunction };
  };
  /** The params of the loss's form. */
  readonly params: PreferenceSettings;
  /** Factor of a unit's loss in the mean. */
  readonly scale: number;
  /** Factor of a token's negative log-likelihood; 0 without the term. */
  readonly nllScale: number;
}

/** Writes the unit's gradient into `dlogprobs` and returns the sums of its rows. */
export function takeUnit(
  unit: number,
  { streams, plan }: { readonly streams: PreferenceStreams; readonly plan: UnitPlan },
  dlogprobs: Float32Array | Float64Array,
): RowSums[] {
  const { loss, params, scale, nllScale } = plan;
  const rows = loss.unit === "pair" ? [2 * unit, 2 * unit + 1] : [unit];
  const sums = rows.map((row) => sumRow(row, streams, nllScale > 0 && row === rows[0]));
  const scores = sums.map((row) => (loss.hasReference ? row.ratio : row.logps) / (loss.isMean ? row.count : 1));
  const [chosen, rejected] = scores as [number, number?];
  const { value, ...slopes } = loss.form.pair(
    rejected === undefined ? rowScore(chosen, streams.labels![unit] === 1) : pairScores(chosen, rejected),
    params,
  );
  rows.forEach((row, k) => {
    const slope = ((k === 0 ? slopes.chosen : slopes.rejected) * scale) / (loss.isMean ? sums[k]!.count : 1);
    const likelihood = k === 0 ? nllScale : 0;
    for (let t = streams.offsets[row]!; t < streams.offsets[row + 1]!; t++)
      dlogprobs[t] = (streams.mask[t] ? slope : 0) - (streams.nllMask[t] ? likelihood : 0);
  });
  return sums.map(({ count: _, ...rowSums }, k) => ({ ...rowSums, value: k === 0 ? value : 0 }));
}

function sumRow(row: number, { logprobs, ref, mask, nllMask, offsets }: PreferenceStreams, isInNll: boolean) {
  let [logps, ratio, nll, count] = [0, 0, 0, 0];
  for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
    if (isInNll && nllMask[t]) nll -= logprobs[t]!;
    if (!mask[t]) continue;
    logps += logprobs[t]!;
    if (ref) ratio += logprobs[t]! - ref[t]!;
    count++;
  }
  return { logps, ratio, nll, count };
}
