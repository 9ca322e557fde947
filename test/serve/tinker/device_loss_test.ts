/** A server whose GPU device is lost: what fails, what goes on, and what is said of unsaved training. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { DeviceLostError } from "../../../src/leaves/errors.ts";
import { saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";
import { backward, draw, openServer, step, type TestServer } from "./tinker_client.ts";

/** The engine's next call of this name loses the device. */
function loseAt({ engine }: TestServer, call: string): void {
  engine.broken = { call, error: new DeviceLostError("the driver was reset") };
  Object.defineProperty(engine, "isLost", {
    configurable: true,
    get: () => engine.broken === undefined && !engine.calls.includes("reopen"),
  });
  Object.assign(engine, { reopen: async () => void engine.calls.push("reopen") });
}

const failure = ({ json }: { json: { error?: string; category?: string } }) => json;

describe("a lost device", () => {
  const training = async (log: string[]) => {
    const server = await openServer({ log: (line) => log.push(line) });
    const id = await server.model();
    await server.result("forward_backward", backward(id, { seq: 1, targets: [1, 2, 3] }));
    await server.result("optim_step", step(id, 2));
    return { server, id };
  };

  test("fails the request under way as the server's fault, and tells later ones what was lost", async () => {
    const log: string[] = [];
    const { server, id } = await training(log);
    loseAt(server, "backward");
    const lost = await server.result("forward_backward", backward(id, { seq: 3, targets: [1, 2, 3] }));
    expect(failure(lost)).toMatchObject({ category: "server" });
    expect(failure(lost).error).toMatch(
      /the server's GPU device was lost \(the driver was reset\)\. It is opened again/,
    );
    const later = await server.result("optim_step", step(id, 4));
    expect(failure(later).error).toMatch(
      /Cannot use the model .*: the server's GPU device was lost, and the model with it, with 1 optimiser steps that were not saved\. It left no checkpoint\./,
    );
    expect(server.engine.calls.filter((call) => call === "reopen")).toHaveLength(1);
    expect(log).toEqual([
      "the GPU device was lost; it is opened again",
      expect.stringMatching(/was lost with the GPU device, with 1 optimiser steps that were not saved/),
      "the GPU device is open again; the base model and saved weights can be used",
    ]);
  });

  test("names the checkpoint of a run that was saved, from which a new client goes on", async () => {
    const { server, id } = await training([]);
    const { json } = await server.result("save_weights", { model_id: id, path: "kept", seq_id: 3 });
    loseAt(server, "backward");
    await server.result("forward_backward", backward(id, { seq: 4, targets: [1, 2, 3] }));
    const later = await server.result("optim_step", step(id, 5));
    expect(failure(later).error).toContain(`with nothing that was not saved. Resume from ${json.path} (`);
    expect(await server.model()).toBeTruthy();
  });

  test("opens the base model again for samplers", async () => {
    const server = await openServer();
    const session_id = await server.session();
    const body = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
    const { json } = await server.post("create_sampling_session", body);
    const before = await server.result("asample", draw(json.sampling_session_id, 1));
    loseAt(server, "sample");
    expect(failure(await server.result("asample", draw(json.sampling_session_id, 2)))).toMatchObject({
      category: "server",
    });
    const after = await server.result("asample", draw(json.sampling_session_id, 3));
    expect(after.bytes).toEqual(before.bytes);
    expect(server.engine.calls.filter((call) => call === "open base")).toHaveLength(2);
  });

  test("that cannot be opened again fails requests until it can", async () => {
    const log: string[] = [];
    const { server } = await training(log);
    loseAt(server, "create");
    let attempts = 0;
    Object.assign(server.engine, {
      reopen: async () => {
        if (++attempts === 1) throw new Error("no adapter answers");
        server.engine.calls.push("reopen");
      },
    });
    await expect(server.model()).resolves.toBeUndefined();
    expect(await server.model()).toBeTruthy();
    expect(await server.model()).toBeTruthy();
    expect(attempts).toBe(2);
    expect(log).toContain("could not open the GPU device again: no adapter answers");
  });
});

test.skipIf(!gpuDevice)("the local engine samples the same after the loss of its device", async () => {
  const root = await mkdtemp(join(tmpdir(), "grpu-lost-"));
  const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 26 }))!;
  const drawn = LanguageModel.create(device, { ...SMALL_MODEL, layers: 1 }, { seed: 1 });
  await saveLocalCheckpoint(join(root, "model"), { model: drawn });
  drawn.release();
  const engine = await LocalEngine.open({ device, folder: join(root, "model") });
  const params = { max_tokens: 6, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
  const sample = async () => (await engine.openPolicy()).sample([{ prompt_ids: [1, 5, 6], params, seed: 4 }]);
  const before = await sample();
  const config = { rank: 2, trainAttn: true, trainMlp: true, trainUnembed: false, seed: 3 };
  const trainer = await engine.createTrainer(config);
  expect(engine.isLost).toBe(false);
  device.gpuDevice.destroy();
  await expect(sample()).rejects.toThrow(DeviceLostError);
  expect(engine.isLost).toBe(true);
  // A reopening that fails halfway is tried again.
  const reopen = device.reopen.bind(device);
  device.reopen = async () => {
    await reopen();
    throw new Error("the model's files are away");
  };
  await expect(engine.reopen()).rejects.toThrow("away");
  expect(engine.isLost).toBe(true);
  device.reopen = reopen;
  await engine.reopen();
  expect(engine.isLost).toBe(false);
  trainer.release();
  expect(await sample()).toEqual(before);
  await expect(engine.createTrainer(config)).resolves.toBeTruthy();
  engine.close();
  await rm(root, { recursive: true });
});
