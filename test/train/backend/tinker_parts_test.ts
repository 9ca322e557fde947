/** Small parts of the Tinker client by themselves: its clock, its parallel calls, its record of a checkpoint, model names. */
import { getEventListeners } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";
import { SYSTEM_CLOCK } from "../../../src/leaves/clock.ts";
import { attempt } from "../../../src/train/backend/tinker/attempt.ts";
import { readTinkerCheckpoint, writeTinkerCheckpoint } from "../../../src/train/backend/tinker/checkpoint_record.ts";
import { createRemoteModel, type WantedModel } from "../../../src/train/backend/tinker/create_model.ts";
import { inParallel } from "../../../src/train/backend/tinker/parallel.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const folder = temporaryFolder("tinker-parts");
afterEach(() => {
  vi.useRealTimers();
});

describe("the clock", () => {
  test("sleeps for so long, and leaves nothing on the signal", async () => {
    vi.useFakeTimers();
    const { signal } = new AbortController();
    const [add, remove] = [vi.spyOn(signal, "addEventListener"), vi.spyOn(signal, "removeEventListener")];
    let isAwake = false;
    const sleeping = SYSTEM_CLOCK.sleep(500, signal).then(() => {
      isAwake = true;
    });
    await vi.advanceTimersByTimeAsync(499);
    expect(isAwake).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    await sleeping;
    expect(remove.mock.calls[0]?.[1]).toBe(add.mock.calls[0]![1]);
    const plain = SYSTEM_CLOCK.sleep(10);
    await vi.advanceTimersByTimeAsync(10);
    await plain;
  });

  test("wakes with the reason of a signal, and its timer is gone", async () => {
    vi.useFakeTimers();
    const stop = new AbortController();
    const sleeping = SYSTEM_CLOCK.sleep(500, stop.signal);
    stop.abort("enough");
    await expect(sleeping).rejects.toBe("enough");
    await expect(SYSTEM_CLOCK.sleep(500, stop.signal)).rejects.toBe("enough");
    expect(vi.getTimerCount()).toBe(0);
  });

  test("counts milliseconds", () => {
    vi.useFakeTimers();
    const before = SYSTEM_CLOCK.now();
    vi.advanceTimersByTime(250);
    expect(SYSTEM_CLOCK.now() - before).toBe(250);
  });
});

describe("parallel calls", () => {
  test("run so many at a time, and answer in order", async () => {
    let [running, most] = [0, 0];
    const map = async (ms: number) => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setTimeout(resolve, ms));
      running--;
      return -ms;
    };
    expect(await inParallel([5, 1, 3, 1, 2], { most: 2, map })).toEqual([-5, -1, -3, -1, -2]);
    expect(most).toBe(2);
    expect(await inParallel([], { most: 2, map })).toEqual([]);
    expect(await inParallel([1], { most: 9, map })).toEqual([-1]);
  });

  test("abort the others with the first failure, or with the caller's signal", async () => {
    const waits = (signal: AbortSignal) =>
      new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const seen: unknown[] = [];
    const map = async (item: string, signal: AbortSignal) => {
      if (item === "fails") throw new Error("refused");
      return waits(signal).catch((reason) => {
        seen.push(reason);
        throw reason;
      });
    };
    await expect(inParallel(["waits", "fails"], { most: 2, map })).rejects.toThrow("refused");
    await vi.waitFor(() => expect(seen).toEqual([new Error("refused")]));
    const stop = new AbortController();
    const stopped = inParallel(["waits"], { most: 1, signal: stop.signal, map });
    stop.abort("shutdown");
    await expect(stopped).rejects.toBe("shutdown");
  });
});

test("calls and requests leave nothing in a signal that lives as long as the run", async () => {
  const run = new AbortController();
  const { signal } = run;
  const fetch = async () => Response.json({});
  const to = { url: "http://service/", apiKey: "tml-k", idempotencyKey: "i", fetch };
  await inParallel([1, 2, 3], { most: 2, signal, map: (_, own) => attempt({ signal: own }, to) });
  await attempt({ signal }, to);
  expect(getEventListeners(signal, "abort")).toHaveLength(0);
  // What AbortSignal.any leaves behind in Node.
  const kept = Object.getOwnPropertySymbols(signal).find((it) => it.description === "kDependantSignals");
  expect(kept && Reflect.get(signal, kept)?.size).toBeOneOf([undefined, 0]);
  const waits = (_: number, own: AbortSignal) =>
    new Promise((_resolve, reject) => own.addEventListener("abort", () => reject(own.reason)));
  const ended = inParallel([1, 2], { most: 1, signal, map: waits });
  run.abort(new Error("the run ended"));
  await expect(ended).rejects.toThrow("the run ended");
  await expect(inParallel([1], { most: 1, signal, map: (_, own) => attempt({ signal: own }, to) })).rejects.toThrow(
    "the run ended",
  );
});

describe("the record of a checkpoint", () => {
  const record = {
    ...{ model_id: "m", base_model: "b", weights: "tinker://m/weights/1", sampler_weights: "tinker://m/s/1" },
    weight_version: 7,
  };

  test("is read as it was written", async () => {
    const dir = join(folder, "good");
    await writeTinkerCheckpoint(dir, record);
    expect(await readTinkerCheckpoint(dir)).toEqual(record);
  });

  test.each([
    ["weight_version", { ...record, weight_version: 1.5 }, / at weight_version \(/],
    ["nothing", [], /damaged \(.*\)\. Resume from another checkpoint/],
  ])("with another %s is refused, with its file", async (_, content, message) => {
    const dir = join(folder, "bad");
    await writeTinkerCheckpoint(dir, record);
    writeFileSync(join(dir, "tinker.json"), JSON.stringify(content));
    await expect(readTinkerCheckpoint(dir)).rejects.toThrow(message);
    await expect(readTinkerCheckpoint(dir)).rejects.toMatchObject({ file: `${dir}/tinker.json` });
  });
});

describe("the model of a client", () => {
  const create = async (offered: object[], wanted: Partial<WantedModel> = {}, info: object = {}) => {
    const bodies: object[] = [];
    const session = {
      id: "session",
      get: async () => ({ supported_models: offered }),
      ask: async () => ({ model_data: info }),
      submit: async (_: string, { body }: { body: object }) => {
        bodies.push(body);
        return "request";
      },
      result: async () => ({ status: 200, bytes: new Uint8Array(), json: { model_id: "run" } }),
    };
    const lora = { rank: 4, train_attn: true, train_mlp: false, train_unembed: true };
    const created = await createRemoteModel(session as never, { baseModel: "name", lora, ...wanted });
    return { created, body: bodies[0] as { base_model: string; lora_config: object } };
  };

  test.each([
    [["name", "/folder"], "name"],
    [["/folder"], "/folder"],
    [["other"], "name"],
    [[], "name"],
  ])("where the service offers %j is asked for as %s", async (offered, name) => {
    const models = offered.map((model_name) => ({ model_name }));
    const { created, body } = await create(models, { baseModelFolder: "/folder" });
    expect([created.baseModel, body.base_model]).toEqual([name, name]);
  });

  test("has the longest sequence of its own offer, under either name", async () => {
    const offered = [
      { model_name: "other", max_context_length: 5 },
      { model_name: "name", max_context_length: 9 },
    ];
    expect((await create(offered)).created).toEqual({
      ...{ modelId: "run", baseModel: "name", longest: 9 },
      info: { name: "name", tokenizerId: undefined },
      takesTemperature: false,
    });
    const renamed = await create([{ model_name: "full", max_context_length: 6 }], {}, { model_name: "full" });
    expect(renamed.created).toMatchObject({ longest: 6, info: { name: "full" } });
    expect((await create([{ model_name: "name" }, {}])).created.longest).toBe(Infinity);
    const described = await create([], {}, { model_name: null, tokenizer_id: "there" });
    expect(described.created.info).toEqual({ name: "name", tokenizerId: "there" });
  });

  test("has the wanted adapter, and a seed where one is given", async () => {
    const config = { rank: 4, train_attn: true, train_mlp: false, train_unembed: true };
    expect((await create([])).body.lora_config).toEqual(config);
    expect((await create([], { lora: { ...config, seed: 0 } })).body.lora_config).toEqual({ ...config, seed: 0 });
  });
});
