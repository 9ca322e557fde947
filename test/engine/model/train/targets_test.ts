/** Packed rows cut into passes, and the tokens that a pass scores. */
import { describe, expect, test } from "vitest";
import { checkRows, nextPass, slicePacked, targetsOf } from "../../../../src/engine/model/train/targets.ts";
import type { Transformer } from "../../../../src/engine/model/transformer.ts";

const MODEL = { config: { vocabSize: 10 }, contextLength: 4, contextText: "4 tokens", passTargets: 100 } as Transformer;
const u32 = (...values: number[]) => Uint32Array.from(values);
/** Sequences of 3, 0, 4 and 2 tokens. */
const OFFSETS = u32(0, 3, 3, 7, 9);
const TOKENS = u32(1, 2, 3, 4, 5, 6, 7, 8, 9);

test.each([
  [0, 9, 4],
  [0, 8, 3],
  [0, 7, 3],
  [0, 6, 2],
  [0, 3, 2],
  // A sequence that is longer goes alone.
  [0, 2, 1],
  [2, 3, 3],
  [1, 4, 3],
  [2, 6, 4],
  [3, 1, 4],
])("from sequence %i a pass of %i tokens ends before sequence %i", (from, most, to) => {
  expect(nextPass(from, [{ offsets: OFFSETS, most }])).toEqual({ from, to });
});

test("a pass is within the limits of tokens and of targets, or one sequence beyond them", () => {
  const targets = u32(0, 6, 6, 46, 48);
  const ends = (most: number) =>
    nextPass(0, [
      { offsets: OFFSETS, most: 9 },
      { offsets: targets, most },
    ]).to;
  expect([48, 47, 46, 45, 6, 5].map(ends)).toEqual([4, 3, 3, 2, 2, 1]);
});

test("a part of the rows has offsets from 0, and leaves those of the whole alone", () => {
  const part = slicePacked({ tokens: TOKENS, offsets: OFFSETS }, { from: 2, to: 4 });
  expect(part).toEqual({ tokens: u32(4, 5, 6, 7, 8, 9), offsets: u32(0, 4, 6) });
  expect(OFFSETS).toEqual(u32(0, 3, 3, 7, 9));
});

describe("targets of a part", () => {
  const range = { from: 1, to: 4 };
  const rows = { tokens: TOKENS, offsets: OFFSETS };
  const part = slicePacked(rows, range);

  test("by a mask: each token at the position before it, and never a first one", () => {
    const mask = u32(1, 1, 1, 1, 0, 1, 1, 1, 1);
    expect(targetsOf({ ...rows, mask }, { part, range })).toEqual({
      targets: { positions: u32(1, 2, 4), tokens: u32(6, 7, 9) },
      offsets: u32(0, 0, 2, 3),
    });
    // Only 1 marks a target.
    expect(targetsOf({ ...rows, mask: mask.map((it) => it * 2) }, { part, range }).targets.positions).toHaveLength(0);
  });

  test("given: after some positions, any number of times", () => {
    const targets = u32(1, 2, 3, 4, 5);
    const given = { ...rows, targets, positions: u32(2, 3, 3, 6, 8) };
    expect(targetsOf(given, { part, range })).toEqual({
      targets: { positions: u32(0, 0, 3, 5), tokens: u32(2, 3, 4, 5) },
      offsets: u32(0, 0, 3, 4),
    });
    expect(() => checkRows(MODEL, given)).not.toThrow();
    expect(() => checkRows(MODEL, { ...given, targets: u32(1, 2) })).toThrow(
      "targets must have one element per token (2 of 5)",
    );
  });

  test("given: one after every position", () => {
    const targets = u32(0, 0, 0, 3, 2, 1, 4, 5, 6);
    expect(targetsOf({ ...rows, targets }, { part, range })).toEqual({
      targets: { positions: u32(0, 1, 2, 3, 4, 5), tokens: u32(3, 2, 1, 4, 5, 6) },
      offsets: u32(0, 0, 4, 6),
    });
  });
});

test.each([
  [{ mask: u32(1, 1) }, "mask must have one element per token (2 of 9)"],
  [{ targets: new Uint32Array(10) }, "targets must have one element per token (10 of 9)"],
  [{ offsets: u32(0, 3, 8, 9) }, "Cannot run sequence 1: it is longer than the model's context of 4 tokens (5)."],
  [{ tokens: u32(1, 2, 3, 4, 10, 6, 7, 8, 11) }, "Cannot run token 4: ids must lie in [0, 10) (10)."],
  [{ targets: u32(1, 2, 3, 4, 5, 6, 7, 8, 10) }, "Cannot run target 8: ids must lie in [0, 10) (10)."],
])("rows that cannot run: %j", (change, message) => {
  const rows = { tokens: TOKENS, offsets: OFFSETS };
  expect(() => checkRows(MODEL, { ...rows, mask: new Uint32Array(9), targets: new Uint32Array(9) })).not.toThrow();
  expect(() => checkRows(MODEL, rows)).not.toThrow();
  expect(() => checkRows(MODEL, { ...rows, ...change })).toThrow(message);
});
