/** Settings of a run in Trinity whatever the configuration says: its tasksets, its workflow, its length. */
import type { YamlValue } from "../../train/config/yaml/tree.ts";

/** Folders within the job's working directory, each with one JSONL file. */
export interface TaskFolders {
  /** Absent: the run only validates. */
  readonly train?: string | undefined;
  /** Absent: the run has no validation tasks. */
  readonly val?: string | undefined;
}

export interface TrinitySettingOptions {
  readonly folders: TaskFolders;
  readonly hasAgent: boolean;
  readonly disablesThinking: boolean;
  readonly onlyValidates: boolean;
  /** `trinity.model.tinker`: rollouts come from a service. */
  readonly isTinker: boolean;
}

const INPUT = "buffer.explorer_input";

/** The workflows of `config/ray/`, by module and class, as Trinity's registry imports them. */
export const REWARD_WORKFLOW = "trinity_reward.GrpuReward";
export const AGENT_WORKFLOW = "trinity_agent.GrpuAgent";

/** Settings that nothing may change. */
export function fixedSettings({ folders, hasAgent }: TrinitySettingOptions): Map<string, YamlValue> {
  const fixed = new Map<string, YamlValue>([
    [`${INPUT}.default_workflow_type`, hasAgent ? AGENT_WORKFLOW : REWARD_WORKFLOW],
  ]);
  const sets = [
    ...(folders.train === undefined ? [] : taskset("tasksets.0", "train", folders.train)),
    ...(folders.val === undefined ? [] : taskset("eval_tasksets.0", "val", folders.val)),
  ];
  for (const [path, value] of sets) fixed.set(path, value);
  return fixed;
}

/** Trinity opens a folder by its data files, whose name says the split. */
function taskset(at: string, name: string, folder: string): [string, YamlValue][] {
  const keys: [string, YamlValue][] = [
    ["name", name],
    ["storage_type", "file"],
    ["path", folder],
    ["split", "train"],
  ];
  return keys.map(([key, value]) => [`${INPUT}.${at}.${key}`, value]);
}

/** Settings that the section `trinity` may change. */
export function usualSettings({ hasAgent, ...options }: TrinitySettingOptions): Map<string, YamlValue> {
  const usual = new Map<string, YamlValue>([
    ["mode", options.onlyValidates ? "bench" : "both"],
    // As in verl, rollouts are made with the weights of the step before.
    ["synchronizer.sync_offset", 0],
    // One monitor writes files beside the checkpoints; this process reads the log and has loggers of its own.
    ["monitor.monitor_type", "tensorboard"],
  ]);
  if (hasAgent) usual.set("explorer.concurrent_mode", "asynchronous");
  // Engines of a service are clients, which take no GPUs to divide.
  if (options.isTinker) usual.set("explorer.rollout_model.engine_num", 1);
  if (options.disablesThinking) usual.set("model.enable_thinking", false);
  return usual;
}
