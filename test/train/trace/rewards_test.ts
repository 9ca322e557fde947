/** Rewards that arrive after the sessions. */
import { describe, expect, test } from "vitest";
import type { SessionOutcome } from "../../../src/engine/contract/trace.ts";
import { openTraceStore } from "../../../src/train/trace/mod.ts";
import { putRewards, type RewardRow } from "../../../src/train/trace/rewards.ts";

const TRAJECTORIES = ["x/0", "x/1", "y"].map((label) => {
  return { name: label.slice(0, 1), label, reward: 0, calls: [] };
});

/** The outcome of a session after rows for it. */
async function outcomeAfter(outcome: SessionOutcome | undefined, ...rows: Omit<RewardRow, "session_id">[]) {
  const store = await openTraceStore("memory");
  await store.putSession({ session_id: "s", metadata: { a: 1 }, created_at: 1, ...(outcome && { outcome }) });
  await putRewards(store, { rows: rows.map((row) => ({ session_id: "s", ...row })), now: 7 });
  const { metadata, created_at, outcome: found } = (await store.getSession("s"))!;
  expect([metadata, created_at]).toEqual([{ a: 1 }, 1]);
  return found;
}

describe("a row", () => {
  test("ends a session that has not ended, and adds to the outcome of one that has", async () => {
    expect(await outcomeAfter(undefined, { reward: 1, is_correct: undefined })).toEqual({ reward: 1, ended_at: 7 });
    const known = { reward: 0, is_correct: true, ended_at: 3 };
    expect(await outcomeAfter(known, { reward: 2, metrics: { m: 1 } })).toEqual({
      ...known,
      reward: 2,
      metrics: { m: 1 },
    });
  });

  test("of one session may follow another", async () => {
    expect(await outcomeAfter(undefined, { reward: 1 }, { trajectory_rewards: { x: 2 } })).toEqual({
      ...{ reward: 1, trajectory_rewards: { x: 2 }, ended_at: 7 },
    });
  });

  test.each([
    ["all", { reward: 1 }, [1, 1, 1]],
    ["a label", { trajectory_rewards: { "x/1": 2 } }, [0, 2, 0]],
    ["a name, and the rest", { reward: 3, trajectory_rewards: { x: 2, "x/1": 4 } }, [2, 4, 3]],
  ])("gives recorded trajectories their rewards: %s", async (_, row, expected) => {
    const found = await outcomeAfter({ reward: 5, trajectories: TRAJECTORIES, ended_at: 3 }, row);
    expect(found!.trajectories!.map(({ reward }) => reward)).toEqual(expected);
  });

  test("adds to the trajectories' rewards of another row, and of an earlier file", async () => {
    const outcome = { reward: 5, trajectory_rewards: { y: 3 }, trajectories: TRAJECTORIES, ended_at: 3 };
    const rows = [{ trajectory_rewards: { "x/0": 1 } }, { trajectory_rewards: { "x/1": 2 } }];
    const found = (await outcomeAfter(outcome, ...rows))!;
    expect(found.trajectory_rewards).toEqual({ y: 3, "x/0": 1, "x/1": 2 });
    expect(found.trajectories!.map(({ reward }) => reward)).toEqual([1, 2, 3]);
    expect(found.reward).toBe(5);
  });
});

test.each([
  ["no such session", { session_id: "none", reward: 1 }, /1 of 2 sessions are not in the store \(the first is none\)/],
  [
    "no such trajectory",
    { session_id: "b", trajectory_rewards: { z: 1 } },
    /session b has no trajectory "z", it has x\/0, x, x\/1, y\. /,
  ],
])("with %s nothing is changed", async (_, row, message) => {
  const store = await openTraceStore("memory");
  const outcome = { reward: 5, trajectories: TRAJECTORIES, ended_at: 3 };
  for (const session_id of ["a", "b"]) await store.putSession({ session_id, metadata: {}, created_at: 1, outcome });
  const rows: RewardRow[] = [{ session_id: "a", reward: 1 }, row];
  await expect(putRewards(store, { rows, now: 7 })).rejects.toThrow(message);
  expect((await store.getSession("a"))!.outcome).toEqual(outcome);
});
