/** The name that a misspelt one most likely means. */
import { expect, test } from "vitest";
import { nearest } from "../../src/leaves/nearest.ts";

test.each<[name: string, candidates: string[], expected: string | undefined]>([
  ["batch", ["batch"], "batch"],
  ["bacth", ["batch", "catch"], "batch"],
  ["batc", ["batch"], "batch"],
  ["batchh", ["batch"], "batch"],
  ["bxtch", ["batch"], "batch"],
  // A swap of neighbours counts once.
  ["ab", ["ba"], "ba"],
  ["abcdef", ["badcfe"], "badcfe"],
  // At most a third of the name, and always two edits.
  ["ab", ["cd"], "cd"],
  ["abc", ["xyz"], undefined],
  ["abcdef", ["abcxyz"], "abcxyz"],
  ["abcdef", ["abwxyz"], undefined],
  ["abcdefghi", ["abcdewxyz"], "abcdewxyz"],
  ["abcdefghi", ["abcdvwxyz"], undefined],
  ["n", ["nearest"], undefined],
  ["learning_rate", ["learning_rat", "learning_rates", "rate"], "learning_rat"],
  // Of equal ones the first.
  ["cat", ["bat", "rat"], "bat"],
  ["cat", ["cart", "bat", "cat"], "cat"],
  ["abc", ["axx", "abx"], "abx"],
  ["", ["ab"], "ab"],
  ["", ["abc"], undefined],
  ["abc", [], undefined],
])("nearest(%j) among %j is %j", (name, candidates, expected) => {
  expect(nearest(name, candidates)).toBe(expected);
});
