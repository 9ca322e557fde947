/** Choices of a distillation's settings: which loss, over which tokens, with what weight. */
import { isTopkMode } from "../../../engine/algorithm/distill/topk.ts";
import type { LossSpec } from "../../../engine/contract/backend.ts";
import type { LoopSettings } from "../settings.ts";

type Distillation = LoopSettings["distillation"];

/** Outputs of a teacher. */
export type TeacherOutput = "advantages" | "kl" | "top";

/** Undefined without distillation. */
export function wantedOf({ enabled, distillation_loss }: Distillation): TeacherOutput | undefined {
  if (!enabled) return undefined;
  if (isTopkMode(distillation_loss.loss_mode)) return "top";
  return distillation_loss.use_policy_gradient ? "advantages" : "kl";
}

/** Whether the teacher's loss is the only one. */
export function isTeacherOnly({ distillation }: Pick<LoopSettings, "distillation">): boolean {
  return distillation.enabled && !distillation.distillation_loss.use_task_rewards;
}

/** The weight of the distillation: as in verl, it counts beside the task's loss alone. */
export function coefOf({ distillation_loss }: Distillation): number {
  return distillation_loss.use_task_rewards ? distillation_loss.distillation_loss_coef : 1;
}

/** The KL to the teacher as a term of the loss, where it is estimated at the sampled tokens. */
export function teacherKl({ distillation }: LoopSettings): LossSpec["kl"] {
  if (wantedOf(distillation) !== "kl") return undefined;
  return { type: distillation.distillation_loss.loss_mode, coef: coefOf(distillation) };
}

/** The loss over the teacher's most likely tokens, with the aggregation of the policy loss. */
export function topkSpec(spec: LossSpec, { distillation }: LoopSettings): LossSpec {
  const { loss_mode, log_prob_min_clamp, loss_max_clamp } = distillation.distillation_loss;
  const { kl: _, ...rest } = spec;
  const settings = {
    coef: coefOf(distillation),
    ...(log_prob_min_clamp !== null && { log_prob_min_clamp }),
    ...(loss_max_clamp !== null && { loss_max_clamp }),
  };
  return { ...rest, name: loss_mode, settings };
}

/** Whether a run scores with the policy before training: for the KL loss, or because that is the teacher. */
export function usesReference({ algorithm, distillation }: LoopSettings): boolean {
  const { enabled, teacher_kind, teacher_weights } = distillation;
  return algorithm.kl_beta > 0 || (enabled && teacher_kind === "self" && teacher_weights === "initial");
}
