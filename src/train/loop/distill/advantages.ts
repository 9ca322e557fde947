/** The teacher's advantages, beside the estimated ones or in their place. */

import { advantageReader } from "../../../engine/algorithm/advantage/level.ts";
import { distillationAdvantages } from "../../../engine/algorithm/distill/advantages.ts";
import type { Advantages } from "../../../engine/contract/backend.ts";
import { rowsOfTokens } from "../../../engine/packing/offsets.ts";
import { spreadWithStd } from "../../../leaves/statistics.ts";
import type { AdvantageRows, ProcessedRows, StageContext, Staged } from "../contract.ts";
import { coefOf } from "./choices.ts";

/** Adds the advantages of a distillation by policy gradient, per token. Otherwise the estimated ones stay. */
export function withTeacher(
  rows: ProcessedRows,
  { value: estimated, metrics }: Staged<Advantages>,
  { settings: { distillation } }: StageContext,
): Staged<AdvantageRows> {
  const { teacherLogprobs, rolloutLogprobs: logprobs, mask } = rows;
  if (!teacherLogprobs) return { value: { ...rows, advantages: estimated }, metrics };
  const { loss_mode: kl, loss_max_clamp, kl_discount_factor: discount } = distillation.distillation_loss;
  const options = { kl, coef: coefOf(distillation), clamp: loss_max_clamp ?? undefined, discount };
  const distilled_T = distillationAdvantages({ ...rows, logprobs, teacherLogprobs }, options);
  const trained = distilled_T.filter((_, t) => mask[t] === 1);
  const rowOf = rowsOfTokens(rows.offsets);
  const estimate = advantageReader(estimated);
  const values_T = distilled_T.map((value, t) => (mask[t] === 1 ? value + estimate(t, rowOf[t]!) : 0));
  return {
    value: { ...rows, advantages: { level: "token", values: values_T } },
    metrics: { ...metrics, ...spreadWithStd("advantage/teacher", [...trained]) },
  };
}
