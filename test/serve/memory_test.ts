import { expect, test } from "vitest";
import { heldBytes } from "../fixtures/garbage.ts";
import { backward, draw, openServer, step } from "./tinker_client.ts";

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
