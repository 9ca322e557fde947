/** Preferences of rows: TRL's forms, and what is refused with its file and line. */
import { describe, expect, test } from "vitest";
import { type PreferenceKeys, preferenceExamples } from "../../../src/train/data/preference.ts";
import type { Row } from "../../../src/train/data/rows.ts";

const KEYS: PreferenceKeys = {
  prompt: "prompt",
  chosen: "chosen",
  rejected: "rejected",
  completion: "completion",
  label: "label",
  tools: "tools",
  enableThinking: "enable_thinking",
  promptType: "plaintext",
  variables: {},
};

const at = { file: "pairs.jsonl", line: 4 };
const made = (row: Row, form: "pair" | "row" = "pair") => preferenceExamples([{ row, ...at }], KEYS, form)[0]!;
const user = (content: string) => ({ role: "user", content });
const reply = (content: string) => ({ role: "assistant", content });

describe("pairs", () => {
  test("of texts", () => {
    const { answers, label, ...place } = made({ prompt: "1+1=", chosen: "2", rejected: "3", answer: "5" });
    expect(answers.map(({ example }) => example)).toEqual([
      { prompt: "1+1=", response: "2" },
      { prompt: "1+1=", response: "3" },
    ]);
    expect([label, place]).toEqual([undefined, at]);
  });

  test("of messages, with the prompt or in the conversations, are the same, and a turn may say that it counts", () => {
    const explicit = made({ prompt: [user("1+1=")], chosen: [reply("2")], rejected: [reply("3")] });
    const implicit = made({ chosen: [user("1+1="), reply("2")], rejected: [user("1+1="), reply("3")] });
    expect(implicit).toEqual(explicit);
    expect(implicit.answers[1]!.example).toEqual({
      messages: [{ ...user("1+1="), weight: 0 }, reply("3")],
      tools: undefined,
    });
    for (const flags of [{ weight: 1 }, { train: true }, { weight: null }])
      expect(made({ prompt: "1+1=", chosen: [{ ...reply("2"), ...flags }], rejected: "3" }).answers).toHaveLength(2);
  });
});

test("labelled rows", () => {
  const { answers, label } = made({ prompt: "1+1=", completion: "3", label: false }, "row");
  expect(answers.map(({ example }) => example)).toEqual([{ prompt: "1+1=", response: "3" }]);
  expect(label).toBe(false);
});

const PAIR = { prompt: "1+1=", chosen: "2", rejected: "3" };
test.each<[string, Row, RegExp, ("pair" | "row")?]>([
  [
    "equal texts",
    { ...PAIR, rejected: "2" },
    /"chosen" and "rejected" are equal \("2"\), so that nothing is preferred/,
  ],
  ["equal messages", { ...PAIR, chosen: [reply("2")], rejected: [reply("2")] }, /are equal/],
  ["an empty answer", { ...PAIR, chosen: "" }, /"chosen" is empty \(""\)/],
  ["an empty list", { ...PAIR, rejected: [] }, /"rejected" is empty/],
  ["a message that says nothing", { ...PAIR, rejected: [reply("")] }, /"rejected" is empty/],
  ["no rejected answer", { prompt: "1+1=", chosen: "2" }, /there is no field "rejected" \(it has prompt, chosen\)/],
  ["a null", { ...PAIR, chosen: null }, /there is no field "chosen"/],
  ["texts without a prompt", { chosen: "2", rejected: "3" }, /has no field "prompt", and only lists of messages/],
  [
    "conversations that share nothing",
    { chosen: [user("a"), reply("2")], rejected: [user("b"), reply("3")] },
    /do not begin with the same message/,
  ],
  [
    "a conversation that begins the other",
    { chosen: [user("a"), reply("2")], rejected: [user("a"), reply("2"), user("b"), reply("3")] },
    /are the same up to the end of one/,
  ],
  ...[{ weight: 0 }, { weight: 0.5 }, { train: false }, { trainable: false }].map((flags): [string, Row, RegExp] => [
    `a turn with ${JSON.stringify(flags)}`,
    { ...PAIR, rejected: [reply("3"), user("?"), { ...reply("4"), ...flags }] },
    new RegExp(`${Object.keys(flags)} of message 2 of "rejected" is ${Object.values(flags)}, and .* whole answers`),
  ]),
  ["an answer that is no text", { ...PAIR, chosen: { text: "2" } }, /"chosen" must be text/],
  ["no label", { prompt: "1+1=", completion: "3" }, /"label" must be true \(desirable\) or false \(missing\)/, "row"],
  ["a label that is a number", { prompt: "1+1=", completion: "3", label: 1 }, /"label" must be true .*\(1\)/, "row"],
  ["no completion", { prompt: "1+1=", label: true }, /there is no field "completion"/, "row"],
])("%s is refused, with file and line", (_, row, message, form) => {
  expect(() => made(row, form)).toThrow(message);
  expect(() => made(row, form)).toThrow(expect.objectContaining(at));
});
