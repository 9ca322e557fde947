/**
 * Rows that the local and the tinker backend have alike, because the loop here drives both. Rows that differ, if only in
 * a default, are in local.ts and tinker.ts.
 */
import { any, bool, dict, float, int, list, oneOf, str, texts } from "./field.ts";

export const OPTIMISER_FIELDS = {
  "training.learning_rate": float(2e-5, "learning rate", { min: 0, loop: true }),
  "training.lr_schedule": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule", {
    same: "rllm.algorithm.lr_schedule",
  }),
  "training.warmup_steps_ratio": float(0, "warm-up as a share of all steps", {
    min: 0,
    max: 1,
    same: "rllm.algorithm.warmup_steps_ratio",
  }),
  "training.beta1": float(0.9, "AdamW: decay of the first moment", { min: 0, max: 1, loop: true }),
  "training.beta2": float(0.95, "AdamW: decay of the second moment", { min: 0, max: 1, loop: true }),
  "training.eps": float(1e-8, "AdamW: epsilon", { min: 0, loop: true }),
  "training.weight_decay": float(0, "AdamW: decoupled weight decay", { min: 0, loop: true }),
} as const;

export const MAX_UNTRAINED_STEPS = int(
  10,
  "steps in a row without a trained group before the run ends with an error; 0 = no limit",
  { min: 0, loop: true, note: "A run whose steps all trained nothing ends with an error too." },
);

/** Fields under verl's names, where they bound what the trainer takes from its buffer. */
export const OFF_POLICY_FIELDS = {
  "training.max_off_policy_threshold": int(
    null,
    "most optimiser steps between the weights that sampled a token and those that its training step begins with; null = no limit",
    { min: 0, loop: true },
  ),
  "training.max_off_policy_strategy": oneOf(
    ["drop", "mask"],
    "drop",
    "what happens to older replies: drop = their trajectories are left out, mask = they are not trained on",
    { loop: true, note: "With mask, the reward of the trajectory counts for its group all the same." },
  ),
} as const;

export const KEEP_FIELDS = {
  "training.metric_for_best_model": str(
    null,
    "validation metric whose best checkpoint is also kept, for instance val/sums/pass@1; null = none",
    {
      loop: true,
      note: "best_checkpoint.json in the run's folder names it. Candidates are the validations after step 0; the first of equals wins. Hugging Face's trainers use the same name.",
    },
  ),
  "training.greater_is_better": bool(true, "whether the best is the largest value of that metric", {
    loop: true,
  }),
} as const;

export const RESUME_MODE = oneOf(
  ["auto", "disable", "resume_path"],
  "auto",
  "whether to continue from the last checkpoint",
);

/** Fields under verl's names. */
export const GDPO_FIELDS = {
  "algorithm.gdpo_reward_keys": any(
    null,
    "gdpo: the components of the reward that it normalises, for instance [accuracy, format]",
    { loop: true, note: "The reward returns {reward, components}; see docs/algorithms.md." },
  ),
  "algorithm.gdpo_reward_weights": any(null, "gdpo: a weight for each of them; null = 1", { loop: true }),
} as const;

export const ANSWER_KEY = str(null, "field of a row that holds the right answer, or a path: extra_info.answer", {
  note: "null = the usual names, see docs/data.md. A row without the answer that its reward needs is an error.",
});

export const DATA_FIELDS = {
  "data.train_files": texts("JSONL or Parquet files, folders of them, or data sets of --import; null = the task's own"),
  "data.val_files": texts("the same for validation"),
  "data.prompt_key": str("prompt", "field of a row that holds the prompt"),
  "data.answer_key": ANSWER_KEY,
  "data.prompt_type": oneOf(
    ["plaintext", "messages"],
    "plaintext",
    "how a text prompt is passed: unchanged, or as one user message",
  ),
  "data.system_prompt": str(null, "system message of conversations that have none"),
  "data.max_prompt_length": int(2048, "longest prompt, in tokens", {
    min: 1,
    same: "rllm.data.max_prompt_length",
  }),
  "data.max_response_length": int(2048, "longest response, in tokens", {
    min: 1,
    same: "rllm.data.max_response_length",
  }),
  "data.train_batch_size": int(64, "prompts per training step", {
    min: 1,
    same: "rllm.data.train_batch_size",
  }),
  "data.val_batch_size": int(32, "prompts per validation batch; -1 = all", {
    min: -1,
    same: "rllm.data.val_batch_size",
  }),
} as const;

export const TASK_FIELDS = {
  "task.name": str(null, "built-in or registered environment, for instance arithmetic", {
    note: "null = the task comes from data.train_files.",
  }),
  "task.reward": str(null, "registered reward; null = the environment's own"),
  "task.evaluator": str(null, "registered evaluator of whole episodes; null = the rollout's own reward"),
  "task.agent": texts(
    "URL of an agent in another process, or several that take turns; null = rollouts run in this process",
    {
      note: "One POST per attempt; the agent's model calls go to the run's gateway (rllm.sdk.proxy). See docs/remote-agents.md.",
    },
  ),
  "task.args": dict("arguments of the environment, the reward and the evaluator"),
  "task.judge_timeout": float(
    60,
    "seconds that a reward or evaluator call may take, which then runs in a thread; null = no limit and no thread",
    {
      min: 0.001,
      nullable: true,
      note: "By default the built-in rewards whose work is bounded stay in the process. So do agents and games: rllm.workflow.workflow_args.timeout bounds them.",
    },
  ),
  "task.trace_retention.max_age_s": float(
    null,
    "seconds that the trace store keeps a session after its last call or its end; null = for ever",
    {
      min: 0,
      note: "The oldest sessions are deleted, each as a whole, those of earlier runs in the same file included.",
    },
  ),
  "task.trace_retention.max_traces": int(null, "most traces in the trace store; null = no limit, 20000 in memory", {
    min: 1,
  }),
  "task.trace_retention.max_bytes": int(null, "most bytes of the trace store; null = no limit", { min: 1 }),
} as const;

export const PIPELINE_FIELDS = {
  "pipeline.stages": list(
    ["generate", "transform", "reject", "batch", "process", "advantages", "update", "log"],
    "stages of a training step, in order; wrapper(stage) wraps one",
    {
      loop: true,
      note: "A module given with --import registers further stages and wrappers: see docs/limits.md.",
    },
  ),
} as const;

/** One line above each of these sections in the rendered YAML. */
export const SHARED_SECTIONS = {
  training: "Optimiser, schedule, checkpoints",
  data: "Rows, lengths and batch sizes; the same settings as rllm.data",
  pipeline: "The training step; a section that only grpu has",
  distillation: "Distillation from a teacher, under verl's names where it has them",
} as const;
