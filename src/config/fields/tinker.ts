/**
 * Settings of the `tinker` backend (`config/rllm/backend/tinker.yaml`): a Tinker service, or `grpu serve tinker`.
 * Rendered like local.yaml; defaults are the guide's.
 */
import { bool, dict, float, int, MANDATORY, oneOf, str, texts } from "./field.ts";
import { JUDGE_TIMEOUT, MAX_UNTRAINED_STEPS, PIPELINE_FIELDS, PIPELINE_SECTION } from "./local.ts";

export const TINKER_FIELDS = {
  "rllm.backend": str("tinker", "the backend; choose it with rllm/backend=NAME"),
  "rllm.algorithm.rollout_correction.bypass_mode": bool(true, "Tinker trains on the sampler's log-probs", {
    nullable: true,
  }),

  tinker_base_url: str(null, "address of the service; null = TINKER_BASE_URL, else the service's default"),
  fuse_forward_backward_and_optim_step: bool(false, "send both calls before waiting for either"),

  tinker_sdk_version: str("0.25.0", "the SDK's version that the service is told", {
    note: "The service refuses versions that it no longer supports.",
  }),

  tinker_wire: oneOf(["protobuf", "json"], "protobuf", "how requests to train and results are written", {
    note: "json is for servers that know no other, as SkyRL's.",
  }),

  "model.name": str("Qwen/Qwen3-8B", "base model"),
  "model.tokenizer": str(null, "folder with its tokenizer.json", {
    note: "null = model.name where it is a folder, else the one that a local server names.",
  }),
  "model.lora_rank": int(32, "LoRA rank", { min: 1 }),
  "model.train_unembed": bool(true, "LoRA on the output embedding"),
  "model.train_attn": bool(true, "LoRA on the attention layers"),
  "model.train_mlp": bool(true, "LoRA on the MLP layers"),

  "training.group_size": int(MANDATORY, "rollouts per prompt; becomes rllm.rollout.n", { min: 1 }),
  "training.learning_rate": float(2e-5, "learning rate", { min: 0 }),
  "training.lr_schedule": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule"),
  "training.warmup_steps_ratio": float(0, "warm-up as a share of all steps", { min: 0, max: 1 }),
  "training.beta1": float(0.9, "Adam: decay of the first moment", { min: 0, max: 1 }),
  "training.beta2": float(0.95, "Adam: decay of the second moment", { min: 0, max: 1 }),
  "training.eps": float(1e-8, "Adam: epsilon", { min: 0 }),
  "training.weight_decay": float(0, "AdamW: decoupled weight decay", { min: 0 }),
  "training.grad_clip_norm": float(0, "largest global gradient norm; 0 = no clipping", { min: 0 }),
  "training.seed": int(0, "seed of the adapter and of sampling", { min: 0 }),
  "training.max_length": int(32768, "longest context, in tokens", { min: 1 }),
  "training.num_minibatches": int(1, "minibatches per step", {
    min: 1,
    note: "rLLM only warns and goes on for anything but 1.",
  }),
  "training.max_untrained_steps": MAX_UNTRAINED_STEPS,
  "training.default_local_dir": str("/tmp/rllm-tinker-checkpoints", "folder of the checkpoint records", {
    note: "The guide's default; rLLM's August 2026 source uses checkpoints/<project>/<experiment>.",
  }),
  "training.resume_mode": oneOf(
    ["auto", "disable", "resume_path"],
    "auto",
    "continue from the last checkpoint, or not",
  ),
  "training.resume_from_path": str(null, "checkpoint folder to continue from, with resume_mode=resume_path"),
  "training.max_ckpt_to_keep": int(null, "newest checkpoint records kept; null = all", { min: 1 }),
  "training.metric_for_best_model": str(
    null,
    "validation metric whose best checkpoint is kept besides; null = none",
    { note: "Candidates are the validations after step 0, of equals the first." },
  ),
  "training.greater_is_better": bool(true, "whether the best is the largest value of that metric"),
  "training.resume_from_tinker_id": str(null, "checkpoint or model id of the service to continue from"),

  "validation.group_size": int(MANDATORY, "rollouts per prompt in validation; becomes rllm.rollout.n_val", {
    min: 1,
  }),

  "sampling.train.temperature": float(
    1,
    "training: temperature; the same as rllm.rollout.train.temperature",
    { min: 0 },
  ),
  "sampling.train.top_p": float(1, "training: nucleus threshold", { min: 0, max: 1 }),
  "sampling.train.top_k": int(-1, "training: top-k; -1 = off", { min: -1 }),
  "sampling.val.temperature": float(1, "validation: temperature", { min: 0 }),
  "sampling.val.top_p": float(1, "validation: nucleus threshold", { min: 0, max: 1 }),
  "sampling.val.top_k": int(-1, "validation: top-k; -1 = off", { min: -1 }),

  "rollout_engine.reasoning_effort": str("medium", "reasoning effort of models that have one"),
  "rollout_engine.accumulate_reasoning": bool(false, "keep the reasoning of earlier steps"),
  "rollout_engine.disable_thinking": bool(false, "suppress thinking tokens"),
  "rollout_engine.bypass_render_with_parser": bool(
    false,
    "render with the chat parser instead of the renderer",
  ),
  "rollout_engine.renderer_name": str(null, "renderer; null = the model's"),

  "workflow.n_parallel_tasks": int(256, "rollouts that run at the same time", { min: 1 }),
  "workflow.retry_limit": int(3, "attempts per rollout", { min: 1 }),
  "agent.max_steps": int(1, "most steps in one trajectory", { min: 1 }),
  "agent.agent_args": dict("arguments of the agent"),

  "data.train_files": texts("files with training rows"),
  "data.val_files": texts("files with validation rows"),
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
  "data.val_batch_size": int(32, "prompts per validation batch", { min: -1 }),

  ...PIPELINE_FIELDS,

  "task.name": str(null, "built-in or registered environment"),
  "task.reward": str(null, "registered reward; null = the environment's own"),
  "task.evaluator": str(null, "registered evaluator of whole episodes; null = the rollout's own reward"),
  "task.args": dict("arguments of the environment, the reward and the evaluator"),
  "task.judge_timeout": JUDGE_TIMEOUT,
} as const;

export const TINKER_SECTIONS: Readonly<Record<string, string>> = {
  model: "Base model and LoRA",
  training: "Optimiser, schedule, checkpoints",
  sampling: "Sampling (rllm.rollout.train and .val are the portable names)",
  rollout_engine: "Rollout engine",
  data: "Rows, lengths and batch sizes; the same settings as rllm.data",
  pipeline: PIPELINE_SECTION,
  task: "What is learned; a section of grpu's own",
};
