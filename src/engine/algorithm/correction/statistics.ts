/** The statistics of a rejection: the divergence of a token, in both languages, and how a row's are reduced to one number. */
import { sum } from "../../../leaves/statistics.ts";

/** How far trainer and sampler are apart at one token; x is the bounded log-ratio. */
export interface Divergence {
  readonly name: "k1" | "k2" | "k3";
  /** Whether it may be below 0: its bounds are then those of the ratio, on both sides. Others have an upper bound alone. */
  readonly isSigned: boolean;
  readonly of: (x: number) => number;
  /** The WGSL expression in `x`. */
  readonly wgsl: string;
}

/** Every divergence. */
export const DIVERGENCES: readonly Divergence[] = [
  { name: "k1", isSigned: true, of: (x) => -x, wgsl: "-x" },
  { name: "k2", isSigned: false, of: (x) => 0.5 * x * x, wgsl: "0.5 * x * x" },
  { name: "k3", isSigned: false, of: (x) => Math.exp(x) - 1 - x, wgsl: "k3(x)" },
];

/** How the divergences of a row's trained tokens become one number. */
export interface Reduction {
  readonly name: "sum" | "mean" | "max";
  /** Whether it may be taken of divergences below 0. */
  readonly takesSigned: boolean;
  /** @param values of the row's trained tokens; at least one */
  readonly of: (values: readonly number[]) => number;
  /** The WGSL expression in `n`, the row's trained tokens, at least 1, and in the `sum` and the `most` of their divergences. */
  readonly wgsl: string;
}

/** Every reduction. */
export const REDUCTIONS: readonly Reduction[] = [
  { name: "sum", takesSigned: true, of: sum, wgsl: "sum" },
  { name: "mean", takesSigned: true, of: (values) => sum(values) / values.length, wgsl: "sum / n" },
  { name: "max", takesSigned: false, of: (values) => Math.max(...values), wgsl: "most" },
];

/** One way to reject: a token by its divergence, or a row by a reduction of its tokens' divergences. */
export interface Statistic {
  /** Published: `token_k1`, `seq_mean_k3`. */
  readonly name: string;
  readonly divergence: Divergence;
  /** Reduction over a row; absent by token. */
  readonly reduction?: Reduction | undefined;
}

/** Every statistic, in the order in which names are listed. */
export const STATISTICS: readonly Statistic[] = [
  ...DIVERGENCES.map((divergence) => ({ name: `token_${divergence.name}`, divergence })),
  ...REDUCTIONS.flatMap((reduction) =>
    DIVERGENCES.filter(({ isSigned }) => reduction.takesSigned || !isSigned).map((divergence) => ({
      name: `seq_${reduction.name}_${divergence.name}`,
      divergence,
      reduction,
    })),
  ),
];
