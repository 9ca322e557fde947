/** One setting, two paths: the rows by which a backend's own settings and the portable ones are held together. */

export interface SharedKey {
  /** The backend's own path. */
  readonly native: string;
  readonly rllm: string;
  /** The backend's default is no opinion: only a value that the user set is mirrored to the portable side. */
  readonly onlyExplicit?: boolean;
}

const rows = (pairs: readonly (readonly [native: string, rllm: string])[]): SharedKey[] =>
  pairs.map(([native, rllm]) => ({ native, rllm }));

const DATA = rows([
  ["data.train_batch_size", "rllm.data.train_batch_size"],
  ["data.val_batch_size", "rllm.data.val_batch_size"],
  ["data.max_prompt_length", "rllm.data.max_prompt_length"],
  ["data.max_response_length", "rllm.data.max_response_length"],
]);

const TRAINING = rows([
  ["training.group_size", "rllm.rollout.n"],
  ["validation.group_size", "rllm.rollout.n_val"],
  ["training.lr_schedule", "rllm.algorithm.lr_schedule"],
  ["training.warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"],
]);

export const LOCAL_SHARED: readonly SharedKey[] = [...DATA, ...TRAINING];

export const TINKER_SHARED: readonly SharedKey[] = [
  ...DATA,
  ...TRAINING,
  ...rows([
    ["rollout_engine.accumulate_reasoning", "rllm.accumulate_reasoning"],
    ["rollout_engine.disable_thinking", "rllm.disable_thinking"],
    ["sampling.train.temperature", "rllm.rollout.train.temperature"],
    ["sampling.train.top_p", "rllm.rollout.train.top_p"],
    ["sampling.train.top_k", "rllm.rollout.train.top_k"],
    ["sampling.val.temperature", "rllm.rollout.val.temperature"],
    ["sampling.val.top_p", "rllm.rollout.val.top_p"],
    ["sampling.val.top_k", "rllm.rollout.val.top_k"],
  ]),
  { native: "workflow.n_parallel_tasks", rllm: "rllm.workflow.n_parallel_tasks", onlyExplicit: true },
  { native: "workflow.retry_limit", rllm: "rllm.workflow.retry_limit", onlyExplicit: true },
  { native: "agent.max_steps", rllm: "rllm.agent.max_steps", onlyExplicit: true },
  { native: "agent.agent_args", rllm: "rllm.agent.agent_args", onlyExplicit: true },
];

/**
 * verl's 32 shared settings. Lengths and batch sizes come first: `rllm.rollout.train.max_tokens` refers to them by
 * interpolation, and must see the value that won.
 */
export const VERL_SHARED: readonly SharedKey[] = rows([
  ["data.train_batch_size", "rllm.data.train_batch_size"],
  ["data.max_prompt_length", "rllm.data.max_prompt_length"],
  ["data.max_response_length", "rllm.data.max_response_length"],
  ["algorithm.adv_estimator", "rllm.algorithm.adv_estimator"],
  ["algorithm.norm_adv_by_std_in_grpo", "rllm.algorithm.norm_adv_by_std_in_grpo"],
  ["algorithm.rollout_correction.bypass_mode", "rllm.algorithm.rollout_correction.bypass_mode"],
  ["algorithm.rollout_correction.rollout_is", "rllm.algorithm.rollout_correction.tis_mode"],
  ["algorithm.rollout_correction.rollout_is_threshold", "rllm.algorithm.rollout_correction.tis_cap"],
  ["actor_rollout_ref.actor.kl_loss_coef", "rllm.algorithm.kl_beta"],
  ["actor_rollout_ref.actor.policy_loss.loss_mode", "rllm.algorithm.loss_fn"],
  ["actor_rollout_ref.actor.loss_agg_mode", "rllm.algorithm.loss_agg_mode"],
  ["actor_rollout_ref.actor.optim.lr_warmup_steps", "rllm.algorithm.warmup_steps"],
  ["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"],
  ["actor_rollout_ref.actor.clip_ratio_high", "rllm.algorithm.eps_clip_high"],
  ["actor_rollout_ref.actor.router_replay.mode", "rllm.algorithm.router_replay"],
  ["actor_rollout_ref.rollout.n", "rllm.rollout.n"],
  ["actor_rollout_ref.rollout.val_kwargs.n", "rllm.rollout.n_val"],
  ["actor_rollout_ref.rollout.temperature", "rllm.rollout.train.temperature"],
  ["actor_rollout_ref.rollout.top_p", "rllm.rollout.train.top_p"],
  ["actor_rollout_ref.rollout.top_k", "rllm.rollout.train.top_k"],
  ["actor_rollout_ref.rollout.response_length", "rllm.rollout.train.max_tokens"],
  ["actor_rollout_ref.rollout.val_kwargs.temperature", "rllm.rollout.val.temperature"],
  ["actor_rollout_ref.rollout.val_kwargs.top_p", "rllm.rollout.val.top_p"],
  ["actor_rollout_ref.rollout.val_kwargs.top_k", "rllm.rollout.val.top_k"],
  ["trainer.save_freq", "rllm.trainer.save_freq"],
  ["trainer.test_freq", "rllm.trainer.test_freq"],
  ["trainer.val_before_train", "rllm.trainer.val_before_train"],
  ["trainer.val_only", "rllm.trainer.val_only"],
  ["trainer.total_epochs", "rllm.trainer.total_epochs"],
  ["trainer.logger", "rllm.trainer.logger"],
  ["trainer.project_name", "rllm.trainer.project_name"],
  ["trainer.experiment_name", "rllm.trainer.experiment_name"],
]);

export const VERL_CLIP = {
  rllm: "rllm.algorithm.eps_clip",
  rllmHigh: "rllm.algorithm.eps_clip_high",
  ratio: "actor_rollout_ref.actor.clip_ratio",
  low: "actor_rollout_ref.actor.clip_ratio_low",
  high: "actor_rollout_ref.actor.clip_ratio_high",
} as const;

export const VERL_STEPS = {
  native: "trainer.total_training_steps",
  rllm: "rllm.trainer.total_batches",
} as const;
export const VERL_SCHEDULE_RLLM = "rllm.algorithm.lr_schedule";
/** The schedule's name differs between verl's optimisers: the first that exists is the one. */
export const VERL_SCHEDULES = ["lr_scheduler_type", "lr_decay_style", "decay_type"].map(
  (name) => `actor_rollout_ref.actor.optim.${name}`,
);

/** The portable side of everything that verl shares, and what follows from it by interpolation. */
export const VERL_SHARED_RLLM: readonly string[] = [
  ...VERL_SHARED.map(({ rllm }) => rllm),
  VERL_CLIP.rllm,
  VERL_STEPS.rllm,
  VERL_SCHEDULE_RLLM,
  "rllm.rollout.val.max_tokens",
];
