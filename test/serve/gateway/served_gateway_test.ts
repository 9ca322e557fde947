/** Models behind a gateway on a socket: who may do what, what is recorded, the pages, and how it stops. */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { startGateway } from "../../../src/serve/gateway/mod.ts";
import { Serving } from "../../../src/serve/openai/serving.ts";
import { openServedGateway, type ServedGatewayOptions } from "../../../src/train/run/serve/served_gateway.ts";
import { MemoryTraceStore, openTraceStore } from "../../../src/train/trace/mod.ts";
import { CHROMIUM, openChromium } from "../../fixtures/chromium.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { TextEngine, type TextEngineOptions } from "../../fixtures/text_engine.ts";

const root = temporaryFolder("gateway");

async function open({
  engine: how,
  reload,
  ...options
}: { engine?: TextEngineOptions; reload?: () => Promise<void> } & ServedGatewayOptions = {}) {
  const engine = new TextEngine(how);
  const serving = new Serving({
    engine,
    tokenizer: engine.tokenizer,
    models: { letters: { weightVersion: 4 }, poems: { dir: "poems", weightVersion: 2 } },
    defaults: { max_tokens: 64, temperature: 1, top_p: 1, top_k: 0 },
  });
  const close = async ({ graceMs = 0 } = {}) => {
    await serving.stop({ graceMs });
    serving.close();
  };
  const served = await openServedGateway({ opened: { serving, close, ...(reload && { reload }) }, ...options });
  let isOpen = true;
  const stop = async (graceMs = 0) => {
    if (isOpen) await served.close({ graceMs });
    isOpen = false;
  };
  onTestFinished(() => stop());
  const client = (apiKey = "none", path = "") =>
    new OpenAI({ baseURL: `${served.url}${path}/v1`, apiKey, maxRetries: 0 });
  const status = async (path: string, { key, ...init }: RequestInit & { key?: string } = {}) => {
    const headers = { ...(key !== undefined && { authorization: `Bearer ${key}` }) };
    const answer = await fetch(`${served.url}${path}`, { headers, ...init });
    await answer.arrayBuffer();
    return answer.status;
  };
  return { ...served, engine, serving, client, status, stop };
}

const ASK = { model: "letters", messages: [{ role: "user" as const, content: "spell" }] };

describe("clients", () => {
  test("OpenAI's and Anthropic's choose a model by its name", async () => {
    const { client, url } = await open();
    expect((await client().models.list()).data.map(({ id }) => id)).toEqual(["letters", "poems"]);
    const text = async (model: string) =>
      (await client().chat.completions.create({ ...ASK, model, seed: 3 })).choices[0]!.message.content;
    expect(await text("letters")).not.toBe(await text("poems"));
    await expect(text("prose")).rejects.toMatchObject({ status: 404, code: "model_not_found" });
    const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
    const message = await anthropic.messages.create({ ...ASK, max_tokens: 8 });
    expect(message.content[0]).toMatchObject({ type: "text", text: expect.stringMatching(/^[a-z]+$/) });
  });

  test("a stream comes in pieces while others are answered", async () => {
    const { client } = await open({ engine: { mostTokens: 60, chunkMs: 2 } });
    const stream = await client().chat.completions.create({ ...ASK, stream: true, seed: 12 });
    const pieces: string[] = [];
    for await (const { choices } of stream) pieces.push(choices[0]?.delta.content ?? "");
    const whole = await client().chat.completions.create({ ...ASK, seed: 12 });
    expect(pieces.join("")).toBe(whole.choices[0]!.message.content);
    expect(pieces.filter(Boolean).length).toBeGreaterThan(2);
  });

  test.each(["", "/sessions/s"])("find and continue responses of any model, called at %o", async (path) => {
    const { client } = await open({ store: "memory" });
    const { responses } = client("none", path);
    const first = await responses.create({ model: "poems", input: "spell" });
    expect((await responses.retrieve(first.id)).output_text).toBe(first.output_text);
    await responses.create({ model: "letters", input: "on", previous_response_id: first.id });
    await responses.delete(first.id);
    await expect(responses.retrieve(first.id)).rejects.toMatchObject({ status: 404 });
  });

  test("one that goes away in a stream frees its place", async () => {
    const { client, serving } = await open({ engine: { mostTokens: 400, chunkMs: 5 } });
    const stream = await client().chat.completions.create({ ...ASK, stream: true, max_tokens: 400, seed: 12 });
    for await (const _ of stream) break;
    while (serving.pending > 0) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(serving.figures.failures.get("cancelled")).toBe(1);
  });
});

describe("a record", () => {
  test("holds each session's calls with their tokens and weights; another gateway continues it", async () => {
    const store = join(root, "traces.db");
    const first = await open({ store });
    const reply = await first.client("none", "/sessions/task%2F1").chat.completions.create({ ...ASK, seed: 3 });
    await first.stop();
    const second = await open({ store });
    const messages = [...ASK.messages, reply.choices[0]!.message, { role: "user" as const, content: "again" }];
    await second.client("none", "/sessions/task%2F1").chat.completions.create({ ...ASK, messages });
    await second.stop();
    const kept = await openTraceStore(store);
    const [one, two] = await kept.traces({ session_id: "task/1" });
    await kept.close();
    expect(one).toMatchObject({ model: "letters", weight_version: 4, prompt_origin: "rendered" });
    expect(two).toMatchObject({ prompt_origin: "continued", parent_trace_id: one!.trace_id });
    const before = [...one!.prompt_token_ids, ...one!.completion_token_ids];
    expect(two!.prompt_token_ids.slice(0, before.length)).toEqual(before);
  });

  test("of a gateway that renders for it has the sampled tokens, and says which tokens end a reply", async () => {
    const worker = await open({ store: "memory" });
    const { tokenizer } = worker.engine;
    const store = await openTraceStore("memory");
    const gateway = await startGateway({ store, workers: { tokenizer } });
    onTestFinished(() => gateway.close());
    gateway.service.workers.add({ url: worker.url });
    const openai = new OpenAI({ baseURL: `${gateway.url}/sessions/s/v1`, apiKey: "none", maxRetries: 0 });
    const { choices } = await openai.chat.completions.create({ ...ASK, seed: 3 });
    const messages = [...ASK.messages, choices[0]!.message, { role: "user" as const, content: "again" }];
    await openai.chat.completions.create({ ...ASK, messages, stream: false, max_tokens: 3 });
    const [first, second] = await store.traces({ session_id: "s" });
    expect(tokenizer.decode(first!.completion_token_ids)).toBe(choices[0]!.message.content);
    expect(first!.logprobs).toHaveLength(first!.completion_token_ids.length);
    expect(second).toMatchObject({ prompt_origin: "continued", parent_trace_id: first!.trace_id });

    const asked = { model: "letters", prompt: "spell", stop_token_ids: [97] };
    await worker.client("none", "/sessions/w").completions.create(asked);
    const traces = await fetch(`${worker.url}/sessions/w/traces`).then((answer) => answer.json());
    const sampling_params = { stop_token_ids: [...worker.engine.eosTokenIds, 97] };
    expect(traces).toMatchObject([{ sampling_params }]);
  });

  test("there is none without a store, and no page of it", async () => {
    const { client, status } = await open();
    await client("none", "/sessions/a").chat.completions.create(ASK);
    expect(await status("/sessions/a")).toBe(404);
    expect(await status("/view/")).toBe(404);
  });
});

describe("keys", () => {
  const auth = { apiKeys: ["agent-secret"], adminToken: "admin-secret" };
  const PAGES = [
    "/",
    "/metrics",
    "/view/",
    "/view/sessions.json",
    "/view/session.json?id=a",
    "/sessions",
    "/admin/workers",
  ];

  test.each([
    ["none", undefined, 401, 401],
    ["an agent's", "agent-secret", 200, 403],
    ["the admin token", "admin-secret", 403, 200],
    ["a wrong one", "agent-secret2", 401, 401],
  ])("%s", async (_, key, calls, pages) => {
    const { status } = await open({ auth, store: "memory" });
    const body = JSON.stringify(ASK);
    const headers = {
      "content-type": "application/json",
      ...(key !== undefined && { authorization: `Bearer ${key}` }),
    };
    expect(await status("/v1/chat/completions", { method: "POST", body, headers })).toBe(calls);
    for (const path of PAGES) {
      const found = await status(path, key === undefined ? {} : { key });
      expect(found === 404 && path.includes("id=a") ? 200 : found, path).toBe(pages);
    }
  });

  test("a page takes the token in its address, a model call does not", async () => {
    const { status } = await open({ auth, store: "memory" });
    expect(await status("/?key=admin-secret")).toBe(200);
    expect(await status("/?key=agent-secret")).toBe(403);
    expect(await status("/v1/models?key=agent-secret")).toBe(401);
  });
});

test("an opening that fails closes the models and the store that are open by then", async () => {
  const empty = join(root, "empty");
  mkdirSync(empty);
  const closing = vi.spyOn(MemoryTraceStore.prototype, "close");
  onTestFinished(() => closing.mockRestore());
  await expect(openServedGateway({ store: "memory", model: { model: empty } })).rejects.toThrow(/Cannot/);
  expect(closing).toHaveBeenCalledTimes(1);

  let closed = 0;
  const opened = { serving: {} as Serving, close: async () => void closed++ };
  await expect(openServedGateway({ opened, workerTokenizer: { folder: empty } })).rejects.toThrow(/tokenizer\.json/);
  await expect(openServedGateway({ opened, store: root })).rejects.toThrow(/Cannot/);
  expect(closed).toBe(2);
});

test("POST /admin/reload looks for newer checkpoints", async () => {
  let looks = 0;
  const reload = async () => void looks++;
  const { status } = await open({ reload });
  expect(await status("/admin/reload", { method: "POST" })).toBe(200);
  expect(looks).toBe(1);
});

describe("a gateway that stops", () => {
  test("finishes a running stream within its limit", async () => {
    const { client, serving, stop } = await open({ engine: { mostTokens: 200, chunkMs: 4 } });
    const stream = await client().chat.completions.create({ ...ASK, stream: true, max_tokens: 200, seed: 12 });
    const iterator = stream[Symbol.asyncIterator]();
    let text = (await iterator.next()).value?.choices[0]?.delta.content ?? "";
    const stopped = stop(20_000);
    for (let next = await iterator.next(); !next.done; next = await iterator.next())
      text += next.value.choices[0]?.delta.content ?? "";
    await stopped;
    expect(text.length).toBeGreaterThan(4);
    expect(serving.figures.requests.total).toBe(1);
  });
});

test("the metrics are in Prometheus' format and count the work", async () => {
  const { client, url } = await open({ store: "memory" });
  for (let i = 0; i < 3; i++) await client("none", `/sessions/s${i}`).chat.completions.create(ASK);
  const text = await (await fetch(`${url}/metrics`)).text();
  const figures = new Map<string, number>();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    expect(line).toMatch(/^[a-z_]+(\{[^}]*\})? [0-9.e+-]+$/);
    figures.set(line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1)));
  }
  expect(figures.get("grpu_requests_total")).toBe(3);
  expect(figures.get("grpu_gateway_sessions")).toBe(3);
  expect(figures.get('grpu_weight_version{model="poems"}')).toBe(2);
  expect(figures.get("grpu_request_seconds_count")).toBe(3);
  expect(figures.get('grpu_request_seconds_bucket{le="+Inf"}')).toBe(3);
  expect(figures.get("grpu_sampled_tokens_total")).toBeGreaterThan(2);
});

test("what masks did to a reply stands in its trace, and is counted", async () => {
  const engine = { constrained: { masked_tokens: 3, is_relaxed: true as const } };
  const { client, url } = await open({ engine, store: "memory", syncTraces: true });
  await client("none", "/sessions/s").chat.completions.create(ASK);
  const traces = await (await fetch(`${url}/sessions/s/traces`)).json();
  expect(traces).toMatchObject([{ constrained: engine.constrained }]);
  const text = await (await fetch(`${url}/metrics`)).text();
  expect(text).toMatch(/^grpu_masked_tokens_total 3$/m);
  expect(text).toMatch(/^grpu_constraints_relaxed_total 1$/m);
});

test("guessed tokens are counted", async () => {
  const engine = { speculated: { num_drafts: 4, num_draft_tokens: 11, num_accepted_tokens: 7 } };
  const { client, url } = await open({ engine });
  for (let i = 0; i < 2; i++) await client("none", "/sessions/s").chat.completions.create(ASK);
  const text = await (await fetch(`${url}/metrics`)).text();
  expect(text).toMatch(/^grpu_spec_decode_num_drafts_total 8$/m);
  expect(text).toMatch(/^grpu_spec_decode_num_draft_tokens_total 22$/m);
  expect(text).toMatch(/^grpu_spec_decode_num_accepted_tokens_total 14$/m);
});

describe.skipIf(!CHROMIUM || "Deno" in globalThis)("pages in headless Chromium", () => {
  test.each([
    [1200, "light"],
    [390, "dark"],
  ] as const)("the status page %i wide, %s, and its way to a conversation and back", async (width, colorScheme) => {
    const auth = { apiKeys: ["agent-secret"], adminToken: "admin-secret" };
    const { client, url } = await open({ auth, store: "memory" });
    await client("agent-secret", "/sessions/first").chat.completions.create(ASK);
    const browser = await openChromium();
    onTestFinished(() => browser.close());
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
    const faults: string[] = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("console", (message) => {
      if (message.type() === "error") faults.push(message.text());
    });
    await page.goto(`${url}/?key=admin-secret`);
    const text = await page.locator("main").innerText();
    for (const each of ["letters", "poems", "first", "1 session", "letters: no device"].slice(0, 3))
      expect(text).toContain(each);
    expect(await page.evaluate("document.documentElement.scrollWidth <= innerWidth")).toBe(true);
    const dir = process.env.SCREENSHOTS;
    if (dir) {
      mkdirSync(dir, { recursive: true });
      await page.screenshot({ path: `${dir}/status ${width} ${colorScheme}.png`, fullPage: true });
    }
    await page.click("text=Recorded conversations");
    await page.click('[data-id="first"]');
    await page.waitForSelector(".sampled .t");
    await page.click("text=Back");
    await page.waitForSelector(".tiles");
    expect(faults).toEqual([]);
  });
});
