/** What a policy loss is: one function of a token, its settings under their published names, and its metrics. */
import type { Kernel } from "../../compute/kernel.ts";
import { mergeSettings, type SettingsSchema } from "../settings.ts";
import type { Normalisers } from "./aggregation.ts";

/** One trained token as a loss sees it. */
export interface Token {
  readonly logprob: number;
  /** logprob - oldLogprob. */
  readonly d: number;
  readonly advantage: number;
  /** The loss's {@link RowStatistic} of the token's row; with a {@link Selection}, a = 1 where the token is selected. */
  readonly a: number;
  readonly b: number;
}

/** A token's loss before aggregation, its slope in the log-prob, and three numbers averaged over trained tokens. */
export interface TokenLoss {
  readonly value: number;
  readonly slope: number;
  readonly metrics: readonly [number, number, number];
}

/** A loss as a function of one trained token, in float64. */
export type TokenFunction = (t: Token, s: ShaderSettings) => TokenLoss;

/** Settings as the fused pass takes them: absolute bounds of the ratio, not distances from 1. */
export interface ShaderSettings {
  readonly low: number;
  readonly high: number;
  readonly cap: number;
  readonly tau_pos: number;
  readonly tau_neg: number;
  readonly beta: number;
  readonly delta: number;
  readonly k_pos: number;
  readonly lambda_pos: number;
  readonly k_neg: number;
  readonly lambda_neg: number;
}

/** Two numbers per row, computed before the pass, for losses whose tokens are coupled through their row. */
export type RowStatistic =
  | "mean-log-ratio"
  | "geometric-mean"
  | "sequence-surrogate"
  | "sequence-sum-surrogate"
  | "vespo";

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

/** Settings of a loss under their published names. */
export type LossSettings = Readonly<Record<string, number>>;

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

/** A loss under its settings: what the pass over the tokens computes. */
export interface LossPlan {
  /** Branch of `token_loss` in loss/policy.wgsl. */
  readonly code: number;
  readonly settings: { readonly [K in keyof ShaderSettings]?: number | undefined };
  /** The same branch in float64. */
  readonly token: TokenFunction;
  /** A user's loss: its fused pass and settings. Null: a function of the host alone. */
  readonly custom?: { readonly kernel: Kernel; readonly params: LossSettings } | null | undefined;
  readonly rows?: RowStatistic | undefined;
  readonly selection?: Selection;
  /** Aggregation that the published loss imposes, whatever `loss_agg_mode` says. */
  readonly aggregation?: Aggregation;
  readonly metrics: MetricNames;
  /** Metrics computed from the three averages. */
  readonly derived?: (averages: readonly [number, number, number]) => Record<string, number>;
  /** Where the k3 estimate is cut off. Default verl's 10. */
  readonly klBound?: number;
  /** Where the row statistic already contains the importance weights: in the slopes, or in values and slopes. */
  readonly weightsInRows?: "slope" | "all" | undefined;
}

/** A policy loss: its name, settings with defaults, and how it plans a pass. */
export interface LossDefinition {
  readonly name: string;
  /** Settings with their defaults. A setting outside this table is refused. */
  readonly settings: LossSettings;
  /** Checks settings in place of the table. */
  readonly schema?: SettingsSchema<LossSettings>;
  plan(settings: LossSettings): LossPlan;
}

/** Settings without effect. */
const EMPTY_SETTINGS: ShaderSettings = {
  low: 0,
  high: 0,
  cap: 0,
  tau_pos: 0,
  tau_neg: 0,
  beta: 0,
  delta: 3.0e38,
  k_pos: 0,
  lambda_pos: 0,
  k_neg: 0,
  lambda_neg: 0,
};

/** In the order of the shader's params. */
export const SETTING_NAMES = Object.keys(EMPTY_SETTINGS) as readonly (keyof ShaderSettings)[];

/** All settings of the pass; those that a loss does not use have no effect. */
export function shaderSettings(plan: Pick<LossPlan, "settings">): ShaderSettings {
  return { ...EMPTY_SETTINGS, ...plan.settings } as ShaderSettings;
}

/**
 * The plan of a loss with the given settings over its defaults.
 * @throws {ConfigError} for a setting that the loss does not know, one that is not a number, or what the loss refuses
 */
export function planLoss(definition: LossDefinition, given: LossSettings): LossPlan {
  return definition.plan(mergeSettings("loss", definition, given));
}

/** 1 where the condition holds: what a fraction is the mean of. */
export function count(condition: boolean): number {
  return condition ? 1 : 0;
}

export function clamp(x: number, low: number, high: number): number {
  return Math.max(Math.min(x, high), low);
}
