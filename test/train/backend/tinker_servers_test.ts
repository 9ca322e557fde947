/** Several servers as one: training on the first, sampling on all; one of them fails and comes back. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import type { LossSpec, OptimParams, SampleRequest } from "../../../src/engine/contract/backend.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { SYSTEM_CLOCK } from "../../../src/leaves/clock.ts";
import { listen } from "../../../src/leaves/http/listen.ts";
import { createApp } from "../../../src/serve/tinker/app.ts";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import { TinkerService } from "../../../src/serve/tinker/service.ts";
import { saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { TinkerBackend, type TinkerOptions } from "../../../src/train/backend/tinker/backend.ts";
import { httpFetch } from "../../../src/train/run/net/http.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const KEY = "tml-two";
const ADAM: OptimParams = {
  learning_rate: 0.3,
  beta1: 0.9,
  beta2: 0.95,
  eps: 1e-8,
  weight_decay: 0,
  grad_clip_norm: 0,
};
const LOSS: LossSpec = {
  name: "importance_sampling",
  loss_agg_mode: "token-mean",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};
let root = "";

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "grpu-servers-"));
  for (const seed of [1, 2]) {
    const model = LanguageModel.create(await openDevice({ device: "cpu" }), SMALL_MODEL, { seed });
    await saveLocalCheckpoint(join(root, `model${seed}`), { model });
    model.release();
  }
});
afterAll(() => rm(root, { recursive: true, force: true }));

interface Running {
  readonly url: string;
  readonly service: TinkerService;
  kill(): Promise<void>;
}

let count = 0;

async function start(of: { peers?: readonly string[]; model?: string; port?: number } = {}): Promise<Running> {
  const engine = await LocalEngine.open({
    device: await openDevice({ device: "cpu" }),
    folder: join(root, of.model ?? "model1"),
  });
  const service = new TinkerService({
    models: [{ engine, names: ["small"] }],
    checkpoints: await Checkpoints.open(join(root, `server${++count}`)),
    peers: { urls: of.peers ?? [], apiKey: KEY },
    stableReinforce: "score_centering",
  });
  const app = createApp({ service, apiKey: KEY, holdMs: 1000 });
  const listening = await listen(app, { host: "127.0.0.1", port: of.port ?? 0 });
  let isOver = false;
  const kill = async () => {
    if (isOver) return;
    isOver = true;
    await listening.close();
    await service.stop();
    service.close();
  };
  onTestFinished(kill);
  return { url: listening.url, service, kill };
}

async function connect(first: Running, others: readonly string[] = [], more: Partial<TinkerOptions> = {}) {
  const notices: string[] = [];
  const clock = { ...SYSTEM_CLOCK, ahead: 0, now: () => SYSTEM_CLOCK.now() + clock.ahead };
  const backend = await TinkerBackend.open({
    baseUrl: first.url,
    samplingUrls: others,
    apiKey: KEY,
    sdkVersion: "0.38.0",
    baseModel: "small",
    lora: { rank: 4, seed: 1, train_attn: true, train_mlp: true, train_unembed: false },
    fetch: httpFetch,
    patienceMs: 1_000,
    clock,
    notify: (message) => notices.push(message),
    ...more,
  });
  onTestFinished(() => backend.close());
  return { backend, notices, clock };
}

const params = { max_tokens: 6, temperature: 1, top_p: 1, top_k: 0, stop_token_ids: [] };
const REQUESTS: readonly SampleRequest[] = Array.from({ length: 12 }, (_, seed) => ({
  prompt_ids: [1, 3 + (seed % 4)],
  params,
  seed,
}));

/** One step towards a token, which changes what is drawn. */
async function train(backend: TinkerBackend, token: number): Promise<void> {
  const tokens = Uint32Array.from([1, 3, token, token]);
  const oldLogprobs = new Float32Array(4);
  const batch = { tokens, offsets: Uint32Array.from([0, 4]), mask: Uint32Array.from([0, 0, 1, 1]), oldLogprobs };
  await backend.forwardBackward({ ...batch, rolloutLogprobs: oldLogprobs, advantages: perRow(1) }, LOSS);
  await backend.optimStep(ADAM);
}

const sampled = ({ service }: Running) => service.activity.answers.get("/api/v1/asample 200") ?? 0;
const drawn = async (backend: TinkerBackend) =>
  (await backend.sample(REQUESTS)).map(({ tokens, logprobs }) => ({ tokens, logprobs }));

test("two servers draw what one does, before and after each step, and share the requests", async () => {
  const [alone, first] = [await start(), await start()];
  const second = await start({ peers: [first.url] });
  const one = await connect(alone);
  const two = await connect(first, [second.url]);
  const before = await drawn(one.backend);
  expect(await drawn(two.backend)).toEqual(before);
  for (const token of [5, 7]) {
    for (const { backend } of [one, two]) await train(backend, token);
    const after = await drawn(one.backend);
    expect(after).not.toEqual(before);
    expect(await drawn(two.backend)).toEqual(after);
  }
  expect([sampled(first), sampled(second)]).toEqual([18, 18]);
  expect(two.notices).toEqual([]);
  // The copies expire; the run is the first server's.
  const [copy] = second.service.checkpoints.list();
  expect(Date.parse(copy!.expiresAt!) - Date.now()).toBeLessThan(3_600_001);
  expect(second.service.checkpoints.findRun(copy!.run).copiedFrom).toBe(first.url);
  expect(second.service.activity.answers.get("/api/v1/create_model 200")).toBeUndefined();
});

test("with stable_reinforce, what the second server sampled trains on the first one as its own does", async () => {
  const [alone, first] = [await start(), await start()];
  const second = await start({ peers: [first.url] });
  const stable = { recordStabilityInfo: true };
  const one = await connect(alone, [], stable);
  const two = await connect(first, [second.url], stable);
  const loss = { ...LOSS, name: "stable_reinforce", settings: { kl_coeff: 0.1 } };
  const adam = { ...ADAM, learning_rate: 0.02, grad_clip_norm: 1e9 };
  for (let step = 0; step < 2; step++) {
    const metrics = [];
    for (const { backend } of [one, two]) {
      const samples = await backend.sample(REQUESTS);
      const rows = samples.map(({ tokens }, i) => [...REQUESTS[i]!.prompt_ids, ...tokens]);
      const batch = {
        tokens: Uint32Array.from(rows.flat()),
        offsets: Uint32Array.from([0, ...rows.map((_, i) => rows.slice(0, i + 1).flat().length)]),
        mask: Uint32Array.from(samples.flatMap(({ tokens }) => [0, 0, ...tokens.map(() => 1)])),
        rolloutLogprobs: Float32Array.from(samples.flatMap(({ logprobs }) => [0, 0, ...logprobs])),
        advantages: perRow(...samples.map((_, i) => (i % 3) - 0.75)),
      };
      const passed = await backend.forwardBackward(batch, loss);
      metrics.push({ loss: passed["actor/loss"], norm: (await backend.optimStep(adam))["actor/grad_norm"] });
    }
    expect(metrics[1]).toEqual(metrics[0]);
    expect(metrics[0]!.norm).toBeGreaterThan(0);
  }
  expect([sampled(first), sampled(second)]).toEqual([12, 12]);
  expect([first, second].map(({ service }) => service.stability.recorded.size)).toEqual([24, 12]);
  expect(two.notices).toEqual([]);
});

test("a server that dies while it samples drops out with its requests, and comes back", async () => {
  const [alone, first] = [await start(), await start()];
  const second = await start({ peers: [first.url] });
  const one = await connect(alone);
  const two = await connect(first, [second.url]);
  await drawn(two.backend);
  const { turn } = second.service.policies.queues[0]!;
  let dying: Promise<void> | undefined;
  second.service.policies.queues[0]!.turn = async function (owner) {
    dying ??= second.kill();
    return turn.call(this, owner);
  };
  const expected = await drawn(one.backend);
  expect(await drawn(two.backend)).toEqual(expected);
  expect(two.notices).toEqual([
    expect.stringMatching(/^the server at http:.* does not sample \(failure 1\): .* Its requests go to the others/),
  ]);
  await dying;
  for (const { backend } of [one, two]) await train(backend, 5);
  expect(await drawn(two.backend)).toEqual(await drawn(one.backend));
  expect(two.notices).toHaveLength(1);
  const again = await start({ peers: [first.url], port: Number(new URL(second.url).port) });
  two.clock.ahead += 31_000;
  expect(await drawn(two.backend)).toEqual(await drawn(one.backend));
  expect(sampled(again)).toBe(6);
  expect(two.notices[1]).toMatch(/samples again$/);
});

test("a server with other weights is left out, and the message says why", async () => {
  const first = await start();
  const other = await start({ peers: [first.url], model: "model2" });
  const stranger = await start();
  const { backend, notices } = await connect(first, [other.url, stranger.url]);
  expect(await drawn(backend)).toHaveLength(12);
  expect(sampled(first)).toBe(12);
  expect(notices.find((notice) => notice.includes(other.url))).toContain("other weights of small than this server has");
  // It does not know the first one.
  expect(notices.find((notice) => notice.includes(stranger.url))).toContain(`started with --peer ${first.url}.`);
  expect(notices).toHaveLength(2);
});

test("a checkpoint that is overwritten is copied again; with its server away the copy serves", async () => {
  const first = await start();
  const second = await start({ peers: [first.url] });
  const { backend } = await connect(first, [second.url]);
  await drawn(backend);
  const [copy] = second.service.checkpoints.list();
  const path = `tinker://${copy!.run}/sampler_weights/${copy!.name}`;
  const { checkpoints } = first.service;
  const known = checkpoints.find(copy!);
  expect(copy!.time).toBe(known.record.time);
  await checkpoints.save(copy!, { step: 9, overwrite: true, write: async () => {} });
  await second.service.peers.bring(path);
  expect(second.service.checkpoints.find(copy!).record.step).toBe(9);
  await first.kill();
  await second.service.peers.bring(path);
  const absent = `tinker://${copy!.run}/sampler_weights/absent`;
  await expect(second.service.peers.bring(absent)).rejects.toThrow(/Cannot copy .*absent: http:.* cannot be asked/);
});

test.each<[string, object, RegExp]>([
  ["a file outside the folder", { files: { "../x": 1 } }, /names a file/],
  ["a file of records", { files: { "checkpoint.json": 1 } }, /names a file/],
  ["an address in place of a token", { archive: "/169.254.169.254/latest" }, /archive/],
  ["a run of another id", { run: JSON.stringify({ id: "other" }) }, /cannot be asked/],
  ["no files", { files: undefined }, /files/],
])("an answer with %s is not taken", async (_, changes, message) => {
  const first = await start();
  const { backend } = await connect(first);
  await backend.save(join(root, `saved${count}`));
  const record = first.service.checkpoints.list().find(({ kind }) => kind === "sampler_weights")!;
  const run = first.service.checkpoints.findRun(record.run);
  const answer = { run: JSON.stringify(run), checkpoint: JSON.stringify(record), archive: "a", files: {}, ...changes };
  const second = new TinkerService({
    models: first.service.models.all,
    checkpoints: await Checkpoints.open(join(root, `taker${++count}`)),
    peers: { urls: ["http://first"], apiKey: KEY, fetch: async () => Response.json(answer) },
  });
  const path = `tinker://${record.run}/sampler_weights/${record.name}`;
  await expect(second.peers.bring(path)).rejects.toThrow(message);
  expect(second.checkpoints.list()).toEqual([]);
  second.checkpoints.close();
});
