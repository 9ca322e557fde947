import { describe, expect, test, vi } from "vitest";
import { backward, draw, eventually, holdEngine, openServer, step, type TestServer } from "./tinker_client.ts";

/** The engine's calls after the model was made. */
const trained = ({ engine }: TestServer) => engine.calls.filter((call) => !call.startsWith("create"));

describe("a training client's requests", () => {
  test("run in the order of their numbers, whatever the order of their arrival", async () => {
    const server = await openServer();
    const id = await server.model();
    const order = [3, 2, 5, 1, 4];
    const sent = [];
    for (const seq of order) sent.push(await server.post("forward_backward", backward(id, { seq, targets: [seq] })));
    for (const { json } of sent) expect((await server.retrieve(json.request_id)).status).toBe(200);
    expect(trained(server)).toEqual([1, 2, 3, 4, 5].map((seq) => `backward ${seq}`));
  });

  test("fail after a gap that is not filled, and later ones run", async () => {
    const server = await openServer({ limits: { gapMs: 50 } });
    const id = await server.model();
    const parked = await server.post("forward_backward", backward(id, { seq: 2 }));
    const told = await server.retrieve(parked.json.request_id);
    expect(told.json).toMatchObject({ category: "user", error: expect.stringContaining("seq_id 1") });
    const next = await server.result("optim_step", step(id, 3));
    expect(next.json.error).toContain("a forward_backward before it never ran");
    expect((await server.result("optim_step", step(id, 4))).json.metrics).toEqual({ grad_norm: 1 });
    expect(trained(server)).toEqual(["clear", "step"]);
  });

  test("that arrive twice run once; the same number with other content is refused", async () => {
    const server = await openServer();
    const id = await server.model();
    const first = await server.post("forward_backward", backward(id, { seq: 1 }));
    const again = await server.post("forward_backward", backward(id, { seq: 1 }));
    expect(again.json).toEqual(first.json);
    const other = await server.post("forward_backward", backward(id, { seq: 1, targets: [9] }));
    expect(other).toMatchObject({ status: 400, json: { detail: expect.stringContaining("seq_id 1") } });
    await server.retrieve(first.json.request_id);
    expect(trained(server)).toEqual(["backward 1,2,3"]);
  });

  test("that are refused for their shape use their number", async () => {
    const server = await openServer();
    const id = await server.model();
    const refused = await server.post("save_weights", { model_id: id, seq_id: 1, path: 7 });
    expect(refused.status).toBe(422);
    const damaged = backward(id, { seq: 2 });
    expect((await server.post("forward_backward", damaged.subarray(0, damaged.length - 9))).status).toBe(422);
    expect((await server.result("optim_step", step(id, 3))).json.error).toContain("gradient is cleared");
    expect((await server.result("optim_step", step(id, 4))).json.metrics).toBeDefined();
  });

  test("a failed forward_backward fails the optim_step behind it", async () => {
    const server = await openServer();
    const id = await server.model();
    const failed = await server.post("forward_backward", backward(id, { seq: 1, loss: "mse" }));
    const after = await server.post("optim_step", step(id, 2));
    expect((await server.retrieve(failed.json.request_id)).json.category).toBe("user");
    expect((await server.retrieve(after.json.request_id)).json.error).toContain("Cannot take the loss mse");
    await server.result("forward_backward", backward(id, { seq: 3 }));
    expect((await server.result("optim_step", step(id, 4))).json.metrics).toEqual({ grad_norm: 1 });
  });

  test("a gradient that could not be cleared is refused until it is", async () => {
    const server = await openServer();
    const id = await server.model();
    await server.result("forward_backward", backward(id, { seq: 1, loss: "mse" }));
    server.engine.broken = { call: "clear", error: new Error("the device is away") };
    const failed = await server.result("optim_step", step(id, 2));
    expect(failed.json).toEqual({ error: "the device is away", category: "server" });
    expect((await server.result("optim_step", step(id, 3))).json.error).toContain("Cannot take the loss mse");
    expect((await server.result("optim_step", step(id, 4))).json.metrics).toEqual({ grad_norm: 1 });
    expect(trained(server)).toEqual(["clear", "clear", "step"]);
  });

  test("a failure of the engine has the category server", async () => {
    const server = await openServer();
    const id = await server.model();
    server.engine.broken = { call: "backward", error: new Error("device lost") };
    const { status, json } = await server.result("forward_backward", backward(id, { seq: 1 }));
    expect({ status, json }).toEqual({ status: 200, json: { error: "device lost", category: "server" } });
  });

  test("return the log-probs of each datum and the metrics, as protobuf", async () => {
    const server = await openServer();
    const id = await server.model();
    const { bytes, headers } = await server.result("forward_backward", backward(id, { seq: 1, targets: [4, 5] }));
    expect(headers.get("content-type")).toBe("application/x-protobuf");
    expect(Buffer.from(bytes).includes(Buffer.from(Float32Array.of(-4, -5).buffer))).toBe(true);
    expect(Buffer.from(bytes).includes(Buffer.from("loss:sum"))).toBe(true);
  });
});

describe("results", () => {
  test("can be read repeatedly until the session ends", async () => {
    const server = await openServer();
    const session = await server.session();
    const id = await server.model(session);
    const { json } = await server.post("optim_step", step(id, 1));
    for (let i = 0; i < 3; i++) expect((await server.retrieve(json.request_id)).json.metrics).toBeDefined();
    expect((await server.post(`sessions/${session}/finish`, { reason: { type: "success" } })).status).toBe(204);
    expect((await server.retrieve(json.request_id)).status).toBe(404);
    expect(server.engine.live).toBe(0);
  });

  test("that are not ready are answered with 408 and the state of the queue after the hold", async () => {
    const server = await openServer({ holdMs: 30 });
    const id = await server.model();
    const open = holdEngine(server);
    const { json } = await server.post("optim_step", step(id, 1));
    const started = performance.now();
    const early = await server.retrieve(json.request_id);
    expect(performance.now() - started).toBeGreaterThan(25);
    expect(early).toMatchObject({ status: 408, json: { type: "try_again", queue_state: "active" } });
    const waiting = server.retrieve(json.request_id);
    open();
    expect((await waiting).json.metrics).toBeDefined();
  });

  test("beyond the budget are dropped, those already read first", async () => {
    const server = await openServer({ limits: { resultBytes: 6400 } });
    const id = await server.model();
    const sent = [];
    for (let seq = 1; seq <= 8; seq++)
      sent.push((await server.post("forward_backward", backward(id, { seq }))).json.request_id);
    const states = [];
    await server.service.scheduler.idle();
    for (const request of sent) states.push((await server.retrieve(request)).status);
    expect(states[0]).toBe(404);
    expect(states.at(-1)).toBe(200);
    expect(server.service.futures.bytes).toBeLessThanOrEqual(6400);
  });
});

describe("requests without a number", () => {
  const again = { "X-Idempotency-Key": "retry-1" };

  test("that arrive twice under one key run once", async () => {
    const server = await openServer();
    const body = { tags: [], sdk_version: "1" };
    const [a, b] = await Promise.all([
      server.post("create_session", body, again),
      server.post("create_session", body, again),
    ]);
    const [c, d] = [await server.post("create_session", body, again), await server.post("create_session", body)];
    expect(new Set([a, b, c].map(({ json }) => json.session_id)).size).toBe(1);
    expect(d.json.session_id).not.toBe(a.json.session_id);
    expect(server.service.sessions.size).toBe(2);
    const model_id = await server.model(a.json.session_id);
    const first = await server.post("unload_model", { model_id }, again);
    expect((await server.post("unload_model", { model_id }, again)).json).toEqual(first.json);
  });

  test("that were refused are tried again", async () => {
    const server = await openServer();
    expect((await server.post("create_session", { tags: 3 }, again)).status).toBe(422);
    expect((await server.post("create_session", { tags: [] }, again)).status).toBe(200);
  });
});

describe("samplers", () => {
  async function sampler(server: TestServer, session: string, number = 0): Promise<string> {
    const body = { session_id: session, sampling_session_seq_id: number, base_model: "toy" };
    return (await server.post("create_sampling_session", body)).json.sampling_session_id;
  }

  test("requests that wait together run as one batch", async () => {
    const server = await openServer();
    const session = await server.session();
    const id = await sampler(server, session);
    const open = holdEngine(server);
    const sent = [];
    for (let seq = 0; seq < 20; seq++) sent.push(await server.post("asample", draw(id, seq, { num_samples: 2 })));
    open();
    for (const { json } of sent) expect((await server.retrieve(json.request_id)).status).toBe(200);
    const batches = server.engine.calls.filter((call) => call.startsWith("sample"));
    expect(batches.length).toBeLessThanOrEqual(2);
    expect(batches.reduce((sum, call) => sum + Number(call.split(" ")[1]), 0)).toBe(40);
  });

  test("a repeated number is the same request, also above 2^53; the reply names its sequences", async () => {
    const server = await openServer();
    const id = await sampler(server, await server.session());
    const body = (seq: string) => JSON.stringify(draw(id, 0)).replace('"seq_id":0', `"seq_id":${seq}`);
    const [large, next] = ["987654321987654321", "987654321987654322"];
    const first = await server.post("asample", body(large));
    expect(first.json.sample_sequence_ids).toHaveLength(1);
    expect((await server.post("asample", body(large))).json).toEqual(first.json);
    expect((await server.post("asample", body(next))).json.request_id).not.toBe(first.json.request_id);
    const other = JSON.stringify(draw(id, 0, { num_samples: 3 })).replace('"seq_id":0', `"seq_id":${large}`);
    expect((await server.post("asample", other)).status).toBe(400);
  });

  test("a snapshot keeps its weights; beyond the budget the oldest is dropped, which its requests report", async () => {
    const server = await openServer({ limits: { policyBytes: 250 } });
    const session = await server.session();
    const model = await server.model(session);
    const samplers = [];
    for (let i = 0; i < 3; i++) {
      const save = { model_id: model, seq_id: 2 * i + 1, sampling_session_seq_id: i };
      samplers.push((await server.result("save_weights_for_sampler", save)).json.sampling_session_id);
      await server.result("optim_step", step(model, 2 * i + 2));
    }
    const tokenOf = async (id: string) => (await server.result("asample", draw(id, 1))).bytes;
    expect((await server.result("asample", draw(samplers[0], 0))).json).toMatchObject({
      category: "user",
      error: expect.stringContaining("dropped to free memory"),
    });
    expect(Buffer.from(await tokenOf(samplers[1])).includes(Buffer.from(Int32Array.of(1).buffer))).toBe(true);
    expect(Buffer.from(await tokenOf(samplers[2])).includes(Buffer.from(Int32Array.of(2).buffer))).toBe(true);
  });

  test("an overwritten path is opened again; samplers of the old weights get an error, not the new weights", async () => {
    const server = await openServer({ limits: { policyBytes: 150 } });
    const session_id = await server.session();
    const model = await server.model(session_id);
    const save = (seq_id: number) =>
      server.result("save_weights", { model_id: model, seq_id, path: "a", overwrite: true });
    const { path } = (await save(1)).json;
    const open = async (sampling_session_seq_id: number) => {
      const body = { session_id, sampling_session_seq_id, model_path: path };
      return (await server.post("create_sampling_session", body)).json.sampling_session_id as string;
    };
    const opened = () => server.engine.calls.filter((call) => call === "open saved").length;
    const first = await open(0);
    expect((await server.result("asample", draw(first, 0))).status).toBe(200);
    await new Promise((resolve) => setTimeout(resolve, 5));
    await save(2);
    const second = await open(1);
    await server.result("asample", draw(second, 0));
    expect(opened()).toBe(2);
    // The budget holds one policy, and the folder of the first one now holds other weights.
    expect((await server.result("asample", draw(first, 1))).json.error).toContain("has been overwritten");
    expect(opened()).toBe(2);
  });

  test("too many waiting requests are refused with 429", async () => {
    const server = await openServer({ limits: { queuedSamples: 3 } });
    const id = await sampler(server, await server.session());
    server.engine.gate = new Promise(() => {});
    const states = [];
    for (let seq = 0; seq < 8; seq++) states.push((await server.post("asample", draw(id, seq))).status);
    expect(states.slice(0, 3)).toEqual([200, 200, 200]);
    expect(states.at(-1)).toBe(429);
  });

  test("a waiting request can be cancelled", async () => {
    const server = await openServer();
    const id = await sampler(server, await server.session());
    const open = holdEngine(server);
    await server.post("asample", draw(id, 0));
    await eventually(() => expect(server.service.policies.queued).toBe(0));
    const { json } = await server.post("asample", draw(id, 1));
    expect((await server.post("cancel_future", { request_id: json.request_id })).status).toBe(204);
    open();
    expect((await server.retrieve(json.request_id)).json.error).toContain("cancelled");
    expect(server.engine.calls.filter((call) => call.startsWith("sample"))).toEqual(["sample 1"]);
  });
});

describe("sessions", () => {
  test("the same model number is the same model; other settings are refused", async () => {
    const server = await openServer();
    const session_id = await server.session();
    const body = { session_id, model_seq_id: 0, base_model: "toy", lora_config: { rank: 4 } };
    const first = await server.post("create_model", body);
    expect((await server.post("create_model", body)).json).toEqual(first.json);
    expect((await server.post("create_model", { ...body, lora_config: { rank: 8 } })).status).toBe(400);
    expect((await server.retrieve(first.json.request_id)).json.model_id).toBe(`${session_id}:train:0`);
    expect(server.engine.calls).toEqual(["create rank 4"]);
  });

  test("end without a sign of life, and unsaved training is kept", async () => {
    vi.useFakeTimers({ toFake: ["setInterval", "Date"] });
    try {
      const server = await openServer({ limits: { sessionMs: 60_000 } });
      const session = await server.session();
      const id = await server.model(session);
      await server.result("optim_step", step(id, 1));
      await vi.advanceTimersByTimeAsync(50_000);
      expect((await server.post("session_heartbeat", { session_id: session })).status).toBe(200);
      await vi.advanceTimersByTimeAsync(50_000);
      expect(server.engine.live).toBe(1);
      await vi.advanceTimersByTimeAsync(100_000);
      await eventually(() => expect(server.engine.live).toBe(0));
      const later = await server.post("optim_step", step(id, 2));
      expect(later).toMatchObject({
        status: 404,
        json: { detail: expect.stringContaining("unsaved-step-1") },
      });
    } finally {
      vi.useRealTimers();
    }
  });

  test("a stopping server finishes its work and keeps unsaved training, which the next server finds", async () => {
    const server = await openServer();
    const id = await server.model();
    const { json } = await server.post("optim_step", step(id, 1));
    await server.service.stop();
    expect((await server.retrieve(json.request_id)).json.metrics).toBeDefined();
    expect((await server.post("optim_step", step(id, 2))).status).toBe(503);
    server.service.close();
    const next = await openServer({ root: server.root });
    const lost = await next.post("forward_backward", backward(id, { seq: 3 }));
    expect(lost).toMatchObject({
      status: 404,
      json: { detail: expect.stringContaining("server was restarted") },
    });
    const path = `tinker://${id}/weights/unsaved-step-1`;
    expect(lost.json.detail).toContain(path);
    expect((await next.post("weights_info", { tinker_path: path })).json).toMatchObject({
      is_lora: true,
      lora_rank: 4,
    });
    const model = await next.model();
    const loaded = await next.result("load_weights", { model_id: model, seq_id: 1, path, optimizer: true });
    expect(loaded.json).toMatchObject({ path, model_id: model });
    expect(next.engine.calls).toContain("load all");
  });

  test("the optimiser is not loaded from sampler weights, which have none", async () => {
    const server = await openServer();
    const id = await server.model();
    const saved = await server.result("save_weights_for_sampler", { model_id: id, seq_id: 1, path: "s" });
    const { path } = saved.json;
    const load = (seq_id: number, optimizer: boolean) =>
      server.result("load_weights", { model_id: id, seq_id, path, optimizer });
    expect((await load(2, true)).json).toEqual({
      error: expect.stringContaining("sampler weights have none"),
      category: "user",
    });
    const session_id = await server.session();
    const made = { session_id, model_seq_id: 0, path, optimizer: true };
    expect((await server.result("load_weights", made)).json.error).toContain("have none");
    expect(server.engine.calls.filter((call) => call.startsWith("load"))).toEqual([]);
    expect((await load(3, false)).json.path).toBe(path);
    expect(server.engine.calls).toContain("load weights");
  });

  test("unloading a model frees it", async () => {
    const server = await openServer();
    const id = await server.model();
    expect((await server.result("unload_model", { model_id: id })).json.model_id).toBe(id);
    expect(server.engine.live).toBe(0);
    expect(await server.post("optim_step", step(id, 1))).toMatchObject({
      status: 404,
      json: { detail: expect.stringContaining("unloaded") },
    });
    expect([...server.service.runs.values()]).toEqual([]);
  });
});
