/** Verdicts against math-verify's, stored by test/fixtures/math_verify/make.py. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { answersEqual } from "../../../../src/train/task/answers/equal.ts";

const read = (name: string) =>
  readFileSync(new URL(`../../../fixtures/math_verify/${name}`, import.meta.url), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => line.split("\t") as [verdict: string, response: string, gold: string, reason?: string]);

const PAIRS = read("pairs.tsv");
/** What was read and decided: our verdict, the pair, why. */
const DECIDED = read("decided.tsv");
const keyOf = ([, response, gold]: (typeof PAIRS)[number]) => `${response}\t${gold}`;

test("at least 99% of 3,000 verdicts are math-verify's, and every other one is decided", () => {
  const others = PAIRS.filter(([verdict, response, gold]) => Number(answersEqual(response, gold)) !== Number(verdict));
  expect(PAIRS).toHaveLength(3000);
  expect(others.length).toBeLessThanOrEqual(30);
  const decided = new Set(DECIDED.map(keyOf));
  expect(others.filter((pair) => !decided.has(keyOf(pair)))).toEqual([]);
}, 60_000);

test.each(DECIDED)("%s: %j against %j, because %s", (verdict, response, gold, reason) => {
  expect(reason).toMatch(/\w/);
  expect(answersEqual(response, gold)).toBe(verdict === "1");
  expect(answersEqual(gold, response)).toBe(verdict === "1");
});

test("equality has no sides", () => {
  const onesided = PAIRS.slice(0, 1000).filter(
    ([, response, gold]) => answersEqual(response, gold) !== answersEqual(gold, response),
  );
  expect(onesided).toEqual([]);
}, 60_000);
