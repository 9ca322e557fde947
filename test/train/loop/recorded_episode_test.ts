/** A recorded attempt as an episode: whose signals, rewards and judgement it has. */
import { describe, expect, test } from "vitest";
import type { SessionOutcome } from "../../../src/engine/contract/trace.ts";
import { recordedEpisode } from "../../../src/train/loop/recorded/episode.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";
import type { RecordedAttempt, RecordedTrajectory } from "../../../src/train/trace/attempts.ts";

const TASK = { id: "t", instruction: "?", metadata: {} };
const STEP = {
  prompt_ids: [1],
  response_ids: [2],
  logprobs: [-1],
  reward: 0.5,
} as unknown as RecordedTrajectory["steps"][0];

function episodeOf(outcome: Partial<SessionOutcome> | undefined, ...signals: (Record<string, number> | undefined)[]) {
  const trajectories = (signals.length > 0 ? signals : [undefined]).map((each) => ({
    ...{ name: "agent", steps: [STEP], reward: 1 },
    ...(each && { signals: each }),
  }));
  const attempt = { session_id: "s", trajectories, outcome } as unknown as RecordedAttempt;
  const { shaping } = { shaping: loopSettings().workflow.workflow_args };
  return recordedEpisode(attempt, { task: TASK, task_index: 3, rollout_index: 1, shaping });
}

describe("signals", () => {
  test.each<
    [what: string, own: Record<string, number> | undefined, later: Record<string, number> | undefined, got: unknown]
  >([
    ["a trajectory's own", { a: 1 }, undefined, { a: 1 }],
    ["the session's", undefined, { b: 2 }, { b: 2 }],
    ["of both, the session's first", { a: 1, b: 1 }, { b: 2 }, { a: 1, b: 2 }],
  ])("are %s", (_, own, later, got) => {
    const outcome = { reward: 1, ...(later && { signals: later }) };
    expect(episodeOf(outcome, own).trajectories[0]!.signals).toEqual(got);
  });

  test("are missing where neither has any", () => {
    expect(episodeOf({ reward: 1 }).trajectories[0]).not.toHaveProperty("signals");
    expect(episodeOf(undefined).trajectories[0]).not.toHaveProperty("signals");
  });
});

test("it names the session, and each trajectory by its place", () => {
  const { trajectories, metadata, task_index, rollout_index } = episodeOf({ reward: 1 }, undefined, undefined);
  expect(trajectories.map(({ uid }) => uid)).toEqual(["s/0", "s/1"]);
  expect([metadata.session_id, task_index, rollout_index]).toEqual(["s", 3, 1]);
});

test.each([
  ["max_turns_exceeded", "max_turns_exceeded"],
  ["a reason of its own", "unknown"],
])("a session that ended by %j has the reason %j", (termination_reason, expected) => {
  expect(episodeOf({ reward: 1, termination_reason }).termination_reason).toBe(expected);
});

test("a session without a reason ended as one whose agent was done", () => {
  expect(episodeOf({ reward: 1 }).termination_reason).toBe(episodeOf(undefined).termination_reason);
  expect(episodeOf({ reward: 1 }).termination_reason).not.toBe("unknown");
});

test.each<[Partial<SessionOutcome>, boolean]>([
  [{ reward: 1 }, true],
  [{ reward: 0 }, false],
  [{ reward: -1 }, false],
  [{ reward: 1, is_correct: false }, false],
  [{ reward: 0, is_correct: true }, true],
])("%j is correct: %j", (outcome, isCorrect) => {
  expect(episodeOf(outcome).is_correct).toBe(isCorrect);
});
