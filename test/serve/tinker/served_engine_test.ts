/** A served model behind the chat API, called by OpenAI's client. */
import { getEventListeners } from "node:events";
import OpenAI from "openai";
import { expect, onTestFinished, test } from "vitest";
import { readChatRequest } from "../../../src/chat/apis/chat/request.ts";
import { readTextRequests } from "../../../src/chat/apis/completions/request.ts";
import { type ChatCall, createFetch } from "../../../src/chat/endpoint.ts";
import { servedEngine, servedHost } from "../../../src/serve/openai/engine.ts";
import { Serving } from "../../../src/serve/openai/serving.ts";
import { TextEngine, type TextEngineOptions } from "../../fixtures/text_engine.ts";

async function open({ isSession, ...options }: TextEngineOptions & { isSession?: boolean } = {}) {
  const engine = new TextEngine(options);
  const serving = new Serving({
    engine,
    tokenizer: engine.tokenizer,
    models: { letters: { weightVersion: 4 } },
    defaults: { max_tokens: 16, temperature: 1, top_p: 1, top_k: 0 },
  });
  onTestFinished(async () => {
    await serving.stop({ graceMs: 0 });
    serving.close();
  });
  const chat = servedEngine(serving, {
    model: serving.model()!,
    owner: "a",
    ...(isSession !== undefined && { isSession }),
  });
  const client = new OpenAI({
    baseURL: "http://policy.local/v1",
    apiKey: "none",
    fetch: createFetch(chat) as typeof fetch,
    maxRetries: 0,
  });
  return { engine, serving, client, chat };
}

const TOOL = { type: "function" as const, function: { name: "move", parameters: { type: "object", properties: {} } } };
const ASK = { model: "letters", messages: [{ role: "user" as const, content: "spell" }] };

test("the same seed draws the same reply, another another, and n choices differ", async () => {
  const { client } = await open();
  const text = async (seed: number, n = 1) =>
    (await client.chat.completions.create({ ...ASK, seed, n })).choices.map(({ message }) => message.content);
  const [one, again, other, many] = [await text(1), await text(1), await text(2), await text(1, 3)];
  expect(one).toEqual(again);
  expect(one).not.toEqual(other);
  expect(many[0]).toBe(one[0]);
  expect(new Set(many).size).toBe(3);
});

test("without a seed replies differ", async () => {
  const { client } = await open();
  const texts = await Promise.all(
    Array.from({ length: 8 }, async () => (await client.chat.completions.create(ASK)).choices[0]!.message.content),
  );
  expect(new Set(texts).size).toBeGreaterThan(4);
});

test("answers carry the version of the weights", async () => {
  const { client, serving } = await open();
  const body = { ...ASK, return_token_ids: true } as typeof ASK;
  const version = async () =>
    (await client.chat.completions.create(body)).choices[0]! as unknown as { weight_version: number };
  expect((await version()).weight_version).toBe(4);
  await serving.model()!.replace({ dir: "new", weightVersion: 5 });
  expect((await version()).weight_version).toBe(5);
});

test("a session continues on the tokens of its replies; requests apart know nothing of each other", async () => {
  for (const isSession of [true, false]) {
    const { client } = await open({ isSession });
    const create = (messages: object[]) =>
      client.chat.completions.create({
        model: "letters",
        messages,
        seed: 3,
        return_token_ids: true,
      } as never) as unknown as Promise<{
        prompt_token_ids: number[];
        choices: [{ message: { role: "assistant"; content: string }; token_ids: number[] }];
      }>;
    const first = await create(ASK.messages);
    const [{ message, token_ids }] = first.choices;
    const second = await create([...ASK.messages, message, { role: "user", content: "again" }]);
    const sampled = [...first.prompt_token_ids, ...token_ids];
    // The letters' tokenizer would write some pairs of letters as one token.
    const continues = second.prompt_token_ids.slice(0, sampled.length).join() === sampled.join();
    expect(continues || !isSession).toBe(true);
  }
});

test("a prompt beyond the context is refused in the API's form", async () => {
  const { client } = await open({ contextLength: 24 });
  const error = await client.chat.completions
    .create({ ...ASK, messages: [{ role: "user", content: "spell this very long word for me" }] })
    .catch((it) => it);
  expect([error.status, error.code, error.param]).toEqual([400, "context_length_exceeded", "messages"]);
  expect(error.message).toMatch(/context holds 24/);
});

test("a choice that fails ends the others of its request", async () => {
  const { chat, serving } = await open({ mostTokens: 400 });
  const request = { ...readTextRequests({ prompt: "spell", n: 8, seed: 1, max_tokens: 400 })[0] };
  const onTokens = (choice: number) => {
    if (choice === 0) throw new Error("the stream is closed");
  };
  await expect(chat.complete(request, { onTokens })).rejects.toThrow("the stream is closed");
  await serving.scheduler.idle();
  const { figures } = serving;
  expect([figures.failures.get("failed"), (figures.failures.get("cancelled") ?? 0) > 2]).toEqual([1, true]);
});

test("a caller's signal ends the choices, and a call leaves nothing in a signal that outlives it", async () => {
  const { chat, serving } = await open({ mostTokens: 400 });
  const caller = new AbortController();
  const [request] = readTextRequests({ prompt: "spell", n: 2, seed: 1, max_tokens: 4 });
  for (let i = 0; i < 3; i++) await chat.complete(request, { signal: caller.signal });
  await expect(chat.complete({ ...request, prompt: [] as never }, { signal: caller.signal })).rejects.toThrow();
  expect(getEventListeners(caller.signal, "abort")).toHaveLength(0);
  // Node keeps here what AbortSignal.any made of a signal, 80 bytes each, for as long as that signal lives.
  const kept = Object.getOwnPropertySymbols(caller.signal).find((it) => it.description === "kDependantSignals");
  expect(kept && Reflect.get(caller.signal, kept)?.size).toBeOneOf([undefined, 0]);
  const long = { ...request, max_tokens: 400 };
  const ended = chat.complete(long, { signal: caller.signal, onTokens: () => caller.abort(new Error("hung up")) });
  await expect(ended).rejects.toThrow("hung up");
  await expect(chat.complete(long, { signal: caller.signal })).rejects.toThrow("hung up");
  await serving.scheduler.idle();
  expect(serving.figures.failures.get("failed")).toBeUndefined();
});

test("ids of tool calls differ between requests without a session", async () => {
  const { chat } = await open({ isSession: false });
  const ids: (string | undefined)[] = [];
  const onStart: ChatCall["onStart"] = (_, { parse }) => void ids.push(parse?.id);
  for (let i = 0; i < 2; i++) await chat.chat(readChatRequest(ASK), { onStart });
  expect(ids[0]).toMatch(/^call_[0-9a-f]{8}_0$/);
  expect(ids[1]).not.toBe(ids[0]);
});

test("requests belong to their caller, and without one to their session; aliases are names of one model", async () => {
  const { serving } = await open();
  const host = servedHost(serving);
  const owners: string[] = [];
  const draw = serving.draw.bind(serving);
  serving.draw = (model, it) => {
    owners.push(it.call.owner);
    return draw(model, it);
  };
  const [request] = readTextRequests({ prompt: "spell" });
  const of = { model: "letters", history: [] };
  await host.open({ ...of, owner: "key a" }).complete(request);
  await host.open({ ...of, owner: "key b" }).complete(request);
  await host.open({ ...of, owner: "key b", session_id: "s" }).complete(request);
  await host.open({ ...of, session_id: "s" }).complete(request);
  // A key has one share of the device, however many sessions it opens.
  expect(owners).toEqual(["key a", "key b", "key b", "s"]);
});

test.each([
  ["tools that the model may call", { tools: [TOOL] }, true],
  ["no tools", {}, false],
])("%s: whether the sampler gets a constraint", async (_, more, expected) => {
  const { client, serving } = await open();
  const asked: boolean[] = [];
  const draw = serving.draw.bind(serving);
  serving.draw = (model, it) => {
    asked.push(it.request.allowed !== undefined);
    return draw(model, it);
  };
  await client.chat.completions.create({ ...ASK, ...more });
  expect(asked).toEqual([expected]);
});

test("a full queue and a server that stops are refused in the API's form", async () => {
  const { client, serving } = await open();
  await serving.stop({ graceMs: 0 });
  const error = await client.chat.completions.create(ASK).catch((it) => it);
  expect([error.status, error.code]).toEqual([503, "stopping"]);
});
