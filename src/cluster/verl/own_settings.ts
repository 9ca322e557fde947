/**
 * Settings of a run in verl whatever the configuration says: its data, its rewards, its agents and the lines that it
 * follows.
 */

import { ownAggregation } from "../../engine/algorithm/loss/losses.ts";
import type { Composed } from "../../train/config/compose.ts";
import { LEVEL, originOf } from "../../train/config/yaml/layer.ts";
import { getAt, type YamlValue } from "../../train/config/yaml/tree.ts";
import type { VerlVersion } from "./versions.ts";

const ACTOR = "actor_rollout_ref.actor";

/** Names within the job's working directory, which is the current folder of verl's driver and workers. */
export interface RunFiles {
  readonly train: string;
  /** Absent: the run has no validation tasks. */
  readonly val?: string | undefined;
  /** The Python file with the reward function. */
  readonly reward: string;
  /** The list of agent loops (`agent.yaml`), where rollouts are made by an agent of the run. */
  readonly agents?: string | undefined;
}

export interface VerlSettingOptions {
  readonly version: VerlVersion;
  readonly files: RunFiles;
}

/** The reward function's name in that file. */
export const REWARD_FUNCTION = "compute_score";

/** Settings by path, with their values. */
export function ownSettings(composed: Composed, { version, files }: VerlSettingOptions): Map<string, YamlValue> {
  const settings = new Map<string, YamlValue>([
    ["data.train_files", files.train],
    ["data.val_files", files.val ?? files.train],
    ["data.prompt_key", "prompt"],
    ["data.reward_fn_key", "data_source"],
    ["reward.custom_reward_function.path", files.reward],
    ["reward.custom_reward_function.name", REWARD_FUNCTION],
    // The file has what the log may lack at its end.
    ["trainer.logger", ["console", "file"]],
  ]);
  // verl opens a validation set in any case.
  if (files.val === undefined) {
    settings.set("data.val_max_samples", 1);
    settings.set("trainer.val_before_train", false);
    settings.set("trainer.test_freq", -1);
  }
  // An agent's prompts are rendered here, by the model's own template; verl's filter would render them by its tokenizer's.
  if (files.agents) settings.set("actor_rollout_ref.rollout.agent.agent_loop_config_path", files.agents);
  else if (!isTyped(composed, "data.filter_overlong_prompts")) settings.set("data.filter_overlong_prompts", true);
  if (!isTyped(composed, "data.seed")) settings.set("data.seed", getAt(composed.config, "rllm.data.seed") ?? null);
  if (getAt(composed.config, "rllm.disable_thinking") === true)
    settings.set("data.apply_chat_template_kwargs.enable_thinking", false);
  // The mode's default is token-mean; other versions average such a loss as it is averaged here.
  const loss = String(getAt(composed.config, `${ACTOR}.policy_loss.loss_mode`));
  const mode = `${ACTOR}.loss_agg_mode`;
  if (version.averagesByMode.includes(loss) && !isTyped(composed, mode)) settings.set(mode, ownAggregation(loss)!);
  // Otherwise a group in which a reward or an agent fails is padded over, and nothing tells.
  const refill = "trainer.v1.sampler.sync_refill_failed_groups";
  if (version.hasV1 && !isTyped(composed, refill)) settings.set(refill, true);
  return settings;
}

/** True of a setting that a file, an override or the environment wrote, not a default. */
export function isTyped({ origins }: Pick<Composed, "origins">, path: string): boolean {
  return (originOf(origins, path)?.level ?? LEVEL.native) >= LEVEL.file;
}
