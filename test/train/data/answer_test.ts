/** Where the answer of a row is found, and which rows have none. */
import { expect, test } from "vitest";
import { ANSWER_KEYS, answerOf } from "../../../src/train/data/answer.ts";
import { tasksFromJsonl } from "../../../src/train/data/rows.ts";
import { nested } from "../../fixtures/nested.ts";

const NEEDS = { needsAnswer: true };
const tasks = (row: object, options: object = {}) =>
  tasksFromJsonl(`\n${JSON.stringify({ prompt: "p", ...row })}\n`, { file: "rows.jsonl", judges: [NEEDS], ...options });
const answer = (row: object, options: object = {}) => answerOf(tasks(row, options)[0]!);

test.each(ANSWER_KEYS)("the answer in %s is found", (key) => {
  expect(answer(nested(key, "42"))).toBe("42");
  expect(answer(nested(key, 0))).toBe("0");
});

test("the first field that holds an answer counts, in the documented order", () => {
  const rows = ANSWER_KEYS.map((key, i) => nested(key, `answer ${i}`));
  // Objects of one name are joined: reward_model and extra_info hold one key each here.
  for (const [i] of rows.entries()) expect(answer(Object.assign({}, ...rows.slice(i)))).toBe(`answer ${i}`);
});

test.each([null, "", "  \n", [], ["5"], {}, { value: 5 }])("%j is no answer", (value) => {
  expect(() => tasks({ answer: value })).toThrow(
    /^Cannot use the row: its reward needs an answer, and there is none .*\(rows\.jsonl:2\)\.$/,
  );
  expect(answer({ answer: value, label: 7 })).toBe("7");
});

test("a number that is not one is no answer", () => {
  expect(() => answerOf({ id: "t", instruction: "", metadata: { answer: Number.NaN } })).toThrow(
    /Cannot judge the task t: its row has no answer \(answer is NaN; it has answer\)/,
  );
  expect(answerOf({ id: "t", instruction: "", metadata: { answer: 2n ** 70n } })).toBe("1180591620717411303424");
});

test("data.answer_key names the field or the path, and nothing else is then looked for", () => {
  const row = { answer: "1", extra_info: { gold: ["2", "3"] }, "dotted.name": "4" };
  expect(tasks(row, { answerKey: "extra_info.gold.1" })[0]!.metadata.answer).toBe("3");
  expect(answer(row, { answerKey: "dotted.name" })).toBe("4");
  expect(() => tasks(row, { answerKey: "extra_info.silver", judges: [] })).toThrow(
    /it has no answer in data\.answer_key=extra_info\.silver .*\(rows\.jsonl:2\)/,
  );
  expect(() => tasks(row, { answerKey: "constructor.name" })).toThrow(/no answer/);
});

test("rows keep what they hold, and need no answer where nothing compares with one", () => {
  const [task] = tasks({ label: 3, answer: null }, { judges: [{}, { needsAnswer: false }] });
  expect(task!.metadata).toEqual({ prompt: "p", label: 3, answer: null, data_source: "rows" });
});

test("an answer that the reward cannot read is an error too", () => {
  const judges = [NEEDS, { needsAnswer: (text: string) => /\d/.test(text) }];
  expect(answer({ answer: "about 5" }, { judges })).toBe("about 5");
  expect(() => tasks({ answer: "none" }, { judges })).toThrow(
    /its reward can read no answer in "none"\. Correct the row, or name another field with data\.answer_key \(rows\.jsonl:2\)/,
  );
});
