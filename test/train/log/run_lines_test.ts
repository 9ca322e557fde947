/** Lines of a run's files as the page reads them: a damaged line is none, whichever field is damaged. */
import { describe, expect, test } from "vitest";
import { factsOf, groupsOf, parseMetricsLine, sampleOf } from "../../../src/train/log/page/run_lines.ts";

const METRICS = { phase: "train", step: 3, "actor/loss": 0.5 };
const SAMPLE = { step: 3, task: "t", prompt: "p", response: "r", reward: 1, is_correct: true };
const GROUP = { task: "t", name: "solver", rewards: [1, null], solved: 1 };
const GROUPS = { step: 3, groups: [GROUP, { ...GROUP, rewards: [] }] };

const inGroup = (changed: object) => ({ ...GROUPS, groups: [GROUP, { ...GROUP, ...changed }] });
const without = (value: object, key: string) => ({ ...value, [key]: undefined });

describe.each<[name: string, read: (line: string) => unknown, whole: object[], damaged: object[]]>([
  [
    "metricsOf()",
    parseMetricsLine,
    [METRICS, { phase: "warmup", step: 0 }, { phase: "val", step: 1 }],
    [{ ...METRICS, phase: "test" }, without(METRICS, "phase"), { ...METRICS, step: "3" }, without(METRICS, "step")],
  ],
  [
    "sampleOf()",
    sampleOf,
    [SAMPLE, { ...SAMPLE, reward: null, is_correct: false, more: 1 }],
    [
      ...Object.keys(SAMPLE).map((key) => without(SAMPLE, key)),
      { ...SAMPLE, step: null },
      { ...SAMPLE, task: 1 },
      { ...SAMPLE, prompt: null },
      { ...SAMPLE, response: ["r"] },
      { ...SAMPLE, reward: "1" },
      { ...SAMPLE, is_correct: 1 },
    ],
  ],
  [
    "groupsOf()",
    groupsOf,
    [GROUPS, { step: 1, groups: [] }],
    [
      without(GROUPS, "step"),
      without(GROUPS, "groups"),
      { ...GROUPS, groups: GROUP },
      { ...GROUPS, groups: [GROUP, null] },
      { ...GROUPS, groups: [GROUP, "x"] },
      { ...GROUPS, groups: [GROUP, [GROUP]] },
      ...Object.keys(GROUP).map((key) => inGroup({ [key]: undefined })),
      inGroup({ task: 1 }),
      inGroup({ name: null }),
      inGroup({ solved: "1" }),
      inGroup({ rewards: 1 }),
      inGroup({ rewards: [1, "1"] }),
      inGroup({ rewards: [true] }),
    ],
  ],
])("%s", (_, read, whole, damaged) => {
  test.each(whole.map((value) => [JSON.stringify(value), value]))("reads %s", (line, value) => {
    expect(read(line as string)).toEqual(value);
  });
  test.each([
    ...damaged.map((value) => JSON.stringify(value)),
    "",
    "{",
    "null",
    "0",
    "false",
    "3",
    "[]",
    `[${JSON.stringify(whole[0])}]`,
  ])("does not read %s", (line) => {
    expect(read(line)).toBeUndefined();
  });
});

describe("factsOf()", () => {
  const FACTS = { title: "a", subtitle: "b", started: "c", ended: "d", complete: false, total_steps: 0 };
  test("keeps known fields of the right type, and no others", () => {
    expect(factsOf(JSON.stringify({ ...FACTS, more: 1 }))).toEqual(FACTS);
  });
  test.each(Object.keys(FACTS))("leaves out %s of a wrong type", (name) => {
    const expected = Object.fromEntries(Object.entries(FACTS).filter(([key]) => key !== name));
    expect(factsOf(JSON.stringify({ ...FACTS, [name]: [] }))).toEqual(expected);
  });
  test.each(["", "{", "null", "[]"])("of %j are none", (text) => {
    expect(factsOf(text)).toEqual({});
  });
});
