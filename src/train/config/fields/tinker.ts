/**
 * Settings of the `tinker` backend (`config/rllm/backend/tinker.yaml`): a Tinker service, or `grpu serve tinker`.
 * Rendered like local.yaml; defaults are the guide's.
 */

import { MANDATORY } from "../yaml/tree.ts";
import { DISTILLATION_FIELDS } from "./distillation.ts";
import { bool, dict, float, int, oneOf, str } from "./field.ts";
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

const RENDERED_HERE = {
  on: "refused",
  why: "prompts are rendered by the model's own chat template",
} as const;

export const TINKER_FIELDS = {
  "rllm.backend": str("tinker", "the backend; choose it with rllm/backend=NAME"),
  "rllm.algorithm.rollout_correction.bypass_mode": bool(true, "Tinker trains on the sampler's log-probs", {
    nullable: true,
  }),

  tinker_base_url: str(
    null,
    "address of the service; null = TINKER_BASE_URL, else the service's default. Several, with commas: the first trains, and all of them sample",
  ),
  fuse_forward_backward_and_optim_step: bool(false, "send both calls before waiting for either"),

  tinker_sdk_version: str("0.25.0", "SDK version that the client reports to the service", {
    note: "The service refuses versions that it no longer supports.",
  }),

  tinker_wire: oneOf(["protobuf", "json"], "protobuf", "encoding of training requests and results", {
    note: "json is for servers without protobuf, such as SkyRL's.",
  }),

  tinker_sampling_client_kind: oneOf(
    ["snapshot", "inflight"],
    "snapshot",
    "weights of samplers in asynchronous training: inflight ones change under the requests that are on their way",
    {
      note: "Versions of inflight samples are the oldest that can have drawn one of their tokens, and seeds do not repeat them.",
    },
  ),

  "model.name": str("Qwen/Qwen3-8B", "base model"),
  "model.tokenizer": str(null, "folder with its tokenizer.json", {
    note: "null = model.name if it is a folder, else the one that a local server reports.",
  }),
  "model.lora_rank": int(32, "LoRA rank", { min: 1 }),
  "model.train_unembed": bool(true, "LoRA on the output embedding"),
  "model.train_attn": bool(true, "LoRA on the attention layers"),
  "model.train_mlp": bool(true, "LoRA on the MLP layers"),

  "training.group_size": int(MANDATORY, "rollouts per prompt; becomes rllm.rollout.n", {
    min: 1,
    same: "rllm.rollout.n",
  }),
  ...OPTIMISER_FIELDS,
  "training.grad_clip_norm": float(0, "largest global gradient norm; 0 = no clipping", { min: 0 }),
  "training.seed": int(0, "seed of the adapter and of sampling", { min: 0 }),
  "training.max_length": int(32768, "longest context, in tokens", { min: 1 }),
  "training.num_minibatches": int(1, "minibatches per step", {
    min: 1,
    note: "rLLM only warns for any other value than 1.",
  }),
  "training.max_untrained_steps": MAX_UNTRAINED_STEPS,
  ...OFF_POLICY_FIELDS,
  "training.default_local_dir": str("/tmp/rllm-tinker-checkpoints", "folder of the checkpoint records", {
    note: "The guide's default; rLLM's August 2026 source uses checkpoints/<project>/<experiment>.",
  }),
  "training.resume_mode": RESUME_MODE,
  "training.resume_from_path": str(null, "checkpoint folder to continue from, with resume_mode=resume_path"),
  "training.max_ckpt_to_keep": int(null, "number of newest checkpoint records kept; null = all", { min: 1 }),
  ...KEEP_FIELDS,
  "training.resume_from_tinker_id": str(null, "checkpoint or model id of the service to continue from"),

  "validation.group_size": int(MANDATORY, "rollouts per prompt in validation; becomes rllm.rollout.n_val", {
    min: 1,
    same: "rllm.rollout.n_val",
  }),

  "sampling.train.temperature": float(1, "training: temperature; the same as rllm.rollout.train.temperature", {
    min: 0,
    same: "rllm.rollout.train.temperature",
  }),
  "sampling.train.top_p": float(1, "training: nucleus threshold", {
    min: 0,
    max: 1,
    same: "rllm.rollout.train.top_p",
  }),
  "sampling.train.top_k": int(-1, "training: top-k; -1 = off", { min: -1, same: "rllm.rollout.train.top_k" }),
  "sampling.val.temperature": float(1, "validation: temperature", {
    min: 0,
    same: "rllm.rollout.val.temperature",
  }),
  "sampling.val.top_p": float(1, "validation: nucleus threshold", {
    min: 0,
    max: 1,
    same: "rllm.rollout.val.top_p",
  }),
  "sampling.val.top_k": int(-1, "validation: top-k; -1 = off", { min: -1, same: "rllm.rollout.val.top_k" }),

  "rollout_engine.reasoning_effort": str("medium", "reasoning effort of models that have one", RENDERED_HERE),
  "rollout_engine.accumulate_reasoning": bool(false, "keep the reasoning of earlier steps", {
    same: "rllm.accumulate_reasoning",
  }),
  "rollout_engine.disable_thinking": bool(false, "suppress thinking tokens", {
    same: "rllm.disable_thinking",
  }),
  "rollout_engine.bypass_render_with_parser": bool(
    false,
    "render with the chat parser instead of the renderer",
    RENDERED_HERE,
  ),
  "rollout_engine.renderer_name": str(null, "renderer; null = the model's", RENDERED_HERE),

  "workflow.n_parallel_tasks": int(256, "rollouts that run at the same time", {
    min: 1,
    same: "rllm.workflow.n_parallel_tasks",
    onlyExplicit: true,
  }),
  "workflow.retry_limit": int(3, "attempts per rollout", {
    min: 1,
    same: "rllm.workflow.retry_limit",
    onlyExplicit: true,
  }),
  "agent.max_steps": int(1, "maximum steps in one trajectory", {
    min: 1,
    same: "rllm.agent.max_steps",
    onlyExplicit: true,
  }),
  "agent.agent_args": dict("arguments of the agent", { same: "rllm.agent.agent_args", onlyExplicit: true }),

  ...DATA_FIELDS,

  ...GDPO_FIELDS,

  ...PIPELINE_FIELDS,

  ...DISTILLATION_FIELDS,

  ...TASK_FIELDS,
} as const;

export const TINKER_SECTIONS: Readonly<Record<string, string>> = {
  model: "Base model and LoRA",
  sampling: "Sampling (rllm.rollout.train and .val are the portable names)",
  rollout_engine: "Rollout engine",
  ...SHARED_SECTIONS,
  task: "The task; a section that only grpu has",
};
