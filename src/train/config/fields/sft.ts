/**
 * Settings of `grpu sft` (`config/sft.yaml`), under the names of verl's SFT trainer where it has them. `same` names the
 * setting of a training run that does the work; a setting without it is one of `grpu sft` alone, or has the same path there.
 */

import { TRAIN_ON_WHAT } from "../../../chat/train_on_what.ts";
import { TRUNCATIONS } from "../../data/supervised.ts";
import type { Tree } from "../yaml/tree.ts";
import { any, bool, dict, type FieldTable, float, int, list, oneOf, str, texts, type ValueOf } from "./field.ts";
import { LOCAL_FIELDS } from "./local.ts";
import { DATA_FIELDS } from "./local_and_tinker.ts";
import { RLLM_FIELDS } from "./rllm.ts";
import { TINKER_FIELDS } from "./tinker.ts";

const { "training.gradient_checkpointing": CHECKPOINTING, "training.resume_mode": RESUME_MODE } = LOCAL_FIELDS;

/** Rows that a training run has alike. */
function local<const K extends keyof typeof LOCAL_FIELDS>(...paths: readonly K[]): Pick<typeof LOCAL_FIELDS, K> {
  return Object.fromEntries(paths.map((path) => [path, LOCAL_FIELDS[path]])) as Pick<typeof LOCAL_FIELDS, K>;
}

export const DEVICE_FIELDS = local(
  "device",
  "device_adapter",
  "device_backend",
  "device_toggles",
  "device_products",
  "memory_budget_bytes",
);

/** Backends on which the commands train that need no head of their own. */
export const ROW_BACKEND_FIELDS = {
  backend: oneOf(["local", "tinker"], "local", "where the model is trained: on this machine, or on a Tinker service", {
    same: "rllm.backend",
    note: "A service trains adapters alone.",
  }),
  tinker_base_url: str(null, "address of the service; null = TINKER_BASE_URL, else the service's default"),
  tinker_sdk_version: TINKER_FIELDS.tinker_sdk_version,
  tinker_wire: TINKER_FIELDS.tinker_wire,
} as const;

export const SERVICE_MODEL_FIELDS = {
  "model.tokenizer": str(null, "with backend=tinker: folder with the base model's tokenizer.json", {
    note: "null = model.path if it is a folder, else the one that a local server reports.",
  }),
} as const;

export const SERVICE_TRAINER_FIELDS = {
  "trainer.resume_from_tinker_id": str(null, "checkpoint or model id of the service to start from", {
    same: "training.resume_from_tinker_id",
  }),
} as const;

export const MODEL_FIELDS = {
  "model.path": str(null, "folder in Hugging Face's layout; null = a new model as model.init says", {
    same: "model.name",
  }),
  ...local("model.init.layers", "model.init.hidden_size", "model.init.heads", "model.init.kv_heads"),
  ...local("model.init.head_dim", "model.init.intermediate_size", "model.init.tokenizer", "model.init.alphabet"),
  ...local("model.dtype", "model.quantization", "model.chat_template", "model.lora_rank", "model.lora_alpha"),
  ...local("model.train_attn", "model.train_mlp", "model.train_unembed", "model.fold_adapter"),
  "model.enable_gradient_checkpointing": { ...CHECKPOINTING, same: "training.gradient_checkpointing" },
} as const;

export const ROW_FIELDS = {
  "data.train_files": texts("JSONL or Parquet files, folders of them, or data sets of --import"),
  "data.val_files": texts("the same for the held-out rows"),
  "data.val_set_size": float(0, "share of the training rows that is held out where there are no data.val_files", {
    min: 0,
    max: 0.9,
    note: "Which rows is a function of trainer.seed.",
  }),
  "data.train_max_samples": int(-1, "only the first rows; -1 = all", { min: -1 }),
  "data.val_max_samples": int(-1, "only the first held-out rows; -1 = all", { min: -1 }),
  "data.messages_key": str("messages", "field of a row that holds a conversation"),
  "data.tools_key": str("tools", "field that holds the tools of the conversation"),
  "data.enable_thinking_key": str("enable_thinking", "field that says whether the template lets the model think"),
  "data.prompt_key": str("prompt", "field that holds a prompt; then instruction and question are tried"),
  "data.response_key": str("response", "field that holds its response; then completion and answer are tried"),
  "data.text_key": str("text", "field that holds a plain text"),
  "data.prompt_type": DATA_FIELDS["data.prompt_type"],
  "data.system_prompt": DATA_FIELDS["data.system_prompt"],
  "data.apply_chat_template_kwargs": dict("further variables of the chat template"),
  "data.train_on_what": oneOf(
    TRAIN_ON_WHAT,
    "all_assistant_messages",
    "the turns that are trained on, where no message has weight, train or trainable",
    { note: "Names as in Tinker's cookbook." },
  ),
  "data.max_length": int(1024, "most tokens of a row", { min: 2, same: "training.max_length" }),
  "data.truncation": oneOf(TRUNCATIONS, "error", "what happens to a longer row", {
    note: "error = the run is refused; right, left = its last or first tokens are cut off; skip = it is left out.",
  }),
  "data.shuffle": bool(true, "shuffle the rows in every epoch"),
  "data.train_batch_size": int(32, "rows of a step", { min: 1, same: "rllm.data.train_batch_size" }),
  "data.train_batch_tokens": int(null, "most tokens of a step, in place of data.train_batch_size; null = rows count", {
    min: 1,
  }),
  "data.max_token_len_per_gpu": int(null, "tokens in one forward and backward pass; null = as many as fit", {
    min: 1,
    same: "training.max_tokens_per_pass",
    note: "A batch takes as many passes as it needs. No row sees another, in whichever pass it is.",
  }),
} as const;

export const OPTIM_FIELDS = {
  "optim.lr": float(1e-5, "learning rate", { min: 0, same: "training.learning_rate" }),
  "optim.betas": any([0.9, 0.95], "AdamW: decays of the two moments", { nullable: false }),
  "optim.eps": float(1e-8, "AdamW: epsilon", { min: 0, same: "training.eps" }),
  "optim.weight_decay": float(0.01, "AdamW: decoupled weight decay", { min: 0, same: "training.weight_decay" }),
  "optim.clip_grad": float(1, "largest global gradient norm; 0 = no clipping", {
    min: 0,
    same: "training.grad_clip_norm",
  }),
  "optim.lr_scheduler_type": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule", {
    same: "rllm.algorithm.lr_schedule",
  }),
  "optim.lr_warmup_steps": int(-1, "warm-up steps; below 1 = by lr_warmup_steps_ratio", {
    min: -1,
    same: "rllm.algorithm.warmup_steps",
  }),
  "optim.lr_warmup_steps_ratio": float(0, "warm-up as a share of all steps", {
    min: 0,
    max: 1,
    same: "rllm.algorithm.warmup_steps_ratio",
  }),
} as const;

export const ROW_TRAINER_FIELDS = {
  "trainer.project_name": str("sft", "project name in logs and paths", { same: "rllm.trainer.project_name" }),
  "trainer.experiment_name": str("default", "run name in logs and paths", { same: "rllm.trainer.experiment_name" }),
  "trainer.default_local_dir": str(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
    "folder of the run",
    { same: "training.default_local_dir" },
  ),
  "trainer.total_epochs": int(1, "passes over the training rows", { min: 1, same: "rllm.trainer.total_epochs" }),
  "trainer.total_training_steps": int(null, "steps of the run; null = as many as the epochs hold", {
    min: 1,
    same: "rllm.trainer.total_batches",
  }),
  "trainer.seed": int(0, "seed of new weights and of the order of the rows", { min: 0, same: "training.seed" }),
  "trainer.logger": list(["console", "jsonl", "report"], "where metrics go", { same: "rllm.trainer.logger" }),
  "trainer.val_before_train": bool(true, "measure the held-out loss before the first step too", {
    same: "rllm.trainer.val_before_train",
  }),
  "trainer.test_freq": int(-1, "steps between validations; -1 = only at the end", {
    min: -1,
    same: "rllm.trainer.test_freq",
  }),
  "trainer.save_freq": int(-1, "steps between checkpoints; -1 = only at the end", {
    min: -1,
    same: "rllm.trainer.save_freq",
  }),
  "trainer.max_ckpt_to_keep": int(null, "number of newest checkpoints kept; null = all", {
    min: 1,
    same: "training.max_ckpt_to_keep",
  }),
  "trainer.metric_for_best_model": str("val/loss", "held-out metric whose best checkpoint is kept too; null = none", {
    nullable: true,
    same: "training.metric_for_best_model",
  }),
  "trainer.greater_is_better": bool(false, "whether the best is the largest value of that metric", {
    same: "training.greater_is_better",
  }),
  "trainer.resume_mode": { ...RESUME_MODE, same: "training.resume_mode" },
  "trainer.resume_from_path": str(null, "checkpoint to continue from, with resume_mode=resume_path", {
    same: "training.resume_from_path",
  }),
} as const;

export const SFT_FIELDS = {
  ...ROW_BACKEND_FIELDS,
  ...DEVICE_FIELDS,
  ...MODEL_FIELDS,
  ...SERVICE_MODEL_FIELDS,
  ...ROW_FIELDS,
  ...OPTIM_FIELDS,
  ...ROW_TRAINER_FIELDS,
  ...SERVICE_TRAINER_FIELDS,
} as const;

export const SFT_SECTIONS: Readonly<Record<string, string>> = {
  model: "The model that is trained",
  "model.init": "A new model, when model.path is null",
  data: "Rows: where they are, how they are read, which of their tokens train, how many make a step",
  optim: "AdamW and its learning rate",
  trainer: "The run: its length, its folder, validations and checkpoints",
};

/** Settings of a supervised run as a training run: one sequence per row, none of them sampled. */
export const SFT_AS_RUN: Readonly<Record<string, number | string>> = {
  "rllm.rollout.n": 1,
  "rllm.rollout.n_val": 1,
  "rllm.data.val_batch_size": 1,
  "rllm.data.max_prompt_length": 1,
  "rllm.algorithm.loss_fn": "cross_entropy",
  "rollout.max_num_seqs": 1,
};

/** The path in a training run's configuration of a setting that acts there. */
export function runPathOf(path: string, fields: FieldTable = SFT_FIELDS): string | undefined {
  const { same } = fields[path]!;
  const isRunSetting = (path in LOCAL_FIELDS || path in TINKER_FIELDS) && !path.startsWith("data.");
  return same ?? (isRunSetting ? path : undefined);
}

/** Whether a setting of these commands acts on a backend. */
export function actsOn(backend: RowBackendName, path: string, fields: FieldTable = SFT_FIELDS): boolean {
  const at = runPathOf(path, fields);
  return at === undefined || at in RLLM_FIELDS || at in (backend === "tinker" ? TINKER_FIELDS : LOCAL_FIELDS);
}

/** Name of a backend that can train on rows. */
export type RowBackendName = ValueOf<typeof ROW_BACKEND_FIELDS, "backend">;

/** Reads a resolved setting of `grpu sft` by its path. */
export function sftSetting<K extends keyof typeof SFT_FIELDS & string>(
  config: Tree,
  path: K,
): ValueOf<typeof SFT_FIELDS, K> {
  let value: unknown = config;
  for (const key of path.split(".")) value = (value as Tree)[key];
  return value as ValueOf<typeof SFT_FIELDS, K>;
}
