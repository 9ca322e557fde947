import { expect, test } from "vitest";
import { evaluationOf, isResult } from "../../../src/train/task/rollout.ts";

const use = (value: unknown) => evaluationOf(value as never);
const result = (value: object) => isResult({ trajectories: [], ...value } as never);

test.each([
  [{ is_correct: "no" }, /is_correct must be true or false \("no"\)/],
  [{ is_correct: 1 }, /is_correct must be true or false \(1\)/],
  [{ metrics: { m: "x" } }, /metrics\.m must be a number \("x"\)/],
  [{ metrics: { m: null } }, /metrics\.m must be a number \(null\)/],
  [{ metrics: { m: true } }, /metrics\.m must be a number \(true\)/],
  [{ metrics: [1] }, /metrics must be an object of numbers \(\[1\]\)/],
  [{ metrics: 3 }, /metrics must be an object of numbers \(3\)/],
])("a judgement and a rollout's result with %j are refused", (field, message) => {
  expect(() => use({ reward: 1, ...field })).toThrow(message);
  expect(() => result(field)).toThrow(message);
});

test.each([
  [{ signals: { s: "1" } }, /signals\.s must be a number \("1"\)/],
  [{ answer: 5 }, /answer must be a text \(5\)/],
])("a judgement with %j is refused", (field, message) => {
  expect(() => use({ reward: 1, ...field })).toThrow(message);
});

test("a trajectory with a signal that is no number is refused", () => {
  const trajectories = [{ steps: [], signals: { s: "1" } }];
  expect(() => isResult({ trajectories } as never)).toThrow(/signals\.s must be a number/);
});

test("whole judgements are used as they are", () => {
  const judgement = {
    reward: 0.5,
    is_correct: false,
    metrics: { a: 1, b: Number.NaN },
    signals: { s: 2 },
    answer: "5",
  };
  expect(use(judgement)).toBe(judgement);
  expect(use({ reward: 1, is_correct: undefined, metrics: undefined })).toMatchObject({ reward: 1 });
  expect(result({ is_correct: true, metrics: { a: 1 } })).toBe(true);
});
