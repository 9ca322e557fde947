/** The outcome of a recorded session: rewards for readers, and what a run trains on. */
import { expect, test } from "vitest";
import type { Step } from "../../../src/train/data/types.ts";
import { type RolloutResult, Termination } from "../../../src/train/task/rollout.ts";
import { outcomeOf } from "../../../src/train/task/session_outcome.ts";

const step = (id: string, reward = 0, more: Partial<Step> = {}): Step => ({
  ...{ id, reward, prompt_ids: [1], response_ids: [2], logprobs: [-1], model_response: "", done: false },
  ...more,
});

const agent = (name: string, reward: number | null, ...steps: Step[]) => ({ name, reward, steps });

test.each<[string, RolloutResult["trajectories"], object]>([
  ["one reward of all", [agent("a", 1, step("1")), agent("b", 1, step("2"))], { reward: 1 }],
  [
    "several of one name",
    [agent("a", 1, step("1")), agent("b", 0.5, step("2")), agent("a", 0, step("3"))],
    { reward: null, trajectory_rewards: { "a/0": 1, b: 0.5, "a/1": 0 } },
  ],
  [
    "several of one name, and one with the name that they are numbered as",
    [agent("a", 1, step("1")), agent("a/0", 0.25, step("2")), agent("a", 0.5, step("3")), agent("a/2", 0, step("4"))],
    { reward: null, trajectory_rewards: { "a/1": 1, "a/0": 0.25, "a/3": 0.5, "a/2": 0 } },
  ],
  ["a reward of the last step", [agent("a", null, step("1", 1), step("2", 3))], { reward: 3 }],
  ["no call", [agent("a", null)], { reward: 0 }],
  ["no trajectory", [], { reward: null }],
])("of %s", (_, trajectories, rewards) => {
  const { trajectories: written, ...others } = outcomeOf({ result: { trajectories } });
  expect(others).toEqual(rewards);
  expect(written?.map(({ reward, calls }) => [reward, calls.map((call) => call.trace_id)])).toEqual(
    trajectories.map(({ reward, steps }) => [reward, steps.map(({ id }) => id)]),
  );
});

test("keeps rewards and advantages of steps, and signals of trajectories", () => {
  const steps = [step("1", 0.5, { advantage: [2] }), step("2", 0, { advantage: null })];
  const trajectories = [
    { name: "a", reward: 1, signals: { s: 1 }, steps },
    { ...agent("b", 1), signals: { s: 2 } },
  ];
  expect(outcomeOf({ result: { trajectories, metrics: { m: 1 }, is_correct: false } })).toEqual({
    reward: 1,
    is_correct: false,
    metrics: { m: 1 },
    trajectories: [
      {
        ...{ name: "a", label: "a", reward: 1, signals: { s: 1 } },
        calls: [
          { trace_id: "1", reward: 0.5, advantage: [2] },
          { trace_id: "2", reward: 0 },
        ],
      },
      { name: "b", label: "b", reward: 1, signals: { s: 2 }, calls: [] },
    ],
  });
  expect(outcomeOf({ result: { trajectories: [trajectories[0]!] } })).toMatchObject({ signals: { s: 1 } });
});

test("leaves trajectories out where a step has no trace", () => {
  const result = { trajectories: [agent("a", 1, step("1"), step("2"))] };
  expect(outcomeOf({ result }, { traceOf: ({ id }) => (id === "1" ? id : undefined) })).toEqual({ reward: 1 });
});

test("of an attempt that failed, and of one that was ended", () => {
  expect(outcomeOf({ error: new Error("x") })).toEqual({ reward: null, termination_reason: "error" });
  const error = new Termination("timeout");
  expect(outcomeOf({ error })).toEqual({ reward: null, termination_reason: "timeout" });
});
