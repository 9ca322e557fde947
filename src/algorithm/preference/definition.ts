/** Definition of a preference loss: a function of the scores of a chosen and a rejected row, or of one labelled row. */

/** Settings of every loss as the kernel takes them. Those that a loss does not have keep their neutral value. */
export interface PairSettings {
  readonly beta: number;
  /** Probability that a label is wrong (`label_smoothing`). */
  readonly smoothing: number;
  /** Subtracted from beta times the difference of the scores (`simpo_gamma`). */
  readonly gamma: number;
  /** KTO's baseline, the estimate of the KL to the reference. */
  readonly kl: number;
  /** Weights of KTO's desirable and undesirable rows. */
  readonly desirable: number;
  readonly undesirable: number;
}

export const NEUTRAL_SETTINGS: PairSettings = {
  beta: 0.1,
  smoothing: 0,
  gamma: 0,
  kl: 0,
  desirable: 1,
  undesirable: 1,
};

/** The loss of a pair, with its slopes in the two scores; of one row, with `chosen` as the slope in its score. */
export interface PairLoss {
  readonly value: number;
  readonly chosen: number;
  readonly rejected: number;
}

/** Settings of a preference loss under their published names. */
export type PreferenceSettings = Readonly<Record<string, number>>;

/** A preference loss: what a row's score is, and the loss as a function of scores. */
export interface PreferenceLoss {
  /** TRL's `loss_type`. */
  readonly name: string;
  /** Settings with their defaults. A setting outside this table is refused. */
  readonly settings: PreferenceSettings;
  /** Branch of preference/pairs.wgsl. */
  readonly code: number;
  /** `pair`: a chosen and a rejected row. `row`: rows that are labelled one by one. */
  readonly unit: "pair" | "row";
  /** Whether scores are log-ratios to a reference; otherwise they are log-probs. */
  readonly hasReference: boolean;
  /** Whether a score is a mean over the row's tokens; otherwise it is their sum. */
  readonly isMean: boolean;
  /** Weight of the mean negative log-likelihood of the chosen rows' tokens. */
  nllWeight(settings: PreferenceSettings): number;
  /** Settings as the kernel takes them. */
  plan(settings: PreferenceSettings): Partial<PairSettings>;
  /** The loss in float64. @param rejected for a loss of rows, 1 where the row is desirable, else 0 */
  pair(chosen: number, rejected: number, settings: PairSettings): PairLoss;
}
