import { OpenAI } from "openai";
import { afterEach, describe, expect, test } from "vitest";
import type { ChatEngine } from "../../../src/chat/engine.ts";
import type { ModelHost } from "../../../src/serve/gateway/mod.ts";
import { call, closeGateways, END, openGateway, scriptedHost } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const HELLO = { role: "user" as const, content: "in" };
const CHAT = { model: "scripted", messages: [HELLO] };

const clientOf = (baseURL: string, apiKey = "none") => new OpenAI({ baseURL, apiKey, maxRetries: 0 });

describe("a session", () => {
  test.each([
    ["by its URL", "/sessions/a1/v1", {}, {}],
    ["by a URL with slashes", "/sessions/harbor/hello-world:0/v1", {}, {}],
    ["by an encoded URL", "/sessions/harbor%2Fhello-world:0/v1", {}, {}],
    ["by a header", "/v1", { "x-session-id": "a1" }, {}],
    ["by metadata", "/v1", {}, { metadata: { session_id: "a1" } }],
    ["by rLLM's metadata", "/v1", {}, { rllm_metadata: { session_id: "a1", role: "solver" } }],
  ])("is named %s", async (_, path, headers, body) => {
    const { url, store } = await openGateway();
    const answer = await call(`${url}${path}/chat/completions`, { body: { ...CHAT, ...body }, headers });
    expect(answer).toMatchObject({ status: 200, body: { choices: [{ message: { content: "hello" } }] } });
    const [session] = await store.sessions({});
    const id = path.includes("harbor") ? "harbor/hello-world:0" : "a1";
    expect(session).toMatchObject({ session_id: id, trace_count: 1 });
    const [trace] = await store.traces({ session_id: id });
    expect(trace).toMatchObject({ session_id: id, finish_reason: "stop", weight_version: 4, messages: [HELLO] });
    if ("rllm_metadata" in body) expect(trace!.metadata).toMatchObject({ role: "solver" });
  });

  test("keeps the tokens of its turns, and is restored from the store by another gateway", async () => {
    let turn = 0;
    const script = () => `one${turn++}${END}`;
    const first = await openGateway({ script });
    const client = clientOf(`${first.url}/sessions/s/v1`);
    const one = await client.chat.completions.create(CHAT);
    const two = {
      model: "scripted",
      messages: [HELLO, one.choices[0]!.message, { role: "user" as const, content: "on" }],
    };
    const second = await client.chat.completions.create(two);
    const other = await openGateway({ script, store: first.store });
    const three = [...two.messages, second.choices[0]!.message, HELLO];
    await clientOf(`${other.url}/sessions/s/v1`).chat.completions.create({ model: "scripted", messages: three });
    const traces = await first.store.traces({ session_id: "s" });
    expect(traces.map(({ prompt_origin }) => prompt_origin)).toEqual(["rendered", "continued", "continued"]);
    expect(traces.map(({ parent_trace_id }) => parent_trace_id)).toEqual([
      null,
      traces[0]!.trace_id,
      traces[1]!.trace_id,
    ]);
    traces.slice(1).forEach(({ prompt_token_ids }, i) => {
      const whole = [...traces[i]!.prompt_token_ids, ...traces[i]!.completion_token_ids];
      expect(prompt_token_ids.slice(0, whole.length)).toEqual(whole);
    });
  });

  test.each([
    ["bytes", { sessionBytes: 20_000 }],
    ["number", { sessions: 2 }],
  ])("leaves memory when it is the longest unused beyond the %s, and continues on its tokens", async (_, limits) => {
    const { service, url, store } = await openGateway({ script: () => `one${END}`, limits });
    const ask = (id: string, messages: object[]) =>
      call(`${url}/sessions/${id}/v1/chat/completions`, { body: { model: "scripted", messages } });
    for (const id of ["s0", "s1", "s2"]) await ask(id, [HELLO]);
    expect([...service.sessions.values()].map(({ id }) => id)).toEqual(["s1", "s2"]);
    const traces = (await store.traces({})).filter(({ session_id }) => session_id !== "s0");
    const held = traces.map(({ token_counts: { prompt, completion } }) => 8192 + 40 * (prompt + completion));
    expect(service.sessions.bytes).toBe(held[0]! + held[1]!);
    await ask("s0", [HELLO, { role: "assistant", content: "one" }, { role: "user", content: "on" }]);
    expect((await store.traces({ session_id: "s0" })).map(({ prompt_origin }) => prompt_origin)).toEqual([
      "rendered",
      "continued",
    ]);
    // The restored session holds two calls.
    const rest = "sessions" in limits ? ["s2", "s0"] : ["s0"];
    expect([...service.sessions.values()].map(({ id }) => id)).toEqual(rest);
    await service.sessions.delete(rest);
    expect(service.sessions.bytes).toBe(0);
  });

  test("stays in memory while its reply runs, and while a run's own engine answers it", async () => {
    let finish = () => {};
    const gate = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const host = scriptedHost(() => `one${END}`);
    const own = host.open({ model: "scripted", history: [] }) as ChatEngine;
    const engines: ModelHost = {
      models: host.models,
      open: (of) => ({
        ...own,
        chat: async (request, at) => {
          if (of.session_id === "slow") await gate;
          return own.chat(request, at);
        },
      }),
    };
    const { service, url } = await openGateway({ engines, limits: { sessionBytes: 0 } });
    await service.openSession({ session_id: "run", engine: own });
    const ask = (id: string) => call(`${url}/sessions/${id}/v1/chat/completions`, { body: CHAT });
    const slow = ask("slow");
    while (!service.sessions.get("slow")?.running) await new Promise((resolve) => setTimeout(resolve, 5));
    for (const id of ["a", "b"]) await ask(id);
    const live = () => [...service.sessions.values()].map(({ id }) => id);
    expect(live()).toEqual(["run", "slow", "b"]);
    finish();
    expect((await slow).status).toBe(200);
    await ask("c");
    expect(live()).toEqual(["run", "c"]);
  });

  test("overwrites the sampling parameters of its requests, under the names of each API", async () => {
    const engines = scriptedHost(() => `one${END}`);
    const { url } = await openGateway({ engines });
    const sampling_params = { temperature: 0.25, max_tokens: 2 };
    await call(`${url}/sessions`, { body: { session_id: "s", sampling_params } });
    await call(`${url}/sessions/s/v1/chat/completions`, { body: { ...CHAT, temperature: 1, top_p: 0.5 } });
    expect(engines.requests[0]!.params).toMatchObject({ temperature: 0.25, max_tokens: 2, top_p: 0.5 });
  });

  test.each([
    ["/v1/chat/completions", {}],
    ["/v1/messages", { max_tokens: 9 }],
    ["/v1/responses", { messages: undefined, input: "in", max_output_tokens: 9 }],
  ])("overwrites them in %s, whatever they are called there", async (path, own) => {
    const engines = scriptedHost(() => `one STOP two${END}`);
    const { url } = await openGateway({ engines });
    const sampling_params = {
      temperature: 0.25,
      max_completion_tokens: 150,
      stop: "STOP",
      n: 1,
      repetition_penalty: 1,
    };
    await call(`${url}/sessions`, { body: { session_id: "s", sampling_params } });
    const { status, body } = await call(`${url}/sessions/s${path}`, { body: { ...CHAT, ...own } });
    expect([status, JSON.stringify(body)]).toEqual([200, expect.not.stringContaining("two")]);
    expect(engines.requests[0]!.params).toMatchObject({ temperature: 0.25, max_tokens: 150 });
  });

  test("counts the tokens of messages with parameters that only sampling has", async () => {
    const { url } = await openGateway();
    const sampling_params = { temperature: 0.25, max_tokens: 2, stop: ["x"], n: 1 };
    await call(`${url}/sessions`, { body: { session_id: "s", sampling_params } });
    const { body } = await call(`${url}/sessions/s/v1/messages/count_tokens`, { body: CHAT });
    expect(body).toEqual({ input_tokens: expect.any(Number) });
  });

  test("counts the tokens of a call whose metadata or header names its session", async () => {
    const { url } = await openGateway();
    const counted = { status: 200, body: { input_tokens: expect.any(Number) } };
    const path = `${url}/v1/messages/count_tokens`;
    expect(await call(path, { body: { ...CHAT, metadata: { session_id: "s" } } })).toMatchObject(counted);
    expect(await call(path, { body: { ...CHAT, rllm_metadata: { session_id: "s" } } })).toMatchObject(counted);
    const named = { "x-session-id": "s", "x-trajectory": "solver" };
    expect(await call(path, { body: CHAT, headers: named })).toMatchObject(counted);
  });

  test("with n choices leaves a trace for each", async () => {
    const { url, store } = await openGateway();
    await call(`${url}/sessions/s/v1/chat/completions`, { body: { ...CHAT, n: 3 } });
    const traces = await store.traces({ session_id: "s" });
    expect(new Set(traces.map(({ trace_id }) => trace_id)).size).toBe(3);
  });

  test("a call without a session is answered, and not recorded", async () => {
    const { url, store } = await openGateway();
    expect(await call(`${url}/v1/chat/completions`, { body: CHAT })).toMatchObject({ status: 200 });
    expect(await store.traces({})).toEqual([]);
  });

  test("a model that is not served is a 404 that names those that are; a gateway's own model replaces it", async () => {
    const { url } = await openGateway();
    const other = { ...CHAT, model: "gpt" };
    expect(await call(`${url}/sessions/s/v1/chat/completions`, { body: other })).toMatchObject({
      status: 404,
      body: { error: { code: "model_not_found", message: expect.stringContaining("Known: scripted") } },
    });
    const pinned = await openGateway({ model: "scripted" });
    expect(await call(`${pinned.url}/v1/chat/completions`, { body: other })).toMatchObject({ status: 200 });
    expect(await call(`${url}/v1/models`)).toMatchObject({ body: { data: [{ id: "scripted" }] } });
  });
});

describe("the routes of sessions", () => {
  test("create, list, read, delete", async () => {
    const { url } = await openGateway();
    const created = await call(`${url}/sessions`, { body: { session_id: "a/b", metadata: { task: 1 } } });
    expect(created.body).toEqual({ session_id: "a/b", url: "/sessions/a/b/v1" });
    await call(`${url}/sessions/a/b/v1/chat/completions`, { body: CHAT });
    expect((await call(`${url}/sessions`, { body: {} })).body).toMatchObject({ session_id: expect.any(String) });
    expect((await call(`${url}/sessions/a/b`)).body).toMatchObject({ trace_count: 1, metadata: { task: 1 } });
    expect((await call(`${url}/sessions/a/b/traces`)).body).toHaveLength(1);
    expect((await call(`${url}/sessions?limit=1`)).body).toHaveLength(1);
    expect(await call(`${url}/sessions/none`)).toMatchObject({ status: 404 });
    expect((await call(`${url}/sessions/a/b`, { method: "DELETE" })).body).toEqual({ deleted: 1 });
    expect(await call(`${url}/sessions/a/b`)).toMatchObject({ status: 404 });
  });

  test("traces by id and by query; batch_delete", async () => {
    const { url } = await openGateway();
    for (const id of ["a", "b", "c"]) await call(`${url}/sessions/${id}/v1/chat/completions`, { body: CHAT });
    const found = (await call(`${url}/traces/query`, { body: { session_ids: ["a", "c"] } })).body as {
      trace_id: string;
    }[];
    expect(found).toHaveLength(2);
    expect((await call(`${url}/traces/${found[0]!.trace_id}`)).body).toEqual(found[0]);
    expect(await call(`${url}/traces/none`)).toMatchObject({ status: 404 });
    const ids = { session_ids: ["a", "b", "none"] };
    expect((await call(`${url}/sessions/batch_delete`, { body: ids })).body).toEqual({ deleted: 2 });
  });

  test("a reward ends the session: it is stored, and further calls are refused", async () => {
    const { url } = await openGateway();
    const chat = () => call(`${url}/sessions/s/v1/chat/completions`, { body: CHAT });
    await chat();
    const reward = { reward: 0.5, is_correct: true, metrics: { turns: 2 }, other: "dropped" };
    expect(await call(`${url}/sessions/s/reward`, { body: reward })).toMatchObject({ status: 200 });
    const { outcome } = (await call(`${url}/sessions/s`)).body as { outcome: object };
    expect(outcome).toEqual({ reward: 0.5, is_correct: true, metrics: { turns: 2 }, ended_at: expect.any(Number) });
    expect(await chat()).toMatchObject({ status: 410, body: { error: { code: "session_ended" } } });
    expect(await call(`${url}/sessions/none/reward`, { body: reward })).toMatchObject({ status: 404 });
    expect(await call(`${url}/sessions/s/reward`, { body: { reward: "high" } })).toMatchObject({ status: 400 });
  });
});

test("a run's session: its engine answers any model, the report reaches the run, and its end aborts what runs", async () => {
  const gateway = await openGateway({ engines: undefined });
  const host = scriptedHost(() => undefined);
  const engine = await host.open({ model: "scripted", history: [] });
  const session = await gateway.openSession({ engine, session_id: "run:0", metadata: { task_id: "t" } });
  const client = clientOf(session.base_url, session.api_key);
  const running = client.chat.completions.create({ ...CHAT, model: "gpt-4" });
  const outcome = expect(running).rejects.toMatchObject({ status: expect.any(Number) });
  await expect.poll(() => host.requests.length).toBe(1);
  await call(session.callback_url, { body: { reward: 1 }, key: session.api_key });
  expect(await session.reported).toEqual({ reward: 1 });
  await session.end({ reward: 1 });
  await outcome;
  await session.end({ reward: 0 });
  expect(await gateway.store.getSession("run:0")).toMatchObject({ outcome: { reward: 1 }, metadata: { task_id: "t" } });
  const [trace] = await gateway.store.traces({ session_id: "run:0" });
  expect(trace).toMatchObject({ finish_reason: "abort", metadata: { task_id: "t" } });
});
