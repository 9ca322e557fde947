/**
 * The `trinity` backend: Trinity-RFT's own trainer on a Ray cluster. A run is written in verl's names, like one for verl, and
 * becomes Trinity's own configuration (`src/cluster/convert/trinity`) when the job is made. Settings that Trinity alone has are in
 * the section `trinity`.
 */
import { bool, dict, each, type Field, type FieldTable, int, oneOf } from "./field.ts";
import { VERL_FIELDS } from "./verl.ts";

/** Settings that verl's workers read and Trinity has no counterpart for. */
const WITHOUT_COUNTERPART = [
  "actor_rollout_ref.rollout.mode",
  "actor_rollout_ref.rollout.agent.num_workers",
  "actor_rollout_ref.rollout.calculate_log_probs",
  "actor_rollout_ref.actor.use_rollout_log_probs",
  "data.gen_batch_size",
  "data.return_multi_modal_inputs",
  "rollout.nnodes",
  "rollout.n_gpus_per_node",
  "async_training.partial_rollout",
  "rollout.max_num_seqs",
  "rollout.max_num_batched_tokens",
] as const;

type Note = Partial<Pick<Field, "default" | "describe" | "note" | "on" | "why">>;

/** Rows that differ from those of the verl backend. */
const OTHERWISE: Readonly<Record<string, Note>> = {
  ...Object.fromEntries(WITHOUT_COUNTERPART.map((path) => [path, { on: "dropped" }])),
  "actor_rollout_ref.rollout.val_kwargs.do_sample": { on: "forwarded" },
  "rllm.backend": { default: "trinity" },
  "rllm.algorithm.rollout_correction.bypass_mode": { describe: "pinned: the old log-probs are computed again" },
  "data.prompt_type": {
    describe: "how a text prompt is read: unchanged, or as one user message; both are sent as one",
  },
  "training.num_minibatches": { describe: "optimiser steps per batch; null = as ppo_mini_batch_size says" },
  "training.seed": { why: "Trinity's engines have seeds of their own" },
  "training.resume_from_path": { on: "refused", why: { trinity: "Trinity only continues from its own folder" } },
  ...Object.fromEntries(
    ["algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"].map((path) => [
      path,
      { on: "refused", why: "Trinity has no gdpo" },
    ]),
  ),
  "ray.pip": { note: "Empty where Trinity-RFT is part of the cluster's image." },
  "ray.max_failed_share": {
    note: "Trinity goes on without failed rollouts. Counted over the latest 256, once 32 have ended.",
  },
};

/** Defaults that make a run: Trinity's own, where verl has none or another. Each stands after its neighbour in the file. */
const ADDED: Readonly<Record<string, FieldTable>> = {
  "actor_rollout_ref.rollout.mode": {
    "actor_rollout_ref.rollout.name": oneOf(["vllm", "sglang"], "vllm", "sampling engine"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": int(1, "GPUs per engine", { min: 1 }),
  },
  "actor_rollout_ref.actor.use_rollout_log_probs": {
    "actor_rollout_ref.actor.use_dynamic_bsz": bool(true, "fill passes by tokens instead of rows"),
  },
};

export const TRINITY_BACKEND_FIELDS: FieldTable = {
  ...Object.fromEntries(
    Object.entries<Field>(VERL_FIELDS).flatMap(([path, field]) => [
      [path, { ...field, ...OTHERWISE[path] }] as const,
      ...Object.entries(each({ on: "forwarded" }, ADDED[path] ?? {})),
    ]),
  ),
  trinity: dict("settings of Trinity-RFT under its own names, which win over what is converted", {
    on: "acts",
    note: "For example trinity.explorer.rollout_model.engine_num, trinity.mode=bench, trinity.model.tinker.enable.",
  }),
};
