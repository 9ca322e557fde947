/** The form of a preference loss: a row's score, and a function of the scores of a pair, or of one labelled row. */
import type { PreferenceKernel } from "./kernel.ts";
import type { PairFunction, PreferenceSettings } from "./pair.ts";

/** A function of one unit in TypeScript, and the kernel that its WGSL makes. Losses of the same function share a form. */
export interface PreferenceLossForm {
  readonly name: string;
  /** Fields of `params.settings` in the WGSL, in its order. */
  readonly params: readonly string[];
  readonly pair: PairFunction;
  readonly kernel: PreferenceKernel;
}

/** A preference loss: what a row's score is, and the loss as a function of scores. */
export interface PreferenceLoss {
  /** TRL's `loss_type`. */
  readonly name: string;
  /** The formula: c and r are the scores, d = c - r, s the logistic function. */
  readonly describe: string;
  /** Papers, and the code whose figures it has. */
  readonly sources: readonly string[];
  /** Settings with their defaults. A setting outside this table is refused. */
  readonly settings: PreferenceSettings;
  /** Meaning of each setting, but for `beta`. */
  readonly describeSettings: Readonly<Record<string, string>>;
  /** `pair`: a chosen and a rejected row. `row`: rows that are labelled one by one. */
  readonly unit: "pair" | "row";
  /** Whether scores are log-ratios to a reference; otherwise they are log-probs. */
  readonly hasReference: boolean;
  /** Whether a score is a mean over the row's tokens; otherwise it is their sum. */
  readonly isMean: boolean;
  /** Whether the log of the odds ratio is among the metrics. */
  readonly hasOdds?: boolean | undefined;
  /** Weight of the mean negative log-likelihood of the chosen rows' tokens. */
  nllWeight(settings: PreferenceSettings): number;
  readonly form: PreferenceLossForm;
  /** The form's params. @param kl the baseline of a loss of labelled rows */
  params(settings: PreferenceSettings, kl: number): PreferenceSettings;
}
