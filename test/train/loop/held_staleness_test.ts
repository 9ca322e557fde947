/** Groups that rejection sampling holds back age while they wait: `training.max_off_policy_threshold` holds for them too. */
import { describe, expect, test } from "vitest";
import type { Backend } from "../../../src/engine/contract/backend.ts";
import type { TrajectoryGroup } from "../../../src/train/data/types.ts";
import { reject } from "../../../src/train/loop/stages/reject.ts";
import { rewardedGroup, stageContext, tokenStep } from "../../fixtures/stage.ts";

type Member = readonly [reward: number, version: number];

/** A group whose trajectories have these rewards and weight versions; a reward of 1 is correct. */
function aged(task_id: string, role: string, members: readonly Member[]): TrajectoryGroup {
  const group = rewardedGroup(
    members.map(([reward]) => reward),
    { role },
  );
  return {
    ...group,
    task_id,
    trajectories: group.trajectories.map((each, i) => ({
      ...each,
      steps: [tokenStep([2, 3], { weight_version: members[i]![1] })],
    })),
    metadata: group.metadata.map((each, i) => ({ ...each, task_id, is_correct: members[i]![0] === 1 })),
  };
}

const OLD = aged("a", "solver", [
  [1, 1],
  [0, 2],
]);
const MIXED = aged("b", "solver", [
  [1, 2],
  [0, 5],
  [1, 4],
]);
const FRESH = aged("c", "solver", [
  [1, 5],
  [0, 5],
]);
const HELD = { groups: [OLD, MIXED, FRESH], solvePartial: 3 };
const UNIFORM_WITHOUT_OLD = aged("d", "solver", [
  [1, 1],
  [0, 5],
  [0, 5],
]);

describe("groups that were held back, in weights of version 5", () => {
  const heldAfter = async (training: object, held = HELD, more: object = {}) => {
    const rejection_sample = { enable: true, min_partial_solve_tasks: 100, min_trajs_per_group: 2, ...more };
    const backend = { weightVersion: 5 } as Backend;
    const context = stageContext({ training, rejection_sample }, { backend });
    const { value, metrics } = await reject({ episodes: [], groups: [], held }, context);
    const sizes = value.held.groups.map(({ task_id, trajectories, metadata }) => {
      expect(metadata).toHaveLength(trajectories.length);
      return [task_id, trajectories.length] as const;
    });
    const { solvePartial } = value.held;
    return { sizes, solvePartial, dropped: metrics["batch/dropped_stale_held_trajectories"], value };
  };

  test.each([
    [null, [2, 3, 2], 3, undefined],
    [4, [2, 3, 2], 3, 0],
    // MIXED loses its oldest, OLD loses one of two and with it its right to train.
    [2, [2, 2], 2, 3],
    [0, [2], 1, 5],
  ])("a threshold of %j keeps groups of %j, and %i partly solved tasks", async (threshold, sizes, partly, dropped) => {
    const found = await heldAfter({ max_off_policy_threshold: threshold });
    expect(found).toMatchObject({ solvePartial: partly, dropped });
    expect(found.sizes.map(([, size]) => size)).toEqual(sizes);
  });

  test("a group that loses nothing is the same value, and a member is dropped with its own metadata", async () => {
    const { value } = await heldAfter({ max_off_policy_threshold: 2 });
    expect(value.held.groups[1]).toBe(FRESH);
    expect(value.held.groups[0]!.metadata).toEqual(MIXED.metadata.slice(1));
  });

  test("mask leaves them whole, because the batch masks their old tokens", async () => {
    const training = { max_off_policy_threshold: 0, max_off_policy_strategy: "mask" };
    expect((await heldAfter(training)).value.held).toEqual(HELD);
  });

  test("a rest with equal rewards goes only where such groups are filtered", async () => {
    const held = { groups: [UNIFORM_WITHOUT_OLD], solvePartial: 1 };
    const training = { max_off_policy_threshold: 2 };
    expect((await heldAfter(training, held)).sizes).toEqual([["d", 2]]);
    expect(await heldAfter(training, held, { filter_uniform_groups: true })).toMatchObject({
      sizes: [],
      solvePartial: 0,
    });
  });

  test("a task's roles count as one partly solved task, a task that came up twice as two", async () => {
    const critic = aged("a", "critic", [
      [1, 1],
      [0, 1],
    ]);
    const training = { max_off_policy_threshold: 2 };
    const roles = await heldAfter(training, { groups: [OLD, critic, FRESH], solvePartial: 2 });
    expect(roles).toMatchObject({ sizes: [["c", 2]], solvePartial: 1 });
    const twice = await heldAfter(training, { groups: [OLD, OLD, FRESH], solvePartial: 3 });
    expect(twice.solvePartial).toBe(1);
  });

  test("a group whose attempts all succeeded never counted as partly solved", async () => {
    const solved = aged("e", "solver", [
      [1, 1],
      [1, 1],
    ]);
    const found = await heldAfter({ max_off_policy_threshold: 2 }, { groups: [solved, FRESH], solvePartial: 1 });
    expect(found).toMatchObject({ sizes: [["c", 2]], solvePartial: 1 });
  });
});
