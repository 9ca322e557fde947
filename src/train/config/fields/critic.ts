/** Settings of the critic, under verl's names and with its defaults where it has them. */
import { any, bool, float, int, oneOf, str } from "./field.ts";

const AGGREGATIONS = [
  "token-mean",
  "token-sum",
  "seq-mean-token-sum",
  "seq-mean-token-mean",
  "seq-mean-token-sum-norm",
] as const;

export const CRITIC_FIELDS = {
  "critic.enable": bool(null, "train a critic; null = where an estimator is gae"),
  "critic.model.path": str(null, "folder of the model that it starts from; null = the policy's", {
    note: "A folder with a scalar head, such as a reward model's or a critic's, keeps its head. The vocabulary must be the policy's.",
  }),
  "critic.model.lora_rank": int(null, "LoRA rank of the critic; 0 = all its weights train; null = model.lora_rank", {
    min: 0,
    note: "An adapter shares the policy's frozen base. All weights are a copy, with gradients and moments of their own.",
  }),
  "critic.model.lora_alpha": float(null, "its LoRA scale; null = model.lora_alpha", { min: 0 }),
  "critic.optim.lr": float(1e-5, "learning rate of the critic", { min: 0, loop: true }),
  "critic.optim.betas": any([0.9, 0.999], "AdamW of the critic: decays of the two moments", {
    nullable: false,
    loop: true,
  }),
  "critic.optim.weight_decay": float(0.01, "AdamW of the critic: decoupled weight decay", { min: 0, loop: true }),
  "critic.optim.clip_grad": float(1, "largest gradient norm of the critic; 0 = no clipping", { min: 0, loop: true }),
  "critic.optim.lr_scheduler_type": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule", {
    loop: true,
  }),
  "critic.optim.lr_warmup_steps": int(-1, "warm-up steps; below 1 = by lr_warmup_steps_ratio", {
    min: -1,
    loop: true,
  }),
  "critic.optim.lr_warmup_steps_ratio": float(0, "warm-up as a share of all steps", { min: 0, max: 1, loop: true }),
  "critic.ppo_mini_batch_size": int(
    null,
    "prompts per optimiser step of the critic; null = as many steps as training.num_minibatches",
    { min: 1, loop: true },
  ),
  "critic.ppo_epochs": int(1, "rounds of the critic over a batch", { min: 1, loop: true }),
  "critic.cliprange_value": float(0.5, "how far a value may move from the old one in the value loss", {
    min: 0,
    loop: true,
  }),
  "critic.loss_agg_mode": oneOf(AGGREGATIONS, null, "how its token losses are added up; null = as the policy's", {
    loop: true,
  }),
  "trainer.critic_warmup": int(0, "the policy trains from this step on; before it the critic alone", {
    min: 0,
    loop: true,
  }),
  "algorithm.gamma": float(null, "discount of rewards; null = the estimator's own, which is 1 for gae", {
    min: 0,
    max: 1,
    loop: true,
  }),
  "algorithm.lam": float(null, "trade-off of bias and variance in gae; null = the estimator's own, which is 1", {
    min: 0,
    max: 1,
    loop: true,
  }),
} as const;

/** One line above each of these sections in the rendered YAML. */
export const CRITIC_SECTIONS = {
  critic: "The critic, for adv_estimator=gae",
  trainer: "The loop; the portable settings are in rllm.trainer",
  algorithm: "Advantages; the portable settings are in rllm.algorithm",
} as const;
