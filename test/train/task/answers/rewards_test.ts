import { describe, expect, test } from "vitest";
import { lastBoxed, mathAnswer } from "../../../../src/train/task/answers/extract.ts";
import { rewards } from "../../../../src/train/task/registered.ts";
import "../../../../src/train/task/answers/rewards.ts";
import type { Evaluation } from "../../../../src/train/task/rollout.ts";

const judge = async (name: string, response: string, row: object, args = {}) =>
  (await rewards.find(name)(response, { id: "t", instruction: "?", metadata: row as never }, args)) as Evaluation;

describe("gsm8k", () => {
  test.each([
    ["The total is 18 eggs.\n#### 18", 1, "18"],
    ["#### 1,234", 0, "1234"],
    ["9 * 2 = $18.00 every day.", 1, "18"],
    ["#### 17\nOr is it 18", 0, "17"],
    ["#### 18 dollars for 2 people", 1, "18"],
    ["so 20-18", 1, "18"],
    ["#### -18", 0, "-18"],
    ["none", 0, undefined],
    ["it is 18\n#### Step 2: check the sum, 18", 1, "18"],
    ["#### **18**", 1, "18"],
    ["#### $18.00", 1, "18"],
    ["#### -$18", 0, "-18"],
    ["#### \u221218", 0, "-18"],
    ["9,18", 1, "18"],
    ["18 eggs and H2O", 1, "18"],
    ["#### 18000000000000000001", 0, "18000000000000000001"],
    ["#### 1.8e1", 1, "18"],
  ])("judges %j", async (response, reward, answer) => {
    const judged = await judge("gsm8k", response, { answer: "16 - 3 - 4 = 9\n9 * 2 = 18\n#### 18" });
    expect([judged.reward, judged.answer]).toEqual([reward, answer]);
  });
});

describe("math", () => {
  test.each([
    ["Thus $\\boxed{\\frac{1}{2}}$.", 1, "\\frac{1}{2}"],
    ["\\boxed{1} no, \\boxed{0.5}", 1, "0.5"],
    ["The final answer is 1/2. I hope it is correct.", 1, "1/2"],
    ["\\boxed{\\frac{1}{2}", 0, undefined],
    ["\\boxed{\\frac{1}{2}} and so \\boxed{3", 1, "\\frac{1}{2}"],
    ["The answer is **1/2**.", 1, "1/2"],
    ["**Answer:** 1/2", 1, "1/2"],
    ["The answer is:\n\n$\\frac12$", 1, "\\frac12"],
    ["so 3\n<answer>0.5</answer>", 1, "0.5"],
    ["<answer>3</answer> no, <answer> \\(\\frac12\\) </answer>", 1, "\\frac12"],
    ["The answer is 3. Wait: the answer is 1/2.", 1, "1/2"],
    ["I do not know that one", 0, undefined],
  ])("judges %j", async (response, reward, answer) => {
    const judged = await judge("math", response, { answer: "\\dfrac12" });
    expect([judged.reward, judged.answer]).toEqual([reward, answer]);
  });
  test("takes the boxed answer of a solution", async () => {
    expect((await judge("math", "\\boxed{6}", { solution: "Hence $2 + 4 = \\boxed{6}$." })).reward).toBe(1);
  });
});

test.each([
  ["\\boxed{\\text{a}_{1}}", "\\text{a}_{1}"],
  ["\\fbox{7}", "7"],
  ["\\boxed 5$", "5"],
  ["\\boxed{\\{1\\}}", "\\{1\\}"],
  ["none", undefined],
  ["\\boxed{5} then \\boxed{7", "5"],
  ["\\boxed{\\boxed{5}}", "5"],
  ["\\boxed {5}", "5"],
  ["{ \\boxed{5}", "5"],
  ["} \\boxed{5} }", "5"],
  ["\\boxed{a\\}b}", "a\\}b"],
  ["\\boxedness{5}", undefined],
])("lastBoxed(%j)", (text, expected) => expect(lastBoxed(text)).toBe(expected));

test.each([
  ["42", "42"],
  ["The answer is: 42.", "42"],
  ["We add two numbers here", undefined],
])("mathAnswer(%j)", (text, expected) => expect(mathAnswer(text)).toBe(expected));

describe("json_schema", () => {
  const schema = { type: "object", properties: { age: { type: "integer", minimum: 0 } }, required: ["age"] };
  test.each([
    ['{"age": 3}', 1, 1],
    ['{"age": -3}', 0, 1],
    ["{}", 0, 1],
    ["age: 3", 0, 0],
    ["", 0, 0],
  ])("judges %j", async (response, reward, is_json) => {
    expect(await judge("json_schema", response, { schema })).toEqual({ reward, metrics: { is_json } });
    expect(await judge("json_schema", response, {}, { schema })).toEqual({ reward, metrics: { is_json } });
  });
  test.each([
    [{}, /Cannot judge the task t: json_schema needs an object named schema/],
    [{ schema: { type: "thing" } }, /Cannot judge the task t: its JSON schema is not valid/],
  ])("refuses the row %j", async (row, message) => {
    await expect(judge("json_schema", "{}", row)).rejects.toThrow(message);
  });
});
