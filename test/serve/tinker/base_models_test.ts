/** Several base models in one server: found by name, loaded when asked for, unloaded when idle, and never while used. */
import { mkdtemp, rename, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { ConfigError, OutOfMemoryError } from "../../../src/leaves/errors.ts";
import { createApp } from "../../../src/serve/tinker/app.ts";
import type { ServedBaseModel } from "../../../src/serve/tinker/base_models.ts";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import { TinkerService } from "../../../src/serve/tinker/service.ts";
import { saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { decodeSamples } from "../../../src/train/backend/tinker/protobuf_messages.ts";
import { openBaseModels } from "../../../src/train/run/serve/base_models.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";
import { ToyEngine } from "../../fixtures/toy_engine.ts";
import { backward, draw, eventually, holdEngine, openServer, step, type TestServer } from "./tinker_client.ts";

const MINUTE = 60_000;

afterEach(() => void vi.useRealTimers());

/** A device that has room for so many models. */
class Room {
  loaded = 0;
  readonly most: number;
  constructor(most: number) {
    this.most = most;
  }
}

class LazyToy extends ToyEngine {
  override readonly contextLength: number;
  override readonly folder: string;
  isLoaded = false;
  private readonly room: Room;

  constructor(name: string, { room = new Room(9), contextLength = 32 }: { room?: Room; contextLength?: number } = {}) {
    super();
    this.folder = `/models/${name}`;
    this.fingerprint = `${name} weights`;
    this.room = room;
    this.contextLength = contextLength;
  }

  async load(): Promise<void> {
    if (this.isLoaded) return;
    if (this.room.loaded === this.room.most) throw new OutOfMemoryError("No room.", { label: "weights", bytes: 9 });
    this.room.loaded++;
    this.isLoaded = true;
    this.calls.push("load");
  }

  unload(): void {
    this.room.loaded--;
    this.isLoaded = false;
    this.calls.push("unload");
  }

  override async act(call: string, detail = "", signal?: AbortSignal): Promise<void> {
    if (!this.isLoaded) throw new Error(`${call} on a model that is not loaded`);
    await super.act(call, detail, signal);
  }
}

const toyModel = (engine: LazyToy): ServedBaseModel => ({ engine, names: [engine.folder.slice(8), engine.folder] });

/** Named `toy`, `one` and `two`; the first one is always loaded. */
async function openThree(of: Parameters<typeof openServer>[0] & { room?: Room } = {}) {
  const one = new LazyToy("one", { ...(of.room && { room: of.room }) });
  const two = new LazyToy("two", { ...(of.room && { room: of.room }), contextLength: 48 });
  const server = await openServer({ ...of, moreModels: [toyModel(one), toyModel(two)] });
  return { server, one, two };
}

async function create(server: TestServer, base_model: string, at: { session?: string; number?: number } = {}) {
  const session_id = at.session ?? (await server.session());
  const body = { session_id, model_seq_id: at.number ?? 0, base_model, lora_config: { rank: 4 } };
  return (await server.result("create_model", body)).json;
}

async function sampler(server: TestServer, of: object, number = 0) {
  const body = { session_id: await server.session(), sampling_session_seq_id: number, ...of };
  return (await server.post("create_sampling_session", body)).json.sampling_session_id as string;
}

describe("several base models", () => {
  test("are listed with their own lengths, and load when first asked for", async () => {
    const { server, one, two } = await openThree();
    const { supported_models } = (await server.get("get_server_capabilities")).json;
    expect(supported_models).toEqual(
      [
        ["toy", 64],
        ["/models/toy", 64],
        ["one", 32],
        ["/models/one", 32],
        ["two", 48],
        ["/models/two", 48],
      ].map(([model_name, max_context_length]) => ({
        model_name,
        max_context_length,
        trainable: true,
        sampleable: true,
      })),
    );
    expect([one.isLoaded, two.isLoaded]).toEqual([false, false]);
    const id = await sampler(server, { base_model: "two" });
    expect(two.isLoaded).toBe(false);
    await server.result("asample", draw(id, 1));
    await server.result("asample", draw(id, 2));
    expect(two.calls).toEqual(["load", "open base", "sample 1", "sample 1"]);
    expect(one.calls).toEqual([]);
    expect((await server.get(`samplers/${id}`)).json.base_model).toBe("/models/two");
    const { model_id } = await create(server, "one");
    expect((await server.post("get_info", { model_id })).json).toMatchObject({
      model_name: "one",
      model_data: { tokenizer_id: "/models/one" },
    });
    const page = new TextDecoder().decode((await server.get("/")).bytes);
    for (const name of ["toy", "one", "two"]) expect(page).toContain(`<h1>${name}</h1>`);
    expect(new TextDecoder().decode((await server.get("/metrics")).bytes)).toContain("grpu_base_models_loaded 3");
  });

  test("refuse what none of them is, and requests beyond the own length", async () => {
    const { server } = await openThree();
    expect((await create(server, "other")).error).toMatch(/this server has others\. Use toy or .* or \/models\/two \(/);
    const tokens = Array.from({ length: 40 }, () => 1);
    const prompt = { chunks: [{ type: "encoded_text", tokens }] };
    const [one, two] = [await sampler(server, { base_model: "one" }), await sampler(server, { base_model: "two" })];
    expect((await server.result("asample", draw(one, 1, { prompt }))).json.error).toContain("context of 32 tokens");
    expect((await server.result("asample", draw(two, 1, { prompt }))).bytes.length).toBeGreaterThan(0);
  });

  test("a checkpoint is opened on its own model, by the next server too", async () => {
    const folder = await mkdtemp(join(tmpdir(), "grpu-models-"));
    onTestFinished(() => rm(folder, { recursive: true, force: true }));
    const first = await openThree({ root: folder });
    const { model_id } = await create(first.server, "two");
    const saved = await first.server.result("save_weights", { model_id, seq_id: 1, path: "a" });
    const { path } = (await first.server.result("save_weights_for_sampler", { model_id, seq_id: 2, path: "a" })).json;
    first.server.service.close();
    const { server, one, two } = await openThree({ root: folder });
    const session_id = await server.session();
    const loaded = { session_id, model_seq_id: 0, path: saved.json.path, optimizer: true };
    expect((await server.result("load_weights", loaded)).json.model_id).toBeTruthy();
    await server.result("asample", draw(await sampler(server, { model_path: path }), 1));
    expect(two.calls).toEqual(["load", "create rank 4", "load all", "open saved", "sample 1"]);
    expect([one.calls, server.engine.calls]).toEqual([[], []]);
    // A server that lacks the model says so.
    server.service.close();
    const other = await openServer({ root: folder, moreModels: [toyModel(new LazyToy("one"))] });
    const body = { session_id: await other.session(), sampling_session_seq_id: 0, model_path: path };
    expect((await other.post("create_sampling_session", body)).json.detail ?? "").toContain("its base model is two");
  });
});

describe("a model that nobody uses leaves the device", () => {
  test("after the time of the setting, and loads again for its samplers", async () => {
    vi.useFakeTimers({ toFake: ["Date", "setInterval"] });
    const log: string[] = [];
    const { server, one } = await openThree({
      limits: { modelIdleMs: 5 * MINUTE, sessionMs: 9e9 },
      log: (line) => log.push(line),
    });
    const id = await sampler(server, { base_model: "one" });
    const before = await server.result("asample", draw(id, 1));
    vi.advanceTimersByTime(4 * MINUTE);
    await server.result("asample", draw(id, 2));
    vi.advanceTimersByTime(4.9 * MINUTE);
    await server.service.scheduler.idle();
    expect(one.isLoaded).toBe(true);
    vi.advanceTimersByTime(MINUTE);
    await eventually(() => expect(one.isLoaded).toBe(false));
    expect(log).toEqual(["loaded one", "unloaded one after 6 min without a request"]);
    expect((await server.result("asample", draw(id, 3))).bytes).toEqual(before.bytes);
    expect(one.calls.filter((call) => call === "load")).toHaveLength(2);
  });

  test("but not while a training client or a snapshot lives, whose state stays in memory", async () => {
    const { server, one } = await openThree({ limits: { modelIdleMs: MINUTE } });
    const { models } = server.service;
    const unload = () => {
      const later = Date.now() + 2 * MINUTE;
      models.hasIdle(later);
      models.unloadIdle(later);
    };
    const session = await server.session();
    const { model_id } = await create(server, "one", { session });
    await server.result("forward_backward", backward(model_id, { seq: 1 }));
    await server.result("optim_step", step(model_id, 2));
    const snapshot = (
      await server.result("save_weights_for_sampler", { model_id, seq_id: 3, sampling_session_seq_id: 7 })
    ).json.sampling_session_id;
    unload();
    await server.result("optim_step", step(model_id, 4));
    await server.result("unload_model", { model_id });
    unload();
    expect(one.isLoaded).toBe(true);
    expect((await server.result("asample", draw(snapshot, 1))).bytes.length).toBeGreaterThan(0);
    await server.post(`sessions/${session}/finish`, {});
    // The model counts as used until the snapshot ended.
    models.unloadIdle(Date.now());
    expect(one.isLoaded).toBe(true);
    models.unloadIdle(Date.now() + 4 * MINUTE);
    expect(one.calls.at(-1)).toBe("unload");
  });

  test("at once for another model that needs the memory, the least recently used first", async () => {
    const { server, one, two } = await openThree({ room: new Room(1) });
    const [first, second] = [
      await sampler(server, { base_model: "one" }),
      await sampler(server, { base_model: "two" }),
    ];
    await server.result("asample", draw(first, 1));
    await server.result("asample", draw(second, 1));
    expect([one.isLoaded, two.isLoaded]).toEqual([false, true]);
    await server.result("asample", draw(first, 2));
    expect([one.isLoaded, two.isLoaded]).toEqual([true, false]);
    expect(one.calls).toEqual(["load", "open base", "sample 1", "unload", "load", "open base", "sample 1"]);
  });

  test("and then waits a while for those that sample from that one, so that both do not load at every turn", async () => {
    const { server, one, two } = await openThree({ room: new Room(1) });
    const [first, second] = [
      await sampler(server, { base_model: "one" }),
      await sampler(server, { base_model: "two" }),
    ];
    await server.result("asample", draw(first, 1));
    await server.result("asample", draw(second, 1));
    const { models } = server.service;
    const [ofOne, ofTwo] = [models.find("one")!, models.find("two")!];
    expect([ofOne, ofTwo].map((model) => models.isDeferred(model))).toEqual([true, false]);
    const release = holdEngine({ engine: two });
    const ask = async (id: string, seq: number) => (await server.post("asample", draw(id, seq))).json.request_id;
    // The batch that holds the device; then one request for the other model, and more for this one.
    const asked = [await ask(second, 2)];
    await eventually(() => expect(server.service.policies.queued).toBe(0));
    asked.push(await ask(first, 2), await ask(second, 3), await ask(second, 4));
    release();
    for (const id of asked) expect((await server.retrieve(id)).status).toBe(200);
    expect(two.calls.filter((call) => /load/.test(call))).toEqual(["load", "unload"]);
    expect(one.calls.filter((call) => /load/.test(call))).toEqual(["load", "unload", "load"]);
    vi.setSystemTime(Date.now() + 11_000);
    expect(models.isDeferred(ofTwo)).toBe(false);
  });

  test.each(["createTrainer", "openPolicy"] as const)("at once for a %s that does not fit beside it", async (call) => {
    const { server, one, two } = await openThree();
    await server.result("asample", draw(await sampler(server, { base_model: "one" }), 1));
    const refuse = () => Promise.reject(new OutOfMemoryError("No room.", { label: "weights", bytes: 9 }));
    const [trainer, policy] = [two.createTrainer.bind(two), two.openPolicy.bind(two)];
    if (call === "createTrainer") two.createTrainer = (config) => (one.isLoaded ? refuse() : trainer(config));
    else two.openPolicy = (dir) => (one.isLoaded ? refuse() : policy(dir));
    if (call === "createTrainer") expect((await create(server, "two")).model_id).toBeTruthy();
    else
      expect((await server.result("asample", draw(await sampler(server, { base_model: "two" }), 1))).json?.error).toBe(
        undefined,
      );
    expect([one.isLoaded, two.isLoaded]).toEqual([false, true]);
  });

  test("and one that training clients use stays: the other is refused, and says why", async () => {
    const { server, one } = await openThree({ room: new Room(1) });
    const { model_id } = await create(server, "one");
    expect((await create(server, "two")).error).toMatch(
      /^Cannot load two beside .*one, which training clients or snapshots use: No room.* Unload/,
    );
    expect((await server.result("optim_step", step(model_id, 1))).json.metrics).toEqual({ grad_norm: 1 });
    await server.result("unload_model", { model_id });
    expect((await create(server, "two")).model_id).toBeTruthy();
    expect(one.isLoaded).toBe(false);
  });
});

test("a lost device is opened once, and every model on it is used again", async () => {
  const { server, one, two } = await openThree();
  const ids = [await sampler(server, { base_model: "one" }), await sampler(server, { base_model: "two" })];
  for (const id of ids) await server.result("asample", draw(id, 1));
  let isLost = true;
  const reopened: string[] = [];
  for (const engine of [one, two]) {
    Object.defineProperty(engine, "isLost", { get: () => isLost });
    const reopen = async () => {
      isLost = false;
      reopened.push(engine.folder);
    };
    Object.assign(engine, { reopen });
  }
  for (const id of ids) await server.result("asample", draw(id, 2));
  expect(reopened).toEqual(["/models/one", "/models/two"]);
  expect(one.calls.filter((call) => call === "open base")).toHaveLength(2);
});

test("after a loss, a model that cannot be loaded again fails alone, and loads once it can", async () => {
  const log: string[] = [];
  const { server, one } = await openThree({ log: (line) => log.push(line) });
  const id = await sampler(server, { base_model: "one" });
  const before = await server.result("asample", draw(id, 1));
  let isLost = true;
  Object.defineProperty(one, "isLost", { get: () => isLost });
  const failure = new Error("the model's files are away");
  const { load } = one;
  one.load = () => Promise.reject(failure);
  Object.assign(one, {
    reopen: async () => {
      one.unload();
      isLost = false;
      await one.load();
    },
  });
  const { model_id } = await create(server, "toy");
  expect(log).toContain("could not load one again: the model's files are away");
  expect((await server.result("asample", draw(id, 2))).json.error).toContain("files are away");
  expect((await server.result("optim_step", step(model_id, 1))).json.metrics).toEqual({ grad_norm: 1 });
  one.load = load;
  expect((await server.result("asample", draw(id, 3))).bytes).toEqual(before.bytes);
  expect(log.filter((line) => line.startsWith("the GPU device was lost"))).toHaveLength(1);
});

test("a model that stays lost takes nothing from the others", async () => {
  const { server, one } = await openThree();
  const ids = [await sampler(server, { base_model: "toy" }), await sampler(server, { base_model: "one" })];
  const { model_id } = await create(server, "toy");
  Object.defineProperty(one, "isLost", { get: () => true });
  Object.assign(one, { reopen: () => Promise.reject(new Error("no adapter answers")) });
  for (const seq of [1, 2]) {
    expect((await server.result("optim_step", step(model_id, seq))).json.metrics).toEqual({ grad_norm: 1 });
    await server.result("asample", draw(ids[0]!, seq));
  }
  expect(server.engine.calls.filter((call) => call === "open base")).toHaveLength(1);
});

describe("on one device", () => {
  let root = "";
  const [one, two] = [() => join(root, "model1"), () => join(root, "model2")];
  beforeAll(async () => {
    root = await mkdtemp(join(tmpdir(), "grpu-models-"));
    const device = await openDevice({ device: "cpu" });
    for (const seed of [1, 2]) {
      const config = { ...SMALL_MODEL, layers: seed };
      const drawn = LanguageModel.create(device, config, { seed });
      await saveLocalCheckpoint(join(root, `model${seed}`), { model: drawn });
      drawn.release();
    }
  });
  afterAll(() => rm(root, { recursive: true, force: true }));
  const silent = { names: [], warn: () => {} };

  async function serve(name: string, models: readonly string[]) {
    const device = await openDevice({ device: "cpu" });
    const opened = await openBaseModels(device, { ...silent, folders: models });
    const service = new TinkerService({
      models: opened,
      checkpoints: await Checkpoints.open(join(root, name)),
      limits: { modelIdleMs: MINUTE },
    });
    onTestFinished(() => service.close());
    const app = createApp({ service, holdMs: 5000 });
    const post = async (path: string, body: object) => {
      const isBinary = body instanceof Uint8Array;
      const init = {
        method: "POST",
        body: isBinary ? (body as Uint8Array<ArrayBuffer>) : JSON.stringify(body),
        headers: { "content-type": isBinary ? "application/x-protobuf" : "application/json" },
      };
      return app.fetch(new Request(`http://localhost/api/v1/${path}`, init));
    };
    const result = async (path: string, body: object) => {
      const { request_id } = (await (await post(path, body)).json()) as { request_id: string };
      return new Uint8Array(await (await post("retrieve_future", { request_id })).arrayBuffer());
    };
    const json = async (path: string, body: object) =>
      JSON.parse(new TextDecoder().decode(await result(path, body))) as Record<string, string>;
    const session_id = ((await (await post("create_session", { tags: [] })).json()) as { session_id: string })
      .session_id;
    let number = 0;
    const open = async (of: object) => {
      const body = { session_id, sampling_session_seq_id: number++, ...of };
      return ((await (await post("create_sampling_session", body)).json()) as Record<string, string>)
        .sampling_session_id!;
    };
    const drawOf = async (id: string, seq: number) =>
      decodeSamples(await result("asample", draw(id, seq, { sampling_params: { max_tokens: 8, seed: 5 } })))
        .sequences[0]!;
    return { service, device, session_id, result, json, open, drawOf };
  }

  test("two models sample as each does alone, also after one was unloaded; memory is that of the sum", async () => {
    const alone: unknown[] = [];
    for (const folder of [one(), two()]) {
      const server = await serve(`alone-${alone.length}`, [folder]);
      alone.push(await server.drawOf(await server.open({ base_model: folder }), 1));
    }
    expect(alone[0]).not.toEqual(alone[1]);
    const both = await serve("both", [one(), two()]);
    const { device, service } = both;
    const empty = device.memory.live;
    const ids = [await both.open({ base_model: one() }), await both.open({ base_model: two() })];
    expect(device.memory.live).toBe(empty);
    const first = await both.drawOf(ids[0]!, 1);
    const withOne = device.memory.live;
    expect(withOne).toBeGreaterThan(empty);
    expect([first, await both.drawOf(ids[1]!, 1)]).toEqual(alone);
    expect(device.memory.live).toBeGreaterThan(withOne);
    service.models.unloadIdle(Number.POSITIVE_INFINITY);
    expect(device.memory.live).toBe(empty);
    expect(await both.drawOf(ids[0]!, 2)).toEqual(alone[0]);
    expect(device.memory.live).toBe(withOne);
  });

  test("an engine whose weights cannot be loaded after a loss of the device is unloaded, not lost", async () => {
    const device = await openDevice({ device: "cpu" });
    const engine = await LocalEngine.open({ device, folder: one() });
    let isLost = true;
    Object.defineProperty(device, "isLost", { get: () => isLost });
    Object.assign(device, {
      reopen: async () => {
        isLost = false;
      },
    });
    await rename(one(), `${one()}-away`);
    await expect(engine.reopen()).rejects.toThrow();
    await rename(`${one()}-away`, one());
    expect([engine.isLost, engine.isLoaded]).toEqual([false, false]);
    await engine.load();
    expect(engine.isLoaded).toBe(true);
    engine.close();
  });

  test("adapters of several ranks on one base, asked at once, sample as one at a time", async () => {
    const server = await serve("ranks", [one()]);
    const ids: string[] = [];
    for (const [number, rank] of [2, 4, 8].entries()) {
      const lora_config = { rank, seed: rank };
      const body = { session_id: server.session_id, model_seq_id: number, base_model: one(), lora_config };
      const { model_id } = await server.json("create_model", body);
      await server.result("forward_backward", backward(model_id!, { seq: 1, targets: [rank, 5, 6] }));
      await server.json("optim_step", { model_id, seq_id: 2, adam_params: { learning_rate: 0.5 } });
      const saved = await server.json("save_weights_for_sampler", { model_id, seq_id: 3, path: "p" });
      ids.push(await server.open({ model_path: saved.path }));
    }
    const single = [];
    for (const id of ids) single.push(await server.drawOf(id, 1));
    expect(new Set(single.map(({ logprobs }) => logprobs.join())).size).toBe(3);
    expect(await Promise.all(ids.map((id) => server.drawOf(id, 2)))).toEqual(single);
  });

  test.each<[string, (one: string, two: string) => object, RegExp]>([
    ["a name without its folder", () => ({ names: ["qwen"] }), /--model-name qwen.*Give NAME=DIR/],
    ["a name of another folder", () => ({ names: ["qwen=elsewhere"] }), /qwen=elsewhere/],
    ["a name twice", (one, two) => ({ names: [`a=${one}`, `a=${two}`] }), /two models as a\./],
    ["one base for two models", () => ({ base: "x" }), /2 models with one --base/],
  ])("refuses %s", async (_, of, message) => {
    const device = await openDevice({ device: "cpu" });
    const opening = openBaseModels(device, { ...silent, folders: [one(), two()], ...of(one(), two()) });
    const error = await opening.catch((error: unknown) => error);
    expect(error).toBeInstanceOf(ConfigError);
    expect((error as Error).message).toMatch(message);
  });
});
