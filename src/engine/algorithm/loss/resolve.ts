/** A loss spec resolved against a batch: its plan, its weights, its KL and entropy terms; and its result and metrics. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { LossSpec, Metrics } from "../../contract/backend.ts";
import { K3_BOUND, klCode } from "../kl/estimate.ts";
import { COUNT_EPSILON, type RowCounts, trainedTokens } from "../rows.ts";
import { type Normalisers, type TokenWeights, tokenWeights } from "./aggregation.ts";
import { type LossPlan, planLoss } from "./definition.ts";
import { findLoss } from "./losses.ts";
import { SUMS } from "./pass.ts";

/** The part of a {@link LossSpec} that a loss needs, and normalisers that only direct callers of the engine set. */
export type PolicyLossSpec = Pick<LossSpec, "name" | "loss_agg_mode"> & {
  readonly [K in Exclude<keyof LossSpec, "name" | "loss_agg_mode">]?: LossSpec[K] | undefined;
} & Normalisers;

/** True for a user's loss that is a TypeScript function alone. */
export function isHostOnly(spec: PolicyLossSpec): boolean {
  return planLoss(findLoss(spec.name), spec.settings ?? {}).form.kernel === null;
}

/** Everything that the pass over the tokens needs to know of a spec. */
export interface ResolvedLoss {
  readonly name: string;
  readonly plan: LossPlan;
  /** Weights of the loss, and of the KL and entropy terms (the spec's own aggregation). */
  readonly weight: TokenWeights;
  readonly termWeight: TokenWeights;
  readonly klCode: number;
  readonly klCoef: number;
  readonly klBound: number;
  readonly entropyCoef: number;
}

/**
 * Resolves a spec for a batch of these rows.
 * @throws {ConfigError} for an unknown loss, setting or mode, a setting that the loss refuses, or an empty denominator
 */
export function resolveLoss(spec: PolicyLossSpec, rows: RowCounts): ResolvedLoss {
  const plan = planLoss(findLoss(spec.name), spec.settings ?? {});
  const termWeight = tokenWeights(spec.loss_agg_mode, rows, spec);
  const step = { count: spec.all_rows ?? rows.trained.length, longest: spec.loss_scale_factor ?? rows.longest };
  const imposed = plan.aggregation?.(step);
  return {
    name: spec.name,
    plan,
    weight: imposed ? tokenWeights(imposed.mode, rows, { ...spec, ...imposed.given }) : termWeight,
    termWeight,
    klCode: spec.kl && spec.kl.coef !== 0 ? klCode(spec.kl.type) : 0,
    klCoef: spec.kl?.coef ?? 0,
    klBound: plan.klBound ?? K3_BOUND,
    entropyCoef: spec.entropy_coeff ?? 0,
  };
}

/** A loss and its published metrics. */
export interface LossResult {
  /** The whole loss: policy + kl_coef KL - entropy_coeff entropy. */
  readonly loss: number;
  readonly metrics: Metrics;
}

/**
 * Loss and published metrics from the sums of the pass.
 * @param sums in the order of {@link SUMS}
 * @param entropy the aggregated entropy, where it was computed
 * @throws {ConfigError} when trained tokens held values that are not finite
 */
export function lossResult(
  loss: ResolvedLoss,
  sums: Float64Array,
  { rows, entropy }: { rows: RowCounts; entropy?: number | undefined },
): LossResult {
  const at = (k: number) => sums[k]!;
  refuseBroken(at(SUMS.broken), loss.name);
  const count = trainedTokens(rows) + COUNT_EPSILON;
  // Adding 0 makes -0 a 0.
  const average = (k: number) => at(SUMS.metrics + k) / count + 0;
  const averages = [average(0), average(1), average(2)] as const;
  const named = loss.plan.metrics.flatMap((name, k) => (name ? [[name, averages[k]!] as const] : []));
  const metrics: Metrics = { ...Object.fromEntries(named), ...loss.plan.derived?.(averages) };
  let total = at(SUMS.loss);
  const terms: Metrics = {};
  if (loss.klCode !== 0) {
    total += loss.klCoef * at(SUMS.klLoss);
    terms["actor/kl_loss"] = at(SUMS.klLoss);
    terms["actor/kl_coef"] = loss.klCoef;
  }
  if (entropy !== undefined) {
    total -= loss.entropyCoef * entropy;
    terms["actor/entropy"] = entropy;
  }
  if (Object.keys(terms).length > 0) terms["actor/pg_loss"] = at(SUMS.loss);
  return { loss: total, metrics: { ...metrics, ...terms } };
}

function refuseBroken(count: number, name: string): void {
  if (count === 0) return;
  throw new ConfigError(
    `Cannot take the loss ${name}: ${count} trained tokens hold a NaN or an infinity (log-prob, advantage or weight). Correct the inputs, or lower the learning rate if training has diverged.`,
  );
}
