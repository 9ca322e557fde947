/**
 * Settings of the `local` backend: WebGPU on this machine (`config/rllm/backend/local.yaml`).
 * To add one: a row here, or in local_and_tinker.ts when tinker has it too, then `npx vitest run test/train/config/yaml_test.ts -u`.
 */

import { CRITIC_FIELDS, CRITIC_SECTIONS } from "./critic.ts";
import { DISTILLATION_FIELDS } from "./distillation.ts";
import { bool, float, int, list, oneOf, str } from "./field.ts";
import {
  DATA_FIELDS,
  GDPO_FIELDS,
  KEEP_FIELDS,
  MAX_UNTRAINED_STEPS,
  OFF_POLICY_FIELDS,
  OPTIMISER_FIELDS,
  PIPELINE_FIELDS,
  RESUME_MODE,
  SHARED_SECTIONS,
  TASK_FIELDS,
} from "./local_and_tinker.ts";

/** Those of WebGPU implementations; which of them answer depends on the machine. */
const GPU_BACKENDS = ["vulkan", "metal", "d3d12", "d3d11", "opengl", "opengles"] as const;

export const LOCAL_FIELDS = {
  "rllm.backend": str("local", "the backend; choose it with rllm/backend=NAME"),

  device: oneOf(["auto", "webgpu", "cpu"], "auto", "auto = the GPU if there is one, else the CPU reference"),
  device_adapter: str(null, "which GPU: a part of its name or its number; null = the fastest", {
    note: "List them with: grpu device --list. Also spelled device.adapter, as device.backend and device.toggles.",
  }),
  device_backend: oneOf(GPU_BACKENDS, null, "the GPU's interface; null = the platform's own"),
  device_toggles: list([], "Dawn's toggles, for example allow_unsafe_apis; a leading - disables one"),
  device_products: oneOf(
    ["auto", "tiled", "tiled_large", "subgroup_matrix"],
    "auto",
    "a GPU's kernels of large products; auto measures",
    {
      note: "auto measures tiled and tiled_large, whose bits are the same, once per adapter and driver. subgroup_matrix: matrix units, in f16 or where the GPU has these in f32, for 128 rows and more; a row's bits then depend on how many rows are computed with it.",
    },
  ),
  memory_budget_bytes: int(null, "maximum bytes of device memory; null = what the adapter allows", { min: 1 }),

  ...TASK_FIELDS,

  "model.name": str(null, "Hugging Face folder; null = a new model as model.init says"),
  "model.init.layers": int(2, "layers of a new model", { min: 1 }),
  "model.init.hidden_size": int(64, "width of the model", { min: 1 }),
  "model.init.heads": int(4, "query heads", { min: 1 }),
  "model.init.kv_heads": int(2, "key and value heads; divides heads", { min: 1 }),
  "model.init.head_dim": int(16, "width of a head", { min: 1 }),
  "model.init.intermediate_size": int(192, "width of the MLP", { min: 1 }),
  "model.init.tokenizer": str("char", "char: a token per character of the alphabet; byte: per byte; or a folder", {
    note: "A folder holds a tokenizer.json, and may hold a tokenizer_config.json and a chat_template.jinja.",
  }),
  "model.init.alphabet": str(null, "characters of the char tokenizer; null = those of the task"),
  "model.dtype": oneOf(["auto", "float32", "bfloat16"], "auto", "how weights that do not train are held", {
    note: "auto = as the model's files have them; bfloat16 is exact where those are bfloat16. Trained weights are float32.",
  }),
  "model.quantization": oneOf(["int8", "nf4"], null, "hold the base of an adapter in 8 or 4 bits; null = do not", {
    note: "Blocks of 64 weights share a scale: int8 by the largest value, nf4 as QLoRA.",
  }),
  "model.chat_template": str(null, "Jinja file, or plain: texts joined by the end token; null = the model's own"),
  "model.lora_rank": int(0, "LoRA rank; 0 = all weights train", { min: 0 }),
  "model.lora_alpha": float(32, "LoRA scale: updates are multiplied by alpha / rank", { min: 0 }),
  "model.train_attn": bool(true, "LoRA on the attention layers"),
  "model.train_mlp": bool(true, "LoRA on the MLP layers"),
  "model.train_unembed": bool(null, "LoRA on the output embedding; null = where the model has a separate one"),
  "model.fold_adapter": oneOf(
    ["auto", "true", "false"],
    "auto",
    "true = fold the adapter into a float32 copy of the weights; false = compute it separately, without a copy",
    {
      note: "A copy is float32 and takes memory once more. auto = a copy of small float32 models on software adapters, where memory suffices.",
    },
  ),

  "training.group_size": int(null, "rollouts per prompt; null = rllm.rollout.n", {
    min: 1,
    same: "rllm.rollout.n",
  }),
  ...OPTIMISER_FIELDS,
  "training.grad_clip_norm": float(1, "largest global gradient norm; 0 = no clipping", {
    min: 0,
    loop: true,
  }),
  "training.num_minibatches": int(1, "optimiser steps per batch", { min: 1, loop: true }),
  "training.max_tokens_per_pass": int(null, "tokens in one forward and backward pass; null = as many as fit", {
    min: 1,
    note: "A batch takes as many passes as it needs. A sequence is never cut: a longer one takes a pass alone.",
  }),
  "training.gradient_checkpointing": oneOf(
    ["auto", "true", "false"],
    "auto",
    "keep only each layer's input for the backward pass and compute the rest again; auto = where it is needed to fit",
  ),
  "training.max_untrained_steps": MAX_UNTRAINED_STEPS,
  ...OFF_POLICY_FIELDS,
  "training.max_length": int(32768, "longest sequence, prompt and response, in tokens", { min: 1 }),
  "training.seed": int(0, "seed of weights and sampling", { min: 0, loop: true }),
  "training.default_local_dir": str(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
    "checkpoints/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
    "folder of the checkpoints",
  ),
  "training.max_ckpt_to_keep": int(null, "number of newest checkpoints kept; null = all", { min: 1 }),
  ...KEEP_FIELDS,
  "training.resume_mode": RESUME_MODE,
  "training.resume_from_path": str(null, "checkpoint to continue from, with resume_mode=resume_path"),

  "rollout.max_num_seqs": int(null, "most sequences sampled together; null = as many as fit, up to 256", { min: 1 }),
  "rollout.max_num_batched_tokens": int(
    null,
    "most prompt tokens that sampling computes together; null = see the note",
    {
      min: 1,
      note: "A longer prompt is computed in pieces of whole pages of 16 tokens, between the steps of the sequences that decode. null = pieces of 512 on GPUs and 64 on software adapters while tokens are read as they are drawn, otherwise whole prompts.",
    },
  ),
  "rollout.speculative_config.method": oneOf(["ngram"], null, "how tokens are guessed ahead; null = not at all", {
    note: "ngram = those after an earlier occurrence of the last tokens. A step verifies them together, at most 64 rows. Tokens and log-probs do not change.",
  }),
  "rollout.speculative_config.num_speculative_tokens": int(5, "most tokens guessed for a sequence and a step", {
    min: 1,
  }),
  "rollout.speculative_config.prompt_lookup_max": int(
    null,
    "most last tokens looked up; null = prompt_lookup_min, or 5",
    { min: 1 },
  ),
  "rollout.speculative_config.prompt_lookup_min": int(
    null,
    "fewest last tokens that must have occurred before; null = prompt_lookup_max, or 5",
    { min: 1 },
  ),
  "rollout.kv_cache_dtype": oneOf(
    ["float32", "bfloat16"],
    "float32",
    "how sampled sequences' keys and values are held",
    {
      note: "bfloat16 halves the cache. The sampler then rounds what training does not, so the two log-probs differ slightly.",
    },
  ),

  "validation.group_size": int(null, "rollouts per prompt in validation; null = rllm.rollout.n_val", {
    min: 1,
    same: "rllm.rollout.n_val",
  }),

  "warmup.steps": int(0, "supervised steps before the RL run", { min: 0, loop: true }),
  "warmup.batch_size": int(64, "examples per supervised step", { min: 1, loop: true }),
  "warmup.learning_rate": float(1e-3, "learning rate of the supervised steps", { min: 0, loop: true }),
  "warmup.examples": int(null, "examples to draw from; null = all", { min: 1, loop: true }),

  ...CRITIC_FIELDS,
  ...GDPO_FIELDS,

  "reward_model.enable": bool(false, "score rollouts that have no reward of their own with a reward model", {
    note: "A reward that a rollout or a game gives counts; the task's own reward does not.",
  }),
  "reward_model.model.path": str(
    null,
    "its folder: one with a scalar head, an adapter with one, or a run of grpu reward-model",
    {
      note: "The tokens must be the policy's.",
    },
  ),

  ...PIPELINE_FIELDS,

  ...DISTILLATION_FIELDS,

  ...DATA_FIELDS,
} as const;

export const LOCAL_SECTIONS: Readonly<Record<string, string>> = {
  task: "The task",
  model: "The model that is trained",
  "model.init": "A new model, when model.name is null",
  rollout: "Sampling; the portable settings of rollouts are in rllm.rollout",
  validation: "Validation",
  warmup: "Supervised warm-up of a new model",
  ...CRITIC_SECTIONS,
  reward_model: "The reward model",
  ...SHARED_SECTIONS,
};
