/** verl's native tree as a table of fields: types from its defaults, meanings from `VERL_NOTES`. */
import type { Field, FieldType } from "./field.ts";
import { VERL_NOTES } from "./fields_verl.ts";
import { isTree, leaves, type Tree, type Value } from "./tree.ts";

export const VERL_VERSIONS = ["0.10", "0.8"] as const;

export const VERL_SECTIONS: Readonly<Record<string, string>> = {
  actor_rollout_ref: "Actor, reference model and sampler",
  "actor_rollout_ref.actor": "The policy that is trained",
  "actor_rollout_ref.actor.optim": "Its optimiser",
  "actor_rollout_ref.actor.fsdp_config": "Its sharding",
  "actor_rollout_ref.actor.policy_loss": "Its loss",
  "actor_rollout_ref.ref": "The reference model",
  "actor_rollout_ref.rollout": "The sampler",
  "actor_rollout_ref.rollout.val_kwargs": "Sampling in validation",
  "actor_rollout_ref.rollout.multi_turn": "Multi-turn rollouts with tools",
  "actor_rollout_ref.model": "The model of all three",
  data: "Rows, lengths and batch sizes",
  critic: "The value model",
  reward: "Rewards",
  reward_model: "Reward model; since 0.10 its settings are under reward",
  algorithm: "Advantages, KL, correction",
  distillation: "Distillation from teacher models",
  transfer_queue: "Data plane between workers",
  trainer: "The loop",
  global_profiler: "Profiling",
  skip: "Replay of stored rollouts",
  ray_kwargs: "Ray",
};

export function verlHead(version: string): string {
  return `@package _global_\nverl's native settings (ppo_trainer) as of version ${version}, with verl's defaults.`;
}

/** A field per leaf of a native tree. Everything may be null: verl reads null as "not set" nearly everywhere. */
export function verlFields(tree: Tree): Record<string, Field> {
  const fields: Record<string, Field> = {};
  for (const [path, value] of leaves(tree)) fields[path] = verlField(path, value);
  return fields;
}

export function verlField(path: string, value: Value): Field {
  const note = VERL_NOTES[path] ?? { describe: "" };
  return { type: typeOf(value), default: value, nullable: true, ...note };
}

function typeOf(value: Value): FieldType {
  if (typeof value === "boolean") return "bool";
  if (typeof value === "number") return "number";
  if (Array.isArray(value)) return "list";
  if (isTree(value)) return "dict";
  const isOpaque = value === null || value === "???" || (value as string).includes("${");
  return isOpaque ? "any" : "str";
}
