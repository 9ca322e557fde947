/** The Tinker backend against our own server in one process equals the local backend. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import type { LossSpec, OptimParams, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { createApp } from "../../../src/serve/tinker/app.ts";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import { TinkerService } from "../../../src/serve/tinker/service.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { TinkerBackend, type TinkerOptions } from "../../../src/train/backend/tinker/backend.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";
import { ToyEngine } from "../../fixtures/toy_engine.ts";

const FOLDER = sharedPath("models/stories260k");
const LORA = { rank: 4, seed: 5, train_attn: true, train_mlp: true, train_unembed: false };
const ADAM: OptimParams = {
  learning_rate: 0.02,
  beta1: 0.9,
  beta2: 0.95,
  eps: 1e-3,
  weight_decay: 0,
  grad_clip_norm: 0.5,
};
const root = mkdtempSync(join(tmpdir(), "grpu-tinker-client-"));
let service: TinkerService;
let fetchHere: NonNullable<TinkerOptions["fetch"]>;

beforeAll(async () => {
  if (!hasShared) return;
  const engine = await LocalEngine.open({ device: await openDevice({ device: "cpu" }), folder: FOLDER });
  const checkpoints = await Checkpoints.open(join(root, "service"));
  service = new TinkerService({ models: [{ engine, names: ["stories"] }], checkpoints });
  const app = createApp({ service, apiKey: "tml-test" });
  fetchHere = async (url, init) => app.fetch(new Request(url, init));
});

afterAll(async () => {
  await service?.stop();
  service?.close();
  rmSync(root, { recursive: true, force: true });
});

function connect(options: Partial<TinkerOptions> = {}): Promise<TinkerBackend> {
  return TinkerBackend.open({
    baseUrl: "http://localhost",
    apiKey: "tml-test",
    sdkVersion: "0.25.0",
    baseModel: "stories",
    lora: LORA,
    fetch: fetchHere,
    ...options,
  });
}

async function openLocal(): Promise<LocalBackend> {
  const device = await openDevice({ device: "cpu" });
  const targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
  const model = await LanguageModel.load(device, await openModelFolder(FOLDER), {
    lora: { rank: LORA.rank, alpha: 32, targets },
    seed: LORA.seed,
  });
  return new LocalBackend({ model, name: FOLDER });
}

const ROWS = [
  [1, 403, 407, 261, 378, 432, 409],
  [1, 40, 41, 42],
  [1, 300, 20, 17, 8, 9, 100, 101, 102],
];

/** Rows whose first two tokens are a prompt. */
function batchOf(more: Partial<TrainBatch> = {}): TrainBatch {
  const offsets = Uint32Array.from([0, ...ROWS.map((_, i) => ROWS.slice(0, i + 1).flat().length)]);
  const tokens = Uint32Array.from(ROWS.flat());
  const mask = Uint32Array.from(ROWS.flatMap((row) => row.map((_, t) => (t >= 2 ? 1 : 0))));
  const oldLogprobs = Float32Array.from(tokens, (_, t) => (mask[t] ? -1 - (t % 5) : 0));
  return {
    offsets,
    tokens,
    mask,
    oldLogprobs,
    rolloutLogprobs: oldLogprobs,
    advantages: perRow(1.5, -0.5, 0.25),
    ...more,
  };
}

const spec = (more: Partial<LossSpec>): LossSpec => ({
  name: "ppo",
  loss_agg_mode: "token-mean",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
  ...more,
});

const REFERENCE = Float32Array.from(ROWS.flat(), (_, t) => -2 - (t % 3));

describe.skipIf(!hasShared)("a run through the wire equals a local one", () => {
  const cases: readonly [string, LossSpec, Partial<TrainBatch>?][] = [
    ["ppo", spec({ settings: { clip_low_threshold: 0.7, clip_high_threshold: 1.3 } })],
    ["ppo by sequence", spec({ loss_agg_mode: "seq-mean-token-mean" })],
    [
      "ppo with a corrected sampler",
      spec({}),
      { rolloutIsWeights: Float32Array.from(ROWS.flat(), (_, t) => 0.5 + (t % 2)) },
    ],
    ["ppo on policy", spec({}), { oldLogprobs: undefined }],
    ["importance_sampling", spec({ name: "importance_sampling", loss_agg_mode: "token-sum" })],
    ["tinker.cispo", spec({ name: "tinker.cispo", settings: { clip_low_threshold: 0.5, clip_high_threshold: 2 } })],
    ["tinker.gspo", spec({ name: "tinker.gspo", settings: { clip_low_threshold: 0.5, clip_high_threshold: 2 } })],
    ["tinker.dro", spec({ name: "tinker.dro", settings: { beta: 0.1 } })],
    [
      "cross_entropy",
      spec({ name: "cross_entropy" }),
      { weights: Float32Array.from(ROWS.flat(), (_, t) => (t % 4) - 1.5) },
    ],
    [
      "vanilla, which the service lacks",
      spec({ name: "vanilla", settings: { clip_ratio_low: 0.2, clip_ratio_high: 0.3 } }),
    ],
    ["gspo, which couples a sequence's tokens", spec({ name: "gspo", loss_agg_mode: "seq-mean-token-mean" })],
    ["ppo at temperature 0.7", spec({ temperature: 0.7 })],
    ["vanilla at temperature 1.3", spec({ name: "vanilla", temperature: 1.3 })],
    ["ppo with a KL term", spec({ kl: { type: "low_var_kl", coef: 0.3 } }), { refLogprobs: REFERENCE }],
  ];

  for (const [name, loss, more] of cases) test(name, () => compare(loss, more));

  async function compare(loss: LossSpec, more?: Partial<TrainBatch>) {
    const [local, remote] = [await openLocal(), await connect({ fuse: false })];
    const batch = batchOf(more);
    for (let step = 0; step < 3; step++) {
      const [here, there] = [await local.forwardBackward(batch, loss), await remote.forwardBackward(batch, loss)];
      for (const name of ["actor/loss", "actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/kl_loss"])
        if (here[name] !== undefined) expect(there[name], `${name} of step ${step}`).toBeCloseTo(here[name], 4);
      const [a, b] = [await local.optimStep(ADAM), await remote.optimStep(ADAM)];
      expect(b["actor/grad_norm"]! / a["actor/grad_norm"]!, `gradient of step ${step}`).toBeCloseTo(1, 3);
    }
    const [here, there] = await Promise.all(
      [local, remote].map((backend) => backend.logprobs(batch, { policy: "current", temperature: loss.temperature })),
    );
    expect(remote.weightVersion).toBe(3);
    expect(largestGap(here!.logprobs, there!.logprobs)).toBeLessThan(2e-4);
    local.close();
    remote.close();
  }

  test.each([
    ["ppo", "token-mean"],
    ["importance_sampling", "token-sum"],
    ["vanilla", "seq-mean-token-mean"],
  ])("log-probs and the gradient of %s at temperature 0.7", async (name, loss_agg_mode) => {
    const [local, remote] = [await openLocal(), await connect()];
    const batch = batchOf();
    const loss = spec({ name, loss_agg_mode, temperature: 0.7 });
    const gap = async (temperature: number) => {
      const of = { policy: "current", temperature } as const;
      const [here, there] = [await local.logprobs(batch, of), await remote.logprobs(batch, of)];
      return largestGap(here.logprobs, there.logprobs);
    };
    expect(await gap(0.7)).toBeLessThan(1e-5);
    for (const backend of [local, remote]) await backend.forwardBackward(batch, loss);
    // With a large epsilon the step is nearly proportional to the gradient.
    const params = { ...ADAM, learning_rate: 1, eps: 1, grad_clip_norm: 0 };
    const [a, b] = [await local.optimStep(params), await remote.optimStep(params)];
    expect(Math.abs(b["actor/grad_norm"]! / a["actor/grad_norm"]! - 1)).toBeLessThan(1e-5);
    expect(await gap(0.7)).toBeLessThan(1e-5);
    expect(await gap(1)).toBeLessThan(1e-5);
    const of = { policy: "current" } as const;
    const [cold, warm] = [
      await remote.logprobs(batch, { ...of, temperature: 0.7 }),
      await remote.logprobs(batch, { ...of, temperature: 1 }),
    ];
    expect(largestGap(cold.logprobs, warm.logprobs)).toBeGreaterThan(0.1);
    local.close();
    remote.close();
  });

  test("fused steps equal single calls", async () => {
    const [single, fused] = [await connect(), await connect({ fuse: true })];
    const batch = batchOf();
    const calls = [
      { batch, loss: spec({}) },
      { batch, loss: spec({ name: "vanilla" }) },
    ];
    const one = [];
    for (const { batch, loss } of calls) one.push(await single.forwardBackward(batch, loss));
    one.push(await single.optimStep(ADAM));
    expect(await fused.forwardBackwardAndOptimStep?.(calls, ADAM)).toEqual(one);
    expect(single.forwardBackwardAndOptimStep).toBeUndefined();
    single.close();
    fused.close();
  });
});

describe.skipIf(!hasShared)("the tinker backend", () => {
  test("samples from the current weights, with log-probs that equal the trainer's", async () => {
    const backend = await connect();
    const params = { max_tokens: 12, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
    const requests = [3, 4, 5].map((seed) => ({ prompt_ids: [1, 403], params, seed }));
    const before = await backend.sample(requests);
    expect(await backend.sample(requests)).toEqual(before);
    await backend.forwardBackward(batchOf(), spec({}));
    await backend.optimStep({ ...ADAM, learning_rate: 0.3 });
    const after = await backend.sample(requests);
    expect(after.map(({ weight_version }) => weight_version)).toEqual([1, 1, 1]);
    expect(after).not.toEqual(before.map((it) => ({ ...it, weight_version: 1 })));
    for (const { tokens, logprobs } of after) {
      const row = Uint32Array.of(1, 403, ...tokens);
      const rows = { tokens: row, offsets: Uint32Array.of(0, row.length) };
      const trainer = await backend.logprobs(rows, { policy: "current", temperature: 1 });
      expect(largestGap(trainer.logprobs.subarray(2), Float32Array.from(logprobs))).toBeLessThan(1e-4);
    }
    backend.close();
  });

  test("leaves room for the token that the service samples after a row to compute its log-probs", async () => {
    const backend = await connect();
    const { contextLength } = backend.model;
    const row = Uint32Array.from({ length: contextLength }, (_, t) => (t === 0 ? 1 : 300 + (t % 100)));
    const rows = { tokens: row, offsets: Uint32Array.of(0, contextLength) };
    const [current, reference] = await Promise.all(
      (["current", "reference"] as const).map((policy) => backend.logprobs(rows, { policy, temperature: 1 })),
    );
    // A new adapter is the identity.
    expect(largestGap(current!.logprobs, reference!.logprobs)).toBeLessThan(1e-4);
    expect(current!.logprobs.at(-1)).toBeLessThan(0);
    backend.close();
  });

  test("samples from published weights while training continues", async () => {
    const backend = await connect();
    const params = { max_tokens: 6, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
    const sample = (weights: "current" | "published") =>
      backend.sample([{ prompt_ids: [1, 403], params, seed: 3 }], { weights });
    await backend.publishWeights();
    const before = await sample("published");
    expect(await sample("current")).toEqual(before);
    await backend.forwardBackward(batchOf(), spec({}));
    await backend.optimStep({ ...ADAM, learning_rate: 0.3 });
    expect(await sample("published")).toEqual(before);
    const trained = await sample("current");
    expect(trained[0]!.weight_version).toBe(1);
    expect(trained[0]!.logprobs).not.toEqual(before[0]!.logprobs);
    await backend.publishWeights();
    expect(await sample("published")).toEqual(trained);
    backend.close();
  });

  test("keeps the base model as the reference", async () => {
    const [backend, local] = [await connect(), await openLocal()];
    const batch = batchOf();
    await backend.forwardBackward(batch, spec({}));
    await backend.optimStep(ADAM);
    const { logprobs } = await backend.logprobs(batch, { policy: "reference", temperature: 1 });
    // A new adapter is the identity.
    const base = await local.logprobs(batch, { policy: "current", temperature: 1 });
    expect(largestGap(logprobs, base.logprobs)).toBeLessThan(1e-4);
    backend.close();
    local.close();
  });

  test("resumes from a checkpoint as if it had never stopped", async () => {
    const [whole, first] = [await connect(), await connect()];
    const step = async (backend: TinkerBackend) => {
      await backend.forwardBackward(batchOf(), spec({}));
      return backend.optimStep(ADAM);
    };
    for (let i = 0; i < 2; i++) await step(whole);
    await step(first);
    const dir = join(root, "global_step_1");
    await first.save(dir);
    first.close();
    const second = await connect();
    await second.load(dir);
    expect(second.weightVersion).toBe(1);
    await step(second);
    const [a, b] = await Promise.all(
      [whole, second].map((backend) => backend.logprobs(batchOf(), { policy: "current", temperature: 1 })),
    );
    expect(b).toEqual(a);
    second.close();
    whole.close();
  });

  test("starts from a checkpoint on the service, or from the last one of a run, and loads no other", async () => {
    const first = await connect();
    await first.forwardBackward(batchOf(), spec({}));
    await first.optimStep(ADAM);
    const dir = join(root, "begun");
    await first.save(dir);
    const { weights, model_id } = JSON.parse(readFileSync(join(dir, "tinker.json"), "utf8"));
    const wanted = await first.logprobs(batchOf(), { policy: "current", temperature: 1 });
    let loads = 0;
    const counting: TinkerOptions["fetch"] = (url, init) => {
      if (url.endsWith("/load_weights")) loads++;
      return fetchHere(url, init);
    };
    for (const [i, startFrom] of [weights, model_id, "tinker://none/weights/none"].entries()) {
      const next = await connect({ startFrom, fetch: counting });
      if (i === 2) await next.load(dir);
      const both = [1, 2].map(() => next.logprobs(batchOf(), { policy: "current", temperature: 1 }));
      expect(await Promise.all(both)).toEqual([wanted, wanted]);
      expect(loads).toBe(i + 1);
      next.close();
    }
    const lost = await connect({ startFrom: "tinker://none/weights/none" });
    await expect(lost.save(dir)).rejects.toThrow(/none/);
    lost.close();
    first.close();
  });

  test("splits a long batch into requests of the service's size", async () => {
    let posts = 0;
    const counting: TinkerOptions["fetch"] = async (url, init) => {
      if (url.endsWith("/forward_backward")) posts++;
      const response = await fetchHere(url, init);
      if (!url.endsWith("/client/config")) return response;
      return Response.json({ ...((await response.json()) as object), fwdbwd_max_chunk_len: 2 });
    };
    const [cut, whole] = [await connect({ fetch: counting }), await connect()];
    const loss = spec({});
    const [a, b] = [await cut.forwardBackward(batchOf(), loss), await whole.forwardBackward(batchOf(), loss)];
    expect(posts).toBe(2);
    for (const name of ["actor/loss", "train/loss/sum"]) expect(a[name]).toBeCloseTo(b[name]!, 5);
    expect((await cut.optimStep(ADAM))["actor/grad_norm"]).toBeCloseTo(
      (await whole.optimStep(ADAM))["actor/grad_norm"]!,
      4,
    );
    cut.close();
    whole.close();
  });

  test.each([
    ["a temperature outside the server's limits", spec({ temperature: 1e-5 }), "must be a number in [0.0001, 10000]"],
    ["an entropy bonus", spec({ entropy_coeff: 0.1 }), "entropy_coeff=0"],
  ])("refuses %s", async (_, loss, advice) => {
    const backend = await connect();
    await expect(backend.forwardBackward(batchOf(), loss)).rejects.toThrow(advice);
    backend.close();
  });

  test("can be aborted while it opens; once open it can still save", async () => {
    const stop = new AbortController();
    const away: TinkerOptions["fetch"] = async () => {
      queueMicrotask(() => stop.abort(new Error("Ctrl-C")));
      throw new TypeError("fetch failed");
    };
    await expect(connect({ fetch: away, openSignal: stop.signal })).rejects.toThrow("Ctrl-C");
    const later = new AbortController();
    const backend = await connect({ openSignal: later.signal });
    later.abort(new Error("Ctrl-C"));
    await backend.save(join(root, "stopped"));
    backend.close();
  });

  test("names the checkpoint when the service was restarted and no longer has the model", async () => {
    const anew = new TinkerService({
      models: [{ engine: new ToyEngine(), names: ["stories"] }],
      checkpoints: await Checkpoints.open(join(root, "anew")),
    });
    const app = createApp({ service: anew, apiKey: "tml-test" });
    let isAnew = false;
    const backend = await connect({
      fetch: (url, init) => (isAnew ? Promise.resolve(app.fetch(new Request(url, init))) : fetchHere(url, init)),
    });
    await backend.save(join(root, "known"));
    isAnew = true;
    const told = /404: .*[^.]\. The last checkpoint is tinker:\/\/.*weights\/step_0: .*resume_mode=auto/s;
    await expect(backend.forwardBackward(batchOf(), spec({}))).rejects.toThrow(told);
    await expect(backend.logprobs(batchOf(), { policy: "reference", temperature: 1 })).rejects.toThrow(told);
    backend.close();
    anew.close();
  });

  test("names the checkpoint when the service refuses", async () => {
    const backend = await connect();
    const far = batchOf({ tokens: Uint32Array.from(ROWS.flat(), () => 100_000) });
    await expect(backend.forwardBackward(far, spec({}))).rejects.toThrow(/100000.*No checkpoint has been saved/s);
    await expect(connect({ apiKey: "tml-other" })).rejects.toThrow(/401/);
    await expect(connect({ apiKey: "tml-other" })).rejects.not.toThrow(/tml-other/);
    await expect(connect({ baseModel: "gpt" })).rejects.toThrow(/gpt/);
    backend.close();
  });
});

function largestGap(a: Float32Array, b: Float32Array): number {
  expect(b.length).toBe(a.length);
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i]!)), 0);
}
