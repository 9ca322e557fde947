/**
 * The `verl` backend. `VERL_FIELDS` are the settings that `config/rllm/backend/verl.yaml` adds or pins, those of the job and
 * the task among them; everything else is verl's own tree (`config/verl/<version>.yaml`), which holds the values.
 * `VERL_NOTES` explains native settings and narrows their types where the default does not show them.
 */
import { verlEstimatorNames } from "../../../engine/algorithm/advantage/estimators.ts";
import { KL_NAMES } from "../../../engine/algorithm/kl/estimate.ts";
import { verlLossNames } from "../../../engine/algorithm/loss/losses.ts";
import { CLUSTER_FIELDS } from "./cluster.ts";
import { any, bool, each, type Field, int, oneOf, str } from "./field.ts";
import { ANSWER_KEY, GDPO_FIELDS, TASK_FIELDS } from "./local_and_tinker.ts";
import { NAMES_OF_LOCAL } from "./verl_names.ts";

/** How rows become prompts, here. */
const DATA_FIELDS = each(
  { on: "acts" },
  {
    "data.answer_key": ANSWER_KEY,
    "data.prompt_type": oneOf(
      ["plaintext", "messages"],
      "plaintext",
      "how a text prompt is read: unchanged, or as one user message; verl sends both as one",
    ),
    "data.system_prompt": str(null, "system message of conversations that have none"),
  },
);

/** Settings that act in this process, beside the cluster. */
const OWN_FIELDS = each(
  { on: "acts" },
  {
    "model.tokenizer": str(null, "folder with the tokenizer.json of the model, and its chat template, for agents", {
      note: "null = the model's folder where it is on this machine. Rewards of single replies need none.",
    }),
    "training.num_minibatches": int(null, "optimiser steps per batch; null = as verl's ppo_mini_batch_size says", {
      min: 1,
    }),
    "training.default_local_dir": str(
      // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
      "checkpoints/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
      "folder of the run on this machine: metrics, report, the job's record",
      { note: "trainer.default_local_dir is the folder of the checkpoints on the cluster." },
    ),
    ...TASK_FIELDS,
    ...CLUSTER_FIELDS,
  },
);

export const VERL_FIELDS = {
  "actor_rollout_ref.rollout.mode": str("async", "rollout mode; the unified loop needs async"),
  "actor_rollout_ref.rollout.agent.num_workers": int(0, "agent loop workers; rollouts come from the loop instead"),
  "actor_rollout_ref.rollout.calculate_log_probs": bool(true, "keep the sampler's log-probs, for rollout correction"),
  "actor_rollout_ref.rollout.val_kwargs.do_sample": bool(true, "sample in validation instead of taking the best token"),
  "actor_rollout_ref.actor.use_rollout_log_probs": bool(true, "use the sampler's log-probs in the actor"),
  "data.gen_batch_size": any(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "${mul:${data.train_batch_size},${rllm.rejection_sample.multiplier}}",
    "prompts per generated batch",
  ),
  "data.return_multi_modal_inputs": bool(false, "carry multi-modal inputs through the data path"),
  ...DATA_FIELDS,
  "rollout.nnodes": int(1, "nodes for rollouts when they are separate (asynchronous training)", { min: 0 }),
  "rollout.n_gpus_per_node": int(8, "GPUs on each of them", { min: 0 }),
  "async_training.partial_rollout": bool(false, "set by the sync from rllm.async_training.partial_rollout"),
  "rllm.backend": str("verl", "the backend; choose it with rllm/backend=NAME", { on: "acts" }),
  "rllm.algorithm.rollout_correction.bypass_mode": bool(false, "pinned: verl recomputes the old log-probs", {
    nullable: true,
  }),
  ...OWN_FIELDS,
  "training.seed": int(null, "seed of weights and sampling", {
    optional: true,
    on: "logging",
    why: "verl's engines have seeds of their own",
  }),
  ...NAMES_OF_LOCAL,
  // verl's code has them, its files do not.
  ...each({ on: "forwarded", optional: true }, GDPO_FIELDS),
} as const;

/** Whether a setting of the verl backend is read in this process, or is another name: verl itself has no such setting. */
export function isOurs(path: string): boolean {
  return (
    path.startsWith("rllm.") ||
    path === "training.seed" ||
    [DATA_FIELDS, OWN_FIELDS, NAMES_OF_LOCAL].some((fields) =>
      Object.keys(fields).some((key) => path === key || path.startsWith(`${key}.`)),
    )
  );
}

type Note = Partial<Omit<Field, "default" | "_type">> & { readonly describe: string };
const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";
const MODEL = "actor_rollout_ref.model";
const DISTILLATION = "distillation.distillation_loss";
const AGG = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"];
/** KL names with the exact divergence, which verl names and does not compute. */
const KL = [...KL_NAMES, "full"];
const STRATEGIES = ["fsdp", "fsdp2", "megatron", "veomni", "torchtitan"];

export const VERL_NOTES: Readonly<Record<string, Note>> = {
  [`${ACTOR}.strategy`]: { describe: "training engine", choices: STRATEGIES, open: true },
  [`${ACTOR}.optim.lr`]: { describe: "learning rate of the actor", min: 0 },
  [`${ACTOR}.optim.lr_warmup_steps`]: { describe: "warm-up steps; below 0 = use the ratio", type: "int" },
  [`${ACTOR}.optim.lr_warmup_steps_ratio`]: { describe: "warm-up as a share of all steps", min: 0, max: 1 },
  [`${ACTOR}.optim.lr_scheduler_type`]: { describe: "learning-rate schedule" },
  [`${ACTOR}.optim.weight_decay`]: { describe: "decoupled weight decay" },
  [`${ACTOR}.optim.betas`]: { describe: "decay of the two moments" },
  [`${ACTOR}.optim.clip_grad`]: { describe: "largest gradient norm", min: 0 },
  [`${ACTOR}.optim.min_lr_ratio`]: { describe: "smallest learning rate, as a share of lr" },
  [`${ACTOR}.ppo_mini_batch_size`]: {
    describe: "prompts per optimiser step (times rollout.n rows)",
    type: "int",
    min: 1,
  },
  [`${ACTOR}.ppo_micro_batch_size`]: { describe: "deprecated: rows per pass over all GPUs" },
  [`${ACTOR}.ppo_micro_batch_size_per_gpu`]: { describe: "rows per pass on one GPU", type: "int" },
  [`${ACTOR}.use_dynamic_bsz`]: { describe: "fill passes by tokens instead of rows" },
  [`${ACTOR}.ppo_max_token_len_per_gpu`]: {
    describe: "tokens per pass on one GPU, with use_dynamic_bsz",
    type: "int",
  },
  [`${ACTOR}.clip_ratio`]: {
    describe: "clip range; only counts where clip_ratio_low and _high are null",
    min: 0,
  },
  [`${ACTOR}.clip_ratio_low`]: { describe: "lower clip range", min: 0 },
  [`${ACTOR}.clip_ratio_high`]: { describe: "upper clip range", min: 0 },
  [`${ACTOR}.clip_ratio_c`]: { describe: "dual clip: bound of the ratio for negative advantages", min: 1 },
  [`${ACTOR}.tau_pos`]: { describe: "sapo: temperature for positive advantages" },
  [`${ACTOR}.tau_neg`]: { describe: "sapo: temperature for negative advantages" },
  [`${ACTOR}.policy_loss.loss_mode`]: {
    describe: "policy loss",
    choices: [...verlLossNames(), "bypass_mode"],
    open: true,
  },
  [`${ACTOR}.policy_loss.clip_cov_ratio`]: { describe: "clip_cov: share of tokens that are clipped" },
  [`${ACTOR}.policy_loss.clip_cov_lb`]: { describe: "clip_cov: lower bound of the covariance" },
  [`${ACTOR}.policy_loss.clip_cov_ub`]: { describe: "clip_cov: upper bound of the covariance" },
  [`${ACTOR}.policy_loss.kl_cov_ratio`]: { describe: "kl_cov: share of tokens with the penalty" },
  [`${ACTOR}.policy_loss.ppo_kl_coef`]: { describe: "kl_cov: weight of the penalty" },
  [`${ACTOR}.policy_loss.dro_beta`]: { describe: "dro: weight of the quadratic term", type: "float" },
  [`${ACTOR}.loss_agg_mode`]: { describe: "how token losses are reduced to one number", choices: AGG },
  [`${ACTOR}.loss_scale_factor`]: {
    describe: "divisor of seq-mean-token-sum-norm; null = the response length",
  },
  [`${ACTOR}.entropy_coeff`]: { describe: "weight of the entropy bonus" },
  [`${ACTOR}.use_kl_loss`]: { describe: "KL to the reference model as a loss term" },
  [`${ACTOR}.kl_loss_coef`]: { describe: "its weight", min: 0 },
  [`${ACTOR}.kl_loss_type`]: { describe: "its estimator", choices: KL },
  [`${ACTOR}.ppo_epochs`]: { describe: "passes over each batch", type: "int", min: 1 },
  [`${ACTOR}.grad_clip`]: { describe: "not read since verl 0.8.0: its engines read optim.clip_grad", min: 0 },
  [`${ACTOR}.ulysses_sequence_parallel_size`]: {
    describe: "GPUs that share one sequence",
    type: "int",
    min: 1,
  },
  [`${ACTOR}.router_replay.mode`]: {
    describe: "replay of expert routing (MoE)",
    choices: ["disabled", "R2", "R3"],
  },
  [`${ACTOR}.fsdp_config.param_offload`]: { describe: "keep parameters in host memory" },
  [`${ACTOR}.fsdp_config.optimizer_offload`]: { describe: "keep optimiser state in host memory" },
  "actor_rollout_ref.ref.fsdp_config.param_offload": { describe: "keep the reference model in host memory" },
  [`${ROLLOUT}.name`]: {
    describe: "sampling engine",
    choices: ["vllm", "sglang", "trtllm", "hf"],
    open: true,
  },
  [`${ROLLOUT}.mode`]: { describe: "how the engine is called", choices: ["async", "sync"] },
  [`${ROLLOUT}.temperature`]: { describe: "temperature in training", min: 0 },
  [`${ROLLOUT}.top_k`]: { describe: "top-k in training; -1 = off", type: "int", min: -1 },
  [`${ROLLOUT}.top_p`]: { describe: "nucleus threshold in training", min: 0, max: 1 },
  [`${ROLLOUT}.n`]: { describe: "rollouts per prompt in training", type: "int", min: 1 },
  [`${ROLLOUT}.do_sample`]: { describe: "false = always the most likely token" },
  [`${ROLLOUT}.gpu_memory_utilization`]: { describe: "share of GPU memory for the engine", min: 0, max: 1 },
  [`${ROLLOUT}.tensor_model_parallel_size`]: { describe: "GPUs per engine", type: "int", min: 1 },
  [`${ROLLOUT}.calculate_log_probs`]: { describe: "keep the sampler's log-probs" },
  [`${ROLLOUT}.log_prob_micro_batch_size_per_gpu`]: {
    describe: "rows per log-prob pass on one GPU",
    type: "int",
  },
  [`${ROLLOUT}.val_kwargs.temperature`]: { describe: "temperature in validation", min: 0 },
  [`${ROLLOUT}.val_kwargs.top_k`]: { describe: "top-k in validation; -1 = off", type: "int", min: -1 },
  [`${ROLLOUT}.val_kwargs.top_p`]: { describe: "nucleus threshold in validation", min: 0, max: 1 },
  [`${ROLLOUT}.val_kwargs.n`]: { describe: "rollouts per prompt in validation", type: "int", min: 1 },
  [`${ROLLOUT}.val_kwargs.do_sample`]: { describe: "false = validation takes the most likely token" },
  [`${ROLLOUT}.enable_rollout_routing_replay`]: { describe: "record expert routing in rollouts (R3)" },
  [`${ROLLOUT}.checkpoint_engine.backend`]: { describe: "how weights reach the sampler" },
  [`${MODEL}.path`]: { describe: "model that is trained" },
  [`${MODEL}.lora_rank`]: { describe: "LoRA rank; 0 = all weights train", type: "int", min: 0 },
  [`${MODEL}.lora_alpha`]: { describe: "LoRA scale" },
  [`${MODEL}.target_modules`]: { describe: "layers that get LoRA", type: "any" },
  [`${MODEL}.use_remove_padding`]: { describe: "pack sequences without padding" },
  [`${MODEL}.enable_gradient_checkpointing`]: { describe: "recompute activations to save memory" },
  [`${MODEL}.trust_remote_code`]: { describe: "run code from the model folder" },
  "actor_rollout_ref.hybrid_engine": { describe: "actor and sampler share the GPUs" },
  "data.train_files": { describe: "Parquet files with training rows", type: "any" },
  "data.val_files": { describe: "Parquet files with validation rows", type: "any" },
  "data.prompt_key": { describe: "column with the prompt" },
  "data.reward_fn_key": { describe: "column that picks the reward function" },
  "data.train_batch_size": { describe: "prompts per training step", type: "int", min: 1 },
  "data.val_batch_size": { describe: "deprecated: validation runs in one batch" },
  "data.max_prompt_length": { describe: "longest prompt, in tokens", type: "int", min: 1 },
  "data.max_response_length": { describe: "longest response, in tokens", type: "int", min: 1 },
  "data.filter_overlong_prompts": { describe: "drop rows with too long a prompt before training" },
  "data.truncation": {
    describe: "what happens to overlong prompts",
    choices: ["error", "left", "right", "middle"],
  },
  "data.shuffle": { describe: "shuffle the training rows" },
  "data.seed": { describe: "seed of that shuffle", type: "int" },
  "critic.enable": { describe: "train a critic; null = when the estimator needs one", type: "bool" },
  "critic.optim.lr": { describe: "learning rate of the critic", min: 0 },
  "critic.cliprange_value": { describe: "clip range of the value loss", min: 0 },
  "critic.model.path": { describe: "model of the critic" },
  "critic.model.lora_rank": { describe: "LoRA rank of the critic; 0 = all its weights train", type: "int", min: 0 },
  "critic.model.lora_alpha": { describe: "its LoRA scale" },
  "critic.optim.betas": { describe: "decay of the two moments of the critic's optimiser" },
  "critic.optim.weight_decay": { describe: "decoupled weight decay of the critic" },
  "critic.optim.clip_grad": { describe: "largest gradient norm of the critic" },
  "critic.optim.lr_scheduler_type": { describe: "learning-rate schedule of the critic" },
  "critic.optim.lr_warmup_steps": { describe: "its warm-up steps; below 0 = use the ratio", type: "int" },
  "critic.optim.lr_warmup_steps_ratio": { describe: "its warm-up as a share of all steps", min: 0, max: 1 },
  "critic.ppo_mini_batch_size": { describe: "prompts per optimiser step of the critic", type: "int" },
  "critic.ppo_epochs": { describe: "rounds of the critic over a batch", type: "int", min: 1 },
  "critic.loss_agg_mode": { describe: "how the critic's token losses are added up" },
  "critic.ppo_micro_batch_size_per_gpu": { describe: "critic: rows per pass on one GPU" },
  "critic.grad_clip": { describe: "not read since verl 0.8.0: its engines read optim.clip_grad", min: 0 },
  "algorithm.adv_estimator": { describe: "advantage estimator", choices: verlEstimatorNames(), open: true },
  "algorithm.gamma": { describe: "discount", min: 0, max: 1 },
  "algorithm.lam": { describe: "trade-off of bias and variance in gae", min: 0, max: 1 },
  "algorithm.norm_adv_by_std_in_grpo": { describe: "divide by the group's standard deviation in grpo" },
  "algorithm.use_kl_in_reward": { describe: "KL to the reference model as a penalty on the reward" },
  "algorithm.kl_penalty": { describe: "its estimator", choices: KL },
  "algorithm.kl_ctrl.type": { describe: "its controller", choices: ["fixed", "adaptive"] },
  "algorithm.kl_ctrl.kl_coef": { describe: "its weight", min: 0 },
  "algorithm.kl_ctrl.horizon": { describe: "adaptive: steps over which the weight adapts" },
  "algorithm.kl_ctrl.target_kl": { describe: "adaptive: the target KL" },
  "algorithm.rollout_correction.rollout_is": {
    describe: "importance weights for the sampler's gap; null = off",
    choices: ["token", "sequence"],
  },
  "algorithm.rollout_correction.rollout_is_threshold": {
    describe: "their bound, or lo_hi for IcePop",
    type: "any",
  },
  "algorithm.rollout_correction.rollout_rs": { describe: "rejection by the same weights; null = off" },
  "algorithm.rollout_correction.rollout_rs_threshold": { describe: "its bounds", type: "any" },
  "algorithm.rollout_correction.bypass_mode": { describe: "the sampler's log-probs serve as the old ones" },
  "algorithm.rollout_correction.loss_type": {
    describe: "the loss in bypass mode",
    choices: ["ppo_clip", "reinforce"],
  },
  "trainer.total_epochs": { describe: "passes over the training data", type: "int", min: 1 },
  "trainer.total_training_steps": {
    describe: "training steps; null = as many as the epochs hold",
    type: "int",
  },
  "trainer.project_name": { describe: "project name in logs and paths" },
  "trainer.experiment_name": { describe: "run name in logs and paths" },
  "trainer.logger": { describe: "where metrics go" },
  "trainer.nnodes": { describe: "machines", type: "int", min: 1 },
  "trainer.n_gpus_per_node": { describe: "GPUs on each", type: "int", min: 1 },
  "trainer.save_freq": { describe: "steps between checkpoints; -1 = never", type: "int" },
  "trainer.test_freq": { describe: "steps between validations; -1 = never", type: "int" },
  "trainer.val_before_train": { describe: "validate once before the first step" },
  "trainer.val_only": { describe: "validate and stop" },
  "trainer.critic_warmup": { describe: "steps that train the critic alone", type: "int", min: 0 },
  "trainer.resume_mode": {
    describe: "continue from a checkpoint",
    choices: ["auto", "disable", "resume_path"],
  },
  "trainer.resume_from_path": { describe: "which one, with resume_path" },
  "trainer.balance_batch": { describe: "even out tokens between GPUs" },
  "trainer.default_local_dir": { describe: "folder of the checkpoints" },
  "distillation.enabled": { describe: "train on a teacher's log-probs of the sampled tokens" },
  [`${DISTILLATION}.loss_mode`]: { describe: "estimate of the KL to the teacher", open: true },
  [`${DISTILLATION}.topk`]: { describe: "likeliest tokens of the teacher at each place", type: "int", min: 1 },
  [`${DISTILLATION}.use_task_rewards`]: { describe: "add the distillation to the task's own loss" },
  [`${DISTILLATION}.distillation_loss_coef`]: { describe: "its weight beside the task's loss", min: 0 },
  [`${DISTILLATION}.loss_max_clamp`]: { describe: "bound of a token's distillation loss", type: "float" },
  [`${DISTILLATION}.log_prob_min_clamp`]: { describe: "smallest log-prob in losses over the top k", type: "float" },
  [`${DISTILLATION}.use_policy_gradient`]: { describe: "take the negative KL as a per-token advantage" },
  "distillation.teacher_models.teacher_model.model_path": { describe: "the teacher", type: "str" },
  "reward_model.enable": { describe: "score with a reward model", type: "bool" },
  "reward_model.model.path": { describe: "the reward model" },
};
