/** Demands of a configuration that cannot act in verl's own trainer, each with the setting and what to do. */

import { ownAggregation } from "../../engine/algorithm/loss/losses.ts";
import type { Composed } from "../../train/config/compose.ts";
import type { Problem } from "../../train/config/problem.ts";
import { aggregationConflict } from "../../train/config/rules/aggregation.ts";
import { GDPO_KEYS } from "../../train/config/rules/gdpo.ts";
import { originOf } from "../../train/config/yaml/layer.ts";
import { getAt, isTree, leaves, type YamlValue } from "../../train/config/yaml/tree.ts";
import { isTyped, type RunFiles } from "./own_settings.ts";
import type { VerlVersion } from "./versions.ts";

export interface VerlRefusalRequest {
  readonly composed: Composed;
  readonly version: VerlVersion;
  readonly files: RunFiles;
  readonly hooks: readonly string[];
}

interface Finding {
  readonly path: string;
  readonly message: string;
  readonly severity?: "warning";
}

type Read = (path: string) => YamlValue | undefined;

const ACTOR = "actor_rollout_ref.actor";
const STEP = "verl's own trainer makes the step, and it has no such thing";

/** Portable settings that act in the loop's own step, the value with which they do nothing, and what verl has instead. */
const OF_THE_LOOP: readonly (readonly [path: string, idle: YamlValue, advice: string])[] = [
  ["rllm.rejection_sample.enable", false, "On verl 0.9 set algorithm.filter_groups.enable=true instead"],
  ["rllm.rejection_sample.filter_uniform_groups", false, "On verl 0.9 set algorithm.filter_groups.enable=true instead"],
  ["rllm.rejection_sample.multiplier", 1, "Set it to 1"],
  ["rllm.compact_filtering.enable", false, "Set it to false"],
  ["rllm.stepwise_advantage.enable", false, "Set it to false"],
  ["rllm.algorithm.use_precomputed_advantage", false, "Set it to false"],
  ["rllm.algorithm.traj_grouping_hook", null, "Set it to null"],
  ["rllm.algorithm.traj_group_adv_estimator_map", {}, "Use one algorithm.adv_estimator"],
  ["rllm.algorithm.estimator_args", {}, "Use the settings that verl's estimator has"],
  [
    "rllm.async_training.enable",
    false,
    "Set it to false, and on verl 0.9 trainer.v1.trainer_mode=separate_async for rollouts beside training",
  ],
];

/** They mask the rows of an agent, which are made here; rows that verl samples by itself are its own. */
const MASKS = ["rllm.mask_truncated_samples", "rllm.agent.overlong_filter"];

/** All problems; those of one setting name the line where it was written. */
export function findVerlRefusals(request: VerlRefusalRequest): Problem[] {
  const { config, origins } = request.composed;
  const read: Read = (path) => getAt(config, path);
  const found: Finding[] = [
    ...loopFindings(read),
    ...nameFindings(read, request.version),
    ...gdpoFindings(read, request.version),
    ...rewardFindings(request),
    ...folderFindings(read),
    ...passFindings(read),
    ...aggregationFindings(request, read),
    ...rolloutFindings(request, read),
    ...request.hooks.map((hook) => ({
      path: hook,
      message: `Cannot use ${hook}: it acts in the training step, which runs in verl's Python. Train with rllm/backend=local, or remove it.`,
    })),
  ];
  return found.map(({ path, message, severity }): Problem => {
    const place = isTyped(request.composed, path) && originOf(origins, path)!;
    return { severity: severity ?? "error", message, path, ...(place && { file: place.file, line: place.line }) };
  });
}

function loopFindings(read: Read): Finding[] {
  return OF_THE_LOOP.flatMap(([path, idle, advice]) => {
    const value = read(path)!;
    const isIdle = value === idle || (isTree(value) && Object.keys(value).length === 0);
    return isIdle
      ? []
      : [{ path, message: `Cannot set ${path}=${JSON.stringify(value)} on verl: ${STEP}. ${advice}.` }];
  });
}

function nameFindings(read: Read, { name, estimators, losses }: VerlVersion): Finding[] {
  const check = (path: string, accepted: readonly string[]): Finding[] => {
    const value = read(path);
    if (accepted.includes(String(value))) return [];
    const message = `Cannot set ${path}=${value}: verl ${name} has ${accepted.join(", ")}. Choose one of them.`;
    return [{ path, message }];
  };
  return [...check("algorithm.adv_estimator", estimators), ...check(`${ACTOR}.policy_loss.loss_mode`, losses)];
}

/** Columns that verl's rows have already: a component of the name would take their place, or lose its own. */
const TAKEN = new Set(
  [
    "score",
    "acc",
    "uid",
    "index",
    "data_source",
    "prompt",
    "ability",
    "reward_model",
    "extra_info",
    "agent_name",
  ].concat(["raw_prompt", "raw_prompt_ids", "tools_kwargs", "interaction_kwargs", "multi_modal_inputs", "request_id"]),
);

/** Returns findings about GDPO in verl. The rules of all backends check its keys and weights (config/rules/gdpo.ts). */
function gdpoFindings(read: Read, { name, hasV1 }: VerlVersion): Finding[] {
  if (read("algorithm.adv_estimator") !== "gdpo") return [];
  const found: Finding[] = [];
  const trainer = "trainer.use_v1";
  if (hasV1 && read(trainer) !== false) {
    const message = `Cannot set algorithm.adv_estimator=gdpo with ${trainer}=${read(trainer)}: this trainer of verl ${name} does not hand a reward's components to its estimator, and ends at its first step. Set ${trainer}=false, choose the tree of verl=0.8.0, or another estimator.`;
    found.push({ path: trainer, message });
  }
  const keys = (read(GDPO_KEYS) ?? []) as readonly YamlValue[];
  const taken = keys.find((key) => TAKEN.has(String(key)));
  if (taken !== undefined) {
    const message = `Cannot use the component ${taken} of ${GDPO_KEYS}: verl's rows have a column of that name. Rename it in the reward.`;
    found.push({ path: GDPO_KEYS, message });
  }
  return found;
}

function rewardFindings({ composed, version }: VerlRefusalRequest): Finding[] {
  const typed = [...leaves(composed.config)].filter(([path]) => isTyped(composed, path));
  return typed.flatMap(([path, value]): Finding[] => {
    if (value === null) return [];
    if (/^(reward\.)?custom_reward_function\./.test(path))
      return [{ path, message: `Cannot set ${path}: rewards come from this run's own reward function. Remove it.` }];
    if (version.hasV1 && /^(reward_model|sandbox_fusion)\./.test(path))
      return [{ path, message: `Cannot set ${path}: verl ${version.name} ignores it. ${newPlace(path)}.` }];
    return /^(reward\.reward_manager\.name|reward_model\.reward_manager)$/.test(path)
      ? managerFinding(path, value)
      : [];
  });
}

/** Settings of verl 0.8 that have another name under `reward.` since. */
const RENAMED: Readonly<Record<string, string>> = {
  "reward_model.reward_manager": "reward_manager.name",
  "reward_model.num_workers": "num_workers",
  "reward_model.model.path": "reward_model.model_path",
};

function newPlace(path: string): string {
  return `Set reward.${RENAMED[path] ?? path}`;
}

function managerFinding(path: string, value: YamlValue): Finding[] {
  const why: Record<string, string> = {
    remote: "it refuses asynchronous reward functions, and the run's is one",
    rate_limited: "it turns a reward that fails into 0",
  };
  const reason = why[String(value)];
  return reason ? [{ path, message: `Cannot set ${path}=${value}: ${reason}. Use naive.` }] : [];
}

/** The working directory of a job is a temporary folder on each node. */
function folderFindings(read: Read): Finding[] {
  const found: Finding[] = [];
  const isFixed = (value: YamlValue | undefined) => typeof value === "string" && /^(\/|\w+:\/\/)/.test(value);
  const saves = read("trainer.save_freq");
  const dir = read("trainer.default_local_dir");
  if (typeof saves === "number" && saves > 0 && !isFixed(dir)) {
    const message = `Cannot save checkpoints in trainer.default_local_dir=${dir}: a relative folder is deleted with the job. Give an absolute folder that all nodes share, or set trainer.save_freq=-1.`;
    found.push({ path: "trainer.default_local_dir", message });
  }
  const from = read("trainer.resume_from_path");
  if (read("trainer.resume_mode") === "resume_path" && !(isFixed(from) && /global_step_\d+$/.test(String(from)))) {
    const message = `Cannot resume from trainer.resume_from_path=${from}: verl takes an absolute folder that ends in global_step_N. Write it.`;
    found.push({ path: "trainer.resume_from_path", message });
  }
  const model = read("actor_rollout_ref.model.path");
  if (typeof model === "string" && /^(\.{1,2}\/|~\/)/.test(model)) {
    const message = `Cannot train actor_rollout_ref.model.path=${model}: this folder is not on the cluster's machines. Give a name of the Hugging Face Hub or an absolute folder that all nodes share.`;
    found.push({ path: "actor_rollout_ref.model.path", message });
  }
  return found;
}

function passFindings(read: Read): Finding[] {
  if (read(`${ACTOR}.use_dynamic_bsz`) !== true) return [];
  const number = (path: string) => Number(read(path));
  const path = `${ACTOR}.ppo_max_token_len_per_gpu`;
  const room = number(path) * number(`${ACTOR}.ulysses_sequence_parallel_size`);
  const longest = number("data.max_prompt_length") + number("data.max_response_length");
  if (!(room < longest)) return [];
  const message = `A pass of ${path}=${number(path)} tokens does not hold the longest row of ${longest} (data.max_prompt_length + data.max_response_length), at which verl stops. Raise it, or lower the lengths.`;
  return [{ path, message, severity: "warning" }];
}

/** A typed mode that the loss ignores, or that makes another loss of it than every other version has. */
function aggregationFindings({ composed, version }: VerlRefusalRequest, read: Read): Finding[] {
  const [path, loss] = [`${ACTOR}.loss_agg_mode`, String(read(`${ACTOR}.policy_loss.loss_mode`))];
  const mode = String(read(path));
  const conflict = aggregationConflict(loss, mode);
  if (conflict === undefined || !isTyped(composed, path)) return [];
  const lossMode = ownAggregation(loss);
  const message = version.averagesByMode.includes(loss)
    ? `verl ${version.name} averages ${loss} by ${path}=${mode}; verl 0.8.0, 0.9.0, its main branch and the other backends here by ${lossMode}. Set it to ${lossMode} to train the same loss everywhere.`
    : `${path}=${mode} acts on KL and entropy terms alone: ${conflict} (verl ${version.name}). Set it to ${lossMode}.`;
  return [{ path, message, severity: "warning" }];
}

function rolloutFindings({ files }: VerlRefusalRequest, read: Read): Finding[] {
  const found: Finding[] = [];
  const replay = read("rllm.algorithm.router_replay");
  if (files.agents !== undefined && replay === "R3") {
    const message =
      "Cannot replay expert routing (rllm.algorithm.router_replay=R3) with an agent of this run: the routing does not travel with its tokens. Set it to R2 or disabled.";
    found.push({ path: "rllm.algorithm.router_replay", message });
  }
  if (files.agents !== undefined) return found;
  for (const path of MASKS) {
    if (read(path) !== true) continue;
    found.push({ path, message: `Cannot set ${path}=true on verl without an agent: ${STEP}. Set it to false.` });
  }
  const [longest, limit] = [read("rllm.rollout.val.max_tokens"), read("data.max_response_length")];
  if (longest !== limit && typeof longest === "number") {
    const message = `rllm.rollout.val.max_tokens=${longest} has no effect on verl: validation has the limit of training (data.max_response_length=${limit}).`;
    found.push({ path: "rllm.rollout.val.max_tokens", message, severity: "warning" });
  }
  return found;
}
