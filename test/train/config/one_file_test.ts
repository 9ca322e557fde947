/** One file of a run under every backend: which portable settings agree, and which differ because of the backend. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { trinityJob } from "../../../src/cluster/trinity/job.ts";
import { verlJob } from "../../../src/cluster/verl/job.ts";
import { verlVersion } from "../../../src/cluster/verl/versions.ts";
import { verlLeaves } from "../../../src/train/config/fields/verl_tree.ts";
import { getAt, leaves, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { compose, readConfig } from "./disk.ts";

const FILE = `
task: {name: arithmetic}
model: {name: some/model, lora_rank: 16}
data: {prompt_type: messages, system_prompt: Answer with a number.}
training: {learning_rate: 3e-5, num_minibatches: 2, seed: 3, group_size: 4, default_local_dir: runs/sums}
validation: {group_size: 2}
rllm:
  data: {train_batch_size: 16, max_prompt_length: 64, max_response_length: 32}
  rollout: {val: {temperature: 0}}
  workflow: {retry_limit: 2}
  algorithm: {adv_estimator: rloo, kl_beta: 0.01, eps_clip: 0.1, eps_clip_high: 0.3}
  trainer: {total_batches: 5, test_freq: 2, save_freq: -1, project_name: p, experiment_name: e}
`;
const MORE: Readonly<Record<string, readonly string[]>> = {
  local: [],
  tinker: [],
  verl: ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.actor.use_dynamic_bsz=true"],
  trinity: ["trainer.n_gpus_per_node=8", "trainer.default_local_dir=/shared/sums"],
};

function composedOn(backend: string) {
  const options = { texts: { "run.yaml": FILE }, allowMissing: false };
  return compose([`rllm/backend=${backend}`, ...MORE[backend]!], options);
}

function settingsOn(backend: string): Map<string, YamlValue> {
  return new Map(leaves(composedOn(backend).config));
}

const local = settingsOn("local");
const portable = [...local.keys()].filter((path) => path.startsWith("rllm."));

/** Portable settings with another value than on the local backend. */
function differing(backend: string): Record<string, [local: YamlValue | undefined, there: YamlValue | undefined]> {
  const there = settingsOn(backend);
  const paths = new Set([...portable, ...[...there.keys()].filter((path) => path.startsWith("rllm."))]);
  const pairs = [...paths].map((path) => [path, [local.get(path), there.get(path)]] as const);
  return Object.fromEntries(pairs.filter(([, [a, b]]) => JSON.stringify(a) !== JSON.stringify(b))) as never;
}

test("the portable settings of one file agree on all backends, but for what a backend pins", () => {
  expect(portable.length).toBeGreaterThan(100);
  expect(differing("tinker")).toMatchInlineSnapshot(`
    {
      "rllm.algorithm.rollout_correction.bypass_mode": [
        null,
        true,
      ],
      "rllm.backend": [
        "local",
        "tinker",
      ],
      "rllm.rollout.train.top_k": [
        undefined,
        -1,
      ],
      "rllm.rollout.val.top_k": [
        undefined,
        -1,
      ],
    }
  `);
  expect(differing("verl")).toMatchInlineSnapshot(`
    {
      "rllm.algorithm.rollout_correction.bypass_mode": [
        null,
        false,
      ],
      "rllm.backend": [
        "local",
        "verl",
      ],
      "rllm.data.val_batch_size": [
        32,
        -1,
      ],
    }
  `);
});

const TASKS = Array.from({ length: 32 }, (_, i) => ({ id: `${i}`, instruction: `${i}+1=`, metadata: {} }));
const JOB = {
  ...{ submission_id: "grpu-1", hasAgent: false, train: TASKS, val: TASKS, readPackaged: readConfig },
  service: { url: "http://10.0.0.1:7000", token: "a-token-of-a-test-run" },
};

/** What a person reads in the three settings tables and in the dry runs: one figure under each system's name. */
const SHARED: readonly (readonly [ours: string, verl: string, trinity: string])[] = [
  ["rllm.data.train_batch_size", "data.train_batch_size", ""],
  ["rllm.data.max_prompt_length", "data.max_prompt_length", "model.max_prompt_tokens"],
  ["rllm.data.max_response_length", "data.max_response_length", "model.max_response_tokens"],
  ["rllm.rollout.n", "actor_rollout_ref.rollout.n", "algorithm.repeat_times"],
  ["rllm.rollout.n_val", "actor_rollout_ref.rollout.val_kwargs.n", ""],
  ["rllm.rollout.train.temperature", "actor_rollout_ref.rollout.temperature", ""],
  ["rllm.rollout.val.temperature", "actor_rollout_ref.rollout.val_kwargs.temperature", ""],
  ["rllm.algorithm.adv_estimator", "algorithm.adv_estimator", "algorithm.advantage_fn"],
  ["rllm.algorithm.kl_beta", "actor_rollout_ref.actor.kl_loss_coef", "algorithm.kl_loss_fn_args.kl_coef"],
  ["rllm.algorithm.eps_clip", "actor_rollout_ref.actor.clip_ratio_low", "algorithm.policy_loss_fn_args.clip_range_low"],
  [
    "rllm.algorithm.eps_clip_high",
    "actor_rollout_ref.actor.clip_ratio_high",
    "algorithm.policy_loss_fn_args.clip_range_high",
  ],
  ["training.learning_rate", "actor_rollout_ref.actor.optim.lr", "algorithm.optimizer.lr"],
  ["model.name", "actor_rollout_ref.model.path", "model.model_path"],
  ["model.lora_rank", "actor_rollout_ref.model.lora_rank", ""],
  ["rllm.trainer.total_batches", "trainer.total_training_steps", ""],
  ["rllm.trainer.experiment_name", "trainer.experiment_name", "name"],
  ["rllm.trainer.project_name", "trainer.project_name", "project"],
];

test("the dry runs send the figures of the settings table", () => {
  const sent = verlJob({ ...JOB, composed: composedOn("verl"), version: verlVersion("0.8") });
  const trinity = trinityJob({ ...JOB, composed: composedOn("trinity") });
  const errors = [...sent.problems, ...trinity.problems].filter(({ severity }) => severity === "error");
  expect(errors).toEqual([]);
  const overrides = new Map(
    sent.overrides.map((each) => /^\+*([^=]*)=(.*)$/s.exec(each)!.slice(1, 3) as [string, string]),
  );
  const usual = new Map([...verlLeaves(readConfig, "0.8.0", "dp")].map(([path, { value }]) => [path, value] as const));
  const tinker = settingsOn("tinker");
  for (const [ours, verl, theirs] of SHARED) {
    const value = local.get(ours)!;
    if (tinker.has(ours)) expect([ours, tinker.get(ours)]).toEqual([ours, value]);
    const onVerl = overrides.get(verl) ?? usual.get(verl);
    // An override is a text.
    expect([verl, typeof value === "number" ? Number(onVerl) : onVerl]).toEqual([verl, value]);
    if (theirs !== "") expect([theirs, getAt(trinity.tree, theirs)]).toEqual([theirs, value]);
  }
});

test("docs/scale.md lists every difference", () => {
  const page = readFileSync(new URL("../../../docs/scale.md", import.meta.url), "utf8");
  const table = page.split("### Settings that differ\n")[1]!.split("\n\n")[1]!;
  const rows = table
    .split("\n")
    .slice(2)
    .map((row) => /`([^`]+)` \|(.*)\|/.exec(row)!.slice(1, 3) as [string, string]);
  const listed = new Map(
    rows.map(([path, cells]) => [path, cells.split("|").map((cell) => cell.trim().replaceAll("`", ""))]),
  );
  const told = (value: YamlValue | undefined) => (value === undefined ? "" : String(value));
  const backends = ["tinker", "verl", "trinity"];
  const found = backends.map((backend) => differing(backend));
  const paths = new Set(found.flatMap((each) => Object.keys(each)));
  expect([...listed.keys()].sort()).toEqual([...paths].filter((path) => path !== "rllm.backend").sort());
  for (const [path, [here, ...there]] of listed) {
    expect([path, here]).toEqual([path, told(local.get(path))]);
    for (const [i, cell] of there.slice(0, 3).entries())
      expect([path, backends[i], cell]).toEqual([path, backends[i], told(settingsOn(backends[i]!).get(path))]);
  }
});

test("names of the local backend reach verl's tree with their values", () => {
  const verl = settingsOn("verl");
  const at = (path: string) => verl.get(`actor_rollout_ref.${path}`);
  expect([at("model.path"), at("model.lora_rank"), at("actor.optim.lr"), at("actor.ppo_mini_batch_size")]).toEqual([
    "some/model",
    16,
    3e-5,
    8,
  ]);
  expect([
    at("rollout.n"),
    at("rollout.val_kwargs.n"),
    at("actor.clip_ratio_low"),
    at("actor.clip_ratio_high"),
  ]).toEqual([4, 2, 0.1, 0.3]);
  expect(verl.get("algorithm.adv_estimator")).toBe("rloo");
});
