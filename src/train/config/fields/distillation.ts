/**
 * Distillation from a teacher, under verl's names where it has them. verl and Trinity have `distillation.*` in verl's own
 * tree; these rows are those of the loop here.
 */
import { KL_BASE_NAMES } from "../../../engine/algorithm/kl/estimate.ts";
import { bool, float, int, oneOf, str } from "./field.ts";

/** Modes by the engine's names; a test compares them with its lists. */
const TOPK_MODES = ["forward_kl_topk", "forward_kl_topk_tail", "reverse_kl_topk", "reverse_kl_topk_tail"] as const;

export const DISTILLATION_FIELDS = {
  "distillation.enabled": bool(false, "train on a teacher's log-probs of the sampled tokens", { loop: true }),
  "distillation.distillation_loss.loss_mode": oneOf(
    [...KL_BASE_NAMES, ...TOPK_MODES],
    "k3",
    "estimate of the KL to the teacher: k1 to k3 at the sampled token, the others over the teacher's likeliest tokens",
    {
      loop: true,
      note: "k1 with use_policy_gradient is Tinker's on-policy distillation; forward_kl_topk is verl's full loss. The tail forms count what is outside the top k as one more token.",
    },
  ),
  "distillation.distillation_loss.topk": int(32, "likeliest tokens of the teacher at each place", {
    min: 1,
    loop: true,
  }),
  "distillation.distillation_loss.use_task_rewards": bool(
    true,
    "add the distillation to the task's own loss; false = the teacher alone",
    { loop: true },
  ),
  "distillation.distillation_loss.distillation_loss_coef": float(
    1,
    "weight of the distillation beside the task's loss",
    { min: 0, loop: true, note: "As in verl it counts only with use_task_rewards=true." },
  ),
  "distillation.distillation_loss.loss_max_clamp": float(
    null,
    "bound of a token's distillation loss, on both sides; null = none",
    { min: 0, loop: true },
  ),
  "distillation.distillation_loss.log_prob_min_clamp": float(
    null,
    "smallest log-prob in the losses over the top k; null = none",
    { max: 0, loop: true },
  ),
  "distillation.distillation_loss.use_policy_gradient": bool(
    false,
    "true = the negative KL is a per-token advantage; false = it is a loss of its own",
    { loop: true },
  ),
  "distillation.distillation_loss.kl_discount_factor": float(
    0,
    "discount of the later tokens' advantages in that of a token; 0 = each token has its own alone",
    { min: 0, max: 1, loop: true, note: "A name of Tinker's cookbook; acts with use_policy_gradient." },
  ),
  "distillation.teacher_models.teacher_model.model_path": str(
    null,
    "the teacher: a folder, a run or an adapter; or its name at the service",
    { loop: true },
  ),
  "distillation.teacher_kind": oneOf(
    ["local", "tinker", "openai", "self"],
    "local",
    "where the teacher runs: on this device (local), at a service (tinker, openai), or it is the student (self)",
    { loop: true, note: "This key and those below are grpu's own." },
  ),
  "distillation.shared_tokenizer": bool(
    true,
    "false = the teacher reads the sampled texts in its own tokens, and spans of both that end alike are compared",
    { loop: true, note: "rLLM's name, distill.shared_tokenizer, whose default is false. Only with k1 to k3." },
  ),
  "distillation.teacher_url": str(null, "address of the teacher's service"),
  "distillation.teacher_tokenizer": str(
    null,
    "folder with the tokenizer.json of a teacher at a service that does not report its tokens; null = model_path",
  ),
  "distillation.teacher_weights": oneOf(
    ["initial", "current"],
    "initial",
    "with teacher_kind=self: the weights before training, or those at the start of each step",
    { loop: true },
  ),
  "distillation.teacher_prompt": str(
    null,
    "what the teacher reads in place of the prompt: a text with {prompt} and fields of the row, such as {answer}",
    { loop: true, note: "In a conversation it replaces the last message of the user. Fields may be dotted." },
  ),
} as const;
