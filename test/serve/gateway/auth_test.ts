import { afterEach, describe, expect, test } from "vitest";
import { startGateway } from "../../../src/serve/gateway/mod.ts";
import { MemoryTraceStore } from "../../../src/train/trace/mod.ts";
import { call, closeGateways, openGateway, scriptedHost } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const CHAT = { model: "scripted", messages: [{ role: "user", content: "in" }] };
const AUTH = { apiKeys: ["agent-1", "agent-2"], adminToken: "admin-token" };

/** What each route answers to whom: an agent's key, the admin token, another key, none. */
const MODEL_ROUTES = ["POST /v1/chat/completions", "GET /v1/models", "POST /sessions/s/v1/completions"];
const ADMIN_ROUTES = [
  "GET /sessions",
  "GET /sessions/s",
  "GET /sessions/s/traces",
  "DELETE /sessions/s",
  "POST /sessions/batch_delete",
  "GET /traces/t",
  "POST /traces/query",
  "GET /health/workers",
  "GET /admin/workers",
  "POST /admin/workers",
  "DELETE /admin/workers/w",
  "POST /admin/flush",
  "POST /admin/flush-tracer",
  "POST /admin/reload",
  "GET /admin/weight_version",
  "POST /admin/weight_version",
];

function bodyFor(path: string): object {
  if (path.endsWith("/chat/completions")) return CHAT;
  return path.endsWith("/completions") ? { model: "scripted", prompt: "in" } : {};
}

async function statusOf(url: string, route: string, key?: string): Promise<number> {
  const [method, path] = route.split(" ") as [string, string];
  const body = method === "POST" ? bodyFor(path) : undefined;
  return (await call(`${url}${path}`, { method, ...(body && { body }), ...(key !== undefined && { key }) })).status;
}

describe("with keys and a token", () => {
  test.each(MODEL_ROUTES)("%s takes an agent's key, and never the admin token", async (route) => {
    const { url } = await openGateway({ auth: AUTH });
    expect(await statusOf(url, route, "agent-2")).not.toBeOneOf([401, 403]);
    expect(await statusOf(url, route, "admin-token")).toBe(403);
    for (const key of [undefined, "", "agent-3", "agent-", "agent-11"])
      expect(await statusOf(url, route, key)).toBe(401);
  });

  test.each(ADMIN_ROUTES)("%s takes the admin token, and never an agent's key", async (route) => {
    const { url } = await openGateway({ auth: AUTH });
    expect(await statusOf(url, route, "admin-token")).not.toBeOneOf([401, 403]);
    expect(await statusOf(url, route, "agent-1")).toBe(403);
    for (const key of [undefined, "admin", "admin-token2"]) expect(await statusOf(url, route, key)).toBe(401);
  });

  test("a key may come as x-api-key; GET /health needs none", async () => {
    const { url } = await openGateway({ auth: AUTH });
    const headers = { "x-api-key": "agent-1" };
    expect(await call(`${url}/v1/chat/completions`, { body: CHAT, headers })).toMatchObject({ status: 200 });
    expect(await call(`${url}/health`)).toMatchObject({ status: 200, body: { status: "ok" } });
  });

  test("a refusal has the form of the API that was called, and names no key", async () => {
    const { url } = await openGateway({ auth: AUTH });
    const openai = await call(`${url}/v1/chat/completions`, { body: CHAT, key: "agent-wrong" });
    expect(openai.body).toMatchObject({ error: { type: "authentication_error", code: "invalid_api_key" } });
    const anthropic = await call(`${url}/v1/messages`, { body: CHAT, key: "agent-wrong" });
    expect(anthropic.body).toMatchObject({ type: "error", error: { type: "authentication_error" } });
    expect((await call(`${url}/admin/flush`, { method: "POST", key: "agent-1" })).body).toEqual({
      error: expect.stringMatching(/^Cannot use an admin route/),
    });
    expect(JSON.stringify([openai.body, anthropic.body])).not.toMatch(/agent-wrong|agent-1|admin-token/);
  });
});

test.each([
  "/admin%2Fflush",
  "//admin/flush",
  "/sessions/../admin/flush",
  "/v1/../admin/flush",
  "/sessions/s/v1/../../../admin/flush",
  "/sessions/s/v1/%2e%2e/%2e%2e/%2e%2e/admin/flush",
  "/ADMIN/flush",
  "/admin/flush/",
  "/sessions/%E0%A4%A/v1/chat/completions",
])("the path trick %s does nothing with an agent's key", async (path) => {
  const { url } = await openGateway({ auth: AUTH });
  // A client that does not normalise: the path is sent as it is.
  const { request } = await import("node:http");
  const { hostname, port } = new URL(url);
  const status = await new Promise((resolve) => {
    const headers = { authorization: "Bearer agent-1", "content-type": "application/json" };
    const sent = request({ hostname, port, path, method: "POST", headers }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    sent.end("{}");
  });
  expect(status).toBeOneOf([400, 401, 403, 404]);
});

describe("the key of a run's session", () => {
  test("opens that session alone, until it ends; no other key opens it", async () => {
    const gateway = await openGateway({ auth: AUTH });
    const open = async (session_id: string) =>
      gateway.openSession({ session_id, engine: await scriptedHost(() => "hello").open({ model: "m", history: [] }) });
    const [a, b] = [await open("a"), await open("b")];
    const chat = async (base: string, key: string) =>
      (await call(`${base}/chat/completions`, { body: CHAT, key })).status;
    expect(await chat(a.base_url, a.api_key)).toBe(200);
    for (const key of [b.api_key, "agent-1", "wrong"]) expect(await chat(a.base_url, key)).toBe(401);
    expect(await chat(a.base_url, "admin-token")).toBe(403);
    expect(await chat(`${gateway.url}/v1`, a.api_key)).toBe(401);
    expect((await call(b.callback_url, { body: { reward: 1 }, key: a.api_key })).status).toBe(401);
    expect((await call(`${gateway.url}/sessions/a/traces`, { key: a.api_key })).status).toBe(401);
    const named = { ...CHAT, metadata: { session_id: "b" } };
    expect((await call(`${gateway.url}/v1/chat/completions`, { body: named, key: "agent-1" })).status).toBe(401);
    const taken = { body: { session_id: "a" }, key: "agent-1" };
    expect(await call(`${gateway.url}/sessions`, taken)).toMatchObject({ status: 409 });
    await a.end({ reward: null });
    // The key is known for good, and the session has ended.
    expect(await chat(a.base_url, a.api_key)).toBe(410);
    for (const key of [b.api_key, "agent-1", "wrong"]) expect(await chat(a.base_url, key)).toBe(401);
  });

  test("is in no trace, no session and no listing", async () => {
    const lines: string[] = [];
    const gateway = await openGateway({ auth: AUTH, log: (line) => lines.push(line) });
    const engine = await scriptedHost(() => "hello").open({ model: "m", history: [] });
    const { base_url, api_key } = await gateway.openSession({ session_id: "a", engine });
    await call(`${base_url}/chat/completions`, { body: CHAT, key: api_key });
    const { store } = gateway;
    const all = JSON.stringify([await store.traces({}), await store.sessions({}), lines]);
    expect(all).toContain('"session_id":"a"');
    expect(all).not.toContain(api_key);
    expect(all).not.toMatch(/agent-1|admin-token/);
  });
});

describe("where others reach the gateway", () => {
  const start = (options: object) => startGateway({ store: new MemoryTraceStore(), ...options });

  test.each([
    [{ host: "0.0.0.0" }, /without an admin token \(0\.0\.0\.0\)/],
    [{ host: "0.0.0.0", auth: { adminToken: "my-shared-secret" } }, /published admin token .*everybody knows it/],
    [{ auth: { adminToken: "my-shared-secret", isExposed: true } }, /published admin token/],
    [{ allowedHosts: ["box.example"] }, /without an admin token/],
    [{ allowedHosts: ["localhost", "box.example"], auth: { adminToken: "my-shared-secret" } }, /published admin token/],
    [{ auth: { adminToken: "" } }, /an empty key or admin token/],
    [{ auth: { apiKeys: ["a", ""] } }, /an empty key or admin token/],
    [{ auth: { apiKeys: ["a"], adminToken: "a" } }, /whose admin token is also an agent's key/],
  ])("%o is refused", async (options, message) => {
    await expect(start(options)).rejects.toThrow(message);
  });

  test("no call is let in without a key, even where none is configured", async () => {
    const { url } = await openGateway({ auth: { adminToken: "t", isExposed: true } });
    expect(await statusOf(url, "POST /v1/chat/completions")).toBe(401);
    expect(await statusOf(url, "GET /sessions")).toBe(401);
    expect(await statusOf(url, "GET /sessions", "t")).toBe(200);
  });
});

test("a proxy's name asks for keys as another address does; a name of this machine does not", async () => {
  const proxied = await openGateway({ allowedHosts: ["box.example"], auth: { adminToken: "t" } });
  for (const route of [...MODEL_ROUTES, "GET /sessions", "POST /admin/flush"])
    expect(await statusOf(proxied.url, route), route).toBe(401);
  const local = await openGateway({ allowedHosts: ["grpu.localhost"] });
  expect(await statusOf(local.url, "GET /sessions")).toBe(200);
});

test.each(ADMIN_ROUTES)("where agents have keys and there is no admin token, %s is closed", async (route) => {
  const { url } = await openGateway({ auth: { apiKeys: ["agent-1"] } });
  expect(await statusOf(url, route)).toBe(401);
  expect(await statusOf(url, route, "agent-1")).toBe(403);
});

test("on loopback without keys everything is open, but the admin token is still for admin routes", async () => {
  const { url } = await openGateway();
  for (const route of [...MODEL_ROUTES, "GET /sessions", "POST /admin/flush"])
    expect(await statusOf(url, route, "anything")).not.toBeOneOf([401, 403]);
  const published = await openGateway({ auth: { adminToken: "my-shared-secret" } });
  expect(await statusOf(published.url, "POST /v1/chat/completions")).toBe(200);
  expect(await statusOf(published.url, "POST /v1/chat/completions", "my-shared-secret")).toBe(403);
  expect(await statusOf(published.url, "POST /admin/flush")).toBe(401);
  expect(await statusOf(published.url, "POST /admin/flush", "my-shared-secret")).toBe(200);
});

describe("limits", () => {
  const chat = (url: string, key: string) => call(`${url}/v1/chat/completions`, { body: CHAT, key });

  test("calls a minute are those of one key", async () => {
    const { url } = await openGateway({ auth: AUTH, limits: { perMinute: 3 } });
    const statuses = [];
    for (let i = 0; i < 5; i++) statuses.push((await chat(url, "agent-1")).status);
    expect(statuses).toEqual([200, 200, 200, 429, 429]);
    expect(await chat(url, "agent-1")).toMatchObject({ body: { error: { code: "rate_limit_exceeded" } } });
    expect((await chat(url, "agent-2")).status).toBe(200);
  });

  test("calls at once, until each is answered or given up", async () => {
    const gateway = await openGateway({ auth: AUTH, limits: { concurrency: 2 }, script: () => undefined });
    const leaving = new AbortController();
    const running = [1, 2].map(async () => {
      const response = await fetch(`${gateway.url}/v1/chat/completions`, {
        method: "POST",
        signal: leaving.signal,
        headers: { "content-type": "application/json", authorization: "Bearer agent-1" },
        body: JSON.stringify({ ...CHAT, stream: true, max_tokens: 4000 }),
      });
      await response.text();
    });
    await expect.poll(() => gateway.service.running.count, { timeout: 10_000 }).toBe(2);
    expect((await chat(gateway.url, "agent-1")).status).toBe(429);
    leaving.abort();
    await Promise.allSettled(running);
    await expect
      .poll(
        async () =>
          (await call(`${gateway.url}/v1/chat/completions`, { body: { ...CHAT, max_tokens: 1 }, key: "agent-1" }))
            .status,
      )
      .toBe(200);
  });

  test("a body that is too large, too deep, no JSON, or of another type", async () => {
    const { url } = await openGateway({ limits: { bodyBytes: 1000 } });
    const send = async (body: string, type = "application/json") => {
      const headers = { "content-type": type };
      return (await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body })).status;
    };
    expect(await send(`{"a":"${"x".repeat(2000)}"}`)).toBe(413);
    expect(await send(`${"[".repeat(100)}${"]".repeat(100)}`)).toBe(422);
    expect(await send("{")).toBe(400);
    expect(await send("[]")).toBe(400);
    expect(await send(JSON.stringify(CHAT), "text/plain")).toBe(415);
    expect(await send(JSON.stringify(CHAT))).toBe(200);
  });

  test("pages of other sites are refused unless their origin is allowed", async () => {
    const ask = async (allowedOrigins: string[]) => {
      const { url } = await openGateway({ allowedOrigins });
      const headers = { origin: "https://app.example" };
      return call(`${url}/v1/chat/completions`, { body: CHAT, headers });
    };
    expect((await ask([])).status).toBe(403);
    const allowed = await ask(["https://app.example"]);
    expect(allowed.status).toBe(200);
    expect(allowed.headers.get("access-control-allow-origin")).toBe("https://app.example");
  });
});
