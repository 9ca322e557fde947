import { describe, expect, test } from "vitest";
import { bytesOf, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import { parsePath } from "../../../src/serve/tinker/checkpoint_path.ts";
import { heldBytes } from "../../fixtures/garbage.ts";
import { backward, draw, eventually, holdEngine, openServer, step } from "./tinker_client.ts";

const MEBI = 2 ** 20;

test("a training client's batches are freed when they have run", async () => {
  const server = await openServer({ limits: { resultBytes: MEBI } });
  const id = await server.model();
  const targets = Array.from({ length: 50_000 }, (_, t) => t % 97);
  let seq = 1;
  const train = async (steps: number) => {
    for (let i = 0; i < steps; i++) {
      const { status } = await server.result("forward_backward", backward(id, { seq: seq++, targets }));
      expect(status).toBe(200);
      server.engine.calls.length = 0;
    }
    return heldBytes();
  };
  const before = await train(5);
  // Each is 0.8 MB on the wire.
  expect((await train(80)) - before).toBeLessThan(8 * MEBI);
});

test("a policy that is replaced while it is opened is released, and its request says so", async () => {
  const server = await openServer();
  const id = await server.model();
  const saved = await server.result("save_weights_for_sampler", { model_id: id, seq_id: 1, path: "a" });
  const path: string = saved.json.path;
  const body = { session_id: await server.session(), sampling_session_seq_id: 0, model_path: path };
  const sampler = (await server.post("create_sampling_session", body)).json.sampling_session_id;
  const { checkpoints, policies } = server.service;
  const open = server.engine.openPolicy.bind(server.engine);
  let released = 0;
  server.engine.openPolicy = async (dir) => {
    const policy = await open(dir);
    policy.release = () => void released++;
    const time = new Date(Date.now() + 1000).toISOString();
    await checkpoints.save(parsePath(path), { step: 2, time, overwrite: true, write: async () => {} });
    // Another client asks for the new weights.
    policies.saved(path);
    return policy;
  };
  const { json } = await server.result("asample", draw(sampler, 1));
  expect(json?.error).toMatch(/^Cannot sample from .* of .*: it was replaced while it was opened\. Create a new/);
  expect([released, policies.bytes]).toEqual([1, 0]);
});

test("small results count with their bookkeeping, and repeats are forgotten with them", async () => {
  const budget = 64 * 1024;
  const server = await openServer({ limits: { resultBytes: budget } });
  const id = await server.model();
  const session_id = await server.session();
  const { json } = await server.post("create_sampling_session", {
    session_id,
    sampling_session_seq_id: 0,
    base_model: "toy",
  });
  for (let seq = 1; seq <= 300; seq++) {
    await server.result("optim_step", step(id, seq));
    await server.result("asample", draw(json.sampling_session_id, seq));
  }
  expect(server.service.futures.bytes).toBeLessThanOrEqual(budget);
  expect(server.service.futures.pending).toBe(0);
  const { asked } = server.service.samplers.use(json.sampling_session_id);
  expect(asked.size).toBeGreaterThan(0);
  expect(asked.size).toBeLessThanOrEqual(budget / 2048);
});

describe("sparse tensors that stand for far more than their bytes", () => {
  /** One datum of one token, with tensors of [1, width] that hold no value. */
  const sparse = (modelId: string, of: { width: number; names: readonly string[]; seq?: number; loss?: string }) => {
    const tensor = (dtype: number) =>
      new ProtobufWriter()
        .message(2, new ProtobufWriter().bytes(2, bytesOf(BigInt64Array.of(0n, 0n))))
        .varint(3, dtype)
        .varint(4, 1)
        .varint(4, of.width);
    const datum = new ProtobufWriter().message(
      1,
      new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(Int32Array.of(1)))),
    );
    for (const name of of.names)
      datum.message(2, new ProtobufWriter().text(1, name).message(2, tensor(name === "target_tokens" ? 2 : 1)));
    return new ProtobufWriter()
      .text(1, modelId)
      .varint(2, of.seq ?? 1)
      .message(3, datum)
      .text(4, of.loss ?? "cross_entropy")
      .finish();
  };
  const many = Array.from({ length: 1000 }, (_, i) => `input_${i}`);

  test("are refused before they are packed, with the input, the limit and what to do", async () => {
    const server = await openServer();
    const id = await server.model();
    const body = sparse(id, { width: 2 ** 22, names: ["target_tokens", ...many] });
    expect(body.length).toBeLessThan(100_000);
    expect(await server.post("forward_backward", body)).toMatchObject({
      status: 400,
      json: {
        detail:
          "Cannot train on datum 0: its target_tokens of shape [1,4194304] is one of 1001 loss_fn_inputs, which take more than 8388608 values in this request (4198498304). Give fewer targets per position, or split the batch into several requests.",
      },
    });
    // The requests behind it run.
    const { json } = await server.result("optim_step", step(id, 2));
    expect(json.error).toContain("loss_fn_inputs, which take more than 8388608 values");
    expect((await server.result("forward_backward", backward(id, { seq: 3 }))).status).toBe(200);
    // The most that fits runs.
    const most = sparse(id, { seq: 4, width: 2 ** 22, names: ["target_tokens", "weights"] });
    expect((await server.result("forward_backward", most)).status).toBe(200);
  });

  test("under names that the loss does not have are not packed", async () => {
    const server = await openServer();
    const id = await server.model();
    // Packing refuses such a shape: the name comes first.
    const names = ["target_tokens", ...many.slice(0, 2)];
    const answer = await server.result("forward_backward", sparse(id, { width: 0, names }));
    expect(answer.json).toMatchObject({ category: "user", error: expect.stringContaining("it has no input input_0") });
    const other = sparse(id, { seq: 2, width: 0, names: ["target_tokens"], loss: "mse" });
    expect((await server.result("forward_backward", other)).json.error).toBe("Cannot take the loss mse");
    const wrong = sparse(id, { seq: 3, width: 0, names: ["target_tokens"] });
    expect((await server.result("forward_backward", wrong)).json.error).toContain(
      "Cannot train on datum 0: target_tokens",
    );
  });

  test("count in full while they wait", async () => {
    const server = await openServer({ bodiesBytes: 20 * MEBI });
    const id = await server.model();
    const open = holdEngine(server);
    const send = (seq: number, width: number) =>
      server.post("forward_backward", sparse(id, { seq, width, names: ["target_tokens", "weights"] }));
    // 12 MiB of targets and weights.
    expect((await send(1, 1.5 * MEBI)).status).toBe(200);
    expect((await send(2, 1.5 * MEBI)).status).toBe(429);
    // Trying again would not help one that is larger than all may be.
    expect(await send(3, 3 * MEBI)).toMatchObject({
      status: 413,
      json: { detail: expect.stringMatching(/its work takes 25\d+ bytes .* may hold 20971520\. Send it in smaller/) },
    });
    open();
    await eventually(async () => expect((await send(2, 1.5 * MEBI)).status).toBe(200));
  });

  test("do not keep out the request that those with a later number wait for", async () => {
    const server = await openServer({ bodiesBytes: 20 * MEBI });
    const session = await server.session();
    const [id, other] = [await server.model(session), await server.model(session, 1)];
    const send = async (of: string, seq: number) =>
      (
        await server.post(
          "forward_backward",
          sparse(of, { seq, width: 1.1 * MEBI, names: ["target_tokens", "weights"] }),
        )
      ).status;
    expect(await send(id, 2)).toBe(200);
    // It would wait for its own earlier number, another run's for the device.
    expect([await send(id, 3), await send(other, 1)]).toEqual([429, 429]);
    expect(await send(id, 1)).toBe(200);
  });
});
