/** What a policy loss is: one function of a token, its settings under their published names, and its metrics. */
import type { Kernel } from "../../compute/kernel.ts";
import { ConfigError } from "../../errors.ts";
import { parseSettings, type SettingsSchema } from "../advantage/definition.ts";
import type { Normalisers, RowCounts } from "./aggregation.ts";

/** One trained token as a loss sees it. */
export interface Token {
  readonly logprob: number;
  /** logprob - oldLogprob. */
  readonly d: number;
  readonly advantage: number;
  /** What the loss's {@link RowStatistic} found for the token's row; for `selects`, a = 1 where it was selected. */
  readonly a: number;
  readonly b: number;
}

/** A token's loss before aggregation, its slope in the log-prob, and three numbers averaged over trained tokens. */
export interface TokenLoss {
  readonly value: number;
  readonly slope: number;
  readonly metrics: readonly [number, number, number];
}

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

/** Numbers found per row before the pass, for losses whose tokens are coupled through their row. */
export type RowStatistic =
  | "mean-log-ratio"
  | "geometric-mean"
  | "sequence-surrogate"
  | "sequence-sum-surrogate"
  | "vespo";

/** Tokens chosen by their covariance of log-prob and advantage, before the pass. */
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

export type LossSettings = Readonly<Record<string, number>>;

/** A loss with its settings put in. */
export interface LossPlan {
  /** Branch of `token_loss` in loss/policy.wgsl. */
  readonly code: number;
  readonly settings: Partial<ShaderSettings>;
  /** The same branch in float64. */
  token(t: Token, s: ShaderSettings): TokenLoss;
  /** A user's loss: its own fused pass and settings. Null: a function of the host alone. */
  readonly custom?: { readonly kernel: Kernel; readonly params: LossSettings } | null;
  readonly rows?: RowStatistic | undefined;
  readonly selection?: Selection;
  /** Aggregation that the published loss imposes, whatever `loss_agg_mode` says. */
  aggregation?(rows: RowCounts): { readonly mode: string; readonly given: Normalisers };
  /** Names of the three averaged numbers; `null` is not reported. */
  readonly metrics: readonly [string | null, string | null, string | null];
  /** Metrics made from the averages. */
  derived?(metrics: Readonly<Record<string, number>>): Record<string, number>;
  /** Where the k3 estimate is cut off. Default verl's 10. */
  readonly klBound?: number;
  /** Where the row statistic holds the importance weights already: in the slopes, or in values and slopes. */
  readonly weightsInRows?: "slope" | "all" | undefined;
}

export interface LossDefinition {
  readonly name: string;
  /** Settings with their defaults. A setting outside this table is refused. */
  readonly settings: LossSettings;
  /** Checks settings in place of the table. */
  readonly schema?: SettingsSchema<LossSettings>;
  plan(settings: LossSettings): LossPlan;
}

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

/** All settings of the pass, those a loss does not use at rest. */
export function shaderSettings(plan: LossPlan): ShaderSettings {
  return { ...EMPTY_SETTINGS, ...plan.settings };
}

/**
 * Puts the given settings over the defaults.
 * @throws ConfigError for a setting that the loss does not know or that is not a finite number.
 */
export function planLoss(definition: LossDefinition, given: LossSettings): LossPlan {
  const { schema, name } = definition;
  if (schema) return definition.plan(parseSettings(schema, given, `the loss ${name}`));
  for (const [key, value] of Object.entries(given)) {
    if (!Object.hasOwn(definition.settings, key))
      throw new ConfigError(
        `Cannot set ${key} of the loss ${definition.name}: it has ${Object.keys(definition.settings).join(", ") || "no settings"}.`,
        { path: key },
      );
    if (typeof value !== "number" || Number.isNaN(value))
      throw new ConfigError(
        `Cannot set ${key} of the loss ${definition.name} as it takes a number: ${value}.`,
        {
          path: key,
        },
      );
  }
  return definition.plan({ ...definition.settings, ...given });
}

/** 1 where the condition holds: what a fraction is the mean of. */
export function count(condition: boolean): number {
  return condition ? 1 : 0;
}

export function clamp(x: number, low: number, high: number): number {
  return Math.max(Math.min(x, high), low);
}
