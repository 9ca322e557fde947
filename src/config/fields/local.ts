/**
 * Settings of the `local` backend: WebGPU on this machine (`config/rllm/backend/local.yaml`).
 * To add one: a row here and a row in support.ts, then `npx vitest run test/config/yaml_test.ts -u` renders the YAML.
 */
import { bool, dict, float, int, list, oneOf, str, texts } from "./field.ts";

/** The loop's own, for every backend that the loop here drives. */
export const PIPELINE_FIELDS = {
  "pipeline.stages": list(
    ["generate", "transform", "reject", "batch", "process", "advantages", "update", "log"],
    "stages of a training step, in order; name(stage) wraps one",
    { note: "Own stages and wrappers are registered by a module given with --import: see docs/limits.md." },
  ),
} as const;

export const MAX_UNTRAINED_STEPS = int(
  10,
  "steps in a row without a trained group before the run ends with an error; 0 = no limit",
  { min: 0, note: "A run whose steps all trained nothing ends with an error too." },
);

export const JUDGE_TIMEOUT = float(
  null,
  "seconds that a call of a reward or an evaluator may take, in a thread of their own; null = no limit, and no thread",
  {
    min: 0.001,
    note: "Agents and games stay in the process: rllm.workflow.workflow_args.timeout bounds them.",
  },
);

export const PIPELINE_SECTION = "The training step; a section of grpu's own";

export const LOCAL_FIELDS = {
  "rllm.backend": str("local", "the backend; choose it with rllm/backend=NAME"),

  device: oneOf(
    ["auto", "webgpu", "cpu"],
    "auto",
    "auto = the GPU where there is one, else the cpu reference",
  ),
  memory_budget_bytes: int(null, "most bytes of device memory; null = the adapter's limits", { min: 1 }),

  "task.name": str(null, "built-in or registered environment, for instance arithmetic", {
    note: "null = the task comes from data.train_files.",
  }),
  "task.reward": str(null, "registered reward; null = the environment's own"),
  "task.evaluator": str(null, "registered evaluator of whole episodes; null = the rollout's own reward"),
  "task.args": dict("arguments of the environment, the reward and the evaluator"),
  "task.judge_timeout": JUDGE_TIMEOUT,

  "model.name": str(null, "Hugging Face folder; null = a new model as model.init says"),
  "model.init.layers": int(2, "layers of a new model", { min: 1 }),
  "model.init.hidden_size": int(64, "width", { min: 1 }),
  "model.init.heads": int(4, "query heads", { min: 1 }),
  "model.init.kv_heads": int(2, "key and value heads; divides heads", { min: 1 }),
  "model.init.head_dim": int(16, "width of a head", { min: 1 }),
  "model.init.intermediate_size": int(192, "width of the MLP", { min: 1 }),
  "model.init.tokenizer": oneOf(
    ["char", "byte"],
    "char",
    "one token per character of the alphabet, or per byte",
  ),
  "model.init.alphabet": str(null, "characters of the char tokenizer; null = those of the task"),
  "model.chat_template": str(
    null,
    "Jinja file, or plain: texts with the end token between; null = the model's own",
  ),
  "model.lora_rank": int(0, "LoRA rank; 0 = all weights train", { min: 0 }),
  "model.lora_alpha": float(32, "LoRA scale: updates are multiplied by alpha / rank", { min: 0 }),
  "model.train_attn": bool(true, "LoRA on the attention layers"),
  "model.train_mlp": bool(true, "LoRA on the MLP layers"),
  "model.train_unembed": bool(true, "LoRA on the output embedding"),

  "training.group_size": int(null, "rollouts per prompt; null = rllm.rollout.n", { min: 1 }),
  "training.learning_rate": float(2e-5, "learning rate", { min: 0 }),
  "training.lr_schedule": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule"),
  "training.warmup_steps_ratio": float(0, "warm-up as a share of all steps", { min: 0, max: 1 }),
  "training.beta1": float(0.9, "AdamW: decay of the first moment", { min: 0, max: 1 }),
  "training.beta2": float(0.95, "AdamW: decay of the second moment", { min: 0, max: 1 }),
  "training.eps": float(1e-8, "AdamW: epsilon", { min: 0 }),
  "training.weight_decay": float(0, "AdamW: decoupled weight decay", { min: 0 }),
  "training.grad_clip_norm": float(1, "largest global gradient norm; 0 = no clipping", { min: 0 }),
  "training.num_minibatches": int(1, "optimiser steps per batch", { min: 1 }),
  "training.max_untrained_steps": MAX_UNTRAINED_STEPS,
  "training.max_length": int(32768, "longest sequence, prompt and response, in tokens", { min: 1 }),
  "training.seed": int(0, "seed of weights and sampling", { min: 0 }),
  "training.default_local_dir": str(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "checkpoints/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
    "folder of the checkpoints",
  ),
  "training.max_ckpt_to_keep": int(null, "newest checkpoints kept; null = all", { min: 1 }),
  "training.metric_for_best_model": str(
    null,
    "validation metric whose best checkpoint is kept besides, for instance val/sums/pass@1; null = none",
    {
      note: "best_checkpoint.json in the run's folder names it. Candidates are the validations after step 0, of equals the first. The name is that of Hugging Face's trainers.",
    },
  ),
  "training.greater_is_better": bool(true, "whether the best is the largest value of that metric"),
  "training.resume_mode": oneOf(
    ["auto", "disable", "resume_path"],
    "auto",
    "continue from the last checkpoint, or not",
  ),
  "training.resume_from_path": str(null, "checkpoint to continue from, with resume_mode=resume_path"),

  "validation.group_size": int(null, "rollouts per prompt in validation; null = rllm.rollout.n_val", {
    min: 1,
  }),

  "warmup.steps": int(0, "supervised steps before the RL run", { min: 0 }),
  "warmup.batch_size": int(64, "examples per supervised step", { min: 1 }),
  "warmup.learning_rate": float(1e-3, "learning rate of the supervised steps", { min: 0 }),
  "warmup.examples": int(null, "examples to draw from; null = all", { min: 1 }),

  ...PIPELINE_FIELDS,

  "data.train_files": texts(
    "JSONL or Parquet files, folders of them, or data sets of --import; null = the task's own",
  ),
  "data.val_files": texts("the same for validation"),
  "data.prompt_key": str("prompt", "field of a row that holds the prompt"),
  "data.prompt_type": oneOf(
    ["plaintext", "messages"],
    "plaintext",
    "how a prompt that is text is given: as it is, or as one user message",
  ),
  "data.system_prompt": str(null, "system message of conversations that have none"),
  "data.max_prompt_length": int(2048, "longest prompt, in tokens", { min: 1 }),
  "data.max_response_length": int(2048, "longest response, in tokens", { min: 1 }),
  "data.train_batch_size": int(64, "prompts per training step", { min: 1 }),
  "data.val_batch_size": int(32, "prompts per validation batch; -1 = all", { min: -1 }),
} as const;

export const LOCAL_SECTIONS: Readonly<Record<string, string>> = {
  task: "What is learned",
  model: "The model that is trained",
  "model.init": "A new model, when model.name is null",
  training: "Optimiser, schedule, checkpoints",
  validation: "Validation",
  warmup: "Supervised warm-up of a new model",
  pipeline: PIPELINE_SECTION,
  data: "Rows, lengths and batch sizes; the same settings as rllm.data",
};
