import { readFileSync } from "node:fs";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { encodeConversation } from "../../src/chat/assistant_mask.ts";
import type { ChatMessage, Tokenizer } from "../../src/engine/contract/text.ts";
import { createTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { CHATML, chatTokenizer, THINKING } from "../fixtures/chat.ts";

const FOLDER = "test/fixtures/chat_templates";

function read<T>(name: string): T {
  return JSON.parse(readFileSync(`${FOLDER}/${name}`, "utf8")) as T;
}

interface Conversation {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly object[];
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** The text of every run of masked tokens. */
function masked(tokenizer: Tokenizer, { ids, mask }: { ids: readonly number[]; mask: readonly number[] }): string[] {
  const runs: number[][] = [];
  ids.forEach((id, i) => {
    if (mask[i] !== 1) return;
    if (mask[i - 1] !== 1) runs.push([]);
    runs.at(-1)!.push(id);
  });
  return runs.map((run) => tokenizer.decode(run, { skipSpecialTokens: false }));
}

describe("a template with generation blocks", () => {
  beforeEach(() => {
    vi.useFakeTimers({ now: new Date(2026, 2, 5, 9, 7, 3), toFake: ["Date"] });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  // Figures of transformers' return_assistant_tokens_mask, written by render.py.
  const figures = read<Readonly<Record<string, { ids: number[]; mask: number[] }>>>("masks.json");
  const conversations = read<Readonly<Record<string, Conversation>>>("conversations.json");
  const chatTemplate = readFileSync(`${FOLDER}/generation.jinja`, "utf8");
  const tokenizer = createTokenizer({ tokenizer: read("tokenizer.json"), config: { bos_token: "<s>" }, chatTemplate });

  test.each(Object.keys(figures))("masks the tokens that transformers masks: %s", (name) => {
    const { messages, tools, variables } = conversations[name]!;
    const figure = figures[name]!;
    const encode = () => encodeConversation(messages, { tokenizer, tools, variables });
    if (figure.mask.includes(1)) expect(encode()).toEqual(figure);
    else expect(encode).toThrow(/the assistant writes nothing in it/);
  });
});

test.each([
  ["a{% generation %}the{% endgeneration %} b", ["the"]],
  ["a{% generation %}t{% endgeneration %}he b", ["the"]],
  ["at{% generation %}he{% endgeneration %} b", ["the"]],
])("a token that crosses the end of a block belongs to it, as in transformers: %s", (chatTemplate, texts) => {
  const tokenizer = createTokenizer({ tokenizer: read("tokenizer.json"), config: {}, chatTemplate });
  const encoded = encodeConversation([{ role: "assistant", content: "" }], { tokenizer });
  expect(masked(tokenizer, encoded)).toEqual(texts);
});

describe("a template without them", () => {
  const TURNS: ChatMessage[] = [
    { role: "system", content: "the 12" },
    { role: "user", content: "and?" },
    { role: "assistant", content: "the\n\na" },
    { role: "user", content: "in" },
    { role: "assistant", content: "", tool_calls: [{ function: { name: "on", arguments: { a: 12 } } }] },
    { role: "tool", content: "12" },
    { role: "assistant", content: "on 12" },
  ];

  test("masks each turn of the assistant, to the token that ends it", () => {
    const tokenizer = chatTokenizer(CHATML);
    const encoded = encodeConversation(TURNS, { tokenizer });
    expect(masked(tokenizer, encoded)).toEqual([
      "the\n\na<|im_end|>",
      '<tool_call>\n{"name": "on", "arguments": {"a": 12}}\n</tool_call><|im_end|>',
      "on 12<|im_end|>",
    ]);
    expect(tokenizer.decode(encoded.ids, { skipSpecialTokens: false })).toBe(
      tokenizer.formatChat(TURNS, { addGenerationPrompt: false }),
    );
  });

  const THOUGHT: ChatMessage[] = [
    { role: "user", content: "the" },
    { role: "assistant", reasoning_content: "and", content: "12" },
  ];

  test("trains on the reasoning of the last turn", () => {
    const tokenizer = chatTokenizer(THINKING);
    expect(masked(tokenizer, encodeConversation(THOUGHT, { tokenizer }))).toEqual([
      "<think>\nand\n</think>\n\n12<|im_end|>",
    ]);
  });

  test("refuses a conversation whose earlier turns the template rewrites, and says which", () => {
    const tokenizer = chatTokenizer(THINKING);
    const longer = [...THOUGHT, { role: "user", content: "in" }, { role: "assistant", content: "on" }];
    expect(() => encodeConversation(longer, { tokenizer })).toThrow(
      /Cannot train on the conversation: the chat template writes message 1 differently once others follow it.*one conversation for each turn/,
    );
    // Without reasoning there is nothing to rewrite.
    const plain = longer.map(({ reasoning_content, ...message }) => message as ChatMessage);
    expect(masked(tokenizer, encodeConversation(plain, { tokenizer }))).toEqual(["12<|im_end|>", "on<|im_end|>"]);
  });

  test("refuses a turn that its prompt does not announce, a conversation without turns, and a tokenizer without a template", () => {
    const [user, assistant] = THOUGHT as [ChatMessage, ChatMessage];
    const silent = chatTokenizer(`${CHATML.replace("<|im_start|>assistant", "<|im_start|>other")}`);
    expect(() => encodeConversation(THOUGHT, { tokenizer: silent })).toThrow(/message 1 differently than its prompt/);
    const tokenizer = chatTokenizer(CHATML);
    expect(() => encodeConversation([user], { tokenizer })).toThrow(/the assistant writes nothing in it/);
    expect(() => encodeConversation([user, assistant], { tokenizer: chatTokenizer() })).toThrow(/no chat template/);
  });
});
