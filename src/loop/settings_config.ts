/** The loop's settings out of a composed configuration (whose values the schema has checked). */
import { setting } from "../config/schema.ts";
import { getAt, type Tree } from "../config/yaml/tree.ts";
import { ConfigError } from "../errors.ts";
import type { LoopSettings, SamplingSettings } from "./settings.ts";

/**
 * Reads every setting of the loop. What the loop does not have was refused when the configuration was composed
 * (config/fields/support.ts).
 * @throws {ConfigError} for a sampling setting that the sampler does not have.
 */
export function settingsFromConfig(config: Tree): LoopSettings {
  return {
    data: {
      train_batch_size: setting(config, "rllm.data.train_batch_size"),
      val_batch_size: setting(config, "rllm.data.val_batch_size"),
      max_prompt_length: setting(config, "rllm.data.max_prompt_length"),
      seed: setting(config, "rllm.data.seed"),
    },
    rollout: {
      n: setting(config, "training.group_size") ?? setting(config, "rllm.rollout.n"),
      n_val: setting(config, "validation.group_size") ?? setting(config, "rllm.rollout.n_val"),
      train: readSampling(config, "train"),
      val: readSampling(config, "val"),
    },
    workflow: {
      n_parallel_tasks: setting(config, "rllm.workflow.n_parallel_tasks"),
      retry_limit: setting(config, "rllm.workflow.retry_limit"),
      raise_on_error: setting(config, "rllm.workflow.raise_on_error"),
      workflow_args: {
        timeout: readTimeout(config),
        gamma: setting(config, "rllm.workflow.workflow_args.gamma"),
        reward_bonus_coeff: setting(config, "rllm.workflow.workflow_args.reward_bonus_coeff"),
      },
    },
    agent: { overlong_filter: setting(config, "rllm.agent.overlong_filter") },
    stepwise_advantage: {
      enable: setting(config, "rllm.stepwise_advantage.enable"),
      mode: setting(config, "rllm.stepwise_advantage.mode"),
      normalize_by_steps: setting(config, "rllm.stepwise_advantage.normalize_by_steps"),
    },
    trainer: {
      total_epochs: setting(config, "rllm.trainer.total_epochs"),
      total_batches: setting(config, "rllm.trainer.total_batches"),
      test_freq: setting(config, "rllm.trainer.test_freq"),
      save_freq: setting(config, "rllm.trainer.save_freq"),
      val_before_train: setting(config, "rllm.trainer.val_before_train"),
      val_only: setting(config, "rllm.trainer.val_only"),
    },
    algorithm: readAlgorithm(config),
    transform: {
      impute_missing_names: setting(config, "rllm.transform.impute_missing_names"),
      default_traj_name: setting(config, "rllm.transform.default_traj_name"),
      drop_unnamed_traj: setting(config, "rllm.transform.drop_unnamed_traj"),
    },
    compact_filtering: {
      enable: setting(config, "rllm.compact_filtering.enable"),
      mask_max_prompt_length_exceeded: setting(
        config,
        "rllm.compact_filtering.mask_max_prompt_length_exceeded",
      ),
      mask_max_response_length_exceeded: setting(
        config,
        "rllm.compact_filtering.mask_max_response_length_exceeded",
      ),
      mask_env_done: setting(config, "rllm.compact_filtering.mask_env_done"),
      mask_max_turns_exceeded: setting(config, "rllm.compact_filtering.mask_max_turns_exceeded"),
      mask_timeout: setting(config, "rllm.compact_filtering.mask_timeout"),
      mask_unknown: setting(config, "rllm.compact_filtering.mask_unknown"),
      mask_error: setting(config, "rllm.compact_filtering.mask_error"),
    },
    rejection_sample: {
      enable: setting(config, "rllm.rejection_sample.enable"),
      mode: setting(config, "rllm.rejection_sample.mode"),
      multiplier: setting(config, "rllm.rejection_sample.multiplier"),
      min_partial_solve_tasks: setting(config, "rllm.rejection_sample.min_partial_solve_tasks"),
      min_trajs_per_group: setting(config, "rllm.rejection_sample.min_trajs_per_group"),
      filter_uniform_groups: setting(config, "rllm.rejection_sample.filter_uniform_groups"),
    },
    async_training: {
      enable: setting(config, "rllm.async_training.enable"),
      mini_batch_size: setting(config, "rllm.async_training.mini_batch_size"),
      staleness_threshold: setting(config, "rllm.async_training.staleness_threshold"),
      trigger_parameter_sync_step: setting(config, "rllm.async_training.trigger_parameter_sync_step"),
      partial_rollout: setting(config, "rllm.async_training.partial_rollout"),
      episode_offload_dir: setting(config, "rllm.async_training.episode_offload_dir"),
    },
    pipeline: { stages: setting(config, "pipeline.stages") },
    disable_thinking: setting(config, "rllm.disable_thinking"),
    accumulate_reasoning: setting(config, "rllm.accumulate_reasoning"),
    mask_truncated_samples: setting(config, "rllm.mask_truncated_samples"),
    filter_token_mismatch: setting(config, "rllm.filter_token_mismatch"),
    training: {
      seed: setting(config, "training.seed"),
      learning_rate: setting(config, "training.learning_rate"),
      beta1: setting(config, "training.beta1"),
      beta2: setting(config, "training.beta2"),
      eps: setting(config, "training.eps"),
      weight_decay: setting(config, "training.weight_decay"),
      grad_clip_norm: setting(config, "training.grad_clip_norm"),
      num_minibatches: setting(config, "training.num_minibatches"),
      max_untrained_steps: setting(config, "training.max_untrained_steps"),
      metric_for_best_model: setting(config, "training.metric_for_best_model"),
      greater_is_better: setting(config, "training.greater_is_better"),
    },
    warmup: {
      steps: setting(config, "warmup.steps"),
      batch_size: setting(config, "warmup.batch_size"),
      learning_rate: setting(config, "warmup.learning_rate"),
      examples: setting(config, "warmup.examples"),
    },
  };
}

function readAlgorithm(config: Tree): LoopSettings["algorithm"] {
  return {
    adv_estimator: setting(config, "rllm.algorithm.adv_estimator"),
    norm_adv_by_std_in_grpo: setting(config, "rllm.algorithm.norm_adv_by_std_in_grpo"),
    traj_group_adv_estimator_map: setting(config, "rllm.algorithm.traj_group_adv_estimator_map"),
    traj_grouping_hook: setting(config, "rllm.algorithm.traj_grouping_hook"),
    estimator_args: setting(config, "rllm.algorithm.estimator_args"),
    loss_args: setting(config, "rllm.algorithm.loss_args"),
    use_precomputed_advantage: setting(config, "rllm.algorithm.use_precomputed_advantage"),
    loss_fn: setting(config, "rllm.algorithm.loss_fn"),
    loss_agg_mode: setting(config, "rllm.algorithm.loss_agg_mode"),
    lr_schedule: setting(config, "rllm.algorithm.lr_schedule"),
    warmup_steps: setting(config, "rllm.algorithm.warmup_steps"),
    warmup_steps_ratio: setting(config, "rllm.algorithm.warmup_steps_ratio"),
    kl_beta: setting(config, "rllm.algorithm.kl_beta"),
    eps_clip: setting(config, "rllm.algorithm.eps_clip"),
    eps_clip_high: setting(config, "rllm.algorithm.eps_clip_high"),
    rollout_correction: {
      bypass_mode: setting(config, "rllm.algorithm.rollout_correction.bypass_mode"),
      tis_mode: setting(config, "rllm.algorithm.rollout_correction.tis_mode"),
      tis_cap: setting(config, "rllm.algorithm.rollout_correction.tis_cap"),
    },
  };
}

const SAMPLING_KEYS = ["temperature", "top_p", "top_k", "max_tokens"];

function readSampling(config: Tree, phase: "train" | "val"): SamplingSettings {
  const path = `rllm.rollout.${phase}`;
  const given = getAt(config, path) as unknown as SamplingSettings;
  const other = Object.keys(given).find((key) => !SAMPLING_KEYS.includes(key));
  if (other === undefined) return given;
  throw new ConfigError(
    `Cannot sample with a setting that the sampler does not have: ${other}. It has ${SAMPLING_KEYS.join(", ")}.`,
    { path: `${path}.${other}` },
  );
}

/** The shorter of an agent's and a workflow's limit, in seconds. */
function readTimeout(config: Tree): number {
  const agent = setting(config, "rllm.agent.trajectory_timeout") ?? Number.POSITIVE_INFINITY;
  return Math.min(agent, setting(config, "rllm.workflow.workflow_args.timeout"));
}
