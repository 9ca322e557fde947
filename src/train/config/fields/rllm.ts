/**
 * Settings that mean the same on every backend (`config/rllm/base.yaml`).
 * Names and defaults are rLLM's: its published guide decides, its current source adds what the guide lacks.
 * The YAML file is rendered from this table: after a change run `npx vitest run test/train/config/yaml_test.ts -u`.
 */
import { ALGORITHM_FIELDS } from "./rllm/algorithm.ts";
import { GROUP_FIELDS } from "./rllm/groups.ts";
import { ROLLOUT_FIELDS } from "./rllm/rollout.ts";
import { SERVICE_FIELDS } from "./rllm/services.ts";
import { ASYNC_FIELDS, EPISODE_LOGGING_FIELDS, RLLM_TRAINER_FIELDS } from "./rllm/trainer.ts";

export const RLLM_FIELDS = {
  ...ROLLOUT_FIELDS,
  ...RLLM_TRAINER_FIELDS,
  ...ALGORITHM_FIELDS,
  ...GROUP_FIELDS,
  ...SERVICE_FIELDS,
  ...ASYNC_FIELDS,
  ...EPISODE_LOGGING_FIELDS,
} as const;

/** One line above a section of the rendered YAML. */
export const RLLM_SECTIONS: Readonly<Record<string, string>> = {
  "rllm.data": "Batch sizes and lengths, for every backend",
  "rllm.agent": "The agent that acts in the environment",
  "rllm.env": "The environment",
  "rllm.workflow": "Workflows: the other way to roll out, instead of an agent",
  "rllm.rollout": "Rollouts: how many, and how tokens are sampled",
  "rllm.trainer": "The loop",
  "rllm.algorithm": "Advantages, loss, schedule",
  "rllm.algorithm.rollout_correction": "Correction for the gap between sampler and trainer",
  "rllm.stepwise_advantage": "Advantages of multi-step trajectories",
  "rllm.compact_filtering": "Mask trajectories that ended because of ...",
  "rllm.rejection_sample": "Rejection sampling",
  "rllm.transform": "Names of trajectories",
  "rllm.sdk": "Trace store and proxy of the SDK",
  "rllm.remote_runtime": "Agents in remote sandboxes",
  "rllm.gateway": "Model gateway",
  "rllm.async_training": "Asynchronous training",
  "rllm.episode_logging": "Episodes on disk",
};
