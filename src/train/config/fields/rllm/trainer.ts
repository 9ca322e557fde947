/** Portable settings of the run: its length, its logs, its checkpoints, and training while generating. */
import { bool, each, float, int, list, str } from "../field.ts";

const COUNTED = "counted in Trinity's steps, sync_interval of them for one here (config convert --cadence)";
const STEPS_NOT_EPOCHS = "rLLM's guide says epochs; its source, and grpu, count training steps, one batch each.";

export const RLLM_TRAINER_FIELDS = {
  "rllm.trainer.total_epochs": int(10, "passes over the training data", {
    min: 1,
    loop: true,
    verl: "trainer.total_epochs",
  }),
  "rllm.trainer.total_batches": int(-1, "training steps; -1 = as many as the epochs hold", {
    min: -1,
    loop: true,
    on: "acts acts forwarded forwarded",
    why: { trinity: `as buffer.total_steps and trainer.total_steps; ${COUNTED}` },
  }),
  "rllm.trainer.logger": list(["console"], "where metrics go", {
    choices: ["console", "jsonl", "report", "tensorboard", "wandb", "mlflow", "swanlab", "vemlp_wandb"].concat(
      "clearml",
      "trackio",
      "file",
      "ui",
    ),
    note:
      "console, jsonl, report, tensorboard and wandb are built in; others are registered by a module. wandb reads " +
      "WANDB_API_KEY and needs @wandb/sdk; with WANDB_MODE=offline it needs neither, for `wandb sync` later.",
    verl: "trainer.logger",
    on: "acts acts acts forwarded",
    why: { verl: "the loggers here follow the job's metrics", trinity: "one of tensorboard, wandb, mlflow" },
  }),
  "rllm.trainer.project_name": str("rllm-training", "project name in logs and paths", {
    verl: "trainer.project_name",
    on: "logging logging logging logging",
  }),
  "rllm.trainer.experiment_name": str("default", "run name in logs and paths", {
    verl: "trainer.experiment_name",
    on: "logging logging logging logging",
  }),
  "rllm.trainer.test_freq": int(5, "steps between validations; 0 or below = never", {
    loop: true,
    verl: "trainer.test_freq",
    note: STEPS_NOT_EPOCHS,
    why: { trinity: COUNTED },
  }),
  "rllm.trainer.save_freq": int(20, "steps between checkpoints; 0 or below = only at the end", {
    loop: true,
    verl: "trainer.save_freq",
    note: STEPS_NOT_EPOCHS,
    why: { trinity: COUNTED },
  }),
  "rllm.trainer.val_before_train": bool(true, "validate once before the first step", {
    loop: true,
    verl: "trainer.val_before_train",
    note: "true is the guide's default; base.yaml of rLLM's August 2026 source says false.",
  }),
  "rllm.trainer.val_only": bool(false, "validate and stop, without training", {
    loop: true,
    verl: "trainer.val_only",
    note: "Works alone; in rLLM it is ignored unless val_before_train is true.",
  }),
} as const;

const PASSES = "a batch is split into passes that fit the device";
const EPISODES_WAIT = "episodes wait, not groups: set episode_offload_dir";
const SYNCHRONOUS = { verl: "verl's main_ppo samples and trains in turn" };

export const ASYNC_FIELDS = each(
  { on: "acts acts refused refused", why: SYNCHRONOUS },
  {
    "rllm.async_training.enable": bool(false, "generate and train at the same time", { loop: true }),
    "rllm.async_training.mini_batch_size": int(64, "groups per optimiser step", { min: 1, loop: true }),
    "rllm.async_training.fwd_bwd_group_size": int(null, "groups per forward and backward pass; null = the mini-batch", {
      min: 1,
      on: "refused refused refused refused",
      why: { local: PASSES, tinker: PASSES, ...SYNCHRONOUS },
    }),
    "rllm.async_training.staleness_threshold": float(0, "share of a window that may be generated ahead", {
      min: 0,
      loop: true,
    }),
    "rllm.async_training.trigger_parameter_sync_step": int(1, "optimiser steps between weight updates", {
      min: 1,
      loop: true,
    }),
    "rllm.async_training.partial_rollout": bool(false, "update weights in the middle of rollouts", {
      loop: true,
    }),
    "rllm.async_training.episode_offload_dir": str(null, "folder for waiting episodes; null = memory", {
      loop: true,
    }),
    "rllm.async_training.trajectory_group_offload_dir": str(null, "folder for waiting groups; null = memory", {
      on: "refused refused refused refused",
      why: { local: EPISODES_WAIT, tinker: EPISODES_WAIT, ...SYNCHRONOUS },
    }),
  },
);

export const EPISODE_LOGGING_FIELDS = {
  "rllm.episode_logging.log_episodes": bool(false, "write full episodes to disk", {
    on: "acts acts refused refused",
    why: { verl: "verl keeps its rollouts (trainer.rollout_data_dir)" },
  }),
  "rllm.episode_logging.episode_log_dir": str(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
    "folder of the episodes",
    { on: "acts acts logging dropped" },
  ),
} as const;
