/** A teacher's log-probs as advantages of the sampled tokens: on-policy distillation by policy gradient. */

import { ConfigError } from "../../../leaves/errors.ts";
import { forEachRow } from "../../packing/offsets.ts";
import { klCode, klEstimate } from "../kl/estimate.ts";
import type { MaskedRows } from "../rows.ts";

/** Batch of a distillation; per-token arrays are [T]. */
export interface DistillationBatch extends MaskedRows {
  /** Log-probs of the sampled tokens under the student. */
  readonly logprobs: ArrayLike<number>;
  readonly teacherLogprobs: ArrayLike<number>;
}

/** How the teacher's log-probs become advantages. */
export interface DistillationOptions {
  /** Factor on the KL. Default 1. */
  readonly coef?: number | undefined;
  /** Estimate of the reverse KL, `k1` to `k3`. Default `k1`, log p_student - log p_teacher. */
  readonly kl?: string | undefined;
  /** Bound of a token's estimate, on both sides. Default: none. */
  readonly clamp?: number | undefined;
  /** Weight of the next token's advantage in that of a token, and so on. Default 0. */
  readonly discount?: number | undefined;
}

/**
 * Advantages of on-policy distillation, [T], 0 where mask = 0: -coef K(student, teacher) at each trained token; with a
 * `discount` g, sum_s g^(s-t) of those of the row's tokens s >= t.
 * @throws {ConfigError} for an estimate that is not published, or a log-prob at a trained token that is not finite
 * @see Tinker's cookbook, incorporate_kl_penalty; verl's use_policy_gradient; rLLM's distillation workflow
 */
export function distillationAdvantages(
  { logprobs, teacherLogprobs, offsets, mask }: DistillationBatch,
  { coef = 1, kl = "k1", clamp = Number.POSITIVE_INFINITY, discount = 0 }: DistillationOptions = {},
): Float32Array {
  const code = klCode(kl);
  const advantages = new Float32Array(mask.length);
  for (let t = 0; t < advantages.length; t++) {
    if (mask[t] === 0) continue;
    const { value } = klEstimate(code, logprobs[t]! - teacherLogprobs[t]!);
    advantages[t] = -coef * Math.min(Math.max(value, -clamp), clamp) + 0;
    if (!Number.isFinite(advantages[t])) refuse(t, logprobs[t]!, teacherLogprobs[t]!);
  }
  if (discount > 0) forEachRow(offsets, (_, first, end) => discountRow(advantages, { first, end, discount, mask }));
  return advantages;
}

function discountRow(
  advantages: Float32Array,
  { first, end, discount, mask }: { first: number; end: number; discount: number; mask: Uint32Array },
): void {
  let sum = 0;
  for (let t = end - 1; t >= first; t--) {
    sum = advantages[t]! + discount * sum;
    if (mask[t] !== 0) advantages[t] = sum;
  }
}

function refuse(t: number, student: number, teacher: number): never {
  throw new ConfigError(
    `Cannot distil: the log-probs of token ${t} must be finite (${student} of the student, ${teacher} of the teacher). Set distillation.distillation_loss.loss_max_clamp where the teacher excludes tokens.`,
    { path: "distillation" },
  );
}
