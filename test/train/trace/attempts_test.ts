/** From sessions to attempts: which task, which trajectories, in which order, with which reward. */
import { describe, expect, test } from "vitest";
import type { SessionSummary, TraceRecord } from "../../../src/engine/contract/trace.ts";
import {
  type AttemptKeys,
  attemptOf,
  groupOf,
  TRAJECTORY_NAME,
  whySkipped,
} from "../../../src/train/trace/attempts.ts";
import { makeTrace } from "./make_trace.ts";

const OWN: AttemptKeys = { group: null, name: null };

function session(fields: Partial<SessionSummary> = {}): SessionSummary {
  return {
    ...{ session_id: "s", metadata: {}, created_at: 5, trace_count: 1, first_at: 1, last_at: 1 },
    outcome: { reward: 1, ended_at: 9 },
    ...fields,
  };
}

describe("the task of a session", () => {
  const cases: [
    name: string,
    group: string,
    fields: Partial<SessionSummary>,
    key: string | null,
    traces?: TraceRecord[],
  ][] = [
    ["is its value of the key", "red", { metadata: { team: "red", task_id: "t" } }, "team"],
    ["is a number as text", "3", { metadata: { team: 3 } }, "team"],
    ["is that of its traces where it has none", "red", {}, "team", [makeTrace({ metadata: { team: "red" } })]],
    [
      "is not that of traces which differ",
      "t",
      { metadata: { task_id: "t" } },
      "team",
      [makeTrace({ metadata: { team: "red" } }), makeTrace({ metadata: { team: "blue" } })],
    ],
    ["is its place in a run", "r/3/0/t", { metadata: { task_id: "t", task_index: 0, step: 3, run: "r" } }, null],
    ["is in rLLM's session names", "sum:2", { session_id: "sum:2:7:0" }, null],
    ["is the part before the rollout", "sum", { session_id: "sum:7" }, null],
    ["is the session itself otherwise", "agent-7", { session_id: "agent-7" }, null],
  ];
  test.each(cases)("%s", (_, group, fields, key, traces = []) => {
    expect(groupOf(session(fields), { keys: { group: key, name: null }, traces })).toBe(group);
  });
});

describe("the trajectories of a session", () => {
  const call = (trace_id: string, timestamp: number, metadata = {}) =>
    makeTrace({ trace_id, timestamp, metadata, response_message: { role: "assistant", content: trace_id } });
  const shape = (traces: TraceRecord[], keys = OWN, fields: Partial<SessionSummary> = {}) =>
    attemptOf(session(fields), { traces, keys }).trajectories.map(({ name, steps, reward }) => [
      name,
      steps.map((step) => step.model_response).join(" "),
      reward,
    ]);

  test("hold the calls in the order of their start", () => {
    expect(shape([call("b", 2), call("c", 3), call("a", 1), call("b2", 2)])).toEqual([["", "a b b2 c", 1]]);
  });

  test.each([
    ["their caller gave up", "abort"],
    ["their worker broke off", "error"],
  ])("leave out calls that %s", (_, finish_reason) => {
    const lost = { ...call("b", 2), finish_reason, logprobs: null };
    expect(shape([call("a", 1), lost, call("c", 3)])).toEqual([["", "a c", 1]]);
    expect(whySkipped(session(), { traces: [call("a", 1), lost] })).toBeUndefined();
    expect(whySkipped(session(), { traces: [lost] })).toBe("no_calls");
  });

  test("are named by metadata, and rewarded by name", () => {
    const named = (name: string) => ({ [TRAJECTORY_NAME]: name });
    const traces = [call("a", 1, named("solver")), call("b", 2, named("judge")), call("c", 3, named("solver"))];
    const outcome = { reward: 0.5, trajectory_rewards: { judge: -1 }, ended_at: 9 };
    expect(shape(traces, OWN, { outcome })).toEqual([
      ["solver", "a c", 0.5],
      ["judge", "b", -1],
    ]);
    const other = [call("a", 1, { role: "x" }), call("b", 2, { role: "y" })];
    expect(shape(other, { group: null, name: "role" })).toEqual([
      ["x", "a", 1],
      ["y", "b", 1],
    ]);
  });

  test("are named by the header's key where the setting's key has the session's default", () => {
    const keys = { group: null, name: "role" };
    const metadata = { role: "sums" };
    const traces = [
      call("a", 1, metadata),
      call("b", 2, { ...metadata, [TRAJECTORY_NAME]: "judge" }),
      call("c", 3, { role: "solver", [TRAJECTORY_NAME]: "judge" }),
    ];
    expect(shape(traces, keys, { metadata })).toEqual([
      ["sums", "a", 1],
      ["judge", "b", 1],
      ["solver", "c", 1],
    ]);
  });

  test("are those that the recording run names, with its calls, rewards and signals", () => {
    const traces = [call("a", 1), call("b", 2), { ...call("c", 3), finish_reason: "abort" }, call("d", 4)];
    const trajectories = [
      { name: "x", label: "x/0", reward: null, calls: [{ trace_id: "b", reward: 2, advantage: 3 }] },
      { name: "x", label: "x/1", reward: 0.5, signals: { s: 1 }, calls: [{ trace_id: "c", reward: 0 }] },
      { name: "y", label: "y", reward: 0, calls: [] },
    ];
    const outcome = { reward: 1, trajectories, ended_at: 9 };
    const found = attemptOf(session({ outcome }), { traces, keys: OWN }).trajectories;
    expect(found).toMatchObject([
      { name: "x", reward: null, steps: [{ model_response: "b", reward: 2, advantage: 3 }] },
      { name: "x", reward: 0.5, signals: { s: 1 }, steps: [{ model_response: "c", reward: 0 }] },
      { name: "y", reward: 0, steps: [] },
    ]);
    const skipped = (lost: string[]) =>
      whySkipped(session({ outcome: { ...outcome, reward: null } }), {
        traces: traces.filter(({ trace_id }) => !lost.includes(trace_id)),
      });
    expect(skipped(["a", "d"])).toBeUndefined();
    expect(skipped(["b"])).toBe("lost_calls");
    expect(skipped(["b", "c"])).toBe("no_calls");
  });

  test("of one name are told apart by the key of groups", () => {
    const keys = { group: "part", name: null };
    const traces = [call("a", 1, { part: 1 }), call("b", 2, { part: 2 }), call("c", 3, { part: 1 })];
    const outcome = { reward: 0, trajectory_rewards: { "/2": 1 }, ended_at: 9 };
    expect(shape(traces, keys, { outcome })).toEqual([
      ["", "a c", 0],
      ["", "b", 1],
    ]);
    expect(shape(traces, keys, { metadata: { part: 1 } })).toEqual([
      ["", "a c", 1],
      ["", "b", 1],
    ]);
  });

  test("carry tokens, log-probs and weight versions as recorded", () => {
    const trace = makeTrace({ weight_version: 7, finish_reason: "length" });
    const [trajectory] = attemptOf(session(), { traces: [trace], keys: OWN }).trajectories;
    expect(trajectory!.steps).toEqual([
      {
        ...{ prompt_ids: [1, 2, 3], response_ids: [4, 5], logprobs: [-0.5, -0.25], weight_version: 7 },
        ...{ model_response: "4", reward: 0, done: false, finish_reason: "length" },
        chat_completions: [
          { role: "user", content: "2+2?" },
          { role: "assistant", content: "4" },
        ],
      },
    ]);
    const unknown = attemptOf(session(), { traces: [{ ...trace, weight_version: null }], keys: OWN });
    expect(unknown.trajectories[0]!.steps[0]).not.toHaveProperty("weight_version");
  });

  test("belong to a task with the question and the recorded row", () => {
    const row = { answer: "4" };
    const { task } = attemptOf(session({ metadata: { task_id: "t", task: row } }), {
      traces: [makeTrace()],
      keys: OWN,
    });
    expect(task).toEqual({
      ...{ id: "t", instruction: "2+2?", metadata: row },
      messages: [{ role: "user", content: "2+2?" }],
    });
  });
});
