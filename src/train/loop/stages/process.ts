/** Stage 5, process: the log-probs that the loss compares the current policy with. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { largest, mean } from "../../../leaves/statistics.ts";
import type { PackedRows } from "../../data/pack.ts";
import type { ProcessedRows, StageContext, Staged } from "../contract.ts";
import { teacherScores } from "../distill/score.ts";
import { reportMoment } from "../moment.ts";
import type { LoopSettings } from "../settings.ts";

/**
 * Computes old log-probs in one forward pass when `rollout_correction.bypass_mode` is false, and when it is unset and the
 * batch trains in several mini-batches or with importance weights (`tis_mode`). With bypass_mode true they are the
 * sampler's; a single on-policy step needs none. Computes reference log-probs when the loss has a KL term, and values where
 * the backend has a critic; the teacher of a distillation scores the tokens.
 */
export async function process(rows: PackedRows, context: StageContext): Promise<Staged<ProcessedRows>> {
  const { backend, settings } = context;
  reportMoment(context, { doing: "scoring" });
  const temperature = settings.rollout.train.temperature || 1;
  const { kl_beta, rollout_correction } = settings.algorithm;
  const bypass = rollout_correction.bypass_mode;
  const isCorrected = rollout_correction.tis_mode !== null;
  const needsOld = bypass === false || (bypass === null && (isCorrected || settings.training.num_minibatches > 1));
  const logprobs = async (policy: "current" | "reference") =>
    (await backend.logprobs(rows, { policy, temperature, mask: rows.mask })).logprobs;
  const old_T = needsOld ? await logprobs("current") : undefined;
  const reference_T = kl_beta > 0 ? await logprobs("reference") : undefined;
  const oldLogprobs_T = old_T ?? (bypass === true ? rows.rolloutLogprobs : undefined);
  const values_T = await backend.critic?.values(rows, { mask: rows.mask });
  const weights_T = old_T && importanceWeights(rows, { old: old_T, correction: rollout_correction });
  const teacher = await teacherScores(rows, context);
  const value = {
    ...rows,
    ...(oldLogprobs_T && { oldLogprobs: oldLogprobs_T }),
    ...(reference_T && { refLogprobs: reference_T }),
    ...(weights_T && { rolloutIsWeights: weights_T }),
    ...(values_T && { values: values_T }),
    ...teacher.value,
  };
  return { value, metrics: { ...(old_T && mismatchMetrics(rows, old_T)), ...teacher.metrics } };
}

/** min(p_old / p_rollout, cap), per token or over the whole row. @see verl's rollout correction (TIS) */
function importanceWeights(
  rows: PackedRows,
  options: { old: Float32Array; correction: LoopSettings["algorithm"]["rollout_correction"] },
): Float32Array | undefined {
  const { tis_mode, tis_cap } = options.correction;
  if (tis_mode === null) return undefined;
  const { offsets, mask, rolloutLogprobs, tokens } = rows;
  const logRatios_T = Float64Array.from(tokens, (_, t) => (mask[t] ? options.old[t]! - rolloutLogprobs[t]! : 0));
  if (tis_mode === "sequence") {
    for (let row = 0; row + 1 < offsets.length; row++) {
      const part = logRatios_T.subarray(offsets[row], offsets[row + 1]);
      part.fill(part.reduce((sum, ratio) => sum + ratio, 0));
    }
  }
  return Float32Array.from(logRatios_T, (ratio, t) => (mask[t] ? Math.min(Math.exp(ratio), tis_cap) : 0));
}

/** The difference between the sampler's and the trainer's probabilities: rounding, or a bug. */
function mismatchMetrics({ mask, rolloutLogprobs }: PackedRows, old_T: Float32Array): Metrics {
  const gaps: number[] = [];
  mask.forEach((bit, t) => {
    if (bit) gaps.push(Math.abs(Math.exp(old_T[t]!) - Math.exp(rolloutLogprobs[t]!)));
  });
  if (gaps.length === 0) return {};
  return { "training/rollout_probs_diff_mean": mean(gaps), "training/rollout_probs_diff_max": largest(gaps) };
}
