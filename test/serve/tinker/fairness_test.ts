/** Fair sharing of the device between sessions, and a stopping server that saves first. */
import { describe, expect, test, vi } from "vitest";
import { backward, draw, eventually, holdEngine, openServer, step, type TestServer } from "./tinker_client.ts";

async function sampler(server: TestServer, session?: string): Promise<string> {
  const session_id = session ?? (await server.session());
  const body = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  return (await server.post("create_sampling_session", body)).json.sampling_session_id;
}

/** Holds the device until released, with one request of another client running. */
async function held(server: TestServer): Promise<() => void> {
  const other = await sampler(server);
  await server.result("asample", draw(other, 0));
  const release = holdEngine(server);
  await server.post("asample", draw(other, 1));
  await eventually(() => expect(server.service.policies.queued).toBe(0));
  return release;
}

/** Sampling batches that ran before the request's result, the running one included. */
async function batchesUntil(server: TestServer, request: string, release: () => void): Promise<number> {
  const { futures } = server.service;
  const settle = futures.settle.bind(futures);
  server.engine.calls.length = 0;
  let batches = -1;
  vi.spyOn(futures, "settle").mockImplementation((future, outcome) => {
    if (future.id === request) batches = server.engine.calls.filter((it) => it.startsWith("sample")).length;
    settle(future, outcome);
  });
  release();
  expect((await server.retrieve(request)).status).toBe(200);
  return batches;
}

describe("behind 600 requests of another client", () => {
  test("to sample: one batch later", async () => {
    const server = await openServer();
    const release = await held(server);
    const [greedy, modest] = [await sampler(server), await sampler(server)];
    for (let seq = 0; seq < 600; seq++) await server.post("asample", draw(greedy, seq, { num_samples: 64 }));
    const { json } = await server.post("asample", draw(modest, 0));
    expect(await batchesUntil(server, json.request_id, release)).toBeLessThanOrEqual(3);
  });

  test("to train: a few turns later, not after its whole queue", async () => {
    const server = await openServer();
    const release = await held(server);
    const greedy = await sampler(server);
    const trains = await server.post("create_model", {
      session_id: await server.session(),
      model_seq_id: 0,
      base_model: "toy",
      lora_config: { rank: 4 },
    });
    for (let seq = 0; seq < 600; seq++) await server.post("asample", draw(greedy, seq, { num_samples: 64 }));
    expect(await batchesUntil(server, trains.json.request_id, release)).toBeLessThanOrEqual(3);
  });

  test("its full queue does not refuse other clients", async () => {
    const server = await openServer({ limits: { queuedSamples: 600, queuedBySession: 500 } });
    await held(server);
    const [greedy, second, modest] = [await sampler(server), await sampler(server), await sampler(server)];
    const answers = async (id: string, count: number) => {
      const states = [];
      for (let seq = 0; seq < count; seq++) states.push((await server.post("asample", draw(id, seq))).status);
      return states.filter((status) => status === 200).length;
    };
    expect(await answers(greedy, 600)).toBe(500);
    expect(await answers(second, 600)).toBe(100);
    expect(await answers(modest, 20)).toBe(16);
  });
});

describe("while a batch is sampled", () => {
  /** The engine's calls from the first of three pauses of a batch on, in which a training client of the same session sends requests. */
  async function during(server: TestServer, submit: (model: string) => Promise<unknown>) {
    const session = await server.session();
    const model = await server.model(session);
    const id = await sampler(server, session);
    server.engine.between = async () => {
      server.engine.calls.push("pause");
      if (server.engine.calls.filter((call) => call === "pause").length === 1) await submit(model);
    };
    server.engine.calls.length = 0;
    await server.result("asample", draw(id, 0));
    await server.service.scheduler.idle();
    const { calls } = server.engine;
    return calls.slice(calls.indexOf("pause"));
  }

  test("a training client's requests run between its steps", async () => {
    const server = await openServer();
    const calls = await during(server, async (id) => {
      await server.post("forward_backward", backward(id, { seq: 1 }));
      await server.post("optim_step", step(id, 2));
      await server.post("save_weights_for_sampler", { model_id: id, seq_id: 3, sampling_session_seq_id: 5 });
    });
    expect(calls.slice(0, calls.indexOf("sampled"))).toEqual(
      expect.arrayContaining(["backward 1,2,3", "step", "freeze 1"]),
    );
  });

  test("weights of an inflight sampler are replaced after it", async () => {
    const server = await openServer();
    const calls = await during(server, (id) =>
      server.post("save_weights_for_sampler", {
        model_id: id,
        seq_id: 1,
        sampling_session_seq_id: 5,
        kind: "inflight",
      }),
    );
    expect(calls.indexOf("freeze 0")).toBeGreaterThan(calls.indexOf("sampled"));
  });
});

describe("a stopping server", () => {
  test("saves first, refuses waiting requests, and aborts the running batch", async () => {
    const server = await openServer();
    const id = await server.model();
    await server.result("optim_step", step(id, 1));
    await held(server);
    const greedy = await sampler(server);
    const waiting = [];
    for (let seq = 0; seq < 600; seq++) waiting.push(await server.post("asample", draw(greedy, seq)));
    waiting.push(await server.post("forward_backward", backward(id, { seq: 2 })));
    waiting.push(await server.post("optim_step", step(id, 9)));
    const before = server.engine.calls.length;
    // The device stays held, so the running batch must be aborted.
    const stopped = server.service.stop();
    server.engine.gate = Promise.resolve();
    await stopped;
    expect(server.service.futures.pending).toBe(0);
    expect(server.engine.calls.slice(before)).toEqual(["save"]);
    expect(server.service.checkpoints.list(id)[0]!.name).toBe("unsaved-step-1");
    for (const { json } of waiting)
      expect((await server.retrieve(json.request_id)).json).toEqual({
        error: "Cannot run the request: the server is stopping.",
        category: "server",
      });
    expect(server.service.futures.pending).toBe(0);
  });

  test("saves the running step", async () => {
    const server = await openServer();
    const id = await server.model();
    let release = () => {};
    server.engine.gate = new Promise((resolve) => {
      release = resolve;
    });
    const { json } = await server.post("optim_step", step(id, 1));
    await eventually(() => expect(server.service.scheduler.current).toBeDefined());
    const stopped = server.service.stop();
    release();
    await stopped;
    expect((await server.retrieve(json.request_id)).json.metrics).toEqual({ grad_norm: 1 });
    expect(server.service.checkpoints.list(id)[0]!.name).toBe("unsaved-step-1");
  });

  test("logs what it could not save, saves the rest, and stops", async () => {
    const lines: string[] = [];
    const server = await openServer({ log: (line) => lines.push(line) });
    const ids = [await server.model(), await server.model()];
    for (const id of ids) await server.result("optim_step", step(id, 1));
    server.engine.broken = { call: "save", error: new Error("disk full") };
    await server.service.stop();
    expect(lines).toEqual([
      `could not keep unsaved training of ${ids[0]}: disk full`,
      `kept unsaved training: tinker://${ids[1]}/weights/unsaved-step-1`,
    ]);
  });

  test("saves a step that exists only as sampler weights, which cannot be resumed", async () => {
    const server = await openServer();
    const id = await server.model();
    await server.result("optim_step", step(id, 1));
    await server.result("save_weights_for_sampler", { model_id: id, seq_id: 2, path: "s" });
    await server.service.stop();
    const kept = server.service.checkpoints.list(id).map(({ kind, name }) => `${kind}/${name}`);
    expect(kept.sort()).toEqual(["sampler_weights/s", "weights/unsaved-step-1"]);
  });
});
