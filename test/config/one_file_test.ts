/** One file of a run under every backend: which portable settings agree, and which differ because of the backend. */
import { expect, test } from "vitest";
import { leaves, type Value } from "../../src/config/yaml/tree.ts";
import { compose } from "./disk.ts";

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
};

function settingsOn(backend: string): Map<string, Value> {
  const options = { texts: { "run.yaml": FILE }, allowMissing: false };
  return new Map(leaves(compose([`rllm/backend=${backend}`, ...MORE[backend]!], options).config));
}

const local = settingsOn("local");
const portable = [...local.keys()].filter((path) => path.startsWith("rllm."));

/** Portable settings with another value than on the local backend. */
function differing(backend: string): Record<string, [local: Value | undefined, there: Value | undefined]> {
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
