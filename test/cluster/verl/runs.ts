/** Composed configurations of verl runs, as `grpu train` makes them. */

import { verlVersion } from "../../../src/cluster/verl/versions.ts";
import { tryCompose } from "../../../src/train/config/compose.ts";
import { readConfig } from "../../train/config/disk.ts";

export const READY = [
  "actor_rollout_ref.rollout.name=vllm",
  "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B",
  "trainer.default_local_dir=/shared/run",
  "actor_rollout_ref.actor.use_dynamic_bsz=true",
  "training.num_minibatches=1",
  "rllm.data.max_response_length=1024",
];
export const FILES = { train: "train.jsonl", val: "val.jsonl", reward: "verl_reward.py" };

export function compose(name: string, overrides: readonly string[] = READY) {
  const version = verlVersion(name);
  const composed = tryCompose({
    readConfig,
    overrides: ["rllm/backend=verl", `verl=${version.tree}`, ...overrides],
    env: {},
  });
  return { composed, version, readConfig };
}
