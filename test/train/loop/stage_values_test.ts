/** What each stage makes of its input, in figures: values, metrics, boundaries, and what it refuses. */
import { describe, expect, test } from "vitest";
import type { Backend, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { packTrajectories } from "../../../src/train/data/pack.ts";
import type { Episode, Step, TrajectoryGroup } from "../../../src/train/data/types.ts";
import { algorithmOf } from "../../../src/train/loop/roles.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";
import { difficulty, rewardMetrics, roleAdvantageMetrics } from "../../../src/train/loop/stages/advantage_metrics.ts";
import { packBatch } from "../../../src/train/loop/stages/batch.ts";
import { registerGrouping, registerRejection } from "../../../src/train/loop/stages/hooks.ts";
import { lossSettings, lossSpec } from "../../../src/train/loop/stages/loss_settings.ts";
import { denominators, minibatches, partsByLoss } from "../../../src/train/loop/stages/minibatches.ts";
import { process } from "../../../src/train/loop/stages/process.ts";
import { reject } from "../../../src/train/loop/stages/reject.ts";
import { filterStale } from "../../../src/train/loop/stages/staleness.ts";
import { filterMismatched, nameTrajectories, transform } from "../../../src/train/loop/stages/transform.ts";
import { reduceMetrics, update } from "../../../src/train/loop/stages/update.ts";
import { NOTHING_HELD } from "../../../src/train/loop/state.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { anEpisode, aStep, aTrajectory } from "../../fixtures/episodes.ts";
import { rewardedGroup, stageContext, tokenStep } from "../../fixtures/stage.ts";

const attempt = (task_index: number, rollout_index: number, rewards: readonly (number | null)[], more = {}) =>
  anEpisode({
    task: { id: `t${task_index}`, instruction: "", metadata: {} },
    task_index,
    rollout_index,
    is_correct: rewards[0] === 1,
    trajectories: rewards.map((reward, i) =>
      aTrajectory({ uid: `${task_index}:${rollout_index}/${i}`, reward, steps: [tokenStep()] }),
    ),
    ...more,
  });

describe("transform", () => {
  test("measures the groups, and keeps of each member the episode that it comes from", () => {
    const episodes = [attempt(0, 0, [1, 0], { termination_reason: "timeout" }), attempt(0, 1, [0]), attempt(1, 0, [1])];
    const { value, metrics } = transform(episodes, stageContext());
    expect(metrics).toEqual({
      "groups/num_trajs_before_filter": 4,
      "groups/num_trajs_after_filter": 4,
      "groups/num_groups": 2,
      "groups/avg_group_size": 2,
      "groups/max_group_size": 3,
      "groups/min_group_size": 1,
      "batch/dropped_malformed_sequences": 0,
    });
    const member = { task_id: "t0", rollout_index: 0, termination_reason: "timeout", is_correct: true };
    expect(value[0]).toMatchObject({ group_id: "t0:solver", task_id: "t0", group_role: "solver" });
    expect(value[0]!.metadata).toEqual([
      member,
      member,
      { task_id: "t0", rollout_index: 1, termination_reason: "env_done", is_correct: false },
    ]);
  });

  test("measures zeros where nothing is left", () => {
    for (const episodes of [[], [attempt(0, 0, [])], [anEpisode({ trajectories: [aTrajectory({ steps: [] })] })]]) {
      const { value, metrics } = transform(episodes, stageContext());
      expect(value).toEqual([]);
      const after = ["num_trajs_after_filter", "num_groups", "avg_group_size", "max_group_size", "min_group_size"];
      for (const name of after) expect(metrics[`groups/${name}`]).toBe(0);
    }
  });

  test.each([
    [{}, ["default_traj_name_0", "b", "default_traj_name_2"]],
    [{ default_traj_name: "b" }, ["b_0", "b_1", "default_traj_name"]],
    [{ impute_missing_names: false }, ["", "b", "default_traj_name"]],
    [{ impute_missing_names: false, drop_unnamed_traj: true }, ["b"]],
    [{ drop_unnamed_traj: true }, ["default_traj_name_0", "b", "default_traj_name_2"]],
  ])("names trajectories with %j", (settings, names) => {
    const episode = anEpisode({
      trajectories: ["", "b", "default_traj_name"].map((name) => aTrajectory({ name })),
    });
    const { value, metrics } = nameTrajectories([episode], stageContext({ transform: settings }));
    expect(value[0]!.trajectories.map(({ name }) => name)).toEqual(names);
    expect(metrics).toEqual({ "groups/num_trajs_before_filter": names.length });
  });

  test("drops trajectories whose tokens and log-probs do not match, where it is asked to", () => {
    const bad = aTrajectory({ uid: "bad", steps: [tokenStep(), tokenStep([2, 3], { logprobs: [-1] })] });
    const episodes = [anEpisode({ trajectories: [bad, aTrajectory({ uid: "good" }), { ...bad, uid: "worse" }] })];
    const warned: string[] = [];
    const run = (filter_token_mismatch: boolean, from: readonly Episode[]) =>
      filterMismatched(from, stageContext({ filter_token_mismatch }, { warn: (message) => void warned.push(message) }));
    expect(run(false, episodes)).toEqual({ value: episodes, metrics: {} });
    const sound = run(true, [anEpisode()]);
    expect(sound).toEqual({ value: [anEpisode()], metrics: { "batch/dropped_malformed_sequences": 0 } });
    expect(warned).toEqual([]);
    const { value, metrics } = run(true, episodes);
    expect(value[0]!.trajectories.map(({ uid }) => uid)).toEqual(["good"]);
    expect(metrics).toEqual({ "batch/dropped_malformed_sequences": 2 });
    expect(warned).toEqual([expect.stringMatching(/rllm\.filter_token_mismatch.*The first is bad\.$/)]);
    expect(transform(episodes, stageContext({ filter_token_mismatch: true })).metrics).toMatchObject(metrics);
  });

  test("masks the endings that compact filtering names, and no others", () => {
    const episodes = [attempt(0, 0, [1], { termination_reason: "error" }), attempt(0, 1, [1])];
    const sizes = (compact_filtering: object) =>
      transform(episodes, stageContext({ compact_filtering })).value.map((group) => group.trajectories.length);
    expect(sizes({ enable: true, mask_error: true })).toEqual([1]);
    expect(sizes({ enable: true, mask_error: false })).toEqual([2]);
    expect(sizes({ enable: false, mask_error: true })).toEqual([2]);
  });

  test.each<[settings: object, isValidation: boolean, kept: string[], metrics: object]>([
    [{}, false, ["fresh", "old", "mixed", "unknown"], {}],
    [{ max_off_policy_threshold: 2 }, false, ["fresh"], { "batch/dropped_stale_trajectories": 3 }],
    [{ max_off_policy_threshold: 3 }, false, ["fresh", "old", "mixed"], { "batch/dropped_stale_trajectories": 1 }],
    [{ max_off_policy_threshold: 2 }, true, ["fresh", "old", "mixed", "unknown"], {}],
    [{ max_off_policy_threshold: 2, max_off_policy_strategy: "mask" }, false, ["fresh", "old", "mixed", "unknown"], {}],
  ])("with %j (validation: %j) it keeps %j", (training, isValidation, kept, metrics) => {
    const steps = (...versions: (number | undefined)[]) =>
      versions.map((version) => tokenStep([2, 3], version === undefined ? {} : { weight_version: version }));
    const trajectories = Object.entries({
      fresh: steps(5, 4, 3),
      old: steps(2),
      mixed: steps(2, 5),
      unknown: steps(5, undefined),
    }).map(([uid, steps]) => aTrajectory({ uid, steps }));
    const backend = { weightVersion: 5 } as Backend;
    const found = filterStale([anEpisode({ trajectories })], {
      ...stageContext({ training }, { backend }),
      isValidation,
    });
    expect(found.value[0]!.trajectories.map(({ uid }) => uid)).toEqual(kept);
    expect(found.metrics).toEqual(metrics);
    if (!isValidation)
      expect(transform([anEpisode({ trajectories })], stageContext({ training }, { backend })).metrics).toMatchObject(
        metrics,
      );
  });

  test("groups by the hook of the setting's name; the run's own comes first", () => {
    const all = (id: string) => (episodes: readonly Episode[]) => [
      { ...rewardedGroup([1]), group_id: id, trajectories: episodes.flatMap(({ trajectories }) => trajectories) },
    ];
    registerGrouping("test-values", all("named"));
    const episodes = [attempt(0, 0, [1]), attempt(1, 0, [0])];
    const settings = { algorithm: { traj_grouping_hook: "test-values" } };
    expect(transform(episodes, stageContext(settings)).value[0]!.group_id).toBe("named");
    const own = stageContext(settings, { grouping: all("own") });
    expect(transform(episodes, own).value[0]!.group_id).toBe("own");
  });

  test.each<[rewards: (number | null)[], steps: Step[], message: RegExp | number[]]>([
    [
      [null, null],
      [tokenStep([2], { reward: 3 }), tokenStep([2], { reward: 0.5 })],
      [0.5, 0.5],
    ],
    [[0, 0.25], [tokenStep([2], { reward: 3 })], [0, 0.25]],
    [[1, null], [tokenStep()], /^Cannot compare the group t0:solver: 1 of 2 trajectories have a reward\./],
    [[Number.NaN, 1], [tokenStep()], /0:0\/0 \(solver\): its reward must be a finite number \(NaN\)/],
  ])("rewards %j", (rewards, steps, expected) => {
    const episode = attempt(0, 0, rewards);
    const trajectories = episode.trajectories.map((each) => ({ ...each, steps }));
    const run = () => transform([{ ...episode, trajectories }], stageContext());
    if (expected instanceof RegExp) expect(run).toThrow(expected);
    else expect(run().value[0]!.trajectories.map(({ reward }) => reward)).toEqual(expected);
  });

  test("a hook's group without steps and without a reward is refused", () => {
    const grouping = () => [{ ...rewardedGroup([]), trajectories: [aTrajectory({ reward: null, steps: [] })] }];
    expect(() => transform([], stageContext({}, { grouping }))).toThrow(/u \(solver\): .* \(none\)/);
  });
});

describe("reject", () => {
  const episodes = [attempt(0, 0, [1]), attempt(0, 1, [0]), attempt(1, 0, [1]), attempt(2, 0, [0])];
  const candidates = (groups: TrajectoryGroup[]) => ({ episodes, groups, held: NOTHING_HELD });
  const run = (groups: TrajectoryGroup[], rejection_sample: object = {}, more: object = {}) =>
    reject(candidates(groups), stageContext({ rejection_sample }, more));
  const names = (groups: readonly TrajectoryGroup[]) => groups.map(({ group_role }) => group_role);
  const [varied, uniform, small] = [
    rewardedGroup([1, 0], { role: "varied" }),
    rewardedGroup([1, 1], { role: "uniform" }),
    rewardedGroup([1], { role: "small" }),
  ];

  test("measures tasks and groups", async () => {
    const { value, metrics } = await run([varied, uniform, small], {
      min_trajs_per_group: 2,
      filter_uniform_groups: true,
    });
    expect(names(value.groups)).toEqual(["varied"]);
    expect(value.held).toEqual(NOTHING_HELD);
    expect(metrics).toEqual({
      "batch/num_tasks": 3,
      "batch/solve_none": 1 / 3,
      "batch/solve_partial": 1 / 3,
      "batch/solve_all": 1 / 3,
      "batch/groups_before_filter": 3,
      "batch/groups_after_filter": 1,
      "batch/groups_dropped_insufficient_trajs": 1,
      "batch/groups_dropped_uniform": 1,
      "batch/groups_rejected": 0,
      "batch/groups_held": 0,
    });
  });

  test("without episodes the number of tasks is 1, so that shares are numbers", async () => {
    const { metrics } = await reject({ episodes: [], groups: [], held: NOTHING_HELD }, stageContext());
    expect(metrics).toMatchObject({ "batch/num_tasks": 1, "batch/solve_none": 0, "batch/solve_all": 0 });
  });

  test("rewards that differ by less than 1e-8 are equal", async () => {
    const near = rewardedGroup([1, 1 + 1e-8], { role: "near" });
    const apart = rewardedGroup([0, 2e-8], { role: "apart" });
    const { value } = await run([near, apart], { mode: "group" });
    expect(names(value.groups)).toEqual(["apart"]);
  });

  test("mode group counts what it rejects", async () => {
    const { metrics } = await run([varied, uniform], { mode: "group" });
    expect(metrics).toMatchObject({
      "batch/groups_after_filter": 1,
      "batch/groups_rejected": 1,
      "batch/groups_dropped_uniform": 0,
    });
  });

  test("mode episode holds back what an earlier step held and what is new, and then trains on both", async () => {
    const settings = { enable: true, min_partial_solve_tasks: 3 };
    const first = await run([varied], settings);
    expect(first.value).toEqual({ groups: [], held: { groups: [varied], solvePartial: 1 } });
    expect(first.metrics).toMatchObject({ "batch/groups_held": 1, "batch/groups_rejected": 0 });
    const held = { groups: [uniform], solvePartial: 2 };
    const { value } = await reject({ episodes, groups: [varied], held }, stageContext({ rejection_sample: settings }));
    expect(value).toEqual({ groups: [uniform, varied], held: NOTHING_HELD });
  });

  test("mode none keeps all groups, whatever was enabled", async () => {
    const { value } = await run([varied, uniform], { mode: "none", enable: true });
    expect(names(value.groups)).toEqual(["varied", "uniform"]);
  });

  test("a registered rejection chooses among groups that are large enough; the run's own comes first", async () => {
    registerRejection("test-first", ({ groups }) => groups.slice(0, 1));
    const { value, metrics } = await run([small, varied, uniform], { mode: "test-first", min_trajs_per_group: 2 });
    expect(names(value.groups)).toEqual(["varied"]);
    expect(metrics["batch/groups_rejected"]).toBe(1);
    const rejection = ({ groups }: { groups: readonly TrajectoryGroup[] }) => ({
      groups: groups.slice(1),
      held: { groups: groups.slice(0, 1), solvePartial: 7 },
    });
    const own = await run([varied, uniform], { mode: "test-first" }, { rejection });
    expect(names(own.value.groups)).toEqual(["uniform"]);
    expect(own.value.held.solvePartial).toBe(7);
  });

  test("warns once every group is too small, with the largest size", async () => {
    const warned: string[] = [];
    const warn = (message: string) => void warned.push(message);
    await run([], { min_trajs_per_group: 3 }, { warn });
    await run([varied, rewardedGroup([1, 0, 1])], { min_trajs_per_group: 3 }, { warn });
    expect(warned).toEqual([]);
    await run([small, varied], { min_trajs_per_group: 3 }, { warn });
    expect(warned).toEqual([
      expect.stringMatching(/min_trajs_per_group=3 drops every group, and the largest has 2 trajectories/),
    ]);
  });
});

describe("batch", () => {
  const turns = [tokenStep([2, 3]), tokenStep([5], { prompt_ids: [1, 2, 3, 4] })];

  test("measures rows, prompts and responses", () => {
    const edited = [tokenStep([2, 3, 4]), tokenStep([6], { prompt_ids: [9, 9] })];
    const groups = [
      rewardedGroup([1, 0], { steps: turns }),
      rewardedGroup([1], { steps: edited, reason: "max_response_length_exceeded" }),
    ];
    const { value, metrics } = packBatch(groups, stageContext());
    expect([...value.offsets]).toEqual([0, 5, 10, 14, 17]);
    expect([...value.mask]).toEqual([0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1]);
    expect(metrics).toEqual({
      "response_length/mean": 3,
      "response_length/max": 4,
      "response_length/min": 1,
      "prompt_length/mean": 1.25,
      "prompt_length/max": 2,
      "prompt_length/min": 1,
      "batch/steps_per_traj/mean": 4 / 3,
      "batch/steps_per_traj/max": 2,
      "batch/steps_per_traj/min": 1,
      "batch/step_response_length/mean": 3,
      "batch/step_response_length/max": 4,
      "batch/step_response_length/min": 1,
      "batch/action_token_ratio/mean": 0.875,
      "batch/action_token_ratio/max": 1,
      "batch/action_token_ratio/min": 0.75,
      "batch/merge_compression_ratio": 1.5,
      "response_length/clip_ratio": 1 / 3,
    });
  });

  test.each([
    ["as truncated", { mask_truncated_samples: true }],
    ["as too old", { training: { max_off_policy_threshold: 0 } }],
  ])("a row that is masked %s keeps its lengths, and trains no share of them", (_, settings) => {
    const groups = [rewardedGroup([1], { reason: "max_response_length_exceeded" })];
    const backend = { weightVersion: 5 } as Backend;
    const lengths = { "prompt_length/mean": 1, "response_length/mean": 2, "batch/step_response_length/max": 2 };
    expect(packBatch(groups, stageContext({}, { backend })).metrics).toMatchObject({
      ...lengths,
      "batch/action_token_ratio/mean": 1,
    });
    expect(packBatch(groups, stageContext(settings, { backend })).metrics).toMatchObject({
      ...lengths,
      "batch/action_token_ratio/mean": 0,
    });
  });

  test("a row without a response counts as a prompt alone; no rows measure shares of 0", () => {
    const { metrics } = packBatch([rewardedGroup([1], { steps: [tokenStep([])] })], stageContext());
    expect(metrics).toMatchObject({
      "prompt_length/max": 1,
      "response_length/max": 0,
      "batch/action_token_ratio/max": 0,
    });
    expect(packBatch([], stageContext()).metrics).toEqual({
      "batch/merge_compression_ratio": 0,
      "response_length/clip_ratio": 0,
    });
  });

  test.each<[settings: object, masked: string[]]>([
    [{}, []],
    [{ mask_truncated_samples: true }, ["max_response_length_exceeded"]],
    [
      { agent: { overlong_filter: true } },
      ["max_prompt_length_exceeded", "max_response_length_exceeded", "max_turns_exceeded", "timeout"],
    ],
  ])("%j masks trajectories that ended so", (settings, masked) => {
    const reasons = ["max_prompt_length_exceeded", "max_response_length_exceeded", "max_turns_exceeded", "timeout"];
    for (const reason of [...reasons, "env_done", "error", "unknown"] as const) {
      const groups = [rewardedGroup([1]), rewardedGroup([1], { reason: reason as "timeout" })];
      const { value, metrics } = packBatch(groups, stageContext(settings));
      const count = Object.keys(settings).length > 0 ? Number(masked.includes(reason)) : undefined;
      expect(metrics["batch/masked_overlong_trajectories"], reason).toBe(count);
      expect([...value.mask], reason).toEqual(masked.includes(reason) ? [0, 1, 1, 0, 0, 0] : [0, 1, 1, 0, 1, 1]);
    }
  });

  test.each([
    [null, [0, 1, 1, 0, 1, 1], undefined],
    [1, [0, 0, 0, 0, 1, 1], 2],
    [0, [0, 0, 0, 0, 0, 0], 4],
  ])(
    "off-policy threshold %j: replies of older weights are not trained on",
    (max_off_policy_threshold, mask, masked) => {
      const [old, new_] = [2, 4].map((weight_version) => tokenStep([2, 3], { weight_version }));
      const group = rewardedGroup([1, 1]);
      const trajectories = group.trajectories.map((each, i) => ({ ...each, steps: [i === 0 ? old! : new_!] }));
      const context = stageContext(
        { training: { max_off_policy_threshold } },
        { backend: { weightVersion: 5 } as Backend },
      );
      const { value, metrics } = packBatch([{ ...group, trajectories }], context);
      expect([...value.mask]).toEqual(mask);
      expect(metrics["batch/masked_stale_tokens"]).toBe(masked);
    },
  );

  test("of the replies in one row, the older ones are not trained on", () => {
    const first = tokenStep([2, 3], { weight_version: 1 });
    const prompt_ids = [...first.prompt_ids, ...first.response_ids, 7];
    const second = tokenStep([2, 3], { weight_version: 5, prompt_ids });
    const group = rewardedGroup([1]);
    const trajectories = [{ ...group.trajectories[0]!, steps: [first, second] }];
    const context = stageContext(
      { training: { max_off_policy_threshold: 3 } },
      { backend: { weightVersion: 5 } as Backend },
    );
    const { value } = packBatch([{ ...group, trajectories }], context);
    expect([...value.mask]).toEqual([0, 0, 0, 0, 1, 1]);
  });

  test.each<[step: Partial<Step>, message: RegExp | undefined]>([
    [{}, undefined],
    [{ advantage: null }, undefined],
    [{ advantage: 0 }, undefined],
    [{ advantage: [0, 1] }, undefined],
    [{ logprobs: [-1] }, /each response token needs a log-prob: 2 tokens, 1 log-probs/],
    [{ logprobs: [-1, Number.NEGATIVE_INFINITY] }, /the log-prob of response token 1 is not finite: -Infinity/],
    [{ logprobs: [-1e39, -1] }, /the log-prob of response token 0 is not finite: -1e\+39/],
    [{ logprobs: ["1" as unknown as number, -1] }, /the log-prob of response token 0 is not finite: 1/],
    [{ advantage: Number.NaN }, /the advantage of step 1 must be a finite number: NaN/],
    [{ advantage: "x" as unknown as number }, /the advantage of step 1 must be a finite number: x/],
    [{ advantage: [1] }, /a list of advantages needs one per response token: 1 for 2/],
    [{ advantage: [1, 1e39] }, /the advantage of response token 1 of step 1 must be a finite number: 1e\+39/],
    [{ advantage: [Number.NaN, 1] }, /the advantage of response token 0 of step 1 must be a finite number/],
  ])("a step with %j", (change, message) => {
    const run = () =>
      packBatch([rewardedGroup([1], { steps: [tokenStep(), tokenStep([2, 3], change)] })], stageContext());
    if (message) expect(run).toThrow(message);
    else expect(run).not.toThrow();
    if (message) expect(run).toThrow(/^Cannot train on the trajectory solver\/0: /);
  });
});

describe("process", () => {
  const rows = packTrajectories([rewardedGroup([1, 0], { steps: [tokenStep([2, 3], { logprobs: [-1, -2] })] })]);

  async function run(algorithm: object, more: object = {}) {
    const asked: string[] = [];
    const logprobs: Backend["logprobs"] = async (_, { policy }) => {
      asked.push(policy ?? "current");
      return { logprobs: Float32Array.from([9, -1, -3, 9, -1, -2]) };
    };
    const { value, metrics } = await process(
      rows,
      stageContext({ algorithm, ...more }, { backend: { logprobs } as Backend }),
    );
    return { asked, value, metrics };
  }

  test.each<[bypass: boolean | null, num_minibatches: number, kl_beta: number, asked: string[]]>([
    [null, 1, 0, []],
    [null, 2, 0, ["current"]],
    [false, 1, 0, ["current"]],
    [true, 2, 0, []],
    [true, 1, 0.1, ["reference"]],
    [false, 1, 0.1, ["current", "reference"]],
  ])("with bypass_mode %j, %i mini-batches and kl_beta %f it computes %j", async (bypass_mode, num, kl_beta, asked) => {
    const algorithm = { kl_beta, rollout_correction: { bypass_mode, tis_mode: null } };
    const result = await run(algorithm, { training: { num_minibatches: num } });
    expect(result.asked).toEqual(asked);
    const { oldLogprobs, refLogprobs, rolloutIsWeights } = result.value;
    expect(refLogprobs !== undefined).toBe(asked.includes("reference"));
    expect(rolloutIsWeights).toBeUndefined();
    if (bypass_mode === true) expect(oldLogprobs).toBe(rows.rolloutLogprobs);
    else expect(oldLogprobs !== undefined).toBe(asked.includes("current"));
  });

  test("importance weights need old log-probs, which an unset bypass_mode then computes", async () => {
    const { asked, value } = await run({ rollout_correction: { bypass_mode: null, tis_mode: "token" } });
    expect(asked).toEqual(["current"]);
    expect(value.rolloutIsWeights).toBeDefined();
  });

  test("measures how far the trainer's probabilities are from the sampler's, over response tokens", async () => {
    const { metrics } = await run({ rollout_correction: { bypass_mode: false } });
    const gap = Math.exp(-2) - Math.exp(-3);
    expect(metrics["training/rollout_probs_diff_max"]).toBeCloseTo(gap, 6);
    expect(metrics["training/rollout_probs_diff_mean"]).toBeCloseTo(gap / 4, 6);
    expect((await run({ rollout_correction: { bypass_mode: true } })).metrics).toEqual({});
  });
});

describe("roles", () => {
  const of = (entry: unknown, algorithm: object = {}) => {
    const map = entry === undefined ? {} : { a: entry };
    const { algorithm: all } = loopSettings({ algorithm: { ...algorithm } });
    return algorithmOf("a", { ...all, traj_group_adv_estimator_map: map });
  };

  test.each<[entry: unknown, algorithm: object, expected: object]>([
    [undefined, {}, { estimator: "grpo", loss: "ppo" }],
    [undefined, { adv_estimator: "rloo" }, { estimator: "rloo", loss: "importance_sampling" }],
    [undefined, { loss_fn: "cispo" }, { estimator: "grpo", loss: "cispo" }],
    ["rloo", { adv_estimator: "grpo" }, { estimator: "rloo", loss: "importance_sampling" }],
    [["rloo", "cispo"], {}, { estimator: "rloo", loss: "cispo" }],
    [{ loss_fn: "cispo" }, { adv_estimator: "rloo" }, { estimator: "rloo", loss: "cispo" }],
  ])("the entry %j over %j", (entry, algorithm, expected) => {
    expect(of(entry, algorithm)).toEqual({ estimator_args: {}, loss_args: {}, ...expected });
  });

  test("a role with an estimator or loss of its own does not take over the run's arguments", () => {
    const run = { estimator_args: { x: 1 }, loss_args: { y: 2 } };
    expect(of(undefined, run)).toMatchObject(run);
    expect(of("rloo", run)).toMatchObject({ estimator_args: {}, loss_args: { y: 2 } });
    expect(of({ loss_fn: "cispo" }, run)).toMatchObject({ estimator_args: { x: 1 }, loss_args: {} });
    const own = { estimator_args: { z: 3 }, loss_args: { w: 4 } };
    expect(of(own, run)).toMatchObject(own);
  });

  test.each([
    [null],
    [7],
    [[]],
    [["rloo"]],
    [["rloo", "cispo", "x"]],
    [["rloo", 3]],
    [{ estimator: 7 }],
    [{ estimator_args: null }],
    [{ lossfn: "cispo" }],
    [{ toString: "x" }],
  ])("the entry %j is refused", (entry) => {
    expect(() => of(entry)).toThrow(/^Cannot read the entry of the role a: .*traj_group_adv_estimator_map\.a\)\.$/);
  });
});

describe("loss settings", () => {
  test("a loss gets the clip range under its own names, and its arguments over it", () => {
    const { algorithm } = loopSettings({ algorithm: { eps_clip: 0.25 } });
    const high = { ...algorithm, eps_clip_high: 0.5 };
    const settings = (name: string, it = algorithm, loss_args = {}) => lossSettings(name, { algorithm: it, loss_args });
    expect(settings("tinker.ppo")).toEqual({ clip_low_threshold: 0.75, clip_high_threshold: 1.25 });
    expect(settings("tinker.ppo", high)).toEqual({ clip_low_threshold: 0.75, clip_high_threshold: 1.5 });
    expect(settings("vanilla", high)).toMatchObject({ clip_ratio_low: 0.25, clip_ratio_high: 0.5 });
    expect(settings("vanilla", high, { clip_ratio_low: 0.1 })).toMatchObject({ clip_ratio_low: 0.1 });
    expect(settings("tinker.cross_entropy")).toEqual({});
    expect(() => settings("vanilla", algorithm, { clip: 1 })).toThrow(/clip/);
  });

  test.each([
    [{}, {}, { loss_agg_mode: "token-mean", temperature: 1, entropy_coeff: 0 }],
    [
      { loss_agg_mode: "seq-mean-token-sum" },
      { temperature: 0 },
      { loss_agg_mode: "seq-mean-token-sum", temperature: 1 },
    ],
    [{ kl_beta: 0.5 }, { temperature: 0.7 }, { kl: { type: "low_var_kl", coef: 0.5 }, temperature: 0.7 }],
  ] as const)("lossSpec() with %j at %j", (algorithm, train, expected) => {
    const spec = lossSpec({ name: "vanilla", loss_args: {} }, loopSettings({ algorithm, rollout: { train } }));
    expect(spec).toMatchObject({ name: "vanilla", ...expected });
    expect("kl" in spec).toBe("kl" in expected);
  });
});

test("every field of a loss request is set by some setting", () => {
  const SETTINGS: Readonly<Record<string, Parameters<typeof loopSettings>[0]>> = {
    loss_agg_mode: { algorithm: { loss_agg_mode: "token-sum" } },
    loss_scale_factor: { rollout: { train: { max_tokens: 77 } } },
    settings: { algorithm: { eps_clip: 0.3 } },
    entropy_coeff: { algorithm: { entropy_coeff: 0.25 } },
    kl: { algorithm: { kl_beta: 0.5 } },
    temperature: { rollout: { train: { temperature: 0.5 } } },
  };
  const specOf = (given: Parameters<typeof loopSettings>[0]) =>
    lossSpec({ name: "vanilla", loss_args: {} }, loopSettings(given)) as unknown as Record<string, unknown>;
  const { name, ...fields }: Record<string, unknown> = { kl: undefined, ...specOf({}) };
  expect(name).toBe("vanilla");
  expect(Object.keys(SETTINGS).sort()).toEqual(Object.keys(fields).sort());
  for (const [field, given] of Object.entries(SETTINGS)) {
    const changed = specOf(given);
    const moved = Object.keys(SETTINGS).filter((key) => JSON.stringify(changed[key]) !== JSON.stringify(fields[key]));
    expect(moved).toEqual([field]);
  }
});

describe("mini-batches", () => {
  test.each([
    [4, 1, [[0, 4]]],
    [
      5,
      2,
      [
        [0, 2],
        [2, 5],
      ],
    ],
    [
      2,
      3,
      [
        [0, 1],
        [1, 2],
      ],
    ],
    [0, 2, []],
  ])("%i rows in %i", (rows, count, expected) => {
    expect(minibatches(rows, count).map(({ from, to }) => [from, to])).toEqual(expected);
  });

  const rows = {
    ...packTrajectories([
      rewardedGroup([1, 0], { role: "a", steps: [tokenStep([2, 3], { logprobs: [-1, -2] })] }),
      rewardedGroup([1], { role: "b", steps: [tokenStep([4], { logprobs: [-3] })] }),
      rewardedGroup([1], { role: "a", steps: [tokenStep([])] }),
    ]),
    advantages: perRow(1, 2, 3, 4),
  };
  const streams = {
    oldLogprobs: Float32Array.from({ length: 9 }, (_, t) => -t),
    refLogprobs: Float32Array.from({ length: 9 }, (_, t) => -2 * t),
    rolloutIsWeights: Float32Array.from({ length: 9 }, (_, t) => t),
  };

  test("a part holds the rows of one loss, with everything that belongs to their tokens", () => {
    const settings = loopSettings({ algorithm: { traj_group_adv_estimator_map: { b: { loss_fn: "cispo" } } } });
    const parts = [...partsByLoss({ ...rows, ...streams }, { range: { from: 1, to: 4 }, settings })];
    expect(parts).toEqual([
      [
        { name: "ppo", loss_args: {} },
        {
          offsets: Uint32Array.of(0, 3),
          tokens: Uint32Array.of(1, 2, 3),
          mask: Uint32Array.of(0, 1, 1),
          advantages: perRow(2),
          rolloutLogprobs: Float32Array.of(0, -1, -2),
          oldLogprobs: Float32Array.of(-3, -4, -5),
          refLogprobs: Float32Array.of(-6, -8, -10),
          rolloutIsWeights: Float32Array.of(3, 4, 5),
        },
      ],
      [
        { name: "cispo", loss_args: {} },
        {
          offsets: Uint32Array.of(0, 2),
          tokens: Uint32Array.of(1, 4),
          mask: Uint32Array.of(0, 1),
          advantages: perRow(3),
          rolloutLogprobs: Float32Array.of(0, -3),
          oldLogprobs: Float32Array.of(-6, -7),
          refLogprobs: Float32Array.of(-12, -14),
          rolloutIsWeights: Float32Array.of(6, 7),
        },
      ],
    ]);
    expect(denominators(parts.map(([, part]) => part))).toEqual({
      batch_num_tokens: 3,
      global_batch_size: 2,
      all_rows: 2,
    });
  });

  test("what no stage computed is absent, and roles with equal losses are one part", () => {
    const settings = loopSettings({ algorithm: { traj_group_adv_estimator_map: { b: "grpo" } } });
    const parts = [...partsByLoss(rows, { range: { from: 0, to: 4 }, settings })];
    expect(parts).toHaveLength(1);
    const names = ["offsets", "tokens", "mask", "advantages", "rolloutLogprobs"];
    expect(Object.keys(parts[0]![1])).toEqual(names);
    expect([...parts[0]![1].offsets]).toEqual([0, 3, 6, 8]);
  });

  test("roles with other arguments for the same loss are parts of their own", () => {
    const map = { b: { loss_fn: "ppo", loss_args: { clip_low_threshold: 0.5 } } };
    const settings = loopSettings({ algorithm: { traj_group_adv_estimator_map: map } });
    const parts = [...partsByLoss(rows, { range: { from: 0, to: 4 }, settings })];
    expect(parts.map(([loss]) => loss.loss_args)).toEqual([{}, { clip_low_threshold: 0.5 }]);
  });

  function recorder(isJoined: boolean) {
    const calls: string[] = [];
    const single = {
      forwardBackward: async ({ offsets }: TrainBatch) => {
        calls.push(`forward ${offsets.length - 1}`);
        return { loss: 1, loss_max: calls.length };
      },
      optimStep: async () => {
        calls.push("step");
        return { "actor/lr": 1 };
      },
    };
    const forwardBackwardAndOptimStep = async (parts: readonly unknown[]) => {
      calls.push(`joined ${parts.length}`);
      return [{ loss: 3 }];
    };
    const backend = (isJoined ? { ...single, forwardBackwardAndOptimStep } : single) as unknown as Backend;
    const context = (settings: object = {}) => stageContext(settings, { backend, step: 1, totalSteps: 2 });
    return { calls, context };
  }

  test("update takes one optimiser step per mini-batch, in one call where the backend has one", async () => {
    const training = { num_minibatches: 2 };
    const apart = recorder(false);
    const { value, metrics } = await update({ ...rows, ...streams }, apart.context({ training }));
    expect(apart.calls).toEqual(["forward 2", "step", "forward 1", "step"]);
    expect(value).toBeUndefined();
    expect(metrics).toEqual({ loss: 1, loss_max: 3, "actor/lr": 1 });
    const joined = recorder(true);
    expect((await update(rows, joined.context({ training }))).metrics).toEqual({ loss: 3 });
    expect(joined.calls).toEqual(["joined 1", "joined 1"]);
  });

  test("update takes no step for a mini-batch without a trained token", async () => {
    const { calls, context } = recorder(false);
    await update(
      { ...rows, mask: rows.mask.map((bit, t) => (t < 6 ? 0 : bit)) },
      context({ training: { num_minibatches: 2 } }),
    );
    expect(calls).toEqual(["forward 1", "step"]);
    expect((await update({ ...rows, mask: rows.mask.map(() => 0) }, context())).metrics).toEqual({});
  });

  test.each(["oldLogprobs", "refLogprobs", "rolloutIsWeights"] as const)(
    "update refuses a %s that is not finite at a trained token, and no other",
    async (name) => {
      const { context } = recorder(true);
      const at = (t: number) => ({ ...rows, [name]: streams[name].map((value, i) => (i === t ? Number.NaN : value)) });
      for (const masked of [0, 3, 6, 8]) await update(at(masked), context());
      await expect(update(at(5), context())).rejects.toThrow(
        `Cannot train on the trajectory a/1: its ${name} must be finite (NaN, at token 2 of row 1).`,
      );
    },
  );

  test("update refuses an advantage that is not finite, with its place", async () => {
    const { context } = recorder(true);
    const bad = { ...rows, advantages: perRow(1, 2, Number.POSITIVE_INFINITY, Number.NaN) };
    await expect(update(bad, context())).rejects.toThrow(
      "Cannot train on the trajectory b/0: its advantage must be finite (Infinity, at token 1 of row 2).",
    );
  });
});

test("reduceMetrics() takes the largest of maxima, the smallest of minima, and the mean of those that report a name", () => {
  const measured = [{ a: 1, b_max: 5, "c/min": -1 }, { b_max: 7, "c/min": 3 }, { a: 4 }];
  expect(reduceMetrics(measured)).toEqual({ a: 2.5, b_max: 7, "c/min": -1 });
  expect(reduceMetrics([])).toEqual({});
});

describe("metrics of rewards and advantages", () => {
  test("rewards and advantages", () => {
    expect(rewardMetrics("a", [1, 0, 0, 1])).toEqual({
      "reward/a/mean": 0.5,
      "reward/a/max": 1,
      "reward/a/min": 0,
      "reward/a/std": 0.5,
    });
    expect(roleAdvantageMetrics("a", [0, 1e-8, -9e-9, -2])).toMatchObject({
      "advantage/a/min": -2,
      "advantage/a/fraction_zero": 0.5,
    });
    expect(roleAdvantageMetrics("a", [])).toEqual({});
  });

  test("how hard the groups are", () => {
    const rewards = { a: [1, 0], b: [1, 1], c: [0, 0, 0], d: [2, 2], e: [-1, -1], f: [0.5, 0.5], g: [1] };
    const units = Object.entries(rewards).flatMap(([group, values]) => values.map((reward) => ({ group, reward })));
    expect(difficulty("r", units)).toEqual({
      "batch/r/total": 6,
      "batch/r/informative": 1,
      "batch/r/fractions/effective": 1 / 6,
      "batch/r/fractions/too_easy": 2 / 6,
      "batch/r/fractions/too_hard": 2 / 6,
      // Of the means -1, 0, 0.5, 0.5, 1, 2 and the deviations 0 (five times) and 0.5.
      "batch/r/group_reward_mean/p10": -0.5,
      "batch/r/group_reward_mean/p50": 0.5,
      "batch/r/group_reward_mean/p90": 1.5,
      "batch/r/group_reward_std/p10": 0,
      "batch/r/group_reward_std/p50": 0,
      "batch/r/group_reward_std/p90": 0.25,
    });
    expect(difficulty("r", [{ group: "a", reward: 1 }])).toEqual({});
    expect(difficulty("r", [])).toEqual({});
  });

  test("a group whose rewards deviate by 1e-8 is informative", () => {
    const units = (apart: number) => [0, apart].map((reward) => ({ group: "a", reward }));
    expect(difficulty("r", units(2e-8))).toMatchObject({ "batch/r/informative": 1, "batch/r/fractions/too_hard": 0 });
    expect(difficulty("r", units(1.9e-8))).toMatchObject({ "batch/r/informative": 0 });
  });
});

test("a step without tokens of its own is left out", () => {
  const rows = packTrajectories([rewardedGroup([1], { steps: [aStep(), tokenStep([2])] })]);
  expect([...rows.tokens]).toEqual([1, 2]);
});
