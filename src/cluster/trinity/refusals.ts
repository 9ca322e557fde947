/** Demands of a configuration that cannot act in Trinity-RFT, each with the setting and what to do. */
import type { Composed } from "../../train/config/compose.ts";
import type { Problem } from "../../train/config/problem.ts";
import { LEVEL, originOf } from "../../train/config/yaml/layer.ts";
import { leaves, type YamlValue } from "../../train/config/yaml/tree.ts";
import type { TaskFolders } from "./own_settings.ts";

export interface TrinityRefusalRequest {
  readonly composed: Composed;
  readonly folders: TaskFolders;
  readonly tasks: number;
  readonly hasAgent: boolean;
  readonly hooks: readonly string[];
  /** A setting of the composed configuration. */
  readonly read: (path: string) => YamlValue | undefined;
  /** A setting of Trinity's configuration. */
  readonly out: (path: string) => YamlValue | undefined;
}

interface Finding {
  readonly path: string;
  readonly message: string;
}

/** All problems; those of one setting name the line where it was written. */
export function findTrinityRefusals(request: TrinityRefusalRequest): Problem[] {
  const { origins } = request.composed;
  const found = [
    ...modeFindings(request),
    ...batchFindings(request),
    ...overRolloutFindings(request),
    ...folderFindings(request),
    ...rewardFindings(request),
    ...engineFindings(request),
    ...request.hooks.map((hook) => ({
      path: hook,
      message: `Cannot use ${hook}: it acts in the training step, which runs in Trinity's Python. Train with rllm/backend=local, or remove it.`,
    })),
  ];
  return found.map(({ path, message }): Problem => {
    const origin = originOf(origins, path);
    const isTyped = origin !== undefined && origin.level >= LEVEL.file;
    return { severity: "error", message, path, ...(isTyped && { file: origin.file, line: origin.line }) };
  });
}

const MODES = ["both", "explore", "train", "bench", "colocate"];
const EXPERIENCES = "buffer.trainer_input.experience_buffer.path";

function modeFindings({ out, folders }: TrinityRefusalRequest): Finding[] {
  const mode = String(out("mode"));
  const path = "trinity.mode";
  if (!MODES.includes(mode)) {
    const message = `Cannot run Trinity with ${path}=${mode}: a run here has an end, and the modes with one are ${MODES.join(", ")}. Choose one of them.`;
    return [{ path, message }];
  }
  if ((mode === "explore" || mode === "train") && out(EXPERIENCES) === undefined) {
    const what = mode === "explore" ? "nothing would keep the rollouts" : "there are no rollouts to train on";
    const message = `Cannot run Trinity with ${path}=${mode}: ${what}. Set trinity.${EXPERIENCES} to a file or a database that both runs reach, and its storage_type.`;
    return [{ path, message }];
  }
  if (mode !== "bench" || folders.val !== undefined) return [];
  return [
    { path, message: `Cannot run Trinity with ${path}=bench: there are no validation tasks. Set data.val_files.` },
  ];
}

/** Trinity's reader goes on into the next epoch where a batch does not divide the tasks; fewer than one batch is a mistake. */
function batchFindings({ read, tasks, out }: TrinityRefusalRequest): Finding[] {
  const path = "data.train_batch_size";
  const size = Number(read(path));
  if (tasks >= size || out("mode") === "bench" || out("mode") === "train") return [];
  const message = `Cannot train on ${tasks} tasks with ${path}=${size}: they do not fill one batch. Lower it (rllm.data.train_batch_size), or add tasks.`;
  return [{ path, message }];
}

const OVER = "explorer.over_rollout";
const STYLE = "synchronizer.sync_style";

/** An explorer that leaves the slowest tasks of a batch behind makes steps of its own length, which a fixed rhythm has no place for. */
function overRolloutFindings({ out }: TrinityRefusalRequest): Finding[] {
  const ratio = Number(out(`${OVER}.ratio`) ?? 0);
  const path = `trinity.${OVER}.${ratio > 0 ? "ratio" : "return_partial_tasks"}`;
  if (ratio >= 1) {
    const message = `Cannot set ${path}=${ratio}: it is the share of a batch's tasks that a step does not wait for. Give a number from 0 to below 1.`;
    return [{ path, message }];
  }
  const isUsed = ratio > 0 || out(`${OVER}.return_partial_tasks`) === true;
  if (!isUsed || !["fixed", undefined].includes(out(STYLE) as string | undefined)) return [];
  const message = `Cannot set ${path}=${ratio > 0 ? ratio : true} with trinity.${STYLE}=fixed: Trinity refuses the two together. Set trinity.${STYLE}=explorer_driven or trainer_driven.`;
  return [{ path, message }];
}

function folderFindings({ read, out }: TrinityRefusalRequest): Finding[] {
  const found: Finding[] = [];
  const root = out("checkpoint_root_dir");
  if (typeof root !== "string" || !root.startsWith("/")) {
    const path = "trainer.default_local_dir";
    const message = `Cannot train in ${path}=${read(path)}: Trinity keeps checkpoints, logs and its state there, and a relative folder is deleted with the job. Give an absolute folder that all nodes share.`;
    found.push({ path, message });
  }
  const model = read("actor_rollout_ref.model.path");
  if (typeof model === "string" && /^(\.{1,2}\/|~\/)/.test(model)) {
    const path = "actor_rollout_ref.model.path";
    const message = `Cannot train ${path}=${model}: this folder is not on the cluster's machines. Give a name of the Hugging Face Hub or an absolute folder that all nodes share.`;
    found.push({ path, message });
  }
  return found;
}

function rewardFindings({ composed: { config, origins } }: TrinityRefusalRequest): Finding[] {
  return [...leaves(config)].flatMap(([path, value]): Finding[] => {
    const isTyped = (originOf(origins, path)?.level ?? LEVEL.native) >= LEVEL.file;
    if (!isTyped || value === null) return [];
    if (/^(reward\.)?custom_reward_function\./.test(path))
      return [{ path, message: `Cannot set ${path}: rewards come from this run's own reward function. Remove it.` }];
    if (!/^(reward\.reward_model|reward_model)\.enable$/.test(path) || value !== true) return [];
    return [{ path, message: `Cannot set ${path}=true: rewards come from this run's own reward function. Remove it.` }];
  });
}

const SERVED = ["vllm", "tinker"];

function engineFindings({ out, hasAgent }: TrinityRefusalRequest): Finding[] {
  const path = "actor_rollout_ref.rollout.name";
  const engine = String(out("explorer.rollout_model.engine_type") ?? "vllm");
  if (engine === "external") {
    const message =
      "Cannot sample with trinity.explorer.rollout_model.engine_type=external: Trinity 0.6 looks for an engine that it never makes. Choose vllm or sglang.";
    return [{ path, message }];
  }
  const isTinker = out("model.tinker.enable") === true;
  if (isTinker && out("algorithm.advantage_fn") === "ppo") {
    const estimator = "algorithm.adv_estimator";
    const message = `Cannot train with ${estimator}=gae on trinity.model.tinker: it has no critic. Choose grpo or rloo.`;
    return [{ path: estimator, message }];
  }
  if (!hasAgent || isTinker || SERVED.includes(engine)) return [];
  const message = `Cannot run an agent on ${path}=${engine}: Trinity's engine takes text there, and an agent's later turns need its tokens. Choose vllm.`;
  return [{ path, message }];
}
