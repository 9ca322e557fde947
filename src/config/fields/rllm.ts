/**
 * Settings that mean the same on every backend (`config/rllm/base.yaml`).
 * Names and defaults are rLLM's: its published guide decides, its current source adds what the guide lacks.
 * The YAML file is rendered from this table: after a change run `npx vitest run test/config/yaml_test.ts -u`.
 */
import { bool, dict, float, int, list, oneOf, open, str } from "./field.ts";

const sampling = (of: "train" | "val") => `for ${of === "train" ? "training" : "validation"} rollouts`;

/** Built in, by the engine's names; a test compares them with its registry. */
const ESTIMATORS = [
  "grpo",
  "reinforce",
  "reinforce_plus_plus_baseline",
  "rloo",
  "prpo",
  "grpo_vectorized",
  "grpo_passk",
  "rloo_vectorized",
  "reinforce_plus_plus",
  "remax",
  "opo",
  "gpg",
  "gdpo",
  "gae",
  "optimal_token_baseline",
  "tir_optimal_token_baseline",
  "rllm.grpo",
  "rllm.reinforce_plus_plus_baseline",
  "trl.grpo",
] as const;
const LOSSES = [
  ...["importance_sampling", "ppo", "cispo", "dro", "cross_entropy"],
  ...["vanilla", "gspo", "sapo", "gpg", "reinforce", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl"],
  "bypass_mode",
  ...["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"].map((name) => `tinker.${name}`),
  ...["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo", "rloo"].map(
    (name) => `trl.${name}`,
  ),
];

export const RLLM_FIELDS = {
  "rllm.data.train_batch_size": int(64, "prompts per training step", { min: 1 }),
  "rllm.data.val_batch_size": int(-1, "prompts per validation batch; -1 = the whole validation set", {
    min: -1,
  }),
  "rllm.data.max_prompt_length": int(2048, "longest prompt, in tokens", { min: 1 }),
  "rllm.data.max_response_length": int(30720, "longest response, in tokens", { min: 1 }),
  "rllm.data.seed": int(0, "seed of the data order", { min: 0 }),

  "rllm.agent.name": str("math_agent", "name of the agent", {
    note: "A name given to registerAgent; the default stands for none: the task's own rollout.",
  }),
  "rllm.agent.max_steps": int(20, "most steps in one trajectory", { min: 1 }),
  "rllm.agent.trajectory_timeout": int(null, "seconds one trajectory may take; null = no limit", { min: 1 }),
  "rllm.agent.overlong_filter": bool(false, "leave out trajectories that ran over the length limit"),
  "rllm.agent.agent_args": dict("further arguments of the agent"),
  "rllm.agent.engine_args": dict("further arguments of the engine that runs it"),

  "rllm.env.name": str("custom", "name of the environment", {
    note: "A registered environment whose game is played; the default stands for that of task.name.",
  }),
  "rllm.env.env_args": dict("further arguments of the environment"),

  "rllm.workflow.use_workflow": bool(false, "train on a workflow instead of an agent"),
  "rllm.workflow.name": str("single_turn_workflow", "name of the workflow", {
    note: "single_turn_workflow, multi_turn_workflow, cumulative_workflow, solver_judge_workflow, or a registered one.",
  }),
  "rllm.workflow.workflow_args.agent_cls": str(null, "agent class inside the workflow"),
  "rllm.workflow.workflow_args.agent_args": dict("arguments of that agent"),
  "rllm.workflow.workflow_args.env_cls": str(null, "environment class inside the workflow"),
  "rllm.workflow.workflow_args.env_args": dict("arguments of that environment"),
  "rllm.workflow.workflow_args.timeout": float(1e6, "seconds one workflow may take", { min: 0 }),
  "rllm.workflow.workflow_args.gamma": float(0, "discount per step; 0 = rewards are not discounted", {
    min: 0,
    max: 1,
  }),
  "rllm.workflow.workflow_args.reward_bonus_coeff": float(
    0,
    "weight of the reward gained since the last step",
  ),
  "rllm.workflow.workflow_args.*": open("own arguments of the workflow"),
  "rllm.workflow.n_parallel_tasks": int(256, "rollouts that run at the same time", { min: 1 }),
  "rllm.workflow.retry_limit": int(3, "attempts per rollout", {
    min: 1,
    note: "Counts attempts: 3 means one try and two retries.",
  }),
  "rllm.workflow.raise_on_error": bool(true, "stop the run when a rollout fails for good", {
    note: "Asynchronous training needs false.",
  }),
  "rllm.workflow.warm_queue_size": int(-1, "prepared sandboxes; 0 = none, below 0 = as many as run", {
    min: -1,
  }),

  "rllm.rollout.n": int(8, "rollouts per prompt in training (the group size)", { min: 1 }),
  "rllm.rollout.n_val": int(1, "rollouts per prompt in validation", { min: 1 }),
  "rllm.rollout.train.temperature": float(1, `temperature ${sampling("train")}`, { min: 0 }),
  "rllm.rollout.train.top_p": float(1, `nucleus threshold ${sampling("train")}`, { min: 0, max: 1 }),
  "rllm.rollout.train.max_tokens": int(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "${rllm.data.max_response_length}",
    `most new tokens ${sampling("train")}`,
    { min: 1 },
  ),
  "rllm.rollout.train.*": open("further sampling settings (top_k, stop, ...) pass to the backend"),
  "rllm.rollout.val.temperature": float(1, `temperature ${sampling("val")}`, { min: 0 }),
  "rllm.rollout.val.top_p": float(1, `nucleus threshold ${sampling("val")}`, { min: 0, max: 1 }),
  "rllm.rollout.val.max_tokens": int(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "${rllm.data.max_response_length}",
    `most new tokens ${sampling("val")}`,
    { min: 1 },
  ),
  "rllm.rollout.val.*": open("further sampling settings (top_k, stop, ...) pass to the backend"),

  "rllm.trainer.total_epochs": int(10, "passes over the training data", { min: 1 }),
  "rllm.trainer.total_batches": int(-1, "training steps; -1 = as many as the epochs hold", { min: -1 }),
  "rllm.trainer.logger": list(["console"], "where metrics go", {
    choices: [
      "console",
      "jsonl",
      "report",
      "tensorboard",
      "wandb",
      "mlflow",
      "swanlab",
      "vemlp_wandb",
    ].concat("clearml", "trackio", "file", "ui"),
    note:
      "console, jsonl, report, tensorboard and wandb are built in; others are registered by a module. wandb reads " +
      "WANDB_API_KEY and needs @wandb/sdk; with WANDB_MODE=offline it needs neither, for `wandb sync` later.",
  }),
  "rllm.trainer.project_name": str("rllm-training", "project, in logs and paths"),
  "rllm.trainer.experiment_name": str("default", "run, in logs and paths"),
  "rllm.trainer.test_freq": int(5, "steps between validations; 0 or below = never", {
    note: "rLLM's guide says epochs; its source, and grpu, count training steps, one batch each.",
  }),
  "rllm.trainer.save_freq": int(20, "steps between checkpoints; 0 or below = only at the end", {
    note: "rLLM's guide says epochs; its source, and grpu, count training steps, one batch each.",
  }),
  "rllm.trainer.val_before_train": bool(true, "validate once before the first step", {
    note: "true is the guide's default; base.yaml of rLLM's August 2026 source says false.",
  }),
  "rllm.trainer.val_only": bool(false, "validate and stop, without training", {
    note: "Works alone; in rLLM it is ignored unless val_before_train is true.",
  }),

  "rllm.algorithm.adv_estimator": oneOf(ESTIMATORS, "grpo", "advantage estimator", {
    open: true,
    note: "The first four are the guide's. A registered name works here; in rLLM only in the per-role map.",
  }),
  "rllm.algorithm.norm_adv_by_std_in_grpo": bool(true, "divide by the group's standard deviation in grpo"),
  "rllm.algorithm.traj_group_adv_estimator_map": dict(
    "estimator, or {estimator, estimator_args, loss_fn, loss_args}, by trajectory role",
    {
      note: "Only the Python API of rLLM has it; a key of grpu's own.",
    },
  ),
  "rllm.algorithm.traj_grouping_hook": str(null, "registered grouping; null = by task and trajectory name", {
    note: "Only the Python API of rLLM has it; a key of grpu's own.",
  }),
  "rllm.algorithm.estimator_args": dict("settings of the estimator", {
    note: "A key of grpu's own. What an estimator takes: its published settings, or those its module declares.",
  }),
  "rllm.algorithm.loss_args": dict("settings of the loss, besides the clip range", {
    note: "A key of grpu's own. What a loss takes: its published settings, or those its module declares.",
  }),
  "rllm.algorithm.use_rllm": bool(null, "deprecated by rLLM: ignored there, refused here when set"),
  "rllm.algorithm.use_precomputed_advantage": bool(
    false,
    "take step.advantage as it is and skip the estimator",
    {
      note: "In a group where any step carries one, a step without counts as 0 (rLLM's guide; its source raises). NaN and Infinity are refused.",
    },
  ),
  "rllm.algorithm.loss_fn": oneOf(LOSSES, null, "policy loss; null = the backend's own choice", {
    open: true,
    note: "The first five are Tinker's and the guide's, the plain names after them verl's.",
  }),
  "rllm.algorithm.loss_agg_mode": oneOf(
    ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
    null,
    "how token losses become one number; null = the backend's default",
  ),
  "rllm.algorithm.lr_schedule": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule"),
  "rllm.algorithm.warmup_steps": int(-1, "learning-rate warm-up steps; 0 or below = use the ratio"),
  "rllm.algorithm.warmup_steps_ratio": float(0, "warm-up as a share of all steps", { min: 0, max: 1 }),
  "rllm.algorithm.kl_beta": float(0, "weight of the KL loss to the reference model; 0 = off", {
    min: 0,
    note: "On verl it also decides actor_rollout_ref.actor.use_kl_loss.",
  }),
  "rllm.algorithm.eps_clip": float(0.2, "clip range of the probability ratio", { min: 0 }),
  "rllm.algorithm.eps_clip_high": float(null, "upper clip range; null = eps_clip", { min: 0 }),
  "rllm.algorithm.router_replay": oneOf(
    ["disabled", "R2", "R3"],
    "disabled",
    "replay of expert routing (MoE)",
  ),
  "rllm.algorithm.rollout_correction.bypass_mode": bool(
    null,
    "true = the sampler's log-probs serve as the old ones; null = the backend's default",
  ),
  "rllm.algorithm.rollout_correction.tis_mode": oneOf(
    ["token", "sequence"],
    null,
    "truncated importance sampling per token or per sequence; null = off",
  ),
  "rllm.algorithm.rollout_correction.tis_cap": float(2, "upper bound of the importance weights", { min: 0 }),

  "rllm.stepwise_advantage.enable": bool(false, "advantages for the steps of multi-step trajectories"),
  "rllm.stepwise_advantage.mode": oneOf(
    ["broadcast", "per_step"],
    "broadcast",
    "one advantage for all steps, or one each",
    {
      note: "per_step is deprecated and coerced to broadcast in rLLM.",
    },
  ),
  "rllm.stepwise_advantage.normalize_by_steps": bool(false, "divide by the number of steps"),

  "rllm.disable_thinking": bool(false, "suppress thinking tokens in responses"),
  "rllm.accumulate_reasoning": bool(false, "keep the reasoning of earlier steps in the prompt", {
    note: "true also keeps an episode's turns one row of training where a chat template rewrites earlier turns.",
  }),
  "rllm.mask_truncated_samples": bool(false, "leave truncated trajectories out of the loss"),
  "rllm.filter_token_mismatch": bool(true, "leave out trajectories whose tokens and log-probs do not match", {
    note: "false stops the run at such a trajectory. rLLM has the key and never reads it; its Tinker backend always drops them.",
  }),

  "rllm.compact_filtering.enable": bool(false, "leave trajectories out by why they ended"),
  "rllm.compact_filtering.mask_max_prompt_length_exceeded": bool(true, "the prompt was too long"),
  "rllm.compact_filtering.mask_max_response_length_exceeded": bool(true, "the response was too long"),
  "rllm.compact_filtering.mask_env_done": bool(false, "the environment was done"),
  "rllm.compact_filtering.mask_max_turns_exceeded": bool(true, "too many turns"),
  "rllm.compact_filtering.mask_timeout": bool(true, "out of time"),
  "rllm.compact_filtering.mask_unknown": bool(false, "no reason given"),
  "rllm.compact_filtering.mask_error": bool(true, "an error"),

  "rllm.rejection_sample.enable": bool(false, "drop or collect batches by how many tasks were partly solved"),
  "rllm.rejection_sample.mode": oneOf(
    ["none", "episode", "group"],
    null,
    "what is rejected; null = episode when enabled, else none",
    { open: true, note: "group is named by the guide and not implemented in rLLM." },
  ),
  "rllm.rejection_sample.multiplier": int(1, "times as many prompts per batch, to have some to reject", {
    min: 1,
  }),
  "rllm.rejection_sample.min_partial_solve_tasks": int(1, "partly solved tasks a batch needs", { min: 0 }),
  "rllm.rejection_sample.min_trajs_per_group": int(2, "smallest group that trains", {
    min: 1,
    note: "Holds in every mode, so rollout.n below it trains nothing: that is refused.",
  }),
  "rllm.rejection_sample.filter_uniform_groups": bool(false, "drop groups whose rewards are all equal"),

  "rllm.transform.impute_missing_names": bool(
    true,
    "name unnamed trajectories by their place in the episode",
  ),
  "rllm.transform.default_traj_name": str("default_traj_name", "the name that counts as unnamed"),
  "rllm.transform.drop_unnamed_traj": bool(false, "drop unnamed trajectories instead"),

  "rllm.sdk.store.path": str("~/.rllm/traces.db", "trace database"),
  "rllm.sdk.processing.groupby_key": str(null, "metadata key that groups trajectories"),
  "rllm.sdk.processing.traj_name_key": str(null, "metadata key that names a trajectory"),
  "rllm.sdk.proxy.host": str("127.0.0.1", "host of the proxy"),
  "rllm.sdk.proxy.port": int(4000, "port of the proxy", { min: 0, max: 65535 }),
  "rllm.sdk.proxy.mode": oneOf(["subprocess", "external"], "subprocess", "started by the trainer, or by you"),
  "rllm.sdk.proxy.admin_token": str("my-shared-secret", "token that the proxy's admin calls need", {
    secret: true,
  }),

  "rllm.remote_runtime.enabled": bool(false, "run agents in a remote sandbox"),
  "rllm.remote_runtime.backend": str("agentcore", "which sandbox"),
  "rllm.remote_runtime.agentcore.agent_runtime_arn": str("", "runtime of the agent"),
  "rllm.remote_runtime.agentcore.s3_bucket": str("", "bucket for results"),
  "rllm.remote_runtime.agentcore.tps_limit": float(25, "calls per second", { min: 0 }),
  "rllm.remote_runtime.harbor.agent": str("mini-swe-agent", "agent that is run"),
  "rllm.remote_runtime.harbor.environment_type": str("docker", "kind of sandbox"),
  "rllm.remote_runtime.harbor.agent_kwargs": dict("arguments of the agent"),
  "rllm.remote_runtime.harbor.agent_timeout_multiplier": float(null, "factor on the agent's time limit", {
    min: 0,
  }),
  "rllm.remote_runtime.harbor.verifier_timeout_multiplier": float(null, "factor on the verifier's", {
    min: 0,
  }),
  "rllm.remote_runtime.harbor.agent_setup_timeout_multiplier": float(null, "factor on the set-up's", {
    min: 0,
  }),
  "rllm.remote_runtime.harbor.environment_build_timeout_multiplier": float(null, "factor on the build's", {
    min: 0,
  }),
  "rllm.remote_runtime.session_timeout": float(300, "seconds one session may take", { min: 0 }),

  "rllm.gateway.port": int(9090, "port of the model gateway", { min: 0, max: 65535 }),
  "rllm.gateway.host": str(null, "its host; null = an address that others can reach"),
  "rllm.gateway.tunnel": str(null, "tunnel that exposes it"),
  "rllm.gateway.store": oneOf(["memory", "sqlite"], "memory", "where traces are kept"),
  "rllm.gateway.db_path": str(null, "database of the sqlite store"),
  "rllm.gateway.cumulative_token_mode": bool(false, "later turns continue the tokens of earlier ones"),
  "rllm.gateway.renderer_family": str("auto", "renderer that bridges turns"),

  "rllm.async_training.enable": bool(false, "generate and train at the same time"),
  "rllm.async_training.mini_batch_size": int(64, "groups per optimiser step", { min: 1 }),
  "rllm.async_training.fwd_bwd_group_size": int(
    null,
    "groups per forward and backward pass; null = the mini-batch",
    {
      min: 1,
    },
  ),
  "rllm.async_training.staleness_threshold": float(0, "share of a window that may be generated ahead", {
    min: 0,
  }),
  "rllm.async_training.trigger_parameter_sync_step": int(1, "optimiser steps between weight updates", {
    min: 1,
  }),
  "rllm.async_training.partial_rollout": bool(false, "update weights in the middle of rollouts"),
  "rllm.async_training.episode_offload_dir": str(null, "folder for waiting episodes; null = memory"),
  "rllm.async_training.trajectory_group_offload_dir": str(null, "folder for waiting groups; null = memory"),

  "rllm.episode_logging.log_episodes": bool(false, "write full episodes to disk"),
  "rllm.episode_logging.episode_log_dir": str(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
    "folder they go to",
  ),
} as const;

/** One line above a section of the rendered YAML. */
export const RLLM_SECTIONS: Readonly<Record<string, string>> = {
  "rllm.data": "Batch sizes and lengths, for every backend",
  "rllm.agent": "The agent that acts in the environment",
  "rllm.env": "The environment",
  "rllm.workflow": "Workflows: the other way to roll out, instead of an agent",
  "rllm.rollout": "Rollouts: how many, and how tokens are sampled",
  "rllm.trainer": "The loop",
  "rllm.algorithm": "Advantages, loss, schedule",
  "rllm.algorithm.rollout_correction": "Correction for the gap between sampler and trainer",
  "rllm.stepwise_advantage": "Advantages of multi-step trajectories",
  "rllm.compact_filtering": "Mask trajectories that ended because of ...",
  "rllm.rejection_sample": "Rejection sampling",
  "rllm.transform": "Names of trajectories",
  "rllm.sdk": "Trace store and proxy of the SDK",
  "rllm.remote_runtime": "Agents in remote sandboxes",
  "rllm.gateway": "Model gateway",
  "rllm.async_training": "Asynchronous training",
  "rllm.episode_logging": "Episodes on disk",
};
