/** Converted files in Trinity-RFT's own loader, which refuses unknown keys and wrong types, where Python has it. */
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { writeYaml } from "../../../src/cluster/convert/write.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { pythonWith } from "../../fixtures/python.ts";
import { readConfig } from "../../train/config/disk.ts";

const python = pythonWith("trinity.common.config");
const folder = temporaryFolder("trinity");

const ACTOR = "actor_rollout_ref.actor";
const RUNS: Readonly<Record<string, readonly string[]>> = {
  grpo: [
    "algorithm.adv_estimator=grpo",
    "data.train_files=/d/train.parquet",
    "data.val_files=/d/test.parquet",
    "trainer.test_freq=5",
    "actor_rollout_ref.rollout.n=4",
    `${ACTOR}.use_kl_loss=true`,
  ],
  ppo: [
    "algorithm.adv_estimator=gae",
    "algorithm.lam=0.95",
    "critic.model.path=Q",
    "critic.optim.lr=1e-5",
    "reward_model.enable=true",
    "reward_model.model.path=R",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=8",
  ],
  gspo: [
    "algorithm.adv_estimator=grpo",
    `${ACTOR}.policy_loss.loss_mode=gspo`,
    "actor_rollout_ref.model.lora_rank=8",
    "trainer.total_training_steps=10",
    "data.shuffle=true",
    "data.seed=1",
  ],
};

describe.skipIf(python === undefined)("Trinity's loader takes what is converted", () => {
  for (const [name, lines] of Object.entries(RUNS)) {
    test.each(["legacy", "new"] as const)(`${name}, for its %s builder`, (target) => {
      const source = readSource([{ name: "in.args", text: lines.join("\n") }], "verl");
      const { values, problems } = convert(source, { to: "trinity", readConfig, target });
      expect(problems).toEqual([]);
      const path = join(folder, `${name}_${target}.yaml`);
      writeFileSync(path, writeYaml(values, { system: "trinity", source }));
      const script =
        "import sys; from trinity.common.config import load_config; print(load_config(sys.argv[1]).algorithm.advantage_fn)";
      const { status, stdout, stderr } = spawnSync(python as string, ["-c", script, path], {
        encoding: "utf8",
      });
      expect([stderr.includes("Invalid configuration"), status]).toEqual([false, 0]);
      expect(stdout.trim().split("\n").at(-1)).toBe(values.get("algorithm.advantage_fn")?.value);
    });
  }
});
