/** From a {@link LossSpec} to numbers: the plan of a loss, its weights, its KL and entropy terms, its metrics. */
import type { LossSpec, Metrics } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import { K3_BOUND, klCode } from "../kl/estimate.ts";
import {
  COUNT_EPSILON,
  type Normalisers,
  type RowCounts,
  type TokenWeights,
  tokenWeights,
  trainedTokens,
} from "./aggregation.ts";
import {
  type LossDefinition,
  type LossPlan,
  planLoss,
  type ShaderSettings,
  shaderSettings,
} from "./definition.ts";
import { SUMS } from "./pass.ts";
import { TINKER_LOSSES } from "./tinker.ts";
import { TRL_LOSSES } from "./trl.ts";
import { VERL_LOSSES } from "./verl.ts";

const registry = new Map<string, LossDefinition>(
  [...VERL_LOSSES, ...TINKER_LOSSES, ...TRL_LOSSES].map((loss) => [loss.name, loss]),
);

/** Names of every loss, the user's own included. */
export function lossNames(): readonly string[] {
  return [...registry.keys()];
}

/** @throws ConfigError for a name that is not registered. */
export function findLoss(name: string): LossDefinition {
  const loss = registry.get(name);
  if (loss) return loss;
  throw new ConfigError(
    `Cannot take the loss ${JSON.stringify(name)}: known are ${lossNames().join(", ")}.`,
    {
      path: "loss",
    },
  );
}

/**
 * Adds a loss under its name.
 * @throws ConfigError when the name is taken.
 */
export function registerLoss(loss: LossDefinition): void {
  if (registry.has(loss.name))
    throw new ConfigError(`Cannot register the loss ${loss.name}: the name is taken.`, { path: "loss" });
  registry.set(loss.name, loss);
}

/** True for a user's loss that is a TypeScript function alone. */
export function isHostOnly(spec: PolicyLossSpec): boolean {
  return planLoss(findLoss(spec.name), spec.settings ?? {}).custom === null;
}

/** The part of a {@link LossSpec} that a loss needs, and the normalisers that only the engine's callers use. */
export type PolicyLossSpec = Pick<LossSpec, "name" | "loss_agg_mode"> &
  Partial<Omit<LossSpec, "name" | "loss_agg_mode">> &
  Normalisers;

/** A spec met by a batch: everything the pass needs to know. */
export interface ResolvedLoss {
  readonly name: string;
  readonly plan: LossPlan;
  readonly settings: ShaderSettings;
  /** Weights of the loss, and of the KL and entropy terms (the spec's own aggregation). */
  readonly weight: TokenWeights;
  readonly termWeight: TokenWeights;
  readonly klCode: number;
  readonly klCoef: number;
  readonly klBound: number;
  readonly entropyCoef: number;
}

/** @throws ConfigError for what the loss, its settings or its aggregation refuse. */
export function resolveLoss(spec: PolicyLossSpec, rows: RowCounts): ResolvedLoss {
  const plan = planLoss(findLoss(spec.name), spec.settings ?? {});
  const termWeight = tokenWeights(spec.loss_agg_mode, rows, spec);
  const imposed = plan.aggregation?.(rows);
  return {
    name: spec.name,
    plan,
    settings: shaderSettings(plan),
    weight: imposed ? tokenWeights(imposed.mode, rows, { ...given(spec), ...imposed.given }) : termWeight,
    termWeight,
    klCode: spec.kl && spec.kl.coef !== 0 ? klCode(spec.kl.type) : 0,
    klCoef: spec.kl?.coef ?? 0,
    klBound: plan.klBound ?? K3_BOUND,
    entropyCoef: spec.entropy_coeff ?? 0,
  };
}

/** Only what is set: an `undefined` must not hide an imposed normaliser. */
function given(spec: PolicyLossSpec): Normalisers {
  const { dp_size, batch_num_tokens, global_batch_size, loss_scale_factor, compat } = spec;
  return { dp_size, batch_num_tokens, global_batch_size, loss_scale_factor, compat };
}

export interface LossResult {
  /** The whole loss: policy + kl_coef KL - entropy_coeff entropy. */
  readonly loss: number;
  readonly metrics: Metrics;
}

/**
 * Loss and published metrics from the sums of the pass.
 * @param entropy the aggregated entropy, where it was computed
 * @throws ConfigError when trained tokens held non-finite values.
 */
export function lossResult(
  loss: ResolvedLoss,
  sums: ArrayLike<number>,
  rows: RowCounts,
  entropy?: number,
): LossResult {
  refuseBroken(sums[SUMS.broken]!, loss.name);
  const count = trainedTokens(rows) + COUNT_EPSILON;
  const metrics: Metrics = {};
  for (const [k, name] of loss.plan.metrics.entries())
    if (name) metrics[name] = sums[SUMS.metrics + k]! / count + 0;
  Object.assign(metrics, loss.plan.derived?.(metrics));
  let total = sums[SUMS.loss]!;
  const terms: Metrics = {};
  if (loss.klCode !== 0) {
    total += loss.klCoef * sums[SUMS.klLoss]!;
    terms["actor/kl_loss"] = sums[SUMS.klLoss]!;
    terms["actor/kl_coef"] = loss.klCoef;
  }
  if (entropy !== undefined) {
    total -= loss.entropyCoef * entropy;
    terms["actor/entropy"] = entropy;
  }
  if (Object.keys(terms).length > 0) terms["actor/pg_loss"] = sums[SUMS.loss]!;
  return { loss: total, metrics: { ...metrics, ...terms } };
}

function refuseBroken(count: number, name: string): void {
  if (count > 0)
    throw new ConfigError(
      `Cannot take the loss ${name} as its inputs must be finite: ${count} trained tokens hold a NaN or an infinity. checkRollouts names the first.`,
    );
}
