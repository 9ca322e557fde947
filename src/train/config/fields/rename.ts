/** Old names of moved settings that published files still use. */
export const RENAMES: Readonly<Record<string, string>> = {
  log_episodes: "rllm.episode_logging.log_episodes",
  episode_log_dir: "rllm.episode_logging.episode_log_dir",
  "rllm.log_episodes": "rllm.episode_logging.log_episodes",
  "rllm.episode_log_dir": "rllm.episode_logging.episode_log_dir",
  "trainer.log_episodes": "rllm.episode_logging.log_episodes",
  "trainer.episode_log_dir": "rllm.episode_logging.episode_log_dir",
};

/** Further spellings. `device` is a setting of its own, so its own settings have names of their own. */
export const ALIASES: Readonly<Record<string, string>> = {
  "device.name": "device",
  "device.adapter": "device_adapter",
  "device.backend": "device_backend",
  "device.toggles": "device_toggles",
  "device.products": "device_products",
};

/** New places of verl's sections that versions before 0.8.0 had elsewhere. */
const MOVED_IN_VERL: readonly (readonly [from: string, to: string])[] = [
  ["critic.model.fsdp_config", "critic.fsdp"],
  ["reward_manager", "reward.reward_manager"],
  ["reward_model.model.path", "reward.reward_model.model_path"],
  ["reward_model", "reward.reward_model"],
  ["custom_reward_function", "reward.custom_reward_function"],
];

/** Settings of versions before 0.8.0 that no longer exist. */
const GONE_FROM_VERL =
  /^(data\.(sampler|datagen)|reward_model|trainer\.use_legacy_worker_impl|actor_rollout_ref\.(actor\.sum_pi_squared_checkpointing|rollout\.skip_(rollout|dump_dir)|rollout\.multi_turn\.interaction_config_path))(\.|$)/;

/** True for a setting that verl had before 0.8.0, under this name. */
export function isOlderVerl(path: string): boolean {
  return movedInVerl(path) !== undefined || GONE_FROM_VERL.test(path);
}

/** The path in 0.8.0 and later of a setting of an older verl that moved. */
export function movedInVerl(path: string): string | undefined {
  for (const [from, to] of MOVED_IN_VERL) {
    if (path === from || path.startsWith(`${from}.`)) return to + path.slice(from.length);
  }
  return undefined;
}
