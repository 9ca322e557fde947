/** The page of recorded conversations, as a handler and in headless Chromium. */
import { mkdirSync } from "node:fs";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { TraceRecord } from "../../../src/engine/contract/trace.ts";
import { guardHandler } from "../../../src/leaves/http/guard.ts";
import { type Listening, listen } from "../../../src/leaves/http/listen.ts";
import type { SessionList, SessionView } from "../../../src/serve/gateway/page/trace_data.ts";
import { traceViewer } from "../../../src/serve/gateway/page/trace_viewer.ts";
import { MemoryTraceStore } from "../../../src/train/trace/mod.ts";
import { CHROMIUM, openChromium } from "../../fixtures/chromium.ts";

const WORDS = ["The", " answer", " is", " <b>42</b>", "\n", ".", "<|end|>"];
const decode = (id: number) => WORDS[id] ?? `#${id}`;

function trace(more: Partial<TraceRecord> & Pick<TraceRecord, "trace_id" | "session_id">): TraceRecord {
  const { prompt_token_ids = [10, 11], completion_token_ids = [0, 1, 2, 3, 4, 5, 6] } = more;
  return {
    model: "letters",
    messages: [{ role: "user", content: "What is <i>6 * 7</i>?" }],
    prompt_token_ids,
    completion_token_ids,
    response_message: { role: "assistant", content: "The answer is <b>42</b>\n." },
    logprobs: completion_token_ids.map((_, i) => -i),
    finish_reason: "stop",
    weight_version: 7,
    latency_ms: 1234.5,
    token_counts: { prompt: prompt_token_ids.length, completion: completion_token_ids.length },
    timestamp: 1_700_000_000,
    metadata: {},
    prompt_origin: "rendered",
    ...more,
  };
}

async function someStore(): Promise<MemoryTraceStore> {
  let now = 1_700_000_000;
  const store = new MemoryTraceStore({ now: () => now++ });
  const first = trace({ trace_id: "a", session_id: "task-1:0" });
  await store.putSession({ session_id: "task-1:0", metadata: { task: "sums", group: "task-1" }, created_at: now });
  await store.putTrace(first);
  await store.putTrace(
    trace({
      trace_id: "b",
      session_id: "task-1:0",
      prompt_token_ids: [...first.prompt_token_ids, ...first.completion_token_ids, 20, 21],
      prompt_origin: "continued",
      parent_trace_id: "a",
      weight_version: 8,
    }),
  );
  await store.putSession({
    session_id: "task-1:0",
    metadata: { task: "sums", group: "task-1" },
    created_at: now,
    outcome: { reward: 0.75, is_correct: true, ended_at: now, metrics: { turns: 2 } },
  });
  await store.putSession({ session_id: "<img src=x onerror=alert(1)>", metadata: {}, created_at: now });
  await store.putTrace(
    trace({ trace_id: "c", session_id: "<img src=x onerror=alert(1)>", logprobs: null, weight_version: null }),
  );
  for (let i = 0; i < 12; i++) await store.putTrace(trace({ trace_id: `d${i}`, session_id: `other ${i}` }));
  const outcome = { reward: null, trajectory_rewards: { solver: 1, judge: 0.5 }, ended_at: now };
  await store.putSession({ session_id: "other 0", metadata: {}, created_at: 1_700_000_000, outcome });
  return store;
}

describe("the handler", () => {
  const ask = async (path: string, method = "GET") => {
    const fetch = guardHandler(traceViewer({ store: await someStore(), decode }), {
      site: { host: "127.0.0.1", names: [], origins: [] },
      methods: [],
      headers: [],
    });
    return fetch(new Request(`http://localhost/view/${path}`, { method }));
  };

  test("lists sessions, newest first, and says when there are older ones", async () => {
    const all = (await (await ask("sessions.json")).json()) as SessionList;
    expect(all.sessions).toHaveLength(14);
    expect(all.isCut).toBe(false);
    const sums = all.sessions.find(({ session_id }) => session_id === "task-1:0")!;
    expect(sums).toMatchObject({
      title: "What is <i>6 * 7</i>?",
      model: "letters",
      weight_version: 7,
      trace_count: 2,
      outcome: { reward: 0.75 },
    });
    const some = (await (await ask("sessions.json?limit=3")).json()) as SessionList;
    expect([some.sessions.length, some.isCut]).toEqual([3, true]);
    expect(some.sessions.map(({ session_id }) => session_id)).toEqual(["other 11", "other 10", "other 9"]);
  });

  test("shows a session's tokens as text, without those that its parent has already", async () => {
    const { traces } = (await (await ask(`session.json?id=${encodeURIComponent("task-1:0")}`)).json()) as SessionView;
    const [first, second] = traces;
    expect(first!.completion.map(({ text }) => text)).toEqual(WORDS);
    expect(first!.completion[3]).toEqual({ id: 3, text: " <b>42</b>", logprob: -3 });
    expect([first!.shared, first!.prompt.map(({ id }) => id)]).toEqual([0, [10, 11]]);
    expect([second!.shared, second!.prompt.map(({ id }) => id)]).toEqual([9, [20, 21]]);
    expect(second!.prompt[0]).not.toHaveProperty("logprob");
  });

  test.each([
    ["session.json?id=nobody", "GET", 404],
    ["sessions.json?limit=0", "GET", 400],
    ["sessions.json?limit=x", "GET", 400],
    ["other", "GET", 404],
    ["", "POST", 405],
  ])("%s by %s: %i", async (path, method, status) => {
    expect((await ask(path, method)).status).toBe(status);
  });

  test("the page holds no text of a conversation, and names its script by a nonce", async () => {
    const answer = await ask("");
    const policy = answer.headers.get("content-security-policy")!;
    const nonce = /'nonce-([^']+)'/.exec(policy)![1]!;
    const page = await answer.text();
    expect(page.match(/<script/g)).toHaveLength(page.match(new RegExp(`nonce="${nonce}"`, "g"))!.length);
    expect(policy).toContain("default-src 'none'");
  });
});

describe.skipIf(!CHROMIUM || "Deno" in globalThis)("in headless Chromium", () => {
  let browser: Browser;
  let server: Listening;
  let store: MemoryTraceStore;
  beforeAll(async () => {
    browser = await openChromium();
    store = await someStore();
    const viewer = traceViewer({ store, decode });
    const site = { host: "127.0.0.1", names: [], origins: [] };
    server = await listen(
      { fetch: guardHandler(viewer, { site, methods: [], headers: [] }) },
      { host: "127.0.0.1", port: 0 },
    );
  });
  afterAll(async () => {
    await browser?.close();
    await server?.close();
  });

  async function open({ width = 1200, colorScheme = "light" as "light" | "dark", path = "/view/" } = {}) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
    const faults: string[] = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("console", (message) => {
      if (message.type() === "error") faults.push(message.text());
    });
    await page.goto(`${server.url}${path}`);
    await page.waitForSelector(".session");
    const shot = async (name: string) => {
      const dir = process.env.SCREENSHOTS;
      if (!dir) return;
      mkdirSync(dir, { recursive: true });
      await page.screenshot({ path: `${dir}/${name}.png`, fullPage: true });
    };
    return { page, faults, shot };
  }

  test.each([
    ["wide and light", 1200, "light"],
    ["wide and dark", 1200, "dark"],
    ["narrow and light", 390, "light"],
    ["narrow and dark", 390, "dark"],
  ] as const)(
    "%s: the list, a session's calls and tokens, nothing wider than the page",
    async (name, width, colorScheme) => {
      const { page, faults, shot } = await open({ width, colorScheme });
      await shot(`list ${name}`);
      expect(await page.locator('[data-id="other 0"] .mark').innerText()).toBe("rewards 1, 0.5");
      await page.click('[data-id="task-1:0"]');
      await page.waitForSelector(".call");
      expect(await page.locator(".call").count()).toBe(2);
      expect(await page.locator(".call").first().locator(".sampled .t").allInnerTexts()).toEqual(
        WORDS.map((word) => word.replace("\n", "⏎\n")),
      );
      expect(await page.locator(".sampled .t").nth(3).getAttribute("title")).toMatch(/id 3\nlog p -3 · p 0.0498/);
      const chips = (await page.locator(".call").nth(1).locator(".chip").allInnerTexts()).join(" ");
      for (const text of ["weights 8", "continued", "from call 1", "stop", "9 tokens as before"])
        expect(chips).toContain(text);
      const facts = await page.locator("dl.facts").innerText();
      for (const text of ["reward 0.75", "sums", "task-1", "7, 8", "turns"]) expect(facts).toContain(text);
      expect(await page.evaluate("document.documentElement.scrollWidth <= innerWidth")).toBe(true);
      await shot(`session ${name}`);
      expect(faults).toEqual([]);
      await page.close();
    },
  );

  test("everything by keys: sessions, colors, messages, search, back", async () => {
    const { page, faults } = await open();
    await page.keyboard.press("j");
    await page.waitForSelector(".call");
    expect(await page.locator(".session.open").getAttribute("data-id")).toBe("other 11");
    await page.keyboard.press("j");
    await page.waitForFunction('document.querySelector(".session.open")?.dataset.id === "other 10"');
    await page.keyboard.press("k");
    await page.waitForFunction('document.querySelector(".session.open")?.dataset.id === "other 11"');
    await page.waitForSelector(".t.s6");
    await page.keyboard.press("m");
    expect(await page.locator(".sampled .t.trained").count()).toBe(WORDS.length);
    await page.keyboard.press("t");
    expect(await page.locator(".message").allInnerTexts()).toEqual([
      "user\nWhat is <i>6 * 7</i>?",
      "assistant\nThe answer is <b>42</b>\n.",
    ]);
    await page.keyboard.press("/");
    await page.keyboard.type("task-1");
    expect(await page.locator(".session").count()).toBe(1);
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    expect(await page.locator(".call").count()).toBe(0);
    await page.keyboard.press("?");
    expect(await page.locator("dialog").isVisible()).toBe(true);
    expect(faults).toEqual([]);
    await page.close();
  });

  test("a link to a call keeps the session in the address; new calls of the open session appear", async () => {
    const { page, faults } = await open();
    await page.click('[data-id="task-1:0"]');
    await page.click("text=from call 1");
    expect(new URL(page.url()).hash).toBe(`#${encodeURIComponent("task-1:0")}`);
    expect(await page.evaluate("document.activeElement.id")).toBe("call-1");
    await page.click('[data-id="other 3"]');
    const calls = () => page.locator(".call").count();
    await expect.poll(calls).toBe(1);
    await store.putTrace(trace({ trace_id: "new", session_id: "other 3" }));
    await expect.poll(calls, { timeout: 15_000 }).toBe(2);
    expect(faults).toEqual([]);
    await page.close();
  });

  test("an address with broken encoding leaves the page usable", async () => {
    const { page } = await open({ path: "/view/#%zz" });
    await page.waitForSelector(".fault");
    await page.keyboard.press("j");
    await page.waitForSelector(".call");
    await page.close();
  });

  test("tokens without log-probs are marked, names from clients stay text, the address opens a session", async () => {
    const { page, faults } = await open({ path: `/view/#${encodeURIComponent("<img src=x onerror=alert(1)>")}` });
    await page.waitForSelector(".call");
    expect(await page.locator(".sampled .t.unknown").count()).toBe(WORDS.length);
    expect(await page.locator("img").count()).toBe(0);
    expect(await page.locator(".conversation h2").innerText()).toBe("<img src=x onerror=alert(1)>");
    expect(faults).toEqual([]);
    await page.close();
  });
});
