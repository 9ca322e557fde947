import { describe, expect, test } from "vitest";
import { parseReply, type ToolFormat, toolFormatOf } from "../../src/chat/reply.ts";
import { cutAtStop, endsAtStop } from "../../src/chat/stop.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../fixtures/chat.ts";

test.each([
  [CHATML, "hermes"],
  [THINKING, "hermes"],
  [HEADERS, "llama3"],
  ["{{ messages }}", undefined],
  ["<tool_call><function=x>", undefined],
])("toolFormatOf() recognises the family (%#)", (template, format) => {
  expect(toolFormatOf(template)).toBe(format);
});

const call = (name: string, args: unknown, id = "x_0") => ({
  id,
  type: "function",
  function: { name, arguments: JSON.stringify(args) },
});

describe("parseReply()", () => {
  const cases: [text: string, format: ToolFormat | undefined, expected: object][] = [
    ["plain", undefined, { content: "plain" }],
    ["<think>\nwhy\n</think>\n\nso", undefined, { content: "so", reasoning_content: "why" }],
    // The prompt ended with the opening tag.
    ["why\n</think>so", undefined, { content: "so", reasoning_content: "why" }],
    ["<think>cut in the mid", undefined, { content: "", reasoning_content: "cut in the mid" }],
    [
      'ok\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name":"b"}</tool_call>',
      "hermes",
      { content: "ok", tool_calls: [call("add", { a: 1 }), call("b", {}, "x_1")] },
    ],
    ["<tool_call>{broken</tool_call>", "hermes", { content: "<tool_call>{broken</tool_call>" }],
    ['<tool_call>{"name":"b"}</tool_call>', undefined, { content: '<tool_call>{"name":"b"}</tool_call>' }],
    ['{"name": "add", "parameters": {"a": "1"}}', "llama3", { content: "", tool_calls: [call("add", { a: "1" })] }],
    [
      '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
      "llama3",
      { content: "", tool_calls: [call("a", {}), call("b", {}, "x_1")] },
    ],
    ['{"total": 3}', "llama3", { content: '{"total": 3}' }],
    ["3", "llama3", { content: "3" }],
  ];
  test.each(cases)("%j as %s", (text, format, expected) => {
    expect(parseReply(text, { format, id: "x" })).toEqual({ role: "assistant", ...expected });
  });
});

describe("cutAtStop()", () => {
  const tokenizer = chatTokenizer();
  const sequence = (text: string) => {
    const tokens = [...text].flatMap((letter) => tokenizer.encode(letter, { addSpecialTokens: false }));
    return {
      tokens,
      logprobs: tokens.map((_, i) => -i),
      finish_reason: "length" as const,
      weight_version: 3,
    };
  };
  test("keeps the token that completes the first stop, and drops the stop from the text", () => {
    const cut = cutAtStop(sequence("a🙂b END c\n"), { stop: ["\n", "END"], tokenizer });
    expect(cut.text).toBe("a🙂b ");
    expect(tokenizer.decode(cut.sequence.tokens)).toBe("a🙂b END");
    expect(cut.sequence).toMatchObject({ finish_reason: "stop", weight_version: 3 });
    expect(cut.sequence.logprobs).toHaveLength(cut.sequence.tokens.length);
  });
  test("endsAtStop() is true from the token that completes a stop", () => {
    const ends = endsAtStop(["🙂b"], tokenizer);
    const { tokens } = sequence("a long way 🙂b");
    expect(tokens.map((_, i) => ends?.(tokens.slice(0, i + 1))).indexOf(true)).toBe(tokens.length - 1);
    expect(endsAtStop([], tokenizer)).toBeUndefined();
  });
  test("a stop at the very beginning leaves no text, and the stop's tokens", () => {
    const cut = cutAtStop(sequence("END of it"), { stop: ["END"], tokenizer });
    expect([cut.text, tokenizer.decode(cut.sequence.tokens)]).toEqual(["", "END"]);
  });
  test("does not change a sequence without a stop", () => {
    const given = sequence("abc");
    expect(cutAtStop(given, { stop: ["x"], tokenizer })).toEqual({ sequence: given, text: "abc" });
  });
});
