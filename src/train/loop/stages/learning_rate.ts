/** The parameters of an optimiser step: warm-up and schedule of the learning rate. */
import type { OptimParams } from "../../../engine/contract/backend.ts";
import type { StageContext } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";

export function optimParams({
  settings,
  step,
  totalSteps,
}: Pick<StageContext, "settings" | "step" | "totalSteps">): OptimParams {
  const { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = settings.training;
  const scale = learningRateScale(step, totalSteps, settings.algorithm);
  return { learning_rate: learning_rate * scale, beta1, beta2, eps, weight_decay, grad_clip_norm };
}

/**
 * Factor on the learning rate at a step: linear warm-up, then the schedule, which ends with 0 at `totalSteps`. rLLM counts a run's
 * steps from 1, so that its last one has a rate of 0; verl, transformers and TRL from 0, so that the first of a warm-up has.
 * @see rLLM's Tinker trainer; transformers get_scheduler, verl torch_functional.get_cosine_schedule_with_warmup
 */
export function learningRateScale(
  step: number,
  totalSteps: number,
  options: Pick<LoopSettings["algorithm"], "lr_schedule" | "warmup_steps" | "warmup_steps_ratio">,
): number {
  const { lr_schedule, warmup_steps, warmup_steps_ratio } = options;
  const warmup = warmup_steps > 0 ? warmup_steps : Math.floor(totalSteps * warmup_steps_ratio);
  if (step < warmup) return step / warmup;
  const progress = Math.min((step - warmup) / Math.max(totalSteps - warmup, 1), 1);
  if (lr_schedule === "linear") return 1 - progress;
  if (lr_schedule === "cosine") return 0.5 * (1 + Math.cos(Math.PI * progress));
  return 1;
}
