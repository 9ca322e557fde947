/** Names that published files still use for settings that moved. */
export const RENAMES: Readonly<Record<string, string>> = {
  log_episodes: "rllm.episode_logging.log_episodes",
  episode_log_dir: "rllm.episode_logging.episode_log_dir",
  "rllm.log_episodes": "rllm.episode_logging.log_episodes",
  "rllm.episode_log_dir": "rllm.episode_logging.episode_log_dir",
  "trainer.log_episodes": "rllm.episode_logging.log_episodes",
  "trainer.episode_log_dir": "rllm.episode_logging.episode_log_dir",
};

/** Where sections of verl 0.8 went in 0.10. */
const MOVED_IN_VERL: readonly (readonly [from: string, to: string])[] = [
  ["critic.model.fsdp_config", "critic.fsdp"],
  ["reward_manager", "reward.reward_manager"],
  ["reward_model.model.path", "reward.reward_model.model_path"],
  ["reward_model", "reward.reward_model"],
  ["custom_reward_function", "reward.custom_reward_function"],
];

/** The path in 0.10 of a setting of verl 0.8 that moved. */
export function movedInVerl(path: string): string | undefined {
  for (const [from, to] of MOVED_IN_VERL) {
    if (path === from || path.startsWith(`${from}.`)) return to + path.slice(from.length);
  }
  return undefined;
}
