/** What verl would refuse, each rule at its edges: settings that keep all rules, with one change at a time. */
import { describe, expect, test } from "vitest";
import { checkRules } from "../../../src/train/config/rules/rules.ts";
import { VERL_RULES } from "../../../src/train/config/rules/verl.ts";
import { unflatten, type YamlValue } from "../../../src/train/config/yaml/tree.ts";

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";
const ASYNC = "rllm.async_training";
const REPLAY = "rllm.algorithm.router_replay";
const ULYSSES = `${ACTOR}.ulysses_sequence_parallel_size`;
const PACKS = "actor_rollout_ref.model.use_remove_padding";
const EACH = `${ACTOR}.ppo_micro_batch_size_per_gpu`;
const ALL = `${ACTOR}.ppo_micro_batch_size`;
const GREEDY = `${ROLLOUT}.val_kwargs`;

const FINE: Readonly<Record<string, YamlValue>> = {
  ...{ "rllm.rejection_sample.multiplier": 1, [REPLAY]: "disabled", [`${ROLLOUT}.mode`]: "async" },
  ...{ "data.train_batch_size": 8, [`${ROLLOUT}.n`]: 2, "trainer.nnodes": 2, "trainer.n_gpus_per_node": 4 },
  ...{ [`${ACTOR}.ppo_mini_batch_size`]: 8, [`${ACTOR}.strategy`]: "fsdp", [EACH]: 1, [ALL]: null, [ULYSSES]: 1 },
};

const found = (changes: Record<string, YamlValue>, isReady = true) =>
  checkRules(unflatten(Object.entries({ ...FINE, ...changes })), { backend: "verl", isReady, more: VERL_RULES });

test("usual settings keep every rule, and other backends have none of them", () => {
  expect(found({})).toEqual([]);
  const own = { "training.resume_mode": "auto", "training.resume_from_path": null };
  const broken = unflatten(Object.entries({ ...FINE, ...own, [`${ROLLOUT}.mode`]: "sync" }));
  expect(checkRules(broken, { backend: "local", isReady: true, more: VERL_RULES })).toEqual([]);
});

describe("a rule of verl", () => {
  const split = { [`${ASYNC}.enable`]: true, [`${ASYNC}.fwd_bwd_group_size`]: 2, [`${ASYNC}.mini_batch_size`]: 4 };
  const partial = { [`${ASYNC}.partial_rollout`]: true, "rllm.remote_runtime.enabled": true };
  const dynamic = { [`${ACTOR}.use_dynamic_bsz`]: true };
  test.each<[what: string, changes: Record<string, YamlValue>, path: string | undefined, says?: string]>([
    ["another mode", { [`${ROLLOUT}.mode`]: "sync" }, `${ROLLOUT}.mode`, "mode=async (sync)"],
    ["groups of a mini-batch", split, `${ASYNC}.fwd_bwd_group_size`, "group_size=2 must equal mini_batch_size=4"],
    ["groups as large as a mini-batch", { ...split, [`${ASYNC}.mini_batch_size`]: 2 }, undefined],
    ["no groups", { ...split, [`${ASYNC}.fwd_bwd_group_size`]: null }, undefined],
    ["groups of a synchronous run", { ...split, [`${ASYNC}.enable`]: false }, undefined],
    ["partial rollouts elsewhere", partial, `${ASYNC}.partial_rollout`, "Cannot interrupt rollouts"],
    ["partial rollouts here", { ...partial, "rllm.remote_runtime.enabled": false }, undefined],
    ["whole rollouts elsewhere", { ...partial, [`${ASYNC}.partial_rollout`]: false }, undefined],
    ["KL in the reward, which verl computes", { "algorithm.use_kl_in_reward": true }, undefined],
    ["a reward model", { "reward_model.enable": true }, "reward_model.enable", "Cannot use reward_model.enable=true"],
    ["a reward model of 0.9", { "reward.reward_model.enable": true }, "reward.reward_model.enable"],
    ["no reward model", { "reward_model.enable": false }, undefined],
    ["replay on fsdp", { [REPLAY]: "R2" }, REPLAY, "Cannot replay expert routing (R2): only verl's megatron"],
    ["replay on megatron", { [REPLAY]: "R2", [`${ACTOR}.strategy`]: "megatron" }, undefined],
    ["replay on veomni", { [REPLAY]: "R3", [`${ACTOR}.strategy`]: "veomni" }, undefined],
    ["replay that is null", { [REPLAY]: null }, undefined],
    [
      "a mini-batch above the batch",
      { [`${ACTOR}.ppo_mini_batch_size`]: 9 },
      `${ACTOR}.ppo_mini_batch_size`,
      "ppo_mini_batch_size=9: it is more than the 8 prompts",
    ],
    ["no mini-batch", { [`${ACTOR}.ppo_mini_batch_size`]: null }, undefined],
    [
      "rows that the GPUs do not divide",
      { "trainer.nnodes": 3 },
      "data.train_batch_size",
      "8 prompts x 2 rollouts = 16 rows: they do not divide by 12 GPUs",
    ],
    ["such rows in passes by tokens", { "trainer.nnodes": 3, ...dynamic }, undefined],
    ["rows of GPUs that are not counted", { "trainer.nnodes": null, "trainer.n_gpus_per_node": null }, undefined],
    ["a batch that is not set", { "data.train_batch_size": "???", "trainer.nnodes": 3 }, undefined],
    ["sequences over GPUs with padding", { [ULYSSES]: 2 }, ULYSSES, "Cannot split sequences over GPUs"],
    ["sequences over GPUs without padding", { [ULYSSES]: 2, [PACKS]: true }, undefined],
    ["whole sequences with padding", { [ULYSSES]: 1, [PACKS]: false }, undefined],
    ["no number of GPUs for a sequence", { [ULYSSES]: null }, undefined],
    ["two sizes of passes", { [ALL]: 4 }, ALL, "Cannot set both"],
    ["two sizes of passes by tokens", { [ALL]: 4, ...dynamic }, ALL],
    ["no size of passes", { [EACH]: null }, EACH, "Neither is set"],
    ["no size of passes by tokens", { [EACH]: null, ...dynamic }, undefined],
    ["the deprecated size alone", { [EACH]: null, [ALL]: 4 }, undefined],
    [
      "samples at temperature 0",
      { [`${GREEDY}.do_sample`]: true, [`${GREEDY}.temperature`]: 0 },
      `${GREEDY}.temperature`,
      "still takes the most likely token",
    ],
    ["samples above it", { [`${GREEDY}.do_sample`]: true, [`${GREEDY}.temperature`]: 0.1 }, undefined],
    ["the most likely token", { [`${GREEDY}.do_sample`]: false, [`${GREEDY}.temperature`]: 0 }, undefined],
  ])("on %s", (_, changes, path, says = "") => {
    const findings = found(changes);
    expect(findings.map((finding) => finding.path)).toEqual(path === undefined ? [] : [path]);
    expect(findings[0]?.message ?? "").toContain(says);
  });

  test("that only counts when a run begins is not checked before", () => {
    for (const changes of [{ [`${ACTOR}.ppo_mini_batch_size`]: 9 }, { [EACH]: null }, { [ALL]: 4 }])
      expect(found(changes, false)).toEqual([]);
    expect(found({ [ULYSSES]: 2 }, false)).toHaveLength(1);
  });

  test("is an error where verl would stop, and a warning where it would go on", () => {
    const severity = (changes: Record<string, YamlValue>) => found(changes)[0]?.severity;
    const stopping = [{ [ULYSSES]: 2 }, { "reward_model.enable": true }, { [ALL]: 4 }, { [EACH]: null }];
    expect([...stopping, { [`${ACTOR}.ppo_mini_batch_size`]: 9 }].map(severity)).toEqual(Array(5).fill("error"));
    const greedy = { [`${GREEDY}.do_sample`]: true, [`${GREEDY}.temperature`]: 0 };
    expect(severity(greedy)).toBe("warning");
  });
});
