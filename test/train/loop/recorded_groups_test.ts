/** The order of recorded groups and of the sessions in them. */
import { describe, expect, test } from "vitest";
import { groupSessions, type TrainableSession } from "../../../src/train/loop/recorded/scan.ts";

interface Given extends Partial<TrainableSession["place"]> {
  readonly id: string;
  readonly group?: string;
  readonly created_at?: number;
}

function session({ id, group = id, created_at = 0, ...place }: Given): TrainableSession {
  return {
    ...{ session_id: id, group, created_at, ended_at: created_at, weightVersions: [] },
    place: { step: null, task_index: null, rollout_index: null, ...place } as TrainableSession["place"],
    task: { id: group, instruction: "" },
  };
}

const orderOf = (given: readonly Given[]) =>
  groupSessions(given.map(session)).map(({ sessions }) => sessions.map(({ session_id }) => session_id));

describe("groups", () => {
  test.each<[what: string, given: readonly Given[], expected: readonly string[]]>([
    [
      "by step before all else",
      [
        { id: "a", step: 2, task_index: 0 },
        { id: "b", step: 1, task_index: 5 },
      ],
      ["b", "a"],
    ],
    [
      "by task in a step",
      [
        { id: "a", step: 1, task_index: 5, created_at: 1 },
        { id: "b", step: 1, task_index: 4, created_at: 2 },
      ],
      ["b", "a"],
    ],
    ["without a step first", [{ id: "a", step: 0 }, { id: "b" }], ["b", "a"]],
    [
      "by their creation",
      [
        { id: "a", created_at: 3 },
        { id: "b", created_at: 1 },
        { id: "c", created_at: 2 },
      ],
      ["b", "c", "a"],
    ],
    ["by name where nothing else differs", [{ id: "c" }, { id: "a" }, { id: "b" }], ["a", "b", "c"]],
    ["by name, whatever their order was", [{ id: "a" }, { id: "b" }, { id: "c" }], ["a", "b", "c"]],
  ])("come %s", (_, given, expected) => {
    expect(orderOf(given).flat()).toEqual(expected);
  });
});

test("the sessions of a group come by their rollout index, those without one first and by time", () => {
  const given: Given[] = [
    { id: "second", group: "g", rollout_index: 1, created_at: 1 },
    { id: "first", group: "g", rollout_index: 0, created_at: 9 },
    { id: "late", group: "g", created_at: 5 },
    { id: "early", group: "g", created_at: 4 },
  ];
  expect(orderOf(given)).toEqual([["early", "late", "first", "second"]]);
});
