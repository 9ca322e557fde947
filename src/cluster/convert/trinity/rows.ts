/** The settings that verl and Trinity-RFT share under two names, one row each; what needs more is in the two builders. */
import { estimatorsOfVerlAndTrinity } from "../../../engine/algorithm/advantage/estimators.ts";
import { lossesOfVerlAndTrinity } from "../../../engine/algorithm/loss/losses.ts";
import type { YamlValue } from "../../../train/config/yaml/tree.ts";

export interface SettingPair {
  readonly verl: string;
  readonly trinity: string;
  /** Value map, verl to Trinity; its inverse goes back. Absent: the value is the same. */
  readonly values?: readonly (readonly [verl: YamlValue, trinity: YamlValue])[];
  /** Optimiser steps: verl counts iterations, Trinity counts updates, `sync_interval` of them per iteration. */
  readonly isCadence?: boolean;
  readonly note?: string;
}

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";
const MODEL = "actor_rollout_ref.model";
const ENGINE = "explorer.rollout_model";

const same = (verl: string, trinity: string, names: readonly string[]): SettingPair[] =>
  names.map((name) => ({ verl: `${verl}.${name}`, trinity: `${trinity}.${name}` }));

export const ROWS: readonly SettingPair[] = [
  { verl: "trainer.project_name", trinity: "project" },
  { verl: "trainer.experiment_name", trinity: "name" },
  {
    verl: "trainer.resume_mode",
    trinity: "continue_from_checkpoint",
    values: [
      ["auto", true],
      ["disable", false],
    ],
  },
  { verl: `${ROLLOUT}.n`, trinity: "algorithm.repeat_times" },
  ...same(`${ACTOR}.optim`, "algorithm.optimizer", [
    "lr",
    "lr_warmup_steps",
    "lr_warmup_steps_ratio",
    "min_lr_ratio",
    "betas",
    "weight_decay",
    "clip_grad",
  ]),
  {
    verl: `${ACTOR}.optim.lr_scheduler_type`,
    trinity: "algorithm.optimizer.lr_scheduler_type",
    values: [
      ["constant", "constant"],
      ["cosine", "cosine"],
    ],
  },
  {
    verl: `${ACTOR}.optim.optimizer`,
    trinity: "algorithm.optimizer.optimizer_type",
    values: [["AdamW", "adam"]],
  },
  { verl: "algorithm.gamma", trinity: "algorithm.advantage_fn_args.gamma" },
  { verl: "algorithm.lam", trinity: "algorithm.advantage_fn_args.lam" },
  { verl: "algorithm.kl_ctrl.kl_coef", trinity: "algorithm.kl_penalty_fn_args.kl_coef" },
  {
    verl: "algorithm.kl_ctrl.type",
    trinity: "algorithm.kl_penalty_fn_args.adaptive",
    values: [
      ["fixed", false],
      ["adaptive", true],
    ],
  },
  { verl: "algorithm.kl_ctrl.target_kl", trinity: "algorithm.kl_penalty_fn_args.target_kl" },
  { verl: "algorithm.kl_ctrl.horizon", trinity: "algorithm.kl_penalty_fn_args.horizon" },
  {
    verl: `${ACTOR}.policy_loss.loss_mode`,
    trinity: "algorithm.policy_loss_fn",
    values: lossesOfVerlAndTrinity(),
  },
  { verl: `${ACTOR}.clip_ratio`, trinity: "algorithm.policy_loss_fn_args.clip_range" },
  { verl: `${ACTOR}.clip_ratio_low`, trinity: "algorithm.policy_loss_fn_args.clip_range_low" },
  { verl: `${ACTOR}.clip_ratio_high`, trinity: "algorithm.policy_loss_fn_args.clip_range_high" },
  { verl: `${ACTOR}.tau_pos`, trinity: "algorithm.policy_loss_fn_args.tau_pos" },
  { verl: `${ACTOR}.tau_neg`, trinity: "algorithm.policy_loss_fn_args.tau_neg" },
  { verl: `${ACTOR}.clip_ratio_c`, trinity: "algorithm.policy_loss_fn_args.clip_ratio_c" },
  { verl: `${ACTOR}.kl_loss_coef`, trinity: "algorithm.kl_loss_fn_args.kl_coef" },
  { verl: `${ACTOR}.entropy_coeff`, trinity: "algorithm.entropy_loss_fn_args.entropy_coef" },
  {
    verl: `${ACTOR}.loss_agg_mode`,
    trinity: "algorithm.loss_agg_mode",
    values: ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"].map(
      (mode) => [mode, mode] as const,
    ),
  },
  {
    verl: `${ACTOR}.router_replay.mode`,
    trinity: "algorithm.enable_router_replay",
    values: [
      ["disabled", false],
      ["R3", true],
    ],
    note: "Trinity replays the sampler's routing, which is R3",
  },
  { verl: `${MODEL}.path`, trinity: "model.model_path" },
  { verl: "critic.model.path", trinity: "model.critic_model_path" },
  { verl: `${MODEL}.trust_remote_code`, trinity: "model.trust_remote_code" },
  { verl: `${MODEL}.custom_chat_template`, trinity: "model.custom_chat_template" },
  { verl: "data.max_prompt_length", trinity: "model.max_prompt_tokens" },
  { verl: "data.max_response_length", trinity: "model.max_response_tokens" },
  {
    verl: "data.filter_overlong_prompts",
    trinity: "model.enable_prompt_truncation",
    note: "verl drops overlong rows before training; Trinity truncates them and leaves them out of the loss",
  },
  { verl: `${ROLLOUT}.temperature`, trinity: "model.temperature" },
  { verl: `${ROLLOUT}.top_p`, trinity: "model.top_p" },
  { verl: `${ROLLOUT}.top_k`, trinity: "model.top_k" },
  { verl: `${MODEL}.lora_rank`, trinity: "model.lora_configs.0.lora_rank" },
  { verl: `${MODEL}.lora_alpha`, trinity: "model.lora_configs.0.lora_alpha" },
  { verl: `${MODEL}.target_modules`, trinity: "model.lora_configs.0.target_modules" },
  { verl: `${MODEL}.exclude_modules`, trinity: "model.lora_configs.0.exclude_modules" },
  { verl: `${MODEL}.lora_adapter_path`, trinity: "model.lora_configs.0.path" },
  { verl: "trainer.nnodes", trinity: "cluster.node_num" },
  { verl: "trainer.n_gpus_per_node", trinity: "cluster.gpu_per_node" },
  { verl: "trainer.total_epochs", trinity: "buffer.total_epochs" },
  { verl: "trainer.test_freq", trinity: "explorer.eval_interval", isCadence: true },
  { verl: "trainer.val_before_train", trinity: "explorer.eval_on_startup" },
  { verl: `${ROLLOUT}.tensor_model_parallel_size`, trinity: `${ENGINE}.tensor_parallel_size` },
  { verl: `${ROLLOUT}.pipeline_model_parallel_size`, trinity: `${ENGINE}.pipeline_parallel_size` },
  ...same(ROLLOUT, ENGINE, [
    "data_parallel_size",
    "gpu_memory_utilization",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "dtype",
  ]),
  { verl: `${ROLLOUT}.max_model_len`, trinity: "model.max_model_len" },
  { verl: `${ACTOR}.strategy`, trinity: "trainer.trainer_strategy" },
  {
    verl: "trainer.save_freq",
    trinity: "trainer.save_interval",
    isCadence: true,
  },
  { verl: `${ACTOR}.use_dynamic_bsz`, trinity: "trainer.use_dynamic_bsz" },
  { verl: `${ACTOR}.ppo_max_token_len_per_gpu`, trinity: "trainer.max_token_len_per_gpu" },
  { verl: `${ACTOR}.ulysses_sequence_parallel_size`, trinity: "trainer.ulysses_sequence_parallel_size" },
  { verl: `${ACTOR}.grad_clip`, trinity: "trainer.grad_clip" },
  { verl: "trainer.balance_batch", trinity: "trainer.balance_batch" },
];

/** Rows of one builder: `legacy` is the one the published guide describes, `new` the one for verl 0.8. */
export const TARGET_ROWS: Readonly<Record<"legacy" | "new", readonly SettingPair[]>> = {
  legacy: [
    {
      verl: "trainer.critic_warmup",
      trinity: "trainer.trainer_config.trainer.critic_warmup",
      isCadence: true,
    },
  ],
  new: [
    { verl: `${MODEL}.use_remove_padding`, trinity: "trainer.use_remove_padding" },
    { verl: "trainer.critic_warmup", trinity: "trainer.critic_warmup", isCadence: true },
    ...same(`${ACTOR}.megatron`, "trainer.megatron", [
      "tensor_model_parallel_size",
      "pipeline_model_parallel_size",
      "virtual_pipeline_model_parallel_size",
      "expert_model_parallel_size",
      "expert_tensor_parallel_size",
      "context_parallel_size",
      "sequence_parallel",
    ]),
    { verl: "algorithm.rollout_correction.bypass_mode", trinity: "algorithm.bypass_old_logprobs" },
    ...same("algorithm.rollout_correction", "algorithm.rollout_correction", [
      "rollout_is",
      "rollout_is_threshold",
      "rollout_rs",
      "rollout_rs_threshold",
      "rollout_is_batch_normalize",
    ]),
  ],
};

const pairs = (withType: boolean) =>
  estimatorsOfVerlAndTrinity().flatMap(([verl, trinity, hasType]) =>
    hasType === withType ? [[verl, trinity] as const] : [],
  );
/** Estimators that Trinity computes whole: the algorithm type that goes with each has the same name. */
export const ESTIMATORS: readonly (readonly [verl: string, advantageFn: string])[] = pairs(true);
/** Advantage functions that Trinity registers, without an algorithm type that rolls out their greedy baseline. */
export const WITHOUT_TYPE: readonly (readonly [verl: string, advantageFn: string])[] = pairs(false);

export interface AlgorithmType {
  readonly advantage: string;
  readonly loss: string;
  /** The KL loss where none is named. */
  readonly kl: "k2" | "none";
  /** Difference from verl. */
  readonly differs?: string;
}

const plain = (advantage: string, more: Partial<AlgorithmType> = {}): AlgorithmType => ({
  advantage,
  loss: "ppo",
  kl: "k2",
  ...more,
});

/** The parts of each Trinity algorithm type that verl can run. */
export const ALGORITHM_TYPES: Readonly<Record<string, AlgorithmType>> = {
  ppo: plain("ppo"),
  grpo: plain("grpo"),
  grpo_verl: plain("grpo"),
  rloo: plain("rloo"),
  reinforceplusplus: plain("reinforceplusplus"),
  gspo: plain("grpo", { loss: "gspo" }),
  sapo: plain("grpo", { loss: "sapo" }),
  cispo: plain("grpo", { loss: "cispo" }),
  dapo: plain("grpo", { kl: "none" }),
  m2po: plain("grpo", { loss: "m2po" }),
  multi_step_grpo: plain("step_wise_grpo"),
};

/** Advantage functions whose nearest estimator in verl is another one. */
export const NEAR_ADVANTAGES: Readonly<Record<string, { readonly verl: string; readonly differs: string }>> = {
  grpo_verl: { verl: "grpo", differs: "" },
  step_wise_grpo: {
    verl: "grpo",
    differs: "step_wise_grpo gives every step of a run the score of its last one; verl has one response per score",
  },
  clipb: {
    verl: "grpo",
    differs: "clipb also leaves out tokens with a negative advantage by their entropy, which verl does not",
  },
};

/** The arguments that each function of Trinity takes; it refuses any other. */
export const LOSS_ARGS: Readonly<Record<string, readonly string[]>> = {
  ppo: ["clip_range", "clip_range_low", "clip_range_high", "clip_ratio_c"],
  gspo: ["clip_range", "clip_range_low", "clip_range_high"],
  cispo: ["clip_range_low", "clip_range_high"],
  sapo: ["tau_pos", "tau_neg"],
};
export const ADVANTAGE_ARGS: Readonly<Record<string, readonly string[]>> = {
  ppo: ["gamma", "lam"],
  reinforceplusplus: ["gamma"],
  grpo: [],
  rloo: [],
  remax: [],
};

/** Default clip ranges of Trinity's losses. verl's are 0.2 and 0.2 for every loss. */
export const CLIP_DEFAULTS: Readonly<Record<string, readonly [low: number, high: number]>> = {
  gspo: [0.0003, 0.0004],
  cispo: [1, 0.28],
};
export const VERL_CLIP_DEFAULT = 0.2;

/** verl's clamped forms are Trinity's `low_var_kl`; Trinity's `k3` is not clamped. */
export const KL_TO_TRINITY: Readonly<Record<string, string>> = {
  kl: "k1",
  k1: "k1",
  mse: "k2",
  k2: "k2",
  abs: "abs",
  low_var_kl: "low_var_kl",
  k3: "low_var_kl",
};
export const KL_TO_VERL: Readonly<Record<string, { readonly name: string; readonly loss?: string }>> = {
  k1: { name: "kl" },
  k2: { name: "mse" },
  abs: { name: "abs" },
  low_var_kl: { name: "low_var_kl" },
  k3: { name: "low_var_kl", loss: "Trinity's k3 is not clamped, verl's is" },
  corrected_k3: { name: "low_var_kl", loss: "verl has no importance-corrected k3" },
};

/** verl's settings that Trinity computes; it overwrites values for them under trainer_config. */
export const FILLED_IN =
  /^(?:(?:actor_rollout_ref\.actor|critic)\.ppo_mini_batch_size|actor_rollout_ref\.actor\.use_kl_loss|actor_rollout_ref\.rollout\.(?:n|temperature)|critic\.(?:enable|rollout_n)|data\.train_batch_size)$/;
/** Settings that Trinity's new builder also ignores, with or without a warning. */
export const FROZEN_IN_NEW =
  /^(?:(?:trainer|algorithm|reward_model)\..*|actor_rollout_ref\.model\.(?:path|trust_remote_code|use_remove_padding|lora_.*|custom_chat_template)|(?:actor_rollout_ref\.actor|critic)\.(?:strategy|use_dynamic_bsz|ppo_max_token_len_per_gpu|loss_agg_mode|grad_clip|ulysses_sequence_parallel_size))$/;

/** Values of the guide's examples without a source in verl. */
export const TRINITY_CONSTANTS: readonly (readonly [path: string, value: YamlValue])[] = [
  ["checkpoint_root_dir", "./checkpoints"],
  ["synchronizer.sync_style", "fixed"],
  ["synchronizer.sync_offset", 1],
  ["synchronizer.sync_timeout", 1200],
];

/** verl puts project and run at the end of its folder; Trinity adds them itself. */
// biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of theirs
export const VERL_LOCAL_DIR_TAIL = "/${trainer.project_name}/${trainer.experiment_name}";
