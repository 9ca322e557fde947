import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { tasksFromJsonl } from "../../../src/train/data/rows.ts";
import { exactMatch, lastNumber } from "../../../src/train/task/rewards.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";

const task = (answer: unknown) => ({ id: "t", instruction: "", metadata: { answer } });

test.each([
  ["it is 42", "#### 42", 1],
  ["first 42, then 41", "#### 42", 0],
  ["$1,250.50", "so 7\n#### 1250.5", 1],
  ["#### -3", "-3", 1],
  ["no number", "#### 42", 0],
  ["42", "no number", 0],
  ["42.", 42, 1],
  // Commas that separate, digits of names, signs, sizes.
  ["3,4", "34", 0],
  ["3,4", "4", 1],
  ["1,000,00", "0", 1],
  ["-$3", "-3", 1],
  ["-$3", "3", 0],
  ["$-3", "-3", 1],
  ["\u22123", "-3", 1],
  ["12-5", "5", 1],
  ["drink 5 of H2O", "5", 1],
  ["x_1 is 7, x_2 unknown", "7", 1],
  ["9007199254740993", "9007199254740992", 0],
  ["0.1000000000000000055", "0.1", 0],
  ["007.50", "7.5", 1],
  ["-0", "0", 1],
  ["2.5e3", "2500", 1],
  ["1e-3", "0.001", 1],
])("lastNumber(%j) against %j is %d", (response, answer, reward) => {
  expect(lastNumber(response, task(answer))).toBe(reward);
});

test("exactMatch() ignores only surrounding white space", () => {
  expect(exactMatch(" 42\n", task("42"))).toBe(1);
  expect(exactMatch("42.", task("42"))).toBe(0);
});

test.skipIf(!hasShared)("every GSM8K answer is right by its own words, and wrong with another number after it", () => {
  const text = readFileSync(sharedPath("data/gsm8k_test.jsonl"), "utf8");
  const tasks = tasksFromJsonl(text, { file: "gsm8k_test.jsonl", promptKey: "question" });
  expect(tasks).toHaveLength(1319);
  for (const each of tasks) {
    const answer = String(each.metadata.answer);
    expect(lastNumber(answer, each), answer).toBe(1);
    expect(lastNumber(`${answer} 0.12345`, each), answer).toBe(0);
  }
});
