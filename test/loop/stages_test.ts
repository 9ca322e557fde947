import { describe, expect, test } from "vitest";
import type { Advantages, Backend } from "../../src/contract/backend.ts";
import { packTrajectories } from "../../src/data/pack.ts";
import type { Episode, RewardedTrajectory, Step, TrajectoryGroup } from "../../src/data/types.ts";
import type { StageContext } from "../../src/loop/contract.ts";
import { shapeRewards } from "../../src/loop/rollout/episode.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../src/loop/settings.ts";
import { advantages } from "../../src/loop/stages/advantages.ts";
import { batch } from "../../src/loop/stages/batch.ts";
import { estimateAdvantages } from "../../src/loop/stages/estimate.ts";
import { learningRateScale } from "../../src/loop/stages/learning_rate.ts";
import { reject } from "../../src/loop/stages/reject.ts";
import { transform } from "../../src/loop/stages/transform.ts";
import { reduceMetrics, update } from "../../src/loop/stages/update.ts";
import { NOTHING_HELD } from "../../src/loop/state.ts";
import { passRates } from "../../src/loop/validate.ts";
import { percentile } from "../../src/statistics.ts";
import { perRow, perToken } from "../fixtures/advantages.ts";

const context = (settings: Partly<LoopSettings> = {}, more: Partial<StageContext> = {}) =>
  ({ settings: loopSettings(settings), estimate: estimateAdvantages, ...more }) as unknown as StageContext;

const step = (reward = 0, advantage?: Step["advantage"]): Step => ({
  prompt_ids: [1],
  response_ids: [2, 3],
  logprobs: [-1, -1],
  model_response: "",
  reward,
  done: true,
  advantage,
});

function episode(task: number, rewards: (number | null)[], more: Partial<Episode> = {}): Episode {
  return {
    id: `t${task}:0`,
    task: { id: `t${task}`, instruction: "", metadata: { data_source: "src" } },
    task_index: task,
    rollout_index: 0,
    termination_reason: "env_done",
    is_correct: (rewards[0] ?? 0) > 0,
    trajectories: rewards.map((reward, i) => ({
      uid: `t${task}/${i}`,
      name: "solver",
      steps: [step()],
      reward,
    })),
    metrics: {},
    metadata: {},
    ...more,
  };
}

function group(rewards: number[], role = "solver", steps = [step()]): TrajectoryGroup {
  const trajectories = rewards.map(
    (reward, i): RewardedTrajectory => ({ uid: `${role}/${i}`, name: role, steps, reward }),
  );
  const metadata = rewards.map((_, rollout_index) => ({
    task_id: "t",
    rollout_index,
    termination_reason: "env_done" as const,
    is_correct: true,
  }));
  return { group_id: `t:${role}`, task_id: "t", group_role: role, trajectories, metadata };
}

describe("transform", () => {
  test("groups by task and name, in order of appearance", () => {
    const { value, metrics } = transform([episode(0, [1]), episode(1, [0]), episode(0, [0])], context());
    expect(value.map((it) => [it.group_id, it.trajectories.length])).toEqual([
      ["t0:solver", 2],
      ["t1:solver", 1],
    ]);
    expect(metrics).toMatchObject({
      "groups/num_groups": 2,
      "groups/avg_group_size": 1.5,
      "groups/max_group_size": 2,
    });
  });

  test("equal task ids never merge", () => {
    const twins = [0, 1].map((task_index) => episode(0, [1], { task_index }));
    expect(transform(twins, context()).value).toHaveLength(2);
  });

  test.each([
    [{}, ["default_traj_name_0", "default_traj_name_1"]],
    [{ impute_missing_names: false, drop_unnamed_traj: true }, []],
    [{ impute_missing_names: false }, ["default_traj_name"]],
  ])("unnamed trajectories with %j", (settings, roles) => {
    const base = episode(0, [1, 0]);
    const unnamed = {
      ...base,
      trajectories: base.trajectories.map((it) => ({ ...it, name: "default_traj_name" })),
    };
    const { value } = transform([unnamed], context({ transform: settings }));
    expect(value.map((it) => it.group_role)).toEqual(roles);
  });

  test("compact filtering removes masked episodes after they are counted", () => {
    const episodes = [episode(0, [1]), episode(0, [0], { termination_reason: "timeout" })];
    const { value, metrics } = transform(episodes, context({ compact_filtering: { enable: true } }));
    expect(value[0]!.trajectories).toHaveLength(1);
    expect(metrics).toMatchObject({
      "groups/num_trajs_before_filter": 2,
      "groups/num_trajs_after_filter": 1,
    });
    expect(transform(episodes, context()).value[0]!.trajectories).toHaveLength(2);
  });

  test("without a reward the last step's counts; a group with some rewards is refused", () => {
    expect(transform([episode(0, [null])], context()).value[0]!.trajectories[0]!.reward).toBe(0);
    const mixed = [episode(0, [null]), episode(0, [1])];
    expect(() => transform(mixed, context())).toThrow(/t0:solver.*1 of 2/s);
  });

  test("groups of a hook are checked too", () => {
    const grouping = (episodes: readonly Episode[]) => [
      {
        group_id: "all",
        task_id: "all",
        group_role: "x",
        trajectories: episodes.flatMap((it) => it.trajectories),
        metadata: [],
      },
    ];
    expect(transform([episode(0, [1]), episode(1, [0])], context({}, { grouping })).value).toHaveLength(1);
    expect(() => transform([episode(0, [Number.POSITIVE_INFINITY])], context({}, { grouping }))).toThrow(
      /t0\/0.*must be a finite number \(Infinity\)/,
    );
    expect(() => transform([episode(0, [1e39])], context({}, { grouping }))).toThrow(/t0\/0.*\(1e\+39\)/);
  });
});

describe("reject", () => {
  const episodes = [episode(0, [1]), episode(0, [0], { rollout_index: 1 }), episode(1, [1])];
  const held = NOTHING_HELD;

  test("counts tasks by solved attempts, and drops groups that are too small", async () => {
    const { value, metrics } = await reject({ episodes, groups: [group([1, 0]), group([1])], held }, context());
    expect(value.groups).toHaveLength(1);
    expect(metrics).toMatchObject({
      "batch/num_tasks": 2,
      "batch/solve_partial": 0.5,
      "batch/solve_all": 0.5,
      "batch/groups_dropped_insufficient_trajs": 1,
    });
  });

  test("does not count attempts with all trajectories in dropped groups", async () => {
    const of = (task: number, reward: number, rollout_index: number) => {
      const made = episode(task, [reward], { rollout_index });
      const uid = `t${task}:${rollout_index}`;
      return { ...made, trajectories: made.trajectories.map((each) => ({ ...each, uid })) };
    };
    const groupOf = (members: Episode[]) => ({
      ...group(members.map(() => 0)),
      trajectories: members.flatMap(({ trajectories }) => trajectories as RewardedTrajectory[]),
    });
    const [solved, failed, alone] = [of(0, 1, 0), of(0, 0, 1), of(1, 1, 0)];
    const { metrics } = await reject(
      { episodes: [solved, failed, alone], groups: [groupOf([solved, failed]), groupOf([alone])], held },
      context(),
    );
    expect(metrics).toMatchObject({
      "batch/num_tasks": 1,
      "batch/solve_partial": 1,
      "batch/solve_all": 0,
      "batch/groups_dropped_insufficient_trajs": 1,
    });
  });

  test("mode episode collects groups until enough tasks are partly solved", async () => {
    const settings = context({ rejection_sample: { enable: true, min_partial_solve_tasks: 2 } });
    const first = (await reject({ episodes, groups: [group([1, 0])], held }, settings)).value;
    expect(first.groups).toEqual([]);
    const second = (await reject({ episodes, groups: [group([0, 1])], held: first.held }, settings)).value;
    expect(second.groups).toHaveLength(2);
    expect(second.held).toEqual(NOTHING_HELD);
  });

  test("mode group drops groups with equal rewards and keeps the rest", async () => {
    const groups = [group([1, 0]), group([1, 1]), group([0, 0])];
    const { value } = await reject({ episodes, groups, held }, context({ rejection_sample: { mode: "group" } }));
    expect(value.groups).toHaveLength(1);
  });
});

describe("advantages", () => {
  const of = async (groups: TrajectoryGroup[], settings: Partly<LoopSettings> = {}) =>
    advantages(packTrajectories(groups), context(settings));

  /** Output of rLLM's code for [1,0,0,0], [1,1,0,0], [0.5] and [1,1,1,1] in one step. */
  test.each([
    ["grpo", true, [1.732047, -0.577349], [0.999998, -0.999998], 0.5, 0],
    ["grpo", false, [0.75, -0.25], [0.5, -0.5], 0.5, 0],
    ["reinforce_plus_plus_baseline", true, [2.04415, -0.681383], [1.362767, -1.362767], 0, 0],
    ["prpo", true, [0.892216, -1.216658], [0.892216, -1.216658], -0.162221, 0.892216],
    ["rloo", true, [1, -0.333333], [0.666667, -0.666667], 0.5, 0],
    ["reinforce", true, [1, 0], [1, 0], 0.5, 1],
  ] as const)(
    "%s (by deviation: %s) gives rLLM's figures",
    async (adv_estimator, norm_adv_by_std_in_grpo, [one, rest], [half, other], alone, all) => {
      const groups = [[1, 0, 0, 0], [1, 1, 0, 0], [0.5], [1, 1, 1, 1]].map((rewards) => group(rewards));
      const { value } = await of(groups, { algorithm: { adv_estimator, norm_adv_by_std_in_grpo } });
      const expected = [one, rest, rest, rest, half, half, other, other, alone, all, all, all, all];
      expect(value.advantages.level).toBe("row");
      expect(value.advantages.values).toHaveLength(expected.length);
      for (const [i, each] of expected.entries()) expect(value.advantages.values[i]).toBeCloseTo(each, 5);
    },
  );

  test("has separate metrics for each role", async () => {
    const { metrics } = await of([group([1, 0]), group([3, 3], "judge"), group([0, 0])]);
    expect(metrics).toMatchObject({
      "reward/solver/mean": 0.25,
      "reward/judge/mean": 3,
      "advantage/judge/fraction_zero": 1,
      "batch/solver/total": 2,
      "batch/solver/informative": 1,
      "batch/solver/fractions/too_hard": 0.5,
      "batch/judge/fractions/too_easy": 1,
    });
  });

  test("precomputed advantages are kept per token; a missing one is 0; other roles are estimated", async () => {
    const own = group([1, 0], "judge", [step(0, [0.5, -2]), { ...step(), prompt_ids: [1, 2, 3, 4] }]);
    const { value } = await of([own, group([1, 0])], { algorithm: { use_precomputed_advantage: true } });
    const perToken = [...value.advantages.values];
    expect(perToken.slice(0, 6)).toEqual([0, 0.5, -2, 0, 0, 0]);
    expect(perToken.slice(12).map((each) => Math.round(each))).toEqual([0, 1, 1, 0, -1, -1]);
  });

  const precomputed = { algorithm: { use_precomputed_advantage: true } };

  test.each<[string, Step["advantage"] | unknown, RegExp]>([
    ["NaN", Number.NaN, /the trajectory judge\/0.*the advantage of step 1 must be a finite number: NaN/],
    ["Infinity", Number.POSITIVE_INFINITY, /judge\/0.*of step 1.*: Infinity/],
    ["NaN at a token", [0.5, Number.NaN], /judge\/0.*the advantage of response token 1 of step 1.*: NaN/],
    ["-Infinity at a token", [Number.NEGATIVE_INFINITY, 0], /response token 0 of step 1.*: -Infinity/],
    ["null at a token", [0.5, null], /response token 1 of step 1.*: null/],
    ["beyond 32 bits", 1e39, /of step 1.*: 1e\+39/],
    ["text", "0.5", /of step 1.*: 0.5/],
  ])("a precomputed advantage of %s is refused with its trajectory and token", (_, advantage, message) => {
    const steps = [step(0, 1), { ...step(0, advantage as Step["advantage"]), prompt_ids: [1, 2, 3, 4] }];
    expect(() => batch([group([1, 0], "judge", steps)], context(precomputed))).toThrow(message);
  });

  test("a NaN from a custom batch stage is refused too", async () => {
    const rows = packTrajectories([group([1, 0], "judge", [step(0, [0.5, Number.NaN])])]);
    await expect(advantages(rows, context(precomputed))).rejects.toThrow(
      /trajectory judge\/0: .*\(NaN, at token 2 of the row\)/,
    );
  });

  test("values at tokens without a given advantage do not count", async () => {
    const rows = packTrajectories([group([1, 0], "judge", [step(0, 5)])]);
    const isGiven = Uint8Array.of(0, 1, 0, 0, 1, 1);
    const { value } = await advantages(
      { ...rows, givenAdvantages: { values: new Float32Array(6).fill(5), isGiven } },
      context(precomputed),
    );
    expect([...value.advantages.values]).toEqual([0, 5, 0, 0, 5, 5]);
  });

  test("an advantage of 0 is not missing, and a missing one is 0", async () => {
    const own = group([1, 0], "judge", [step(0, 0), { ...step(), prompt_ids: [1, 2, 3, 4] }]);
    const rows = packTrajectories([own]);
    expect([...rows.givenAdvantages!.isGiven].slice(0, 6)).toEqual([0, 1, 1, 0, 0, 0]);
    expect([...(await advantages(rows, context(precomputed))).value.advantages.values]).toEqual(new Array(12).fill(0));
    expect(packTrajectories([group([1, 0])]).givenAdvantages).toBeUndefined();
  });

  test("warns once of advantages that the estimator overwrites", async () => {
    const said: string[] = [];
    const warn = (message: string) => void said.push(message);
    const rows = packTrajectories([group([1, 0], "judge", [step(0, 5)])]);
    const { value } = await advantages(rows, context({}, { warn }));
    expect([...value.advantages.values].map(Math.round)).toEqual([1, -1]);
    expect(said).toEqual([
      expect.stringMatching(/overwrites .* role judge .*Set rllm\.algorithm\.use_precomputed_advantage=true/),
    ]);
  });

  const twoSteps = (first: number, second: number) => [
    { ...step(first), prompt_ids: [1], response_ids: [2, 3] },
    { ...step(second), prompt_ids: [1, 2, 3, 4], response_ids: [5], logprobs: [-1] },
  ];

  test("per_step compares each step with the same step of the others", async () => {
    const own = group([0, 0]);
    const trajectories = own.trajectories.map((it, i) => ({ ...it, steps: twoSteps(i, 10 * (1 - i)) }));
    const settings = {
      stepwise_advantage: { enable: true, mode: "per_step" as const },
      algorithm: { norm_adv_by_std_in_grpo: false },
    };
    const { value } = await of([{ ...own, trajectories }], settings);
    expect([...value.advantages.values]).toEqual([0, -0.5, -0.5, 0, 5, 0, 0.5, 0.5, 0, -5]);
  });

  // Numbered in the order of the units' trained tokens; a prompt token has none.
  test.each([
    ["trajectory", { enable: false }],
    ["per_step", { enable: true, mode: "per_step" as const }],
  ])("advantages per token go to the tokens of their unit: %s", async (_, stepwise_advantage) => {
    const own = group([1, 0]);
    const trajectories = own.trajectories.map((it) => ({ ...it, steps: twoSteps(0, 0) }));
    const packed = packTrajectories([{ ...own, trajectories }]);
    const estimate = () => perToken(1, 2, 3, 4, 5, 6);
    const { value } = await advantages(packed, context({ stepwise_advantage }, { estimate }));
    expect(value.advantages).toEqual(perToken(0, 1, 2, 0, 3, 0, 4, 5, 0, 6));
  });

  test("normalize_by_steps divides a trajectory's advantage by its steps", async () => {
    const own = group([1, 0]);
    const trajectories = own.trajectories.map((it) => ({ ...it, steps: twoSteps(0, 0) }));
    const stepwise_advantage = { enable: true, normalize_by_steps: true };
    const { value } = await of([{ ...own, trajectories }], {
      stepwise_advantage,
      algorithm: { norm_adv_by_std_in_grpo: false },
    });
    expect(value.advantages).toEqual(perRow(0.25, -0.25));
  });

  test.each<[string, unknown, RegExp]>([
    ["a bare array", Float32Array.of(1, -1), /the estimator grpo for the role solver: an array of 2 numbers/],
    ["one too many", perRow(1, 2, 3), /level "row" needs one value per row \(2\), and there are 3/],
    ["a token too few", perToken(1, 2, 3), /level "token" needs one value per token \(4\), and there are 3/],
  ])("an estimator that gives %s is refused", async (_, given, message) => {
    const estimate = () => given as Advantages;
    await expect(advantages(packTrajectories([group([1, 0])]), context({}, { estimate }))).rejects.toThrow(message);
  });

  test("a NaN from an estimator is refused with the trajectory's name", async () => {
    const estimate = () => perRow(0, Number.NaN);
    await expect(advantages(packTrajectories([group([1, 0])]), context({}, { estimate }))).rejects.toThrow(
      /trajectory solver\/1: it must be finite \(NaN\)/,
    );
  });
});

test("update() refuses advantages without a level", async () => {
  const rows = packTrajectories([group([1, 0])]);
  const bare = { ...rows, advantages: Float32Array.of(1, -1) as unknown as Advantages };
  await expect(update(bare, context())).rejects.toThrow(/Cannot take advantages: an array of 2 numbers/);
});

test.each([
  ["per row", perRow(1, Number.NaN), /trajectory solver\/1: .* finite \(NaN, at token 1 of row 1/],
  ["per token", perToken(0, 1, 1, 0, 1, -Infinity), /trajectory solver\/1: .* finite \(-Infinity, at token 2/],
])("update() refuses an infinite advantage %s", async (_, advantages, message) => {
  const rows = { ...packTrajectories([group([1, 0])]), advantages };
  await expect(update(rows, context())).rejects.toThrow(message);
});

test.each(["oldLogprobs", "rolloutLogprobs", "refLogprobs", "rolloutIsWeights"] as const)(
  "update() refuses %s that are not finite at a trained token, and only there",
  async (name) => {
    const rows = { ...packTrajectories([group([1, 0])]), advantages: perRow(1, -1) };
    const backend = { forwardBackward: async () => ({}), optimStep: async () => ({}) } as unknown as Backend;
    const run = (...values: number[]) =>
      update(
        { ...rows, [name]: Float32Array.from(values) },
        context({}, { backend, loggers: [], step: 1, totalSteps: 1 }),
      );
    await run(Number.NaN, 0, 0, Number.NaN, 0, 0);
    await expect(run(0, 0, 0, 0, Number.NaN, 0)).rejects.toThrow(
      new RegExp(`trajectory solver/1: its ${name} must be finite \\(NaN, at token 1 of row 1\\)`),
    );
  },
);

test("batch() refuses tokens and log-probs that do not match", () => {
  const broken = group([1], "solver", [{ ...step(), logprobs: [-1] }]);
  expect(() => batch([broken], context())).toThrow(/solver\/0.*2 tokens, 1 log-probs/);
  const infinite = group([1], "solver", [{ ...step(), logprobs: [-1, Number.NEGATIVE_INFINITY] }]);
  expect(() => batch([infinite], context())).toThrow(/response token 1 is not finite/);
});

test("mask_truncated_samples removes truncated rows from the loss", () => {
  const cut = group([1, 0]);
  const metadata = cut.metadata.map((it, i) =>
    i === 0 ? { ...it, termination_reason: "max_response_length_exceeded" as const } : it,
  );
  const { value, metrics } = batch([{ ...cut, metadata }], context({ mask_truncated_samples: true }));
  expect([...value.mask]).toEqual([0, 0, 0, 0, 1, 1]);
  expect(metrics["response_length/clip_ratio"]).toBe(0.5);
});

test("overlong_filter removes every trajectory over a limit from the loss", () => {
  const cut = group([1, 0]);
  const metadata = cut.metadata.map((it, i) => (i === 1 ? { ...it, termination_reason: "timeout" as const } : it));
  const { value } = batch([{ ...cut, metadata }], context({ agent: { overlong_filter: true } }));
  expect([...value.mask]).toEqual([0, 1, 1, 0, 0, 0]);
});

test.each([
  [0, 0, [1, 2, 4]],
  [0, 0.5, [1, 2.5, 5]],
  [0.5, 0, [3, 4, 4]],
  [1, 1, [10, 9, 6]],
])("shapeRewards() with gamma %d and bonus %d", (gamma, reward_bonus_coeff, expected) => {
  const steps = [1, 2, 4].map((reward) => step(reward));
  const rewards = shapeRewards(steps, { gamma, reward_bonus_coeff }).map((it) => it.reward);
  expect(rewards).toEqual(expected);
});

test("passRates() counts attempts for pass@1 and tasks for pass@n", () => {
  const attempts = [true, false, false, false].map((is_correct, i) => episode(Math.floor(i / 2), [0], { is_correct }));
  expect(passRates(attempts, 2)).toEqual({ "val/src/pass@1": 0.25, "val/src/pass@2": 0.5 });
});

test.each<["constant" | "linear" | "cosine", number, number]>([
  ["constant", 1, 1],
  ["linear", 5, 0.5],
  ["linear", 10, 0],
  ["cosine", 5, 0.5],
])("learningRateScale() %s at step %d of 10", (lr_schedule, at, scale) => {
  const options = { lr_schedule, warmup_steps: -1, warmup_steps_ratio: 0 };
  expect(learningRateScale(at, 10, options)).toBeCloseTo(scale, 10);
  expect(learningRateScale(0, 10, options)).toBe(1);
  expect(learningRateScale(2, 10, { ...options, warmup_steps: 4 })).toBe(0.5);
  expect(learningRateScale(2, 10, { ...options, warmup_steps_ratio: 0.4 })).toBe(0.5);
});

test("reduceMetrics() follows verl's names", () => {
  expect(reduceMetrics([{ a: 1, "x/max": 1, "x/min": 1 }, { a: 3, "x/max": 5, "x/min": -1 }, { b: 2 }])).toEqual({
    a: 2,
    b: 2,
    "x/max": 5,
    "x/min": -1,
  });
});

test("percentile() interpolates", () => {
  expect(percentile([4, 1, 3, 2], 50)).toBe(2.5);
  expect(percentile([0, 10], 10)).toBe(1);
});
