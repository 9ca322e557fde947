/** The two numbers a and b per row of losses that couple a row's tokens, in float64: what loss/rows.wgsl computes. */
import { trainedIn } from "../../data/offsets.ts";
import { sum } from "../../statistics.ts";
import { COUNT_EPSILON } from "../rows.ts";
import { clamp, type RowStatistic, type ShaderSettings } from "./definition.ts";
import type { Streams } from "./pass.ts";
import { surrogate } from "./trl.ts";

/** Rows are given, so tokens need not name theirs. */
export type RowStreams = Omit<Streams, "row">;
/** Bounds of the ratio or the log-ratio. */
export type RowSettings = Pick<ShaderSettings, "low" | "high" | "delta">;

/** A row's trained tokens, with what they are summed by. */
interface RowSums {
  readonly row: number;
  readonly streams: RowStreams;
  readonly settings: RowSettings;
  /** Trained tokens. */
  readonly n: number;
  sum(of: (t: number) => number): number;
  /** logprob - oldLogprob. */
  d(t: number): number;
  /** Importance weight; 1 where there are none. */
  weight(t: number): number;
}

/** A row's numbers a and b; b is 0 for statistics of one number. */
export interface RowNumbers {
  readonly a: number;
  readonly b: number;
}

const STATISTICS: Readonly<Record<RowStatistic, (row: RowSums) => RowNumbers>> = {
  "mean-log-ratio": ({ sum, d, n }) => ({ a: sum(d) / Math.max(n, 1), b: 0 }),
  "geometric-mean": geometricMean,
  "sequence-surrogate": (row) => sequenceSurrogate(row, Math.max(row.n, 1)),
  "sequence-sum-surrogate": (row) => sequenceSurrogate(row, 1),
  vespo,
};

/** The numbers of the row whose tokens are first <= t < end. */
export function rowStatistic(
  kind: RowStatistic,
  { row, first, end }: { row: number; first: number; end: number },
  { streams, settings }: { streams: RowStreams; settings: RowSettings },
): RowNumbers {
  const { logprobs, old, isWeights, mask } = streams;
  const trained = trainedIn(mask, first, end);
  return STATISTICS[kind]({
    row,
    streams,
    settings,
    n: trained.length,
    sum: (of) => sum(trained.map(of)),
    d: (t) => (old ? logprobs[t]! - old[t]! : 0),
    weight: (t) => (isWeights ? isWeights[t]! : 1),
  });
}

/** TRL's sequence losses: the row's log-ratio a = sum d / divisor, and the slope b of its surrogate at each token. */
function sequenceSurrogate({ row, streams, settings, sum, d, weight }: RowSums, divisor: number): RowNumbers {
  const a = sum(d) / divisor;
  const slope = (t: number) => {
    const token = { logprob: 0, d: 0, advantage: streams.advantage(t, row), a, b: 0 };
    return weight(t) * surrogate(token, a, settings).slope;
  };
  return { a, b: sum(slope) / divisor };
}

/** GMPO: the geometric mean of pessimistically clipped ratios, times mean advantage and mean weight; per token. */
function geometricMean({ row, streams, settings, n, sum, d, weight }: RowSums): RowNumbers {
  const { low, high } = settings;
  const length = n + COUNT_EPSILON;
  const advantage = (t: number) => streams.advantage(t, row);
  const pessimistic = (t: number) => {
    const side = Math.sign(advantage(t));
    return side * Math.min(side * d(t), side * clamp(d(t), low, high));
  };
  const ratio = Math.exp(sum(pessimistic) / length);
  const meanWeight = streams.isWeights ? Math.exp(sum((t) => Math.log(weight(t) + 1e-10)) / length) : 1;
  const loss = -(sum(advantage) / length) * ratio * meanWeight;
  return { a: loss / Math.max(n, 1), b: loss / length };
}

const VESPO_LOWEST = Math.log(1e-8);
const VESPO_HIGHEST = 20;

/** VESPO: the row's log-ratio with its log-weights, every term and their sum bounded. */
function vespo({ streams, sum, d, weight }: RowSums): RowNumbers {
  const logWeight = (t: number) =>
    streams.isWeights ? clamp(Math.log(Math.max(weight(t), 1e-30)), VESPO_LOWEST, VESPO_HIGHEST) : 0;
  const total = sum((t) => clamp(d(t), -VESPO_HIGHEST, VESPO_HIGHEST) + logWeight(t));
  return { a: clamp(total, VESPO_LOWEST, VESPO_HIGHEST), b: 0 };
}
