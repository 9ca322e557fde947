/**
 * Definition of a policy loss: a function of one token in both languages, settings under their published names, and
 * metrics.
 */
import { mergeSettings, type SettingsSchema } from "../settings.ts";
import type { AggregationMode, Normalisers } from "./aggregation.ts";
import type { LossForm } from "./form.ts";
import type { RowStatistic } from "./row_statistic.ts";
import type { LossSettings } from "./token.ts";

/** Tokens chosen before the pass by the covariance of their log-prob and advantage. */
export interface Selection {
  readonly kind: "largest" | "random-between";
  /** Share of the trained tokens; at least one is chosen. */
  readonly ratio: number;
  /** Candidates lie strictly between (random-between). */
  readonly lower: number;
  readonly upper: number;
  readonly seed: number;
  /** Ratio band outside which a token counts as clipped already (random-between). */
  readonly low: number;
  readonly high: number;
}

/** Rows of a whole optimiser step, of which a call may hold a part. */
export interface StepRows {
  /** Those without a trained token too. */
  readonly count: number;
  /** Trained tokens of the longest, or the divisor that stands for it. */
  readonly longest: number;
}

/** The mode and normalisers of a loss that brings its own aggregation. */
export type Aggregation = (step: StepRows) => { readonly mode: string; readonly given: Normalisers };

/** Names of the three averaged numbers; null is not reported. */
export type MetricNames = readonly [string | null, string | null, string | null];

/** The form of a loss with the values of its parameters, which its settings give. */
export interface BoundForm {
  readonly form: LossForm;
  /** One value for each of `form.params`: absolute bounds of the ratio, not distances from 1. */
  readonly params: LossSettings;
}

/** A loss under its settings: what the pass over the tokens computes. */
export interface LossPlan extends BoundForm {
  readonly rows?: RowStatistic | undefined;
  readonly selection?: Selection | undefined;
  /** Aggregation that the published loss imposes, whatever `loss_agg_mode` says. */
  readonly aggregation?: Aggregation | undefined;
  readonly metrics: MetricNames;
  /** Metrics computed from the three averages. */
  readonly derived?: ((averages: readonly [number, number, number]) => Record<string, number>) | undefined;
  /** Bound of the k3 estimate. Default verl's 10. */
  readonly klBound?: number | undefined;
  /** Importance weights that the row statistic already contains: in the slopes, or in values and slopes. */
  readonly weightsInRows?: "slope" | "all" | undefined;
}

/** How a training service of Tinker's protocol takes a loss. */
export interface ServiceForm {
  /** `loss_fn`. */
  readonly name: string;
  /** Inputs that every datum must hold beside its targets, and those that it may hold. */
  readonly needs: readonly string[];
  readonly may: readonly string[];
  /** Whether the loss is proportional to the advantage, so that a client can weigh tokens through it. */
  readonly isLinear: boolean;
}

/** Names of a loss in other systems. A system that is not named does not have it. */
export interface LossElsewhere {
  /** verl's `policy_loss.loss_mode`, and the first of its versions here that knows the name. */
  readonly verl?: { readonly name: string; readonly since?: string };
  /** Trinity-RFT's `algorithm.policy_loss_fn`. */
  readonly trinity?: string;
  readonly tinker?: ServiceForm;
}

/** A policy loss: its name, settings with defaults, and how it plans a pass. */
export interface LossDefinition<S extends LossSettings = LossSettings> {
  readonly name: string;
  /** Description of the loss, in one line: `config explain` and docs/algorithms.md show it. */
  readonly describe?: string | undefined;
  /** Papers and published functions, and the system whose numbers it has. */
  readonly sources?: readonly string[];
  readonly elsewhere?: LossElsewhere;
  /** The mode that a loss with an aggregation of its own takes in place of `loss_agg_mode`, where one fits it. */
  readonly loss_agg_mode?: AggregationMode;
  /** Settings with their defaults. A setting outside this table is refused. */
  readonly settings: S;
  /** Checks settings in place of the table. */
  readonly schema?: SettingsSchema<S> | undefined;
  plan(settings: S): LossPlan;
}

/** Types a built-in loss by its own settings. */
export function policyLossOf<const S extends LossSettings>(loss: LossDefinition<S>): LossDefinition {
  return loss as unknown as LossDefinition;
}

/**
 * The plan of a loss with the given settings over its defaults.
 * @throws {ConfigError} for a setting that the loss does not know, one that is not a number, or what the loss refuses
 */
export function planLoss(definition: LossDefinition, settings: LossSettings): LossPlan {
  return definition.plan(mergeSettings("loss", definition, settings));
}
