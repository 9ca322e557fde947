import { describe, expect, test } from "vitest";
import { parseReply } from "../../src/chat/reply.ts";
import { Transcript } from "../../src/chat/transcript.ts";
import type { ChatMessage } from "../../src/engine/contract/text.ts";
import { randomStream } from "../../src/leaves/random.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../fixtures/chat.ts";

/** One token per byte where the tokenizer would merge, as a sampler may draw. */
function spelledOut(tokenizer: ReturnType<typeof chatTokenizer>, text: string): number[] {
  return [...text].flatMap((letter) => tokenizer.encode(letter, { addSpecialTokens: false }));
}

interface Turn {
  readonly text: string;
  /** Cut before its end token. */
  readonly isCut?: boolean;
}

/** A conversation of these replies: the prompt of every turn, and the whole rendered by the template. */
function converse(template: string, turns: readonly Turn[], options: { accumulateReasoning?: boolean } = {}) {
  const tokenizer = chatTokenizer(template);
  const end = tokenizer.eosTokenIds[0];
  const transcript = new Transcript({ tokenizer, ...options });
  const messages: ChatMessage[] = [{ role: "user", content: "and then the 12?" }];
  const calls = turns.map(({ text, isCut }, i) => {
    const prompt = transcript.prompt(messages);
    const responseIds = [...spelledOut(tokenizer, text), ...(isCut ? [] : [end!])];
    const message = parseReply(tokenizer.decode(responseIds), { id: `c${i}`, format: "hermes" });
    transcript.record(prompt, { responseIds, message });
    const said = tokenizer.formatChat(messages);
    messages.push({ ...message }, { role: "user", content: `the ${i}` });
    return { prompt: prompt.ids, responseIds, said };
  });
  const last = transcript.prompt(messages);
  return { calls, last: last.ids, said: tokenizer.formatChat(messages), tokenizer, messages };
}

const PLAIN: Turn[] = [{ text: "the and\n\n12 on" }, { text: "  in the <t" }, { text: "and on", isCut: true }];

describe.each([
  ["ChatML", CHATML],
  ["thinking", THINKING],
])("%s", (_, template) => {
  test("every later prompt starts with the tokens of the earlier ones, and decodes to the template's text", () => {
    const { calls, last, said, tokenizer } = converse(template, PLAIN);
    const prompts = [...calls.map(({ prompt }) => prompt), last];
    calls.forEach(({ prompt, responseIds, said: text }, i) => {
      const whole = [...prompt, ...responseIds];
      expect(prompts[i + 1]!.slice(0, whole.length)).toEqual(whole);
      expect(tokenizer.decode(prompt, { skipSpecialTokens: false })).toBe(text);
    });
    expect(tokenizer.decode(last, { skipSpecialTokens: false })).toBe(said);
    // The test can fail: encoding the text again gives other tokens.
    expect(tokenizer.encode(said, { addSpecialTokens: false })).not.toEqual(last);
  });
});

test("a template that trims keeps the sampled white space, and the tokens", () => {
  const { calls, last } = converse(HEADERS, PLAIN);
  const whole = [...calls[2]!.prompt, ...calls[2]!.responseIds];
  expect(last.slice(0, whole.length)).toEqual(whole);
});

const THOUGHT: Turn[] = [{ text: "<think>\nand in\n</think>\n\nthe 12" }, { text: "<think>on</think>and" }];

describe("reasoning", () => {
  test("is dropped with the template; the answer keeps its tokens", () => {
    const { last, said, tokenizer, calls } = converse(THINKING, THOUGHT);
    expect(tokenizer.decode(last, { skipSpecialTokens: false })).toBe(said);
    expect(said).not.toContain("and in");
    const answer = spelledOut(tokenizer, "the 12");
    expect(`,${last}`).toContain(`,${[...answer, tokenizer.eosTokenIds[0]]},`);
    expect(last.slice(0, calls[0]!.prompt.length)).toEqual(calls[0]!.prompt);
  });

  test("accumulates on the sampled tokens with accumulateReasoning", () => {
    const { last, calls, tokenizer } = converse(THINKING, THOUGHT, { accumulateReasoning: true });
    for (const { prompt, responseIds } of calls) {
      const whole = [...prompt, ...responseIds];
      expect(last.slice(0, whole.length)).toEqual(whole);
    }
    expect(tokenizer.decode(last)).toContain("and in");
  });

  test("stays within a turn, after a tool's result, if the template keeps it", () => {
    const tokenizer = chatTokenizer(THINKING);
    const transcript = new Transcript({ tokenizer });
    const messages: ChatMessage[] = [{ role: "user", content: "the?" }];
    const prompt = transcript.prompt(messages);
    const text = '<think>\nin\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>';
    const responseIds = [...spelledOut(tokenizer, text), tokenizer.eosTokenIds[0]!];
    const message = parseReply(tokenizer.decode(responseIds), { id: "c", format: "hermes" });
    expect(message).toMatchObject({ content: "", reasoning_content: "in" });
    transcript.record(prompt, { responseIds, message });
    // An agent sends back no reasoning, and the call's arguments as text.
    const { reasoning_content, ...echo } = message;
    const next = transcript.prompt([...messages, echo, { role: "tool", content: "2", tool_call_id: "c_0" }]);
    const whole = [...prompt.ids, ...responseIds];
    expect(next.ids.slice(0, whole.length)).toEqual(whole);
    expect(tokenizer.decode(next.ids)).toContain("tool\n2");
  });
});

test("an answer that shares a token with the end of the reasoning is encoded again, with its end token", () => {
  const tokenizer = chatTokenizer(THINKING);
  const shared = tokenizer.encode("\na");
  expect(shared).toHaveLength(1);
  const transcript = new Transcript({ tokenizer });
  const messages: ChatMessage[] = [{ role: "user", content: "in" }];
  const prompt = transcript.prompt(messages);
  const thought = spelledOut(tokenizer, "<think>on</think>");
  const responseIds = [...thought, ...shared, ...spelledOut(tokenizer, "nd"), ...tokenizer.eosTokenIds];
  const message = parseReply(tokenizer.decode(responseIds), { id: "c" });
  transcript.record(prompt, { responseIds, message });
  const all = [...messages, message, { role: "user", content: "the" }];
  const next = transcript.prompt(all);
  expect(tokenizer.decode(next.ids, { skipSpecialTokens: false })).toBe(
    tokenizer.formatChat(all.map(({ reasoning_content, ...rest }) => rest)),
  );
});

test("accumulated prompts are rendered again when the tools change", () => {
  const tokenizer = chatTokenizer(CHATML);
  const transcript = new Transcript({ tokenizer, accumulateReasoning: true });
  const messages: ChatMessage[] = [{ role: "user", content: "in" }];
  const prompt = transcript.prompt(messages, { tools: [{ name: "add" }] });
  const message = { role: "assistant", content: "the" };
  transcript.record(prompt, { responseIds: spelledOut(tokenizer, "the"), message });
  const next = transcript.prompt([...messages, message, { role: "user", content: "on" }], {
    tools: [{ name: "sub" }],
  });
  expect(tokenizer.decode(next.ids)).toContain("sub");
  expect(tokenizer.decode(next.ids)).not.toContain("add");
  expect(`,${next.ids}`).toContain(`,${spelledOut(tokenizer, "the")},`);
});

test("a reply that the agent changed is encoded as a new text", () => {
  const tokenizer = chatTokenizer(CHATML);
  const transcript = new Transcript({ tokenizer });
  const messages: ChatMessage[] = [{ role: "user", content: "in" }];
  const prompt = transcript.prompt(messages);
  const message = { role: "assistant", content: "the" };
  transcript.record(prompt, { responseIds: spelledOut(tokenizer, "the"), message });
  const changed = [...messages, { ...message, content: "and" }, { role: "user", content: "on" }];
  expect(transcript.prompt(changed).ids).toEqual(
    tokenizer.encode(tokenizer.formatChat(changed), { addSpecialTokens: false }),
  );
});

test("random conversations: prompts extend each other under every template that allows it", () => {
  const random = randomStream(7);
  const pick = <T>(items: readonly T[]) => items[Math.floor(random() * items.length)]!;
  for (let round = 0; round < 60; round++) {
    const pieces = ["the", " and", "12", "\n", "é🙂", "<t", "on ", "</", "{{ x }}"];
    const turns = Array.from({ length: 1 + Math.floor(random() * 4) }, () => ({
      text: `a${Array.from({ length: 1 + Math.floor(random() * 5) }, () => pick(pieces)).join("")}b`,
      isCut: random() < 0.3,
    }));
    const { calls, last, said, tokenizer } = converse(pick([CHATML, THINKING]), turns);
    const prompts = [...calls.map(({ prompt }) => prompt), last];
    calls.forEach(({ prompt, responseIds }, i) => {
      const whole = [...prompt, ...responseIds];
      expect(prompts[i + 1]!.slice(0, whole.length)).toEqual(whole);
    });
    expect(tokenizer.decode(last, { skipSpecialTokens: false })).toBe(said);
  }
});

test("a model without a template gives an error with advice", () => {
  const transcript = new Transcript({ tokenizer: chatTokenizer() });
  expect(() => transcript.prompt([{ role: "user", content: "in" }])).toThrow(
    /model has no chat template\. .*set model\.chat_template/,
  );
});
