/** The loss stable_reinforce from the client: which recorded sequences a row comes from, what is sent, and what the service makes of it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import type {
  Backend,
  LossSpec,
  OptimParams,
  SampledSequence,
  TrainBatch,
} from "../../../src/engine/contract/backend.ts";
import type { LossRows, SampledTargets } from "../../../src/engine/contract/engine.ts";
import type { LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { loraTargets } from "../../../src/engine/model/lora.ts";
import { createApp } from "../../../src/serve/tinker/app.ts";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import { decodeForwardBackward } from "../../../src/serve/tinker/protocol/forward_backward.ts";
import { TinkerService } from "../../../src/serve/tinker/service.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { SampledRecords } from "../../../src/train/backend/stable/sampled_records.ts";
import { TinkerBackend, type TinkerOptions } from "../../../src/train/backend/tinker/backend.ts";
import { datumsOf } from "../../../src/train/backend/tinker/datums.ts";
import { encodeForwardBackward } from "../../../src/train/backend/tinker/protobuf_messages.ts";
import { stableLoss } from "../../../src/train/backend/tinker/stable_loss.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";

const LOSS: LossSpec = {
  name: "stable_reinforce",
  loss_agg_mode: "token-mean",
  settings: { kl_coeff: 0 },
  entropy_coeff: 0,
  temperature: 1,
};

/** Two turns: [1, 2] -> [3, 4], then a 5 of the environment -> [6]. */
function twoTurns(): SampledRecords {
  const records = new SampledRecords();
  records.add({ sequenceId: "a", prompt: [1, 2], tokens: [3, 4], logprobs: [-1, -2], temperature: 1 });
  records.add({ sequenceId: "b", prompt: [1, 2, 3, 4, 5], tokens: [6], logprobs: [-3], temperature: 1 });
  return records;
}

const row = (tokens: number[], mask: number[], more: { logprobs?: number[]; temperature?: number } = {}) => ({
  tokens: Uint32Array.from(tokens),
  mask: Uint32Array.from(mask),
  ...(more.logprobs && { logprobs: Float32Array.from(more.logprobs) }),
  temperature: more.temperature ?? 1,
  row: 7,
});

const text = (spans: ReturnType<SampledRecords["spansOf"]>) =>
  spans.map(({ kind, sequenceId, offset, length }) => `${kind} ${sequenceId} ${offset}+${length}`);

describe("a row's recorded sequences", () => {
  test.each<[string, number[], number[], string[]]>([
    ["one turn", [1, 2, 3, 4], [0, 0, 1, 1], ["prompt a 0+2", "sampled a 0+2"]],
    [
      "two turns, with what the environment said between",
      [1, 2, 3, 4, 5, 6],
      [0, 0, 1, 1, 0, 1],
      ["prompt a 0+2", "sampled a 0+2", "prompt b 4+1", "sampled b 0+1"],
    ],
    ["a cut reply", [1, 2, 3], [0, 0, 1], ["prompt a 0+2", "sampled a 0+1"]],
    ["tokens behind the last sampled one", [1, 2, 3, 4, 9, 9], [0, 0, 1, 1, 0, 0], ["prompt a 0+2", "sampled a 0+2"]],
    ["a first turn that is not trained", [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1], ["prompt b 0+5", "sampled b 0+1"]],
    ["a token in a turn that is not trained", [1, 2, 3, 4], [0, 0, 0, 1], ["prompt a 0+2", "sampled a 0+2"]],
    ["no trained token", [1, 2, 3, 4], [0, 0, 0, 0], []],
  ])("%s", (_, tokens, mask, expected) => {
    expect(text(twoTurns().spansOf(row(tokens, mask)))).toEqual(expected);
  });

  test("of several with the same tokens is the one with the sampler's log-probs, else the newest", () => {
    const records = twoTurns();
    records.add({ sequenceId: "c", prompt: [1, 2], tokens: [3, 4], logprobs: [-1.5, -2.5], temperature: 1 });
    records.add({ sequenceId: "d", prompt: [1, 2], tokens: [3], logprobs: [-1], temperature: 1 });
    const of = (logprobs?: number[]) =>
      text(records.spansOf(row([1, 2, 3, 4], [0, 0, 1, 1], { ...(logprobs && { logprobs }) })))[1];
    expect(of([0, 0, -1, -2])).toBe("sampled a 0+2");
    expect(of([0, 0, -1.5, -2.5])).toBe("sampled c 0+2");
    expect(of()).toBe("sampled c 0+2");
  });

  test.each<[string, number[], number[], number]>([
    ["another token", [1, 2, 9], [0, 0, 1], 1],
    ["another prompt", [1, 9, 3], [0, 0, 1], 1],
    ["more tokens than were sampled", [1, 2, 3, 4, 9], [0, 0, 1, 1, 1], 1],
    ["another temperature", [1, 2, 3, 4], [0, 0, 1, 1], 0.7],
  ])("%s is not among them", (_, tokens, mask, temperature) => {
    expect(() => twoTurns().spansOf(row(tokens, mask, { temperature }))).toThrow(
      /^Cannot train on row 7 with stable_reinforce: token \d \(\d\) is trained on, and no record has it as sampled there .* \(rllm\.algorithm\.loss_fn\)/,
    );
  });

  test("beyond the room for them make the oldest go", () => {
    const records = new SampledRecords({ mostBytes: 40 });
    for (const [i, sequenceId] of ["a", "b", "c"].entries())
      records.add({ sequenceId, prompt: [1, 2], tokens: [3 + i], logprobs: [-1], temperature: 1 });
    expect(() => records.spansOf(row([1, 2, 3], [0, 0, 1]))).toThrow("no record has it");
    expect(text(records.spansOf(row([1, 2, 5], [0, 0, 1])))).toEqual(["prompt c 0+2", "sampled c 0+1"]);
  });
});

/** The first row trains on both turns, the second on nothing, the third has tokens behind its sample. */
const BATCH: TrainBatch = {
  offsets: Uint32Array.of(0, 6, 8, 13),
  tokens: Uint32Array.of(1, 2, 3, 4, 5, 6, 1, 2, 1, 2, 3, 9, 9),
  mask: Uint32Array.of(0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0),
  advantages: perRow(4, 1, -8),
};

describe("a batch", () => {
  test("is sent up to the last sampled token of each row that trains, with weighted advantages", () => {
    const { rows, places, loss } = stableLoss(BATCH, { spec: LOSS, records: twoTurns() });
    expect([...rows.offsets]).toEqual([0, 6, 9]);
    expect([...rows.tokens]).toEqual([1, 2, 3, 4, 5, 6, 1, 2, 3]);
    expect([...places]).toEqual([0, 1, 2, 3, 4, 5, 8, 9, 10]);
    expect([...loss.inputs.advantages!]).toEqual([0, 0, 1, 1, 0, 1, 0, 0, -2]);
    expect(loss.config).toEqual({});
  });

  test("has its provenance in the request, for inputs and for targets", async () => {
    const { rows, loss } = stableLoss(BATCH, { spec: { ...LOSS, temperature: 1 }, records: twoTurns() });
    const data = datumsOf(rows, loss);
    const request = { modelId: "m", seqId: 1, data, lossFn: loss.lossFn, config: loss.config, forwardOnly: false };
    const message = await decodeForwardBackward(encodeForwardBackward(request));
    expect(message.lossFn).toBe("stable_reinforce");
    const run = (kind: "prompt" | "sampled", sequenceId: string, offset: number, length: number) => ({
      ...{ kind, sequenceId, offset, length },
    });
    expect(message.data.map(({ provenance }) => provenance)).toEqual([
      {
        modelInput: [run("prompt", "a", 0, 2), run("sampled", "a", 0, 2), run("prompt", "b", 4, 1)],
        targets: [
          run("prompt", "a", 1, 1),
          run("sampled", "a", 0, 2),
          run("prompt", "b", 4, 1),
          run("sampled", "b", 0, 1),
        ],
      },
      {
        modelInput: [run("prompt", "a", 0, 2)],
        targets: [run("prompt", "a", 1, 1), run("sampled", "a", 0, 1)],
      },
    ]);
  });

  test("has kl_coeff in the weight of a token, where all have the same", () => {
    const records = twoTurns();
    const config = (loss_agg_mode: string) =>
      stableLoss(BATCH, { spec: { ...LOSS, loss_agg_mode, settings: { kl_coeff: 0.5 } }, records }).loss.config;
    expect(config("token-mean")).toEqual({ kl_coeff: 0.125 });
    expect(config("token-sum")).toEqual({ kl_coeff: 0.5 });
    expect(() => config("seq-mean-token-mean")).toThrow(
      "Cannot train with kl_coeff 0.5 of stable_reinforce and loss_agg_mode seq-mean-token-mean",
    );
  });

  test("sends the mask with a penalty, which applies to trained tokens only", () => {
    const spec = { ...LOSS, loss_agg_mode: "token-sum", settings: { kl_coeff: 0.5 } };
    const mask = Uint32Array.from(BATCH.mask, (trained, t) => (t === 2 ? 0 : trained));
    const { loss, places } = stableLoss({ ...BATCH, mask }, { spec, records: twoTurns() });
    expect([...loss.inputs.mask!]).toEqual([...places].map((place) => mask[place]));
    expect(stableLoss(BATCH, { spec: LOSS, records: twoTurns() }).loss.inputs).not.toHaveProperty("mask");
  });

  test("takes no KL term to a reference", () => {
    const spec = { ...LOSS, kl: { type: "low_var_kl", coef: 0.1 } };
    expect(() => stableLoss(BATCH, { spec, records: twoTurns() })).toThrow("Set rllm.algorithm.kl_beta=0");
  });
});

const FOLDER = sharedPath("models/stories260k");
const LORA = { rank: 4, seed: 5, train_attn: true, train_mlp: true, train_unembed: false };
const ADAM: OptimParams = {
  ...{ learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-3, weight_decay: 0, grad_clip_norm: 0 },
};
/** A step nearly proportional to the gradient, which passes rounding on and does not enlarge it. */
const NEARLY_SGD: OptimParams = { ...ADAM, learning_rate: 0.1, eps: 1 };
const root = mkdtempSync(join(tmpdir(), "grpu-tinker-stable-"));
let engine: LocalEngine;
let service: TinkerService;
let plain: TinkerService;

beforeAll(async () => {
  if (!hasShared) return;
  engine = await LocalEngine.open({ device: await openDevice({ device: "cpu" }), folder: FOLDER });
  const models = [{ engine, names: ["stories"] }];
  service = new TinkerService({
    models,
    checkpoints: await Checkpoints.open(join(root, "a")),
    stableReinforce: "score_centering",
  });
  plain = new TinkerService({ models, checkpoints: await Checkpoints.open(join(root, "b")) });
});

afterAll(async () => {
  await service?.stop();
  await plain?.stop();
  // Closes the engine, which both have.
  service?.close();
  rmSync(root, { recursive: true, force: true });
});

function connect(options: Partial<TinkerOptions> = {}, to: TinkerService = service): Promise<TinkerBackend> {
  const app = createApp({ service: to, apiKey: "tml-test" });
  return TinkerBackend.open({
    baseUrl: "http://localhost",
    apiKey: "tml-test",
    sdkVersion: "0.25.0",
    baseModel: "stories",
    lora: LORA,
    fetch: async (url, init) => app.fetch(new Request(url, init)),
    recordStabilityInfo: true,
    ...options,
  });
}

async function openLocal(options: LanguageModelOptions = {}): Promise<LocalBackend> {
  const lora = { rank: LORA.rank, alpha: 32, targets: loraTargets({ attn: true, mlp: true, unembed: false }) };
  const device = await openDevice({ device: "cpu" });
  return LocalBackend.open(FOLDER, { device, lora, seed: LORA.seed, recordStabilityInfo: true, ...options });
}

const PROMPT = [1, 403, 407];

function sample(backend: Backend, temperature = 1): Promise<SampledSequence[]> {
  const params = { max_tokens: 6, temperature, top_p: 1, top_k: -1, stop_token_ids: [] };
  return backend.sample([3, 4, 5].map((seed) => ({ prompt_ids: PROMPT, params, seed })));
}

/** The samples as rows, each with two tokens behind it that nobody sampled. */
function batchOf(samples: readonly SampledSequence[]): TrainBatch {
  const rows = samples.map(({ tokens }) => [...PROMPT, ...tokens, 9, 9]);
  const offsets = [0, ...rows.map((_, i) => rows.slice(0, i + 1).flat().length)];
  return {
    tokens: Uint32Array.from(rows.flat()),
    offsets: Uint32Array.from(offsets),
    mask: Uint32Array.from(samples.flatMap(({ tokens }) => [0, 0, 0, ...tokens.map(() => 1), 0, 0])),
    rolloutLogprobs: Float32Array.from(samples.flatMap(({ logprobs }) => [0, 0, 0, ...logprobs, 0, 0])),
    advantages: perRow(1.5, -0.5, 0.25),
  };
}

/** The same rows for the engine: all targets, and what the policy that sampled them had as most likely tokens. */
function engineRows(batch: TrainBatch, top: readonly (readonly { token: number; logprob: number }[])[]): LossRows {
  const starts = [...batch.offsets].slice(0, -1);
  const at: number[] = [];
  const [tokens, targets, advantages, offsets]: number[][] = [[], [], [], [0]];
  const trained = batch.mask.reduce((sum, it) => sum + it, 0);
  for (const [row, start] of starts.entries()) {
    for (let t = start; t < batch.offsets[row + 1]! - 1; t++) {
      if (batch.mask[t + 1]) at.push(targets!.length);
      tokens!.push(batch.tokens[t]!);
      targets!.push(batch.tokens[t + 1]!);
      advantages!.push(batch.mask[t + 1] ? batch.advantages.values[row]! / trained : 0);
    }
    offsets!.push(tokens!.length);
  }
  const sampled: SampledTargets = {
    at: Uint32Array.from(at),
    offsets: Uint32Array.from([0, ...top.map((_, s) => top.slice(0, s + 1).flat().length)]),
    tokens: Uint32Array.from(top.flat(), ({ token }) => token),
    logprobs: Float32Array.from(top.flat(), ({ logprob }) => logprob),
  };
  return {
    tokens: Uint32Array.from(tokens!),
    offsets: Uint32Array.from(offsets!),
    targets: Uint32Array.from(targets!),
    inputs: { advantages: Float32Array.from(advantages!) },
    sampled,
  };
}

describe.skipIf(!hasShared)("stable_reinforce over the wire", () => {
  test.each([
    [1, 0],
    [1, 0.3],
    [0.7, 0],
  ])("equals score_centering of the engine at temperature %d with kl_coeff %d", async (temperature, kl_coeff) => {
    const backend = await connect();
    const batch = batchOf(await sample(backend, temperature));
    const trained = batch.mask.reduce((sum, it) => sum + it, 0);
    // The same policy as a new adapter is: the base model.
    const base = await engine.openPolicy();
    const params = { max_tokens: 6, temperature, top_p: 1, top_k: -1, stop_token_ids: [] };
    const drawn = await base.sample([3, 4, 5].map((seed) => ({ prompt_ids: PROMPT, params, seed, top_logprobs: 20 })));
    expect(drawn.map(({ tokens }) => tokens)).toEqual([...(await sample(backend, temperature))].map((it) => it.tokens));
    const rows = engineRows(
      batch,
      drawn.flatMap((it) => it.top_logprobs!),
    );
    const trainer = await engine.createTrainer({
      ...{ rank: LORA.rank, seed: LORA.seed, trainAttn: true, trainMlp: true, trainUnembed: false },
    });
    for (let step = 0; step < 2; step++) {
      const metrics = await backend.forwardBackward(batch, { ...LOSS, temperature, settings: { kl_coeff } });
      const loss = { name: "score_centering", config: { kl_coeff: kl_coeff / trained }, temperature };
      const there = await trainer.forwardBackward(rows, { loss, forwardOnly: false });
      expect(metrics["actor/loss"]).toBeCloseTo(there.metrics["loss:sum"]!, 5);
      const [a, b] = [await backend.optimStep(ADAM), await trainer.optimStep(ADAM)];
      expect(Math.abs(a["actor/grad_norm"]! / b.grad_norm! - 1)).toBeLessThan(1e-5);
      expect(a["actor/grad_norm"]).toBeGreaterThan(0);
    }
    trainer.release();
    base.release();
    backend.close();
  });

  test.each([
    [1, 0, {}],
    [1, 0.3, { maxTokensPerPass: 1 }],
    [0.7, 0.3, {}],
  ])(
    "is what the local backend computes, at temperature %d with kl_coeff %d and %o",
    async (temperature, kl_coeff, options) => {
      const [there, here] = [await connect(), await openLocal(options)];
      const spec = { ...LOSS, temperature, settings: { kl_coeff } };
      for (let step = 0; step < 3; step++) {
        const [theirs, ours] = [await sample(there, temperature), await sample(here, temperature)];
        expect(ours.map(({ tokens }) => tokens)).toEqual(theirs.map(({ tokens }) => tokens));
        const a = await there.forwardBackward(batchOf(theirs), spec);
        const b = await here.forwardBackward(batchOf(ours), spec);
        expect(Math.abs(a["actor/loss"]! - b["actor/loss"]!)).toBeLessThan(1e-5);
        const [c, d] = [await there.optimStep(NEARLY_SGD), await here.optimStep(NEARLY_SGD)];
        // Absolute: the second step of these leaves a gradient a tenth as large.
        expect(Math.abs(c["actor/grad_norm"]! - d["actor/grad_norm"]!)).toBeLessThan(2e-6);
        expect(d["actor/grad_norm"]).toBeGreaterThan(0);
      }
      const rows = batchOf(await sample(there, temperature));
      const asked = { policy: "current", temperature: 1, mask: rows.mask } as const;
      const [after, ownAfter] = [await there.logprobs(rows, asked), await here.logprobs(rows, asked)];
      for (const [t, trained] of rows.mask.entries())
        if (trained) expect(Math.abs(after.logprobs[t]! - ownAfter.logprobs[t]!)).toBeLessThan(1e-5);
      there.close();
      here.close();
    },
  );

  test("fails for rows that nobody sampled here, before anything is sent", async () => {
    const backend = await connect();
    const batch = batchOf(await sample(backend));
    const other = { ...batch, tokens: batch.tokens.map((token, t) => (t === 3 ? token + 1 : token)) };
    await expect(backend.forwardBackward(other, LOSS)).rejects.toThrow("Cannot train on row 0 with stable_reinforce");
    expect(await backend.forwardBackward(batch, LOSS)).toMatchObject({ "actor/loss": expect.any(Number) });
    backend.close();
  });

  test("does not record what is drawn from a part of the distribution, or greedily", async () => {
    const backend = await connect();
    const before = service.stability.recorded.size;
    const params = { max_tokens: 2, temperature: 1, top_p: 0.9, top_k: -1, stop_token_ids: [] };
    const request = { prompt_ids: PROMPT, params, seed: 1 };
    const [nucleus] = await backend.sample([request]);
    const [greedy] = await backend.sample([{ ...request, params: { ...params, top_p: 1, temperature: 0 } }]);
    expect(service.stability.recorded.size).toBe(before);
    for (const drawn of [nucleus!, greedy!]) {
      const batch = { ...batchOf([drawn]), advantages: perRow(1) };
      await expect(backend.forwardBackward(batch, LOSS)).rejects.toThrow("no record has it");
    }
    backend.close();
  });

  test("does not record what is drawn for validation", async () => {
    const backend = await connect();
    const before = service.stability.recorded.size;
    const params = { max_tokens: 2, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] };
    const request = { prompt_ids: PROMPT, params, seed: 1 };
    await backend.sample([{ ...request, mayTrain: false }]);
    expect(service.stability.recorded.size).toBe(before);
    await backend.sample([request]);
    expect(service.stability.recorded.size).toBe(before + 1);
    backend.close();
  });

  test("is refused by a server without a method, at the first sample", async () => {
    const backend = await connect({}, plain);
    await expect(sample(backend)).rejects.toThrow("--stable-reinforce score_centering");
    backend.close();
  });

  test("cannot be chosen with JSON", async () => {
    await expect(connect({ wire: "json" })).rejects.toThrow("Set tinker_wire=protobuf");
  });

  test("needs a backend that records", async () => {
    const backend = await connect({ recordStabilityInfo: false });
    const batch = batchOf(await sample(backend));
    await expect(backend.forwardBackward(batch, LOSS)).rejects.toThrow("nothing was recorded");
    backend.close();
  });
});
