import { expect, test } from "vitest";
import type { Episode } from "../../../src/train/data/types.ts";
import { groupVotes, majorityAtK } from "../../../src/train/evaluation/majority.ts";
import { measureTasks } from "../../../src/train/evaluation/measures.ts";
import { equalities, registerReward } from "../../../src/train/task/registered.ts";
import "../../../src/train/task/answers/rewards.ts";

const HALVES = ["1/2", "0.5", "\\frac12", "3", "3"];

function episodes(answers: readonly string[], correct: number): Episode[] {
  return answers.map((answer, i) => ({
    id: `t:${i}`,
    task: { id: "t", instruction: "", metadata: {} },
    task_index: 0,
    rollout_index: i,
    termination_reason: "env_done",
    is_correct: i < correct,
    trajectories: [],
    metrics: {},
    metadata: { answer },
  }));
}

test("maj@k counts equal answers as one: 1/2, 0.5 and \\frac12 outvote two threes", () => {
  const tasks = measureTasks(episodes(HALVES, 3), { ks: [5], equal: equalities.find("math") });
  expect(tasks[0]!.values["maj@5"]).toBe(1);
});

test("maj@k of a reward that names no equality goes by texts", () => {
  registerReward("by_text", () => 1);
  const tasks = measureTasks(episodes(HALVES, 3), { ks: [5], equal: equalities.find("by_text") });
  expect(tasks[0]!.values["maj@5"]).toBe(0);
});

test("a reward that is registered again loses the equality of the one before", () => {
  registerReward("twice", () => 1, { equal: () => true });
  registerReward("twice", () => 1);
  expect(equalities.find("twice")("1", "2")).toBe(false);
});

test("groupVotes() gives equal answers the text of the first, and leaves those without an answer", () => {
  const votes = ["2", undefined, "4/2", "3"].map((answer) => ({ answer, is_correct: false }));
  const grouped = groupVotes(votes, equalities.find("math"));
  expect(grouped.map(({ answer }) => answer)).toEqual(["2", undefined, "2", "3"]);
  expect(majorityAtK(4, grouped)).toBe(0);
});
