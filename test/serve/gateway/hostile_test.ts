/** Requests of agents that mean harm, or that are broken in ways that cost the gateway more than them. */
import { afterEach, describe, expect, test } from "vitest";
import { call, closeGateways, openGateway } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const CHAT = { model: "scripted", messages: [{ role: "user", content: "in" }] };

describe("metadata that is no object", () => {
  test.each([
    ["rllm_metadata", "a long text"],
    ["rllm_metadata", ["a", "b"]],
    ["rllm_metadata", 3],
    ["metadata", "a long text"],
    ["metadata", ["a"]],
  ])("%s %j is refused", async (name, value) => {
    const { url, store } = await openGateway();
    const headers = { "x-trajectory": "solver" };
    const answer = await call(`${url}/sessions/s/v1/chat/completions`, { body: { ...CHAT, [name]: value }, headers });
    expect(answer).toMatchObject({ status: 400, body: { error: { message: expect.stringContaining(`${name}: `) } } });
    expect(await store.traces({})).toEqual([]);
  });

  test("of null counts as none", async () => {
    const { url } = await openGateway();
    const body = { ...CHAT, metadata: null, rllm_metadata: null };
    expect((await call(`${url}/v1/chat/completions`, { body })).status).toBe(200);
  });
});

test.each([
  ["chat/completions", "stop", CHAT],
  ["completions", "stop", { model: "scripted", prompt: "in" }],
  ["messages", "stop_sequences", { ...CHAT, max_tokens: 4 }],
])("%s takes a limited number of stop strings of limited length", async (path, name, body) => {
  const { url } = await openGateway();
  const ask = async (stop: readonly string[]) =>
    call(`${url}/v1/${path}`, { body: { ...body, [name]: stop }, headers: { "anthropic-version": "2023-06-01" } });
  expect((await ask(Array.from({ length: 64 }, (_, i) => `#${i}`))).status).toBe(200);
  const many = await ask(Array.from({ length: 50_000 }, (_, i) => `#${i}`));
  expect(many.status).toBe(400);
  expect(JSON.stringify(many.body)).toContain(`Cannot use ${name}: it has 50000 texts, more than 64.`);
  expect(JSON.stringify((await ask(["x".repeat(1025)])).body)).toContain("1025 letters, more than 1024");
});

test("a body of very many short values counts with the memory that they take", async () => {
  const { url, service } = await openGateway({ limits: { allBodyBytes: 2 ** 20 } });
  const body = `{"messages":[${"[],".repeat(30_000)}[]]}`;
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body,
  });
  expect(body.length).toBeLessThan(2 ** 18);
  expect(answer.status).toBe(429);
  expect(service.bodies.used).toBe(0);
  expect((await call(`${url}/v1/chat/completions`, { body: CHAT })).status).toBe(200);
});

test("a page that may call models does not manage a gateway without a token", async () => {
  const origin = "https://app.example";
  const { url } = await openGateway({ allowedOrigins: [origin] });
  const status = async (path: string, headers: Record<string, string>) =>
    (await call(`${url}${path}`, { method: path === "/admin/flush" ? "POST" : "GET", headers })).status;
  for (const path of ["/sessions", "/admin/workers", "/admin/flush"]) {
    expect(await status(path, { origin }), path).toBe(401);
    // A page of the gateway's own.
    expect(await status(path, { origin: url }), path).toBe(200);
    expect(await status(path, {}), path).toBe(200);
  }
  expect(await status("/v1/models", { origin })).toBe(200);
  await call(`${url}/sessions`, { body: { session_id: "s", own_key: true } });
  const reward = async (headers: Record<string, string>) =>
    (await call(`${url}/sessions/s/reward`, { body: { reward: 1 }, headers })).status;
  expect(await reward({ origin })).toBe(401);
  expect(await reward({ origin: url })).toBe(200);
});

describe("the same session named twice", () => {
  const AUTH = { apiKeys: ["agent-1"], adminToken: "admin-token" };

  test("is the URL's; a header or metadata reach no other", async () => {
    const { url, store } = await openGateway({ auth: AUTH });
    const created = await call(`${url}/sessions`, {
      body: { session_id: "theirs", own_key: true },
      key: "admin-token",
    });
    expect(created.status).toBe(200);
    const headers = { "x-session-id": "theirs" };
    const named = { ...CHAT, metadata: { session_id: "theirs" }, rllm_metadata: { session_id: "theirs" } };
    const mine = `${url}/sessions/mine/v1/chat/completions`;
    expect((await call(mine, { body: named, headers, key: "agent-1" })).status).toBe(200);
    expect(await store.traces({ session_id: "theirs" })).toEqual([]);
    expect(await store.traces({ session_id: "mine" })).toHaveLength(1);
    for (const body of [CHAT, named])
      expect((await call(`${url}/v1/chat/completions`, { body, headers, key: "agent-1" })).status).toBe(401);
    expect((await call(`${url}/v1/chat/completions`, { body: named, key: "agent-1" })).status).toBe(401);
    expect(await store.traces({ session_id: "theirs" })).toEqual([]);
  });

  test("keys in two headers: each is refused where either would be", async () => {
    const { url } = await openGateway({ auth: AUTH });
    const headers = { "x-api-key": "agent-1" };
    expect((await call(`${url}/admin/flush`, { method: "POST", key: "admin-token", headers })).status).toBe(403);
    expect((await call(`${url}/sessions`, { key: "agent-1", headers: { "x-api-key": "" } })).status).toBe(401);
  });
});
