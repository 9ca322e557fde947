import { describe, expect, test } from "vitest";
import type { Row } from "../../../src/train/data/rows.ts";
import { type SupervisedKeys, supervisedExamples } from "../../../src/train/data/supervised.ts";

const KEYS: SupervisedKeys = {
  ...{ messages: "messages", tools: "tools", enableThinking: "enable_thinking" },
  ...{ prompt: "prompt", response: "response", text: "text" },
  promptType: "plaintext",
  variables: {},
};

const read = (rows: readonly Row[], keys: Partial<SupervisedKeys> = {}) =>
  supervisedExamples(
    rows.map((row, i) => ({ row, file: "rows.jsonl", line: i + 1 })),
    { ...KEYS, ...keys },
  ).map(({ example }) => example);

const user = { role: "user", content: "a" };
const assistant = { role: "assistant", content: "b" };

describe("the example of a row", () => {
  test.each<[name: string, row: Row, keys: Partial<SupervisedKeys>, example: object]>([
    ["a conversation", { messages: [user, assistant], prompt: "x" }, {}, { messages: [user, assistant] }],
    ["under another key", { chat: [user, assistant] }, { messages: "chat" }, { messages: [user, assistant] }],
    [
      "with tools as JSON text, and thinking switched off",
      { messages: [user, assistant], tools: '[{"type":"function"}]', enable_thinking: false },
      { variables: { x: 1 } },
      { messages: [user, assistant], tools: [{ type: "function" }], variables: { x: 1, enable_thinking: false } },
    ],
    [
      "with a system prompt",
      { messages: [user, assistant] },
      { systemPrompt: "s" },
      { messages: [{ role: "system", content: "s" }, user, assistant] },
    ],
    ["a prompt and a response", { prompt: "a", response: "b" }, {}, { prompt: "a", response: "b" }],
    ["GSM8K's names", { question: "a", answer: 3 }, {}, { prompt: "a", response: "3" }],
    ["TRL's names", { prompt: "a", completion: "b" }, {}, { prompt: "a", response: "b" }],
    [
      "a prompt as a message",
      { prompt: "a", response: "b" },
      { promptType: "messages" },
      { prompt: [user], response: "b", tools: undefined },
    ],
    [
      "a prompt of messages with what its template reads",
      { prompt: [user], response: "b", tools: [{ type: "function" }], enable_thinking: false },
      { variables: { x: 1 } },
      { prompt: [user], response: "b", tools: [{ type: "function" }], variables: { x: 1, enable_thinking: false } },
    ],
    [
      "messages as prompt and response",
      { prompt: [user, { ...assistant, train: true }, user], completion: [assistant] },
      {},
      { messages: [{ ...user, weight: 0 }, { ...assistant, weight: 0 }, { ...user, weight: 0 }, assistant] },
    ],
    ["a text", { text: "a", messages: null, prompt: null }, {}, { text: "a" }],
  ])("%s", (_, row, keys, example) => {
    expect(read([row], keys)[0]).toEqual({ ...("messages" in example && { tools: undefined }), ...example });
  });
});

describe("a row that cannot be used names file and line", () => {
  test.each<[rows: Row[], message: RegExp]>([
    [[{ a: 1, b: 2 }], /neither "messages", nor "prompt" with "response", nor "text" \(it has a, b\).*data\.text_key/],
    [[{ prompt: "a", b: 2 }], /a prompt \("prompt"\) and no response.*no field "response" \(it has prompt, b\)/],
    [[{ text: ["a"] }], /"text" must be text \(\["a"\]\)/],
    [[{ prompt: "a", response: { b: 1 } }], /"response" must be text \(\{"b":1\}\)/],
    [[{ messages: [{ content: "a" }] }], /message 0: its role must be a string/],
    [
      [{ messages: [user, assistant], enable_thinking: "false" }],
      /"enable_thinking" must be true or false \("false"\)\. .*data\.enable_thinking_key/,
    ],
    [[{ messages: [user, assistant], tools: "x" }], /"tools" must be a list of JSON schemas.*\("x"\)/],
  ])("%j", (rows, message) => {
    expect(() => read(rows)).toThrow(message);
    expect(() => read(rows)).toThrow(/\(rows\.jsonl:1\)/);
  });

  test("rows of two forms", () => {
    const rows = [{ text: "a" }, { text: "b" }, { prompt: "a", response: "b" }];
    expect(() => read(rows)).toThrow(
      /two forms: this one is a prompt with a response, and that on line 1 of rows\.jsonl is a text.*\(rows\.jsonl:3\)/,
    );
  });
});
