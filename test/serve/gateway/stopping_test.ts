/** How a gateway stops, reloads, and what it says of failures of its own. */
import { afterEach, describe, expect, test } from "vitest";
import type { ChatEngine } from "../../../src/chat/engine.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { RunningCalls } from "../../../src/serve/gateway/running.ts";
import { fakeVllm } from "../../fixtures/fake_vllm.ts";
import { call, closeGateways, openGateway, scriptedHost } from "../../fixtures/gateway.ts";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  await closeGateways();
  for (const close of closing.splice(0)) await close();
});

const CHAT = { model: "scripted", messages: [{ role: "user", content: "in" }] };

async function stream(url: string, more: object = {}) {
  const response = await fetch(`${url}/sessions/s/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...CHAT, stream: true, ...more }),
  });
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  const next = async () => {
    const { value, done } = await reader.read();
    return done ? undefined : decoder.decode(value);
  };
  const rest = async () => {
    let text = "";
    for (let part = await next(); part !== undefined; part = await next()) text += part;
    return text;
  };
  return { next, rest };
}

describe("a gateway that stops", () => {
  test("has the traces of the calls that it ended in its store", async () => {
    const gateway = await openGateway({ script: () => undefined, syncTraces: false });
    const { next, rest } = await stream(gateway.url);
    await next();
    const left = rest().catch(() => "");
    // The socket closes after it, which gives the sampler time.
    await gateway.service.close();
    const traces = await gateway.store.traces({ session_id: "s" });
    expect(traces).toMatchObject([{ finish_reason: "abort" }]);
    expect(traces[0]!.completion_token_ids.length).toBeGreaterThan(0);
    await left;
  });

  test("lets a worker's stream finish within its limit, and refuses new calls meanwhile", async () => {
    const worker = await fakeVllm({ chunkMs: 60 });
    closing.push(worker.close);
    const gateway = await openGateway({ engines: undefined });
    await call(`${gateway.url}/admin/workers`, { body: { url: worker.url } });
    const { next, rest } = await stream(gateway.url);
    await next();
    const closed = gateway.close({ graceMs: 10_000 });
    const refused = await call(`${gateway.url}/v1/chat/completions`, { body: CHAT });
    expect(refused).toMatchObject({ status: 503, body: { error: { code: "stopping" } } });
    expect(await rest()).toContain("[DONE]");
    await closed;
    expect(await gateway.store.traces({ session_id: "s" })).toMatchObject([{ finish_reason: "stop" }]);
  });

  test("ends a worker's stream beyond its limit, and records what came", async () => {
    const worker = await fakeVllm();
    closing.push(worker.close);
    worker.mode = "slow";
    const gateway = await openGateway({ engines: undefined });
    await call(`${gateway.url}/admin/workers`, { body: { url: worker.url } });
    const { next, rest } = await stream(gateway.url);
    await next();
    const left = rest().catch(() => "");
    await gateway.service.close({ graceMs: 30 });
    expect(await gateway.store.traces({ session_id: "s" })).toMatchObject([{ finish_reason: "abort" }]);
    await left;
  });
});

test("a reader that stalls delays no stop, and its reply counts as recorded", async () => {
  const lines: string[] = [];
  // More than the socket's buffers take.
  const long = `${"word ".repeat(200)}<|im_end|>`;
  const gateway = await openGateway({ script: () => long, log: (line) => void lines.push(line) });
  const response = await fetch(`${gateway.url}/sessions/s/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...CHAT, stream: true, n: 128, max_tokens: 1000, logprobs: true, top_logprobs: 0 }),
  });
  await expect.poll(() => gateway.store.traces({ session_id: "s" }), { timeout: 20_000 }).toHaveLength(128);
  await expect.poll(() => gateway.service.running.count, { timeout: 20_000 }).toBe(0);
  expect(gateway.service.sessions.get("s")!.running).toBe(1);
  const started = performance.now();
  await gateway.service.close({ graceMs: 5000 });
  expect(performance.now() - started).toBeLessThan(4000);
  expect(lines).toEqual([]);
  await response.body!.cancel();
}, 60_000);

test("a call ends with any of its signals, and leaves no listener in them", async () => {
  const calls = new RunningCalls();
  const long = new AbortController();
  let listeners = 0;
  const { signal } = long;
  const [add, remove] = [signal.addEventListener.bind(signal), signal.removeEventListener.bind(signal)];
  Object.assign(signal, {
    addEventListener: (...it: Parameters<typeof add>) => {
      listeners++;
      add(...it);
    },
    removeEventListener: (...it: Parameters<typeof remove>) => {
      listeners--;
      remove(...it);
    },
  });
  for (let i = 0; i < 10; i++) calls.enter([signal]).done();
  expect([listeners, calls.count]).toEqual([0, 0]);
  const [one, two] = [calls.enter([signal]), calls.enter([])];
  long.abort(new Error("left"));
  expect([one.signal.reason.message, two.signal.aborted]).toEqual(["left", false]);
  expect(await calls.settled(5)).toBe(false);
  setTimeout(() => {
    one.done();
    two.done();
  }, 5);
  expect(await calls.settled(5000)).toBe(true);
  calls.abort(new Error("stopping"));
  expect(calls.enter([]).signal.reason.message).toBe("stopping");
});

describe("POST /admin/reload", () => {
  test("answers when what it loads is in use", async () => {
    const steps: string[] = [];
    const reload = async () => {
      await new Promise((resolve) => setTimeout(resolve, 5));
      steps.push("loaded");
    };
    const { url } = await openGateway({ reload });
    expect(await call(`${url}/admin/reload`, { body: {} })).toMatchObject({ status: 200, body: { status: "ok" } });
    expect(steps).toEqual(["loaded"]);
  });

  test("names what cannot be loaded", async () => {
    const { url } = await openGateway({
      reload: async () => {
        throw new Error("policy keeps its weights: global_step_2 is damaged");
      },
    });
    expect(await call(`${url}/admin/reload`, { body: {} })).toMatchObject({
      status: 500,
      body: { error: expect.stringContaining("global_step_2 is damaged") },
    });
  });
});

describe("a failure of the gateway's own", () => {
  const failing = (error: Error) => ({
    models: ["scripted"],
    open: (): ChatEngine => ({
      model: "scripted",
      tokenizer: scriptedHost(() => "").tokenizer,
      chat: () => Promise.reject(error),
      complete: () => Promise.reject(error),
    }),
  });

  test.each([
    ["/v1/chat/completions", CHAT],
    ["/sessions/s/v1/chat/completions", CHAT],
    ["/sessions/s/v1/chat/completions", { ...CHAT, stream: true }],
    ["/sessions/s/v1/messages", { ...CHAT, max_tokens: 4 }],
    ["/v1/completions", { prompt: "a" }],
  ])("%s %o names the operator's log, and tells nothing of itself", async (path, asked) => {
    const lines: string[] = [];
    const engines = failing(new Error("ENOENT: /home/secret/model.safetensors"));
    const { url } = await openGateway({ engines, log: (line) => void lines.push(line) });
    const { status, body } = await call(url + path, { body: asked });
    expect(status).toBe(500);
    expect(JSON.stringify(body)).not.toContain("secret");
    const [, id] = /error ([0-9a-f]{8})/.exec(JSON.stringify(body))!;
    expect(lines.join("\n")).toContain(`error ${id}: Error: ENOENT: /home/secret/model.safetensors`);
  });

  test.each([
    [new ConfigError("Cannot write the traces: the file is locked.", { file: "/home/secret/traces.db" })],
    [new Error("ENOSPC: /home/secret/traces.db")],
  ])("%o of its store names the operator's log to who opens a session", async (error) => {
    const lines: string[] = [];
    const { url, store } = await openGateway({ log: (line) => void lines.push(line) });
    store.putSession = () => Promise.reject(error);
    const { status, body } = await call(`${url}/sessions`, { body: {} });
    expect(status).toBe(500);
    expect(JSON.stringify(body)).not.toContain("secret");
    const [, id] = /error ([0-9a-f]{8})/.exec(JSON.stringify(body))!;
    expect(lines.join("\n")).toContain(`error ${id}: `);
    expect(lines.join("\n")).toContain("/home/secret/traces.db");
  });

  test("is not what the request's own faults are", async () => {
    const { url } = await openGateway({ engines: failing(new ConfigError("Cannot render: two system messages.")) });
    const { status, body } = await call(`${url}/v1/chat/completions`, { body: CHAT });
    expect([status, JSON.stringify(body)]).toEqual([400, expect.stringContaining("two system messages")]);
  });
});
