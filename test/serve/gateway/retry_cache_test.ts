/** A client that leaves when its reply is sampled, and asks again: it gets that reply, which is recorded once. */
import OpenAI from "openai";
import { afterEach, describe, expect, test } from "vitest";
import { RetryCache } from "../../../src/serve/gateway/retry_cache.ts";
import { MemoryTraceStore } from "../../../src/train/trace/mod.ts";
import { call, closeGateways, END, openGateway } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const CHAT = { model: "scripted", messages: [{ role: "user", content: "in" }] };
const AGAIN = { headers: { "x-stainless-retry-count": "1" } };

/** Answers wait for their traces, and these for `release`. */
class HeldStore extends MemoryTraceStore {
  release: () => void = () => {};
  waiting = 0;
  private readonly held = new Promise<void>((resolve) => {
    this.release = resolve;
  });
  override async putTrace(trace: Parameters<MemoryTraceStore["putTrace"]>[0]): Promise<void> {
    this.waiting++;
    await this.held;
    await super.putTrace(trace);
  }
}

/** A gateway with one call of the session `s` whose client left while the answer was ready. */
async function leftBehind() {
  const store = new HeldStore();
  let replies = 0;
  const gateway = await openGateway({ store, script: () => `reply ${++replies}${END}` });
  const url = `${gateway.url}/sessions/s/v1/chat/completions`;
  const leaving = new AbortController();
  const body = JSON.stringify(CHAT);
  const left = fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body,
    signal: leaving.signal,
  });
  await expect.poll(() => store.waiting).toBe(1);
  leaving.abort();
  await expect(left).rejects.toThrow();
  // The server reads the end of that connection before the requests of later ones.
  for (let i = 0; i < 3; i++) await call(`${gateway.url}/health`);
  const ask = (more: object = AGAIN, at = url, asked: object = CHAT) => call(at, { body: asked, ...more });
  const traces = () => store.traces({ session_id: "s" });
  return { ...gateway, store, url, ask, traces, sampled: () => replies };
}

const text = ({ body }: { body: unknown }) => (body as { choices: { message: { content: string } }[] }).choices[0];

describe("an answer whose client has gone", () => {
  test("is that of its retry, once", async () => {
    const { store, service, ask, traces, sampled } = await leftBehind();
    store.release();
    await expect.poll(() => service.retryCache.bytes).toBeGreaterThan(0);
    const [first, second] = [await ask(), await ask()];
    expect([first, second].map(text)).toMatchObject([
      { message: { content: "reply 1" } },
      { message: { content: "reply 2" } },
    ]);
    expect(first.headers.get("content-type")).toMatch(/^application\/json/);
    expect(sampled()).toBe(2);
    expect(await traces()).toHaveLength(2);
    expect(service.retryCache.bytes).toBe(0);
  });

  test("is waited for where it is sampled and not yet recorded", async () => {
    const { store, ask, sampled } = await leftBehind();
    const answer = ask();
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(sampled()).toBe(1);
    store.release();
    expect(text(await answer)).toMatchObject({ message: { content: "reply 1" } });
  });

  test.each<[string, (it: Awaited<ReturnType<typeof leftBehind>>) => Promise<{ body: unknown }>]>([
    ["a call that is no retry", ({ ask }) => ask({})],
    ["another session", ({ ask, url }) => ask(AGAIN, url.replace("/s/", "/other/"))],
    ["another body", ({ ask, url }) => ask(AGAIN, url, { ...CHAT, max_tokens: 50 })],
  ])("is not that of %s", async (_, other) => {
    const left = await leftBehind();
    left.store.release();
    await expect.poll(() => left.service.retryCache.bytes).toBeGreaterThan(0);
    expect(text(await other(left))).toMatchObject({ message: { content: "reply 2" } });
    expect(text(await left.ask())).toMatchObject({ message: { content: "reply 1" } });
  });

  test("reaches OpenAI's client, whose time limit made it ask again", async () => {
    const store = new HeldStore();
    let replies = 0;
    const gateway = await openGateway({ store, script: () => `reply ${++replies}${END}` });
    const client = new OpenAI({ baseURL: `${gateway.url}/sessions/s/v1`, apiKey: "none", maxRetries: 1, timeout: 700 });
    const answer = client.chat.completions.create({ model: "scripted", messages: [{ role: "user", content: "in" }] });
    setTimeout(() => store.release(), 1000);
    expect((await answer).choices[0]!.message.content).toBe("reply 1");
    expect([replies, (await store.traces({})).length]).toEqual([1, 1]);
  });
});

test("an answer that was delivered is not kept: a retry of a call like it is sampled", async () => {
  const { url, service } = await openGateway();
  for (let i = 0; i < 2; i++)
    expect((await call(`${url}/sessions/s/v1/chat/completions`, { body: CHAT })).status).toBe(200);
  expect(service.retryCache.bytes).toBe(0);
  await call(`${url}/sessions/s/v1/chat/completions`, { body: CHAT, ...AGAIN });
  expect(await service.store.traces({})).toHaveLength(3);
});

describe("what is kept", () => {
  const respond = (text: string, status = 200, type = "application/json") => ({
    request: new Request("http://g/", { signal: AbortSignal.abort(), headers: AGAIN.headers }),
    respond: async () => new Response(text, { status, headers: { "content-type": type } }),
  });
  const session = {};
  const named = (text: string) => ({ session, path: "/v1/chat/completions", text });

  test("is bounded: the oldest goes first", async () => {
    // Two requests of one letter, each with an answer of three.
    const most = 2 * 2 * (1 + 3);
    const kept = new RetryCache(most);
    for (const name of ["a", "b", "c"]) await kept.once(named(name), respond(name.repeat(3)));
    expect(kept.bytes).toBe(most);
    const answers = ["b", "c", "a"].map(async (name) => (await kept.once(named(name), respond("new"))).text());
    expect(await Promise.all(answers)).toEqual(["bbb", "ccc", "new"]);
  });

  test("is not of a session that was started again", async () => {
    const kept = new RetryCache(1000);
    await kept.once(named("a"), respond("old"));
    const again = await kept.once({ ...named("a"), session: {} }, respond("new"));
    expect(await again.text()).toBe("new");
  });

  test.each([
    ["an error", 500, "application/json"],
    ["a stream", 200, "text/event-stream"],
  ])("is not %s", async (_, status, type) => {
    const kept = new RetryCache(1000);
    await kept.once(named("a"), respond("x", status, type));
    expect(kept.bytes).toBe(0);
  });
});
