import { describe, expect, test } from "vitest";
import { type CallSettings, Conversation, type ConversationOptions, type Reply } from "../../src/chat/conversation.ts";
import type { ChatMessage } from "../../src/engine/contract/text.ts";
import { randomStream } from "../../src/leaves/random.ts";
import { mergeSteps } from "../../src/train/data/pack.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../fixtures/chat.ts";

const user = (content: string): ChatMessage => ({ role: "user", content });
const ADD = { type: "function", function: { name: "add", parameters: {} } };

const plan: ConversationOptions<CallSettings>["plan"] = ({ call }) => ({
  params: { max_tokens: 100, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] },
  seed: call,
});

/** A conversation whose sampler says these texts in turn, one token per byte where the tokenizer would merge. */
function scripted(
  template: string,
  texts: readonly string[],
  options: Partial<ConversationOptions<CallSettings>> = {},
) {
  const tokenizer = chatTokenizer(template);
  const conversation = new Conversation({
    tokenizer,
    plan,
    // The seed is the number of the call.
    draw: async ({ seed }) => sequenceOf([...texts[seed]!, ...eos(tokenizer)], tokenizer),
    ...options,
  });
  const chat = (messages: readonly ChatMessage[], tools?: object[]) =>
    conversation.chat(messages, { tools, settings: {} });
  return { conversation, chat, tokenizer };
}

type TestTokenizer = ReturnType<typeof chatTokenizer>;

const eos = (tokenizer: TestTokenizer) => [tokenizer.decode(tokenizer.eosTokenIds, { skipSpecialTokens: false })];

/** Each piece is encoded alone. Log-probs are all different, so that one in the wrong place is noticed. */
let drawn = 0;
function sequenceOf(pieces: readonly string[], tokenizer: TestTokenizer) {
  const tokens = pieces.flatMap((piece) => tokenizer.encode(piece, { addSpecialTokens: false }));
  const finish_reason = tokenizer.eosTokenIds.includes(tokens.at(-1)!) ? ("stop" as const) : ("length" as const);
  return { tokens, logprobs: tokens.map(() => -++drawn), finish_reason, weight_version: 3 };
}

const startsWith = (tokens: readonly number[], { prompt_ids, response_ids }: Reply) =>
  expect(tokens.slice(0, prompt_ids.length + response_ids.length)).toEqual([...prompt_ids, ...response_ids]);

describe("the origin of a prompt", () => {
  test("is rendered, then continued from its parent", async () => {
    const { chat } = scripted(CHATML, ["the and", "12"]);
    const first = await chat([user("in")]);
    const second = await chat([user("in"), first.message, user("on")]);
    expect(first).toMatchObject({ prompt_origin: "rendered", call: 0, weight_version: 3 });
    expect(first.parent).toBeUndefined();
    expect(second).toMatchObject({ prompt_origin: "continued", parent: first.id, call: 1 });
    startsWith(second.prompt_ids, first);
  });

  test("parallel calls of one conversation branch from the same parent", async () => {
    const { chat } = scripted(CHATML, ["the", "and", "and", "in"]);
    const first = await chat([user("in")]);
    const both = await Promise.all(["a", "b"].map((each) => chat([user("in"), first.message, user(each)])));
    expect(both.map(({ parent }) => parent)).toEqual([first.id, first.id]);
    const last = await chat([...both[1]!.messages, both[1]!.message, user("on")]);
    expect(last).toMatchObject({ prompt_origin: "continued", parent: both[1]!.id });
  });

  test("is diverged when the caller changes a reply, and when it changes what stands before one", async () => {
    const { chat, tokenizer } = scripted(CHATML, ["the", "and", "12", "in"]);
    const first = await chat([user("in")]);
    const edited = [user("in"), { ...first.message, content: "THE" }, user("on")];
    const second = await chat(edited);
    expect(second.prompt_origin).toBe("diverged");
    expect(second.parent).toBeUndefined();
    const whole = tokenizer.encode(tokenizer.formatChat(edited), { addSpecialTokens: false });
    expect(second.prompt_ids).toEqual(whole);
    const third = await chat([user("IN"), first.message, user("on")]);
    expect(third.prompt_origin).toBe("diverged");
    // It continues what its own call said, whatever was edited before.
    const fourth = await chat([...edited, second.message, user("on")]);
    expect(fourth).toMatchObject({ prompt_origin: "continued", parent: second.id });
  });

  test("is diverged with the tokens of the last reply that is unchanged", async () => {
    const { chat } = scripted(CHATML, ["the", "and", "12"]);
    const first = await chat([user("in")]);
    const second = await chat([user("in"), first.message, user("on")]);
    const third = await chat([...second.messages, { ...second.message, content: "AND" }, user("in")]);
    expect(third).toMatchObject({ prompt_origin: "diverged", parent: first.id });
    startsWith(third.prompt_ids, first);
  });

  test("examples of the caller are no edits, even when a reply says the same", async () => {
    const { chat } = scripted(CHATML, ["the", "the", "and"]);
    const examples = [user("one"), { role: "assistant", content: "the" }];
    const first = await chat([...examples, user("in")]);
    const other = await chat([...examples, user("on")]);
    const second = await chat([...other.messages, other.message, user("12")]);
    expect([first, other, second].map(({ prompt_origin }) => prompt_origin)).toEqual([
      "rendered",
      "rendered",
      "continued",
    ]);
  });

  test("is spliced when the template drops earlier reasoning, and continued when reasoning accumulates", async () => {
    const texts = ["<think>\nand\n</think>\n\nthe", "12"];
    for (const [accumulateReasoning, origin] of [
      [false, "spliced"],
      [true, "continued"],
    ] as const) {
      const { chat } = scripted(THINKING, texts, { accumulateReasoning });
      const first = await chat([user("in")]);
      const second = await chat([user("in"), first.message, user("on")]);
      expect(second.prompt_origin).toBe(origin);
    }
  });

  test("is tokens for tokens, with the call that they start with as parent", async () => {
    const { conversation } = scripted(CHATML, ["the", "12", "in"]);
    const first = await conversation.complete("and on", {});
    const ids = [...first.prompt_ids, ...first.response_ids];
    const second = await conversation.complete([...ids, 1, 2], {});
    const other = await conversation.complete(first.prompt_ids, {});
    expect(first.prompt_origin).toBe("rendered");
    expect(second).toMatchObject({ prompt_origin: "tokens", parent: first.id });
    expect(other.parent).toBeUndefined();
  });
});

test("a failed call keeps its number, so that the seeds of later ones do not depend on timing", async () => {
  const tokenizer = chatTokenizer(CHATML);
  const calls: number[] = [];
  const conversation = new Conversation({
    tokenizer,
    plan,
    draw: async ({ seed }) => {
      calls.push(seed);
      if (seed === 0) throw new Error("no room");
      return sequenceOf(["the"], tokenizer);
    },
  });
  await expect(conversation.chat([user("in")], { settings: {} })).rejects.toThrow("no room");
  expect((await conversation.chat([user("in")], { settings: {} })).call).toBe(1);
  expect(calls).toEqual([0, 1]);
});

/** Puts the number of messages before them, so that each turn rewrites the turns before it. */
const COUNTING = `{{ messages | length }} ${CHATML}`;

/** Shows only the start of each message, so that replies change between turns. */
const SHORTENING = CHATML.replace("{{ message.content }}", "{{ message.content[:12] }}");

/** A conversation of random turns, tool calls and branches: the client sends messages through JSON, as over HTTP. */
async function randomConversation(template: string, seed: number) {
  const random = randomStream(seed);
  const pick = <T>(items: readonly T[]) => items[Math.floor(random() * items.length)]!;
  const tokenizer = chatTokenizer(template);
  const text = () => {
    const words = ["the", " and", "12", "\n\n", "é🙂", "<t", "on ", "</", "  in", "{{ x }}"];
    return `a${Array.from({ length: 1 + Math.floor(random() * 6) }, () => pick(words)).join("")}b`;
  };
  const call = () => {
    const space = pick(["", " ", "\n"]);
    return `<tool_call>${space}{"name":${space}"add", "arguments":{"a":${space}${pick([1, 20, 3])}}}${space}</tool_call>`;
  };
  const draw = async () => {
    const said = random() < 0.5 ? call() : text();
    const pieces = said.match(/[\s\S]{1,3}/gu)!;
    return sequenceOf(random() < 0.8 ? [...pieces, ...eos(tokenizer)] : pieces, tokenizer);
  };
  const conversation = new Conversation({ tokenizer, plan, draw });
  const replies = [];
  let messages: ChatMessage[] = [user(text())];
  const turns = 2 + Math.floor(random() * 4);
  for (let turn = 0; turn < turns; turn++) {
    const count = random() < 0.2 ? 2 : 1;
    const branches = await Promise.all(
      Array.from({ length: count }, () => conversation.chat(messages, { tools: [ADD], settings: {} })),
    );
    replies.push(...branches);
    const { message } = pick(branches);
    const next = message.tool_calls ? { role: "tool", content: "3", tool_call_id: "c" } : user(text());
    messages = JSON.parse(JSON.stringify([...messages, message, next]));
  }
  return { replies, tokenizer };
}

const steps = (replies: readonly Reply[]) => replies.map((reply) => ({ ...reply, reward: 0, done: false }));

test.each([
  ["ChatML", CHATML],
  ["headers", HEADERS],
])("500 random conversations with tools over %s: trained rows are the sampled tokens", async (_, template) => {
  for (let seed = 0; seed < 500; seed++) {
    const { replies } = await randomConversation(template, seed);
    const byId = new Map(replies.map((reply) => [reply.id, reply]));
    for (const reply of replies) {
      expect(reply.prompt_origin).toBe(reply === replies[0] || reply.parent === undefined ? "rendered" : "continued");
      if (reply.parent !== undefined) startsWith(reply.prompt_ids, byId.get(reply.parent)!);
    }
    // One row per branch: a call without a child ends one.
    const parents = new Set(replies.map(({ parent }) => parent));
    const leaves = replies.filter(({ id }) => !parents.has(id));
    for (const leaf of leaves) {
      const path: Reply[] = [];
      for (let at: Reply | undefined = leaf; at; at = byId.get(at.parent ?? "")) path.unshift(at);
      const rows = mergeSteps(steps(path));
      expect(rows).toHaveLength(1);
      const trained = rows[0]!.mask.flatMap((bit, t) => (bit ? [[rows[0]!.tokens[t], rows[0]!.logprobs[t]]] : []));
      expect(trained).toEqual(
        path.flatMap(({ response_ids, logprobs }) => response_ids.map((id, i) => [id, logprobs[i]])),
      );
      expect(rows[0]!.tokens).toEqual([...leaf.prompt_ids, ...leaf.response_ids]);
    }
  }
});

test.each([
  ["rewrites earlier turns", COUNTING, "spliced"],
  ["changes replies", SHORTENING, "diverged"],
])("a template that %s is noticed at every later turn, and trains on no token twice", async (_, template, origin) => {
  let noticed = 0;
  for (let seed = 0; seed < 50; seed++) {
    const { replies } = await randomConversation(template, seed);
    const later = replies.filter(({ prompt_origin }) => prompt_origin !== "rendered");
    noticed += later.filter(({ prompt_origin }) => prompt_origin === origin).length;
    if (origin === "spliced") expect(later.every(({ prompt_origin }) => prompt_origin === origin)).toBe(true);
    const rows = mergeSteps(steps(replies));
    const trained = rows.flatMap((row) => row.logprobs.filter((_, t) => row.mask[t]));
    expect(trained).toEqual(replies.flatMap(({ logprobs }) => logprobs));
  }
  expect(noticed).toBeGreaterThan(50);
});
