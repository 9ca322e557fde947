/** One unit of a preference loss: what the loss sees of it and what it makes of it. */

/** The scores of one unit as a loss sees them. */
export interface PairScores {
  /** The chosen row's score; the row's own in a loss of labelled rows. */
  readonly chosen: number;
  /** The rejected row's score; 0 in a loss of labelled rows. */
  readonly rejected: number;
  /** chosen - rejected. */
  readonly d: number;
  /** Whether the row is desirable, in a loss of labelled rows. */
  readonly isDesirable: boolean;
}

/** The loss of a pair, with its slopes in the two scores; of one row, with `chosen` as the slope in its score. */
export interface PairLoss {
  readonly value: number;
  readonly chosen: number;
  readonly rejected: number;
}

/** Settings of a preference loss under their published names. */
export type PreferenceSettings = Readonly<Record<string, number>>;

/** The loss of one unit, in float64. `p` holds a value for each param of the loss's form. */
export type PairFunction<P extends PreferenceSettings = PreferenceSettings> = (scores: PairScores, p: P) => PairLoss;

/** The scores of a pair. */
export function pairScores(chosen: number, rejected: number): PairScores {
  return { chosen, rejected, d: chosen - rejected, isDesirable: false };
}

/** The score of a labelled row. */
export function rowScore(chosen: number, isDesirable: boolean): PairScores {
  return { chosen, rejected: 0, d: chosen, isDesirable };
}

/** A loss of the difference of the scores alone, with its slope in it. */
export function ofDifference(value: number, slope: number): PairLoss {
  return { value, chosen: slope, rejected: -slope };
}
