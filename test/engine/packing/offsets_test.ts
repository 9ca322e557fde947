/** Rows packed end to end: their offsets, and everything that is read by them. */
import { expect, test } from "vitest";
import {
  forEachRow,
  mapRows,
  offsetsOf,
  rowAt,
  rowsOfTokens,
  totalTokens,
  trainedIn,
  unpack,
} from "../../../src/engine/packing/offsets.ts";
import { packTrajectories, rowCount, sliceTokens } from "../../../src/train/data/pack.ts";
import { rewardedGroup, tokenStep } from "../../fixtures/stage.ts";

// Rows of 2, 0, 3 and 0 tokens.
const OFFSETS = Uint32Array.of(0, 2, 2, 5, 5);

test("offsets of lengths, and the tokens in all", () => {
  expect(offsetsOf([2, 0, 3, 0])).toEqual(OFFSETS);
  expect(offsetsOf([])).toEqual(Uint32Array.of(0));
  expect([totalTokens(OFFSETS), totalTokens(Uint32Array.of(0))]).toEqual([5, 0]);
});

test("rows are visited in order, each once", () => {
  const seen: number[][] = [];
  forEachRow(OFFSETS, (...row) => void seen.push(row));
  const expected = [
    [0, 0, 2],
    [1, 2, 2],
    [2, 2, 5],
    [3, 5, 5],
  ];
  expect(seen).toEqual(expected);
  expect(mapRows(OFFSETS, (...row) => row)).toEqual(expected);
  for (const none of [[0], []]) forEachRow(none, () => expect.fail("there is no row"));
  expect(mapRows([0], () => 1)).toEqual([]);
});

test("trained tokens of a part, its end left out", () => {
  expect(trainedIn([1, 0, 1, 1], 0, 3)).toEqual([0, 2]);
  expect(trainedIn([1, 0, 1, 1], 1, 4)).toEqual([2, 3]);
  expect(trainedIn([1, 1], 1, 1)).toEqual([]);
});

test("the row of every token, and of one", () => {
  expect([...rowsOfTokens(OFFSETS)]).toEqual([0, 0, 2, 2, 2]);
  expect([0, 1, 2, 4].map((token) => rowAt(OFFSETS, token))).toEqual([0, 0, 2, 2]);
  const many = offsetsOf(Array.from({ length: 9 }, (_, i) => i % 3));
  expect(Array.from(rowsOfTokens(many), (_, token) => rowAt(many, token))).toEqual([...rowsOfTokens(many)]);
  expect(rowAt(Uint32Array.of(0, 3), 2)).toBe(0);
});

test("numbers as one list per row", () => {
  expect(unpack(Float32Array.of(1, 2, 3, 4, 5), OFFSETS)).toEqual([[1, 2], [], [3, 4, 5], []]);
});

test("rows as a view", () => {
  const rows = packTrajectories([rewardedGroup([1, 0], { steps: [tokenStep([2, 3])] })]);
  expect(rowCount(rows)).toBe(2);
  const view = sliceTokens(rows.tokens, rows, { from: 1, to: 2 });
  expect([...view]).toEqual([1, 2, 3]);
  expect(view.buffer).toBe(rows.tokens.buffer);
  expect([...sliceTokens(rows.rolloutLogprobs, rows, { from: 0, to: 1 })]).toEqual([0, -1, -1]);
});
