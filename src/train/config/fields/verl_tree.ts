/**
 * verl's native trees: the versions and engines that ship here, and their settings as a table of fields. Types come from
 * the defaults, meanings from `VERL_NOTES`.
 */

import { readYaml } from "../yaml/read.ts";
import { readPlain } from "../yaml/read_plain.ts";
import { hasInterpolation, isTree, leaves, MANDATORY, type Tree, type YamlValue } from "../yaml/tree.ts";
import type { Field, FieldType } from "./field.ts";
import { VERL_NOTES } from "./verl.ts";

/** Model engines (`model_engine`) of each published version that ships here, the default version first. */
export const VERL_ENGINES: Readonly<Record<string, readonly string[]>> = {
  "0.8.0": ["dp", "megatron", "mindspeed", "torchtitan", "veomni"],
  "0.9.1": ["dp", "megatron", "torchtitan", "veomni"],
};
export const VERL_VERSIONS: readonly string[] = Object.keys(VERL_ENGINES);
/** The version that rLLM requires. */
export const DEFAULT_VERL = "0.8.0";
/** verl's own default: FSDP. */
export const DEFAULT_ENGINE = "dp";
export const MODEL_ENGINES: readonly string[] = [...new Set(Object.values(VERL_ENGINES).flat())];

type ReadConfig = (name: string) => string | undefined;

/** Packaged files of a tree: the settings that all engines share, then the engine's own. */
export function verlFiles(version: string, engine: string = DEFAULT_ENGINE): string[] {
  return [`verl/${version}.yaml`, `verl/${version}/${engine}.yaml`];
}

export interface VerlLeaf {
  readonly value: YamlValue;
  /** `config/verl/0.8.0.yaml:12`. */
  readonly where: string;
}

/** Every setting of one tree with its default and its place. */
export function verlLeaves(
  readConfig: ReadConfig,
  version: string = DEFAULT_VERL,
  engine: string = DEFAULT_ENGINE,
): Map<string, VerlLeaf> {
  const found = new Map<string, VerlLeaf>();
  for (const name of verlFiles(version, engine)) {
    const text = readConfig(name) ?? "";
    const { tree, lines } = readPlain(text) ?? readYaml(text, name);
    for (const [path, value] of leaves(tree)) found.set(path, { value, where: `config/${name}:${lines.get(path)}` });
  }
  return found;
}

/** Every setting of every tree that ships here; of a setting in several, the default tree's, else the newest one's. */
export function allVerlLeaves(readConfig: ReadConfig): Map<string, VerlLeaf> {
  const found = verlLeaves(readConfig);
  for (const version of VERL_VERSIONS) {
    for (const engine of VERL_ENGINES[version]!) {
      for (const [path, leaf] of verlLeaves(readConfig, version, engine)) {
        if (!found.has(path)) found.set(path, leaf);
      }
    }
  }
  return found;
}

/** Names the choice whose tree has a setting (`verl=0.9.1`), an engine of the same version first; reads on first use. */
export function otherVerlTree(readConfig: ReadConfig, version: string = DEFAULT_VERL) {
  let choices: Map<string, string> | undefined;
  return (path: string): string | undefined => {
    choices ??= choicesByPath(readConfig, version);
    return choices.get(path);
  };
}

function choicesByPath(readConfig: ReadConfig, version: string): Map<string, string> {
  const choices = new Map<string, string>();
  for (const other of [version, ...VERL_VERSIONS.filter((name) => name !== version)]) {
    for (const engine of VERL_ENGINES[other] ?? []) {
      const words = [
        other === version ? "" : `verl=${other}`,
        engine === DEFAULT_ENGINE ? "" : `model_engine=${engine}`,
      ];
      const choice = words.filter((word) => word !== "").join(" ") || `model_engine=${DEFAULT_ENGINE}`;
      for (const path of verlLeaves(readConfig, other, engine).keys())
        if (!choices.has(path)) choices.set(path, choice);
    }
  }
  return choices;
}

/** Splits trees into the settings that all engines share and those of each engine. */
export function splitEngines(trees: Readonly<Record<string, Tree>>): {
  shared: Map<string, YamlValue>;
  own: Record<string, Map<string, YamlValue>>;
} {
  const flat = Object.entries(trees).map(([engine, tree]) => [engine, new Map(leaves(tree))] as const);
  const isShared = (path: string, value: YamlValue) =>
    flat.every(([, tree]) => tree.has(path) && JSON.stringify(tree.get(path)) === JSON.stringify(value));
  const shared = new Map([...flat[0]![1]].filter(([path, value]) => isShared(path, value)));
  const distinct = flat.map(([engine, tree]) => [engine, new Map([...tree].filter(([path]) => !shared.has(path)))]);
  return { shared, own: Object.fromEntries(distinct) };
}

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
  reward_model: "The older place of reward.reward_model",
  algorithm: "Advantages, KL, correction",
  distillation: "Distillation from teacher models",
  transfer_queue: "Data plane between workers",
  trainer: "The loop",
  global_profiler: "Profiling",
  skip: "Replay of stored rollouts",
  ray_kwargs: "Ray",
};

/** Comment at the head of a packaged file; `engine` is absent for the file that all engines share. */
export function verlHead(version: string, engine?: string): string {
  const what = engine === undefined ? "whatever the engine" : `with model_engine=${engine}`;
  return (
    `@package _global_\nSettings and defaults of verl ${version}'s ppo_trainer, ${what}.\n` +
    "Written by scripts/verl_trees.mjs from the published package."
  );
}

/** A field per leaf of a native tree. Everything may be null: verl reads null as "not set" nearly everywhere. */
export function verlFields(native: Iterable<readonly [path: string, value: YamlValue]>): Record<string, Field> {
  const fields: Record<string, Field> = {};
  for (const [path, value] of native) fields[path] = verlField(path, value);
  return fields;
}

export function verlField(path: string, value: YamlValue): Field {
  const note = VERL_NOTES[path] ?? { describe: "" };
  return { type: typeOf(value), default: value, nullable: true, ...note };
}

function typeOf(value: YamlValue): FieldType {
  if (typeof value === "boolean") return "bool";
  if (typeof value === "number") return "number";
  if (Array.isArray(value)) return "list";
  if (isTree(value)) return "dict";
  const isOpaque = value === null || value === MANDATORY || hasInterpolation(value);
  return isOpaque ? "any" : "str";
}
