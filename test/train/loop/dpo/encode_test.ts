/** Preferences as tokens: what truncation makes of a pair, and what is kept with it. */
import { describe, expect, test } from "vitest";
import type { PlacedPreference } from "../../../../src/train/data/preference.ts";
import { encodePreferences } from "../../../../src/train/loop/dpo/encode.ts";
import type { FitOptions } from "../../../../src/train/loop/sft/encode.ts";
import { letterTokenizer } from "../../../fixtures/table_backend.ts";

const tokenizer = letterTokenizer("abcd");
const pair = (chosen: string, rejected: string, more: Partial<PlacedPreference> = {}): PlacedPreference => {
  const at = { file: "pairs.jsonl", line: 3 };
  const answers = [chosen, rejected].map((response) => ({ example: { prompt: "ab", response }, ...at }));
  return { answers, ...at, ...more };
};
const encode = (examples: readonly PlacedPreference[], more: Partial<FitOptions> = {}) =>
  encodePreferences(examples, { tokenizer, eos: 0, maxLength: 64, truncation: "error", ...more });
const none = { truncated: 0, skipped: 0, emptied: 0 };

test("a pair has both answers behind the prompt, its place, and its margin", () => {
  const { preferences, ...counts } = encode([pair("c", "dd", { margin: 0.5 }), pair("d", "c", { margin: 0 })]);
  expect(counts).toEqual(none);
  expect(preferences[0]).toMatchObject({
    rows: [
      { ids: [1, 2, 3, 0], mask: [0, 0, 1, 1] },
      { ids: [1, 2, 4, 4, 0], mask: [0, 0, 1, 1, 1] },
    ],
    ...{ file: "pairs.jsonl", line: 3, margin: 0.5 },
  });
  expect(preferences.map(({ margin }) => margin)).toEqual([0.5, 0]);
  expect("margin" in encode([pair("c", "d")]).preferences[0]!).toBe(false);
});

test("a labelled row keeps its label, true or false", () => {
  const rows = [true, false].map((label) => {
    const { answers, ...at } = pair("c", "d");
    return { answers: answers.slice(0, 1), label, ...at };
  });
  expect(encode(rows).preferences.map(({ label, rows: each }) => [label, each.length])).toEqual([
    [true, 1],
    [false, 1],
  ]);
});

describe("beyond the limit", () => {
  const right = { truncation: "right", maxLength: 4 } as const;

  test("a pair of which one or both answers are cut counts once", () => {
    const { preferences, ...counts } = encode([pair("c", "ddd"), pair("ccc", "ddd")], right);
    expect(counts).toEqual({ ...none, truncated: 2 });
    expect(preferences.map(({ rows }) => rows.map(({ ids }) => ids.length))).toEqual([
      [4, 4],
      [4, 4],
    ]);
  });

  test("a pair that is equal once it is cut is left out; one that is equal without a cut is refused", () => {
    expect(encode([pair("cda", "cdb")], right)).toEqual({ preferences: [], ...none, emptied: 1 });
    expect(() => encode([pair("cd", "cd")])).toThrow(/both answers are the same tokens.*\(pairs\.jsonl:3\)/);
  });

  test.each([
    ["c", "ddd"],
    ["ddd", "c"],
    ["ccc", "ddd"],
  ])("a pair with %s and %s is left out as a whole", (chosen, rejected) => {
    const skipping = { truncation: "skip", maxLength: 4 } as const;
    const { preferences, ...counts } = encode([pair(chosen, rejected), pair("c", "d")], skipping);
    expect(counts).toEqual({ ...none, skipped: 1 });
    expect(preferences).toHaveLength(1);
  });

  test("a pair of which one answer is cut away is left out as a whole", () => {
    expect(encode([pair("c", "d")], { truncation: "right", maxLength: 2 })).toEqual({
      preferences: [],
      ...none,
      emptied: 1,
    });
  });
});
