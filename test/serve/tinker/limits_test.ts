/** Limits: nothing that clients send grows without bound or breaks later requests. */
import { afterEach, describe, expect, test, vi } from "vitest";
import { draw, eventually, holdEngine, openServer, step, type TestServer } from "./tinker_client.ts";

afterEach(() => void vi.useRealTimers());

const sampler = async (server: TestServer, session_id: string, sampling_session_seq_id = 0) =>
  (await server.post("create_sampling_session", { session_id, sampling_session_seq_id, base_model: "toy" })).json
    .sampling_session_id as string;

describe("a training client that cannot be made leaves nothing behind", () => {
  const lora_config = { rank: 4 };
  test.each<[string, (server: TestServer) => void, object]>([
    ["another base model", () => {}, { base_model: "other" }],
    [
      "a device that is full",
      ({ engine }) => {
        engine.broken = { call: "create", error: new Error("no memory left") };
      },
      {},
    ],
    [
      "a disk that is full",
      ({ service }) => {
        vi.spyOn(service.checkpoints, "putRun").mockRejectedValueOnce(new Error("disk full"));
      },
      {},
    ],
  ])("%s", async (_, breaks, more) => {
    const server = await openServer();
    const session_id = await server.session();
    const { service } = server;
    for (let model_seq_id = 0; model_seq_id < 5; model_seq_id++) {
      breaks(server);
      const body = { session_id, model_seq_id, base_model: "toy", lora_config, ...more };
      expect((await server.result("create_model", body)).json.error).toEqual(expect.any(String));
    }
    expect([...service.runs.values()]).toEqual([]);
    expect([service.sessions.find(session_id).runs.size, server.engine.live]).toEqual([0, 0]);
    expect(service.sessions.find(session_id).asked.size).toBe(0);
    // Its number can be used again.
    const again = { session_id, model_seq_id: 0, base_model: "toy", lora_config };
    expect((await server.result("create_model", again)).json.model_id).toBe(`${session_id}:train:0`);
  });

  test("is refused beyond the limit until another is unloaded; a number is used once", async () => {
    const server = await openServer({ limits: { models: 2 } });
    const session_id = await server.session();
    const make = async (model_seq_id: number) =>
      (await server.result("create_model", { session_id, model_seq_id, base_model: "toy", lora_config })).json;
    const first = await make(0);
    await make(1);
    expect((await make(2)).error).toContain("2 are in memory");
    await server.result("unload_model", { model_id: first.model_id });
    expect((await make(2)).model_id).toBe(`${session_id}:train:2`);
    await server.result("unload_model", { model_id: `${session_id}:train:2` });
    const other = { session_id, model_seq_id: 2, base_model: "toy", lora_config: { rank: 8 } };
    expect((await server.post("create_model", other)).status).toBe(400);
    server.service.sessions.find(session_id).asked.clear();
    expect((await server.result("create_model", other)).json.error).toContain("has already used its number");
  });
});

test("the least recently used sampler of a session is dropped beyond the limit", async () => {
  const server = await openServer({ limits: { samplers: 3 } });
  const session = await server.session();
  const ids = [];
  for (let i = 0; i < 3; i++) ids.push(await sampler(server, session, i));
  await server.result("asample", draw(ids[0]!, 0));
  for (let i = 3; i < 5; i++) await sampler(server, session, i);
  expect(server.service.samplers.size).toBe(3);
  expect((await server.post("asample", draw(ids[0]!, 1))).status).toBe(200);
  expect(await server.post("asample", draw(ids[1]!, 0))).toMatchObject({
    status: 404,
    json: { detail: expect.stringContaining("newer samplers replaced it") },
  });
  expect(server.service.sessions.find(session).samplers.size).toBe(3);
});

describe("when all sessions are taken", () => {
  test("a silent one is ended, one without training first; unsaved training is kept", async () => {
    vi.useFakeTimers({ toFake: ["Date"] });
    const server = await openServer({ limits: { sessions: 3, idleMs: 60_000 } });
    const trains = await server.session();
    const id = await server.model(trains);
    await server.result("optim_step", step(id, 1));
    vi.advanceTimersByTime(30_000);
    const silent = await server.session();
    vi.advanceTimersByTime(30_000);
    const lively = await server.session();
    expect((await server.post("create_session", { tags: [] })).status).toBe(429);
    vi.advanceTimersByTime(60_000);
    await server.post("session_heartbeat", { session_id: lively });
    await server.session();
    expect([...server.service.sessions.keys()]).toEqual([trains, lively, expect.any(String)]);
    expect((await server.post("session_heartbeat", { session_id: silent })).status).toBe(404);
    await server.session();
    await eventually(() => expect(server.engine.live).toBe(0));
    expect(server.service.checkpoints.list(id)[0]!.name).toBe("unsaved-step-1");
    expect((await server.post("create_session", { tags: [] })).status).toBe(429);
  });
});

test("waiting requests of an ended session do not run", async () => {
  const server = await openServer();
  const session = await server.session();
  const id = await sampler(server, session);
  const open = holdEngine(server);
  await server.post("asample", draw(id, 0));
  await eventually(() => expect(server.service.policies.queued).toBe(0));
  for (let seq = 1; seq < 200; seq++) await server.post("asample", draw(id, seq));
  await server.post(`sessions/${session}/finish`, {});
  expect(server.service.policies.queued).toBe(0);
  open();
  await server.service.scheduler.idle();
  expect(server.engine.calls.filter((call) => call.startsWith("sample"))).toEqual(["sample 1"]);
});

test("oversized user_metadata is refused before anything changes", async () => {
  const server = await openServer();
  const session_id = await server.session();
  const model_id = await server.model(session_id);
  const nested = (levels: number) => `${'{"a":'.repeat(levels)}1${"}".repeat(levels)}`;
  const bodies: [string, object][] = [
    ["create_session", { tags: [] }],
    ["create_model", { session_id, model_seq_id: 5, base_model: "toy", lora_config: { rank: 4 } }],
    ["save_weights", { model_id, seq_id: 1, path: "a" }],
  ];
  for (const [path, body] of bodies)
    for (const value of [nested(40), nested(10_000), JSON.stringify({ a: "x".repeat(100_000) })]) {
      const text = `${JSON.stringify(body).slice(0, -1)},"user_metadata":${value}}`;
      expect((await server.post(path, text)).status, path).toBe(422);
    }
  expect((await server.get("training_runs")).json.cursor.total_count).toBe(1);
  expect(server.service.sessions.size).toBe(1);
});

describe("values", () => {
  test.each<[string, string, object]>([
    ["ttl_seconds of 1e15", "save_weights", { path: "a", ttl_seconds: 1e15 }],
    ["ttl_seconds of 1e15 for a sampler", "save_weights_for_sampler", { path: "a", ttl_seconds: 1e15 }],
    ["model_seq_id of 1e9", "create_model", { model_seq_id: 1e9, base_model: "toy" }],
    ["model_seq_id of 1e9 from a checkpoint", "load_weights", { model_seq_id: 1e9, path: "tinker://a/b" }],
  ])("%s: 422", async (_, path, more) => {
    const server = await openServer();
    const session_id = await server.session();
    const model_id = await server.model(session_id);
    const of = "model_seq_id" in more ? { session_id } : { model_id, seq_id: 1 };
    const { status, json } = await server.post(path, { ...of, ...more });
    expect({ status, detail: json.detail }).toEqual({
      status: 422,
      detail: expect.stringMatching(/ttl_seconds|model_seq_id/),
    });
  });

  test("a change to a ttl of 1e15 seconds: 422", async () => {
    const server = await openServer();
    const model_id = await server.model();
    await server.result("save_weights", { model_id, seq_id: 1, path: "a" });
    const url = `http://localhost/api/v1/training_runs/${model_id}/checkpoints/weights/a/ttl`;
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ ttl_seconds: 1e15 });
    expect((await server.send(new Request(url, { method: "PUT", headers, body }))).status).toBe(422);
  });

  test.each<[string, object, RegExp]>([
    ["a temperature of 1e-45", { temperature: 1e-45 }, /temperature must be 0 or lie in/],
    ["a temperature of 1e300", { temperature: 1e300 }, /temperature must be 0 or lie in/],
    ["300,000 stop texts", { stop: Array.from({ length: 300_000 }, String) }, /at most 256 texts/],
    ["300,000 stop tokens", { stop: new Array(300_000).fill(1) }, /at most 256 texts or tokens/],
    ["a stop text of a million characters", { stop: "x".repeat(1e6) }, /at most 16384 characters/],
    ["an empty stop text", { stop: ["a", ""] }, /not have an empty text/],
  ])("%s", async (_, params, message) => {
    const server = await openServer();
    const id = await sampler(server, await server.session());
    const { status, json } = await server.post("asample", draw(id, 0, { sampling_params: params }));
    // A body beyond the limits is refused before it is parsed.
    if (status !== 200) return expect([413, 422]).toContain(status);
    expect((await server.retrieve(json.request_id)).json).toEqual({
      error: expect.stringMatching(message),
      category: "user",
    });
  });
});

test("an archive's URL stops working when its checkpoint is deleted", async () => {
  const server = await openServer();
  const model_id = await server.model();
  await server.result("save_weights", { model_id, seq_id: 1, path: "a" });
  const route = `http://localhost/api/v1/training_runs/${model_id}/checkpoints/weights/a`;
  const { json } = await server.send(new Request(`${route}/archive`));
  await server.send(new Request(route, { method: "DELETE" }));
  expect(await server.get(new URL(json.url).pathname)).toMatchObject({
    status: 404,
    json: { detail: expect.stringContaining("Cannot find the checkpoint") },
  });
});
