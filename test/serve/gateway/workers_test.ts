import { afterEach, describe, expect, test } from "vitest";
import { splitUrl, WorkerPool } from "../../../src/serve/gateway/workers/pool.ts";
import { type FakeVllm, fakeVllm } from "../../fixtures/fake_vllm.ts";
import { call, closeGateways, openGateway, scriptedHost } from "../../fixtures/gateway.ts";

const fakes: FakeVllm[] = [];
afterEach(async () => {
  await closeGateways();
  await Promise.all(fakes.splice(0).map((each) => each.close()));
});

const CHAT = { model: "m", messages: [{ role: "user", content: "in" }] };

/** A gateway in front of as many fakes. */
async function setup(count = 1, options: Parameters<typeof openGateway>[0] = {}) {
  const workers = await Promise.all(Array.from({ length: count }, () => fakeVllm()));
  fakes.push(...workers);
  const gateway = await openGateway({ engines: undefined, ...options });
  for (const { url } of workers) await call(`${gateway.url}/admin/workers`, { body: { url: `${url}/v1` } });
  const chat = (body: object = {}, session = "s") =>
    call(`${gateway.url}/sessions/${session}/v1/chat/completions`, { body: { ...CHAT, ...body } });
  const traces = (session = "s") => gateway.store.traces({ session_id: session });
  return { ...gateway, workers, worker: workers[0]!, chat, traces };
}

describe("a call to a worker", () => {
  test("gets the extensions, and its answer loses them; the trace keeps all", async () => {
    const { worker, chat, traces } = await setup();
    const answer = await chat();
    expect(worker.requests[0]).toEqual({ ...CHAT, logprobs: true, return_token_ids: true });
    const message = { role: "assistant", content: "hello" };
    expect(answer.body).toEqual({
      model: "fake",
      choices: [{ index: 0, message, finish_reason: "stop" }],
      usage: { prompt_tokens: 3, completion_tokens: 3 },
    });
    expect(await traces()).toMatchObject([
      {
        model: "m",
        prompt_token_ids: [1, 2, 3],
        completion_token_ids: [10, 11, 12],
        logprobs: [-0.5, -0.25, -0.125],
        response_message: message,
        finish_reason: "stop",
        weight_version: null,
        prompt_origin: "rendered",
        raw_response: { choices: [{ token_ids: [10, 11, 12] }] },
      },
    ]);
  });

  test("is one whose model is not served here; models of this process answer theirs, and requests without a model", async () => {
    const { url, worker } = await setup(1, { engines: scriptedHost(() => "here<|im_end|>", { models: ["own"] }) });
    const answerOf = async (model?: string) => {
      const { body } = await call(`${url}/v1/chat/completions`, { body: { messages: CHAT.messages, model } });
      return (body as { choices: { message: { content: string } }[] }).choices[0]!.message.content;
    };
    expect(await answerOf("own")).toBe("here");
    expect(await answerOf()).toBe("here");
    expect(worker.requests).toHaveLength(0);
    expect(await answerOf("m")).toBe("hello");
    expect(worker.requests).toHaveLength(1);
  });

  test("names that only sessions know are no models to callers", async () => {
    const auth = { apiKeys: ["agent-key"], adminToken: "t" };
    const { url } = await openGateway({ engines: scriptedHost(() => "here<|im_end|>", { models: ["own"] }), auth });
    const add = (body: object) => call(`${url}/admin/workers`, { body, key: "t" });
    await add({ url: "http://127.0.0.1:9", model_name: "shown" });
    await add({ url: "http://127.0.0.2:9", model_name: "run-1", is_listed: false });
    await add({ url: "http://127.0.0.2:9", weight: 2 });
    const { body } = await call(`${url}/v1/models`, { key: "agent-key" });
    expect((body as { data: { id: string }[] }).data.map(({ id }) => id)).toEqual(["own", "shown"]);
  });

  test("keeps what the client asked for; settings switch the extensions off", async () => {
    const { chat } = await setup();
    const asked = (await chat({ logprobs: true, return_token_ids: true })).body;
    expect(asked).toMatchObject({ prompt_token_ids: [1, 2, 3], choices: [{ token_ids: [10, 11, 12], logprobs: {} }] });
    const off = await setup(1, { workers: { addLogprobs: false, addReturnTokenIds: false, stripVllmFields: false } });
    expect((await off.chat()).body).toMatchObject({ choices: [{ token_ids: [10, 11, 12] }] });
    expect(off.worker.requests[0]).toEqual(CHAT);
  });

  test("never carries the client's credentials, but the worker's own", async () => {
    const worker = await fakeVllm();
    fakes.push(worker);
    const { url } = await openGateway({ engines: undefined, auth: { apiKeys: ["agent-key"], adminToken: "t" } });
    await call(`${url}/admin/workers`, { body: { url: worker.url, api_key: "worker-key" }, key: "t" });
    await call(`${url}/v1/chat/completions`, {
      body: CHAT,
      key: "agent-key",
      headers: { cookie: "a=b", "x-own": "1" },
    });
    expect(worker.headers[0]).toMatchObject({ authorization: "Bearer worker-key", "x-own": "1" });
    expect(JSON.stringify(worker.headers[0])).not.toMatch(/agent-key|cookie/);
    expect(JSON.stringify((await call(`${url}/admin/workers`, { key: "t" })).body)).not.toContain("worker-key");
  });

  test("streams chunk by chunk, without the extensions; the trace is built at the end", async () => {
    const { chat, traces } = await setup();
    const { body, headers } = await chat({ stream: true });
    expect(headers.get("content-type")).toContain("text/event-stream");
    const events = (body as string).split("\n\n").filter((line) => line !== "");
    expect(events.at(-1)).toBe("data: [DONE]");
    const chunks = events.slice(0, -1).map((line) => JSON.parse(line.slice(6)));
    expect(chunks.map(({ choices }) => choices[0].delta.content ?? "").join("")).toBe("w0w1w2");
    expect(body).not.toMatch(/token_ids|logprobs|stop_reason/);
    expect(await traces()).toMatchObject([
      {
        completion_token_ids: [10, 11, 12],
        logprobs: [-0.5, -0.25, -0.125],
        finish_reason: "stop",
        raw_response: null,
      },
    ]);
    expect((await traces())[0]!.response_message).toEqual({ role: "assistant", content: "w0w1w2" });
  });

  test("a client that goes away in mid-stream leaves a trace marked so, and frees the worker", async () => {
    const { url, worker, traces } = await setup();
    worker.mode = "slow";
    const leaving = new AbortController();
    const response = await fetch(`${url}/sessions/s/v1/chat/completions`, {
      method: "POST",
      signal: leaving.signal,
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...CHAT, stream: true }),
    });
    const reader = response.body!.getReader();
    await reader.read();
    leaving.abort();
    await expect.poll(traces).toMatchObject([{ finish_reason: "abort", prompt_token_ids: [1, 2, 3] }]);
    const [trace] = await traces();
    expect(trace!.completion_token_ids.length).toBeGreaterThan(0);
    expect(trace!.logprobs).toHaveLength(trace!.completion_token_ids.length);
    await expect.poll(() => worker.abandoned).toBe(1);
    expect(await call(`${url}/health/workers`)).toMatchObject({ body: { workers: [{ active_requests: 0 }] } });
  });

  test("a stream that the worker cuts is recorded as an error", async () => {
    const { chat, worker, traces } = await setup();
    worker.mode = "cut";
    const { body } = await chat({ stream: true });
    expect(body).toMatch(/"error":\{"message":"Cannot finish the reply/);
    expect(body).not.toContain("[DONE]");
    await expect.poll(traces).toMatchObject([{ finish_reason: "error", completion_token_ids: [10, 11] }]);
  });

  test.each([["short"], ["fail"]] as const)("a stream that ends %s is recorded as an error", async (mode) => {
    const { chat, worker, traces } = await setup();
    worker.mode = mode;
    await chat({ stream: true });
    await expect.poll(traces).toMatchObject([{ finish_reason: "error", completion_token_ids: [10, 11] }]);
  });

  test.each([[{}], [{ stream: true }]])(
    "that a worker does not take goes to another, and leaves one trace: %o",
    async (body) => {
      const { workers, chat, traces } = await setup(2);
      await workers[0]!.close();
      expect((await chat(body)).status).toBe(200);
      expect(await traces()).toHaveLength(1);
      await workers[1]!.close();
      expect(await chat(body)).toMatchObject({ status: 503, body: { error: { code: "no_worker" } } });
      expect(await traces()).toHaveLength(1);
    },
  );

  test.each([[{}], [{ stream: true }]])("that a worker took and dropped is not sampled again: %o", async (body) => {
    const { workers, chat, traces } = await setup(2);
    for (const each of workers) each.mode = "break";
    expect(await chat(body)).toMatchObject({ status: 502, body: { error: { code: "worker_failed" } } });
    expect(workers.flatMap(({ requests }) => requests)).toHaveLength(1);
    expect(await traces()).toEqual([]);
  });

  test.each([
    ["POST", "/v1/load_lora_adapter"],
    ["POST", "/v1/unload_lora_adapter"],
    ["DELETE", "/v1/models/m"],
    ["GET", "/v1/models/..%2fload_lora_adapter"],
    ["GET", "/v1/models/a%2F..%2F..%2Fserver_info"],
    ["POST", "/v1/chat/completions/batch"],
    ["POST", "/v1//load_lora_adapter"],
    ["GET", "/v1/responses/%2e%2e%2fx"],
  ])("%s %s is not forwarded", async (method, path) => {
    const { url, worker } = await setup();
    const { status } = await call(url + path, { method, ...(method === "POST" && { body: CHAT }) });
    expect([status, worker.paths]).toEqual([404, []]);
  });

  test("an error of the worker reaches the client, and is no trace", async () => {
    const { worker, chat, traces } = await setup();
    worker.mode = "error";
    expect(await chat()).toMatchObject({ status: 500, body: { error: { message: "no memory" } } });
    expect(await traces()).toEqual([]);
  });

  test("other routes of models are forwarded", async () => {
    const { url, worker } = await setup();
    expect(await call(`${url}/v1/models`)).toMatchObject({ body: { data: [{ id: "fake" }] } });
    await call(`${url}/v1/models/org/name-7B`);
    await call(`${url}/v1/messages/count_tokens`, { body: CHAT });
    expect(worker.paths).toEqual(["/v1/models", "/v1/models/org/name-7B", "/v1/messages/count_tokens"]);
  });
});

test("a session's parameters overwrite, and the weight version of the start of the call is recorded", async () => {
  const { url, worker, chat, traces } = await setup();
  await call(`${url}/sessions`, { body: { session_id: "s", sampling_params: { temperature: 0, seed: 3 } } });
  await call(`${url}/admin/weight_version`, { body: { weight_version: "7" } });
  await chat({ temperature: 1 });
  expect(worker.requests[0]).toMatchObject({ temperature: 0, seed: 3 });
  expect(await traces()).toMatchObject([{ weight_version: 7 }]);
  for (const body of [{}, { weight_version: "abc" }, { weight_version: -1 }, { weight_version: null }])
    expect(await call(`${url}/admin/weight_version`, { body })).toMatchObject({ status: 400 });
});

test("a prompt that repeats a reply in other tokens is recorded as diverged, one on its tokens as continued", async () => {
  const same = await fakeVllm();
  fakes.push(same);
  const { chat, traces } = await setup();
  const first = (await chat()).body as { choices: { message: object }[] };
  const messages = [...CHAT.messages, first.choices[0]!.message, { role: "user", content: "on" }];
  // The fake's prompt is always [1, 2, 3], which does not start with the first call's tokens.
  await chat({ messages });
  expect((await traces()).map(({ prompt_origin }) => prompt_origin)).toEqual(["rendered", "diverged"]);
  const other = await fakeVllm({ promptIds: [1, 2, 3, 10, 11, 12, 4] });
  fakes.push(other);
  const gateway = await openGateway({ engines: undefined });
  await call(`${gateway.url}/admin/workers`, { body: { url: same.url } });
  const ask = (body: object) => call(`${gateway.url}/sessions/s/v1/chat/completions`, { body: { ...CHAT, ...body } });
  await ask({});
  const [{ worker_id }] = (await call(`${gateway.url}/admin/workers`)).body as [{ worker_id: string }];
  await call(`${gateway.url}/admin/workers/${worker_id}`, { method: "DELETE" });
  await call(`${gateway.url}/admin/workers`, { body: { url: other.url } });
  await ask({ messages });
  const [one, two] = await gateway.store.traces({ session_id: "s" });
  expect(two).toMatchObject({ prompt_origin: "continued", parent_trace_id: one!.trace_id });
});

describe("the pool", () => {
  const urls = ["http://a:1", "http://b:1", "http://c:1/v2"];
  const poolOf = (answers: (url: string) => boolean = () => true) => {
    const pool = new WorkerPool({
      healthCheckInterval: 1000,
      fetch: (async (url: string) => {
        if (!answers(url)) throw new Error("refused");
        return new Response("fine");
      }) as typeof fetch,
    });
    for (const [i, url] of urls.entries()) pool.add({ url, worker_id: `w${i}` });
    return pool;
  };

  test("keeps a session at its worker, and spreads sessions over the least loaded", () => {
    const pool = poolOf();
    const first = ["a", "b", "c"].map((session) => pool.route(session)!.info.worker_id);
    expect(new Set(first).size).toBe(3);
    expect(["a", "b", "c"].map((session) => pool.route(session)!.info.worker_id)).toEqual(first);
    const busy = pool.route("d")!;
    busy.release();
    busy.release();
    expect(pool.list().reduce((sum, { active_requests }) => sum + active_requests, 0)).toBe(6);
    pool.close();
  });

  test("a worker is dead after three failed checks, and used again when it answers", async () => {
    let isDown = true;
    const pool = poolOf((url) => !(isDown && url.startsWith("http://a")));
    const healthy = () => pool.list().map((each) => each.healthy);
    for (const expected of [true, true, false, false]) {
      await pool.checkAll();
      expect(healthy()).toEqual([expected, true, true]);
    }
    expect([1, 2, 3].map((i) => pool.route(`s${i}`)!.info.worker_id)).not.toContain("w0");
    isDown = false;
    await pool.checkAll();
    expect(healthy()).toEqual([true, true, true]);
    pool.close();
  });

  test("a worker that is added again takes its new key, name and weight, and keeps its id and its calls", async () => {
    const sent: (string | null)[] = [];
    const pool = new WorkerPool({
      fetch: async (_, { headers }) => {
        sent.push(new Headers(headers).get("authorization"));
        return new Response("fine");
      },
    });
    const { worker_id } = pool.add({ url: "http://a:1", api_key: "old", model_name: "m" });
    pool.route("s");
    expect(pool.add({ url: "http://a:1", api_key: "new", weight: 2 })).toMatchObject({ worker_id, model_name: "m" });
    expect(pool.list()).toMatchObject([{ worker_id, weight: 2, active_requests: 1 }]);
    await pool.checkAll();
    expect([sent, pool.route("s")!.apiKey]).toEqual([["Bearer new"], "new"]);
    pool.close();
  });

  test("a call goes to workers of its model's name, else to those without one; none stands in for a dead one", async () => {
    let isDown = false;
    const pool = new WorkerPool({
      fetch: async (url) => new Response("", { status: isDown && url.startsWith("http://a") ? 500 : 200 }),
    });
    pool.add({ url: "http://a:1", worker_id: "a", model_name: "run-1" });
    pool.add({ url: "http://b:1", worker_id: "b", model_name: "run-2" });
    pool.add({ url: "http://c:1", worker_id: "c" });
    const workerOf = (model: string) => pool.route(undefined, { model })?.info.worker_id;
    expect(["run-1", "run-2", "other"].map(workerOf)).toEqual(["a", "b", "c"]);
    isDown = true;
    for (let i = 0; i < 3; i++) await pool.checkAll();
    expect(["run-1", "run-2", "other"].map(workerOf)).toEqual([undefined, "b", "c"]);
    pool.close();
  });

  test("workers of the model's name come first; a heavier one gets more", () => {
    const pool = new WorkerPool();
    pool.add({ url: "http://a:1", worker_id: "a", model_name: "m" });
    pool.add({ url: "http://b:1", worker_id: "b", weight: 3 });
    expect(pool.route(undefined, { model: "m" })!.info.worker_id).toBe("a");
    const rest = Array.from({ length: 4 }, () => pool.route(undefined)!.info.worker_id);
    expect(rest.filter((id) => id === "b")).toHaveLength(3);
    pool.close();
  });

  test.each([
    ["http://h:4000/v1", undefined, "http://h:4000", "/v1"],
    ["http://h:4000", undefined, "http://h:4000", "/v1"],
    ["http://h:4000/api/v2", undefined, "http://h:4000", "/api/v2"],
    ["http://h:4000/v1/", undefined, "http://h:4000", "/v1"],
    ["http://h:4000", "/v2", "http://h:4000", "/v2"],
  ])("splits %s as rLLM does", (raw, apiPath, url, api_path) => {
    expect(splitUrl(raw, apiPath)).toEqual({ url, api_path });
  });
});
