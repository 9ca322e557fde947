/** The plan of a run says what it holds, and the run that is opened with it holds that. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import type { SampleRequest, TrainBatch } from "../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { modelConfigJson, parseModelConfig } from "../../../src/engine/model/files/config_json.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { OutOfMemoryError } from "../../../src/leaves/errors.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { adviceFor } from "../../../src/train/backend/local/plan/advice.ts";
import { fitsAtLeast, passSizes } from "../../../src/train/backend/local/plan/choices.ts";
import { fittingOptions } from "../../../src/train/backend/local/plan/fit.ts";
import { type Plan, planRun, planTotals } from "../../../src/train/backend/local/plan/plan.ts";
import type { PlanRequest } from "../../../src/train/backend/local/plan/rehearsal.ts";
import { DEFAULT_SHAPE, type RunShape } from "../../../src/train/backend/local/plan/run_shape.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { publishedConfig } from "../../fixtures/published.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;

/** Wide enough that the buffers are larger than the rounding of their sizes. */
const MODEL: ModelConfig = {
  architecture: "qwen3",
  vocabSize: 2000,
  hiddenSize: 64,
  intermediateSize: 160,
  layers: 3,
  heads: 4,
  kvHeads: 2,
  headDim: 32,
  contextLength: 256,
  rmsNormEps: 1e-6,
  ropeTheta: 10_000,
  tied: true,
  qkNorm: true,
  qkvBias: false,
  eosTokenIds: [],
};
const SHAPE: RunShape = { ...DEFAULT_SHAPE, prompts: 4, groupSize: 4, promptTokens: 16, replyTokens: 48 };
const LORA = { rank: 4 };

const folder = temporaryFolder("plan");
const TARGETS: readonly { readonly name: string; readonly options: LanguageModelOptions }[] = [
  { name: "an adapter", options: { lora: LORA } },
  { name: "an adapter beside a base in 4 bits", options: { lora: LORA, quantization: "nf4", foldAdapter: false } },
  { name: "all weights", options: {} },
];

function request(budget: number, more: Partial<PlanRequest> = {}): PlanRequest {
  return {
    model: { config: MODEL, typeOf: () => "F32" },
    options: { lora: LORA },
    shape: SHAPE,
    info: TYPICAL_GPU,
    budget,
    ...more,
  };
}

async function modelFolder(): Promise<string> {
  const dir = join(folder, "model");
  const device = new CpuDevice();
  await saveLocalCheckpoint(dir, { model: LanguageModel.create(device, MODEL), optimizer: false });
  return dir;
}

/** The whole work of the shape, as a step of a run does it. */
async function runStep(backend: LocalBackend, loss = SHAPE.loss): Promise<void> {
  const longest = SHAPE.promptTokens + SHAPE.replyTokens;
  const params = { temperature: 1, top_p: 1, top_k: -1, max_tokens: SHAPE.replyTokens, stop_token_ids: [] };
  const requests: SampleRequest[] = Array.from({ length: SHAPE.prompts * SHAPE.groupSize }, (_, i) => ({
    prompt_ids: Array.from({ length: SHAPE.promptTokens }, (_, t) => 1 + t + Math.floor(i / SHAPE.groupSize)),
    params,
    seed: i,
  }));
  const sampled = await backend.sample(requests);
  const rows = sampled.map(({ tokens }, i) => [...requests[i]!.prompt_ids, ...tokens]);
  const offsets = Uint32Array.from({ length: rows.length + 1 }, (_, i) => i * longest);
  const batch: TrainBatch = {
    tokens: Uint32Array.from(rows.flat()),
    offsets,
    mask: Uint32Array.from(rows.flatMap((row) => row.map((_, t) => (t < SHAPE.promptTokens ? 0 : 1)))),
    advantages: { level: "row", values: Float32Array.from(rows, (_, i) => (i % 2 ? 1 : -1)) },
  };
  await backend.logprobs(batch, { policy: "current", temperature: 1, mask: batch.mask });
  await backend.forwardBackward(batch, loss);
  await backend.optimStep({
    learning_rate: 1e-3,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0,
    grad_clip_norm: 1,
  });
  // From the second step on, the optimiser's moments are there too.
  await backend.sample(requests);
  await backend.logprobs(batch, { policy: "current", temperature: 1, mask: batch.mask });
}

/** Between what the run needs at least and what it can use: passes, slots or recomputation must be chosen. */
async function tightBudget({ info }: Device, options: LanguageModelOptions): Promise<number> {
  const all = await planRun(request(GIB, { info, options }));
  const least = await planRun(
    request(GIB, {
      info,
      options: { ...options, maxTokensPerPass: 1, gradientCheckpointing: true, cache: { maxSequences: 1 } },
    }),
  );
  return least.peakBytes + Math.floor((all.peakBytes - least.peakBytes) / 8);
}

describe.each(TARGETS)("the plan for training $name", ({ options }) => {
  test.skipIf(!gpuDevice)("is what a run holds, with room and without", async () => {
    const dir = await modelFolder();
    const { info } = gpuDevice!;
    for (const budget of [GIB, await tightBudget(gpuDevice!, options)]) {
      const plan = await planRun(request(budget, { info, options }));
      expect(plan.fits).toBe(true);
      const device = (await WebGpuDevice.open({ memoryBudgetBytes: budget }))!;
      const backend = await LocalBackend.open(dir, { ...options, device, work: SHAPE });
      await runStep(backend);
      const { peak } = device.memory;
      backend.close();
      expect(peak).toBeLessThanOrEqual(budget);
      expect(Math.abs(peak - plan.peakBytes) / peak).toBeLessThan(0.03);
    }
  });

  test.skipIf(!gpuDevice)("is what a run holds that trains with stable_reinforce", async () => {
    const shape = { ...SHAPE, loss: { ...SHAPE.loss, name: "stable_reinforce" } };
    const { info } = gpuDevice!;
    const plan = await planRun(request(GIB, { info, options, shape }));
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: GIB }))!;
    const backend = await LocalBackend.open(await modelFolder(), {
      ...options,
      device,
      work: shape,
      recordStabilityInfo: true,
    });
    await runStep(backend, shape.loss);
    const { peak } = device.memory;
    backend.close();
    expect(Math.abs(peak - plan.peakBytes) / peak).toBeLessThan(0.03);
    const plain = await planRun(request(GIB, { info, options }));
    expect(plan.phases.at(-1)!.peakBytes).toBeGreaterThan(plain.phases.at(-1)!.peakBytes);
  });

  test("chooses less where there is less, never more, and the same each time", async () => {
    const plans: Plan[] = [];
    for (let mib = 3; mib <= 30; mib += 2) plans.push(await planRun(request(mib * MIB, { options })));
    const fitting = plans.filter(({ fits }) => fits);
    expect(fitting.length).toBeGreaterThan(5);
    expect(plans.slice(plans.indexOf(fitting[0]!)).every(({ fits }) => fits)).toBe(true);
    for (const [i, plan] of fitting.entries()) {
      const before = fitting[i - 1] ?? plan;
      expect(plan.peakBytes).toBeLessThanOrEqual(plan.budget);
      expect(plan.tokensPerPass).toBeGreaterThanOrEqual(before.tokensPerPass);
      expect(plan.slots).toBeGreaterThanOrEqual(before.slots);
    }
    expect(new Set(fitting.map(({ tokensPerPass }) => tokensPerPass)).size).toBeGreaterThan(2);
    expect(new Set(fitting.map(({ gradientCheckpointing }) => gradientCheckpointing)).size).toBe(2);
    expect(await planRun(request(fitting[0]!.budget, { options }))).toEqual(fitting[0]);
  });
});

describe("a plan", () => {
  test("adds up: the parts of each phase are its peak", async () => {
    for (const { phases, peakBytes } of [await planRun(request(GIB)), await planRun(request(MIB))]) {
      expect(phases.map(({ name }) => name)).toEqual(["load", "sampling", "scoring", "training"]);
      for (const { parts, peakBytes } of phases)
        expect(Object.values(parts).reduce((sum, bytes) => sum + bytes, 0)).toBe(peakBytes);
      expect(Math.max(...phases.map((it) => it.peakBytes))).toBe(peakBytes);
    }
  });

  test("leaves room for sampling in every other phase where both go on at once", async () => {
    const alone = await planRun(request(GIB));
    const both = await planRun(request(GIB, { shape: { ...SHAPE, overlaps: true } }));
    const cacheIn = (plan: Plan, phase: number) => plan.phases[phase]!.parts.kv_cache ?? 0;
    expect(cacheIn(alone, 3)).toBe(0);
    expect(cacheIn(both, 3)).toBe(cacheIn(both, 1));
    // Rollouts sample from a copy of the adapter.
    expect(both.phases[3]!.parts.adapter).toBe(2 * alone.phases[3]!.parts.adapter!);
  });

  test("holds a copy of the reference where all weights train, and none beside an adapter", async () => {
    const shape = { ...SHAPE, usesReference: true };
    const whole = await planRun(request(GIB, { shape, options: {} }));
    const adapter = await planRun(request(GIB, { shape }));
    expect(whole.phases[3]!.parts.reference_weights).toBeGreaterThan(0);
    expect(adapter.phases[3]!.parts.reference_weights).toBeUndefined();
  });

  test("takes what the settings fix", async () => {
    const options = { maxTokensPerPass: 100, gradientCheckpointing: true, cache: { maxSequences: 3 } };
    const plan = await planRun(request(GIB, { options }));
    expect(plan).toMatchObject({ fits: true, tokensPerPass: 100, gradientCheckpointing: true, slots: 3, options });
  });

  test("without a fit has the smallest passes, and advice that fits", async () => {
    const wanted = request(5 * MIB, { options: {} });
    const plan = await planRun(wanted);
    expect(plan).toMatchObject({ fits: false, gradientCheckpointing: true, tokensPerPass: 64 });
    const advice = await adviceFor(wanted);
    expect(advice).toContain("model.lora_rank=16");
    expect((await planRun({ ...wanted, options: { lora: { rank: 16 } } })).fits).toBe(true);
    expect(await adviceFor(request(MIB))).toEqual([]);
  });
});

test("a run that only samples and scores has no training, and its totals are those of its last phase", async () => {
  const scored = await planRun(request(GIB, { shape: { ...SHAPE, isTrained: false }, options: { frozen: true } }));
  expect(scored.phases.map(({ name }) => name)).toEqual(["load", "sampling", "scoring"]);
  expect(planTotals(scored)).toMatchObject({ adapter: 0, optimizer: 0 });
  const shape = { ...SHAPE, usesReference: true, overlaps: true };
  for (const plan of [await planRun(request(GIB, { shape, options: {} })), await planRun(request(GIB))]) {
    const [, sampling, , training] = plan.phases.map(({ parts }) => parts);
    const of = (...names: string[]) => names.reduce((sum, name) => sum + (training![name] ?? 0), 0);
    expect(planTotals(plan)).toEqual({
      weights: of("weights", "folded_weights", "reference_weights", "published_weights"),
      adapter: of("adapter"),
      optimizer: of("gradients", "moments"),
      kv: sampling!.kv_cache,
    });
  }
  const copies = await planRun(request(GIB, { shape, options: {} }));
  const { weights, reference_weights: reference, published_weights: published } = copies.phases[3]!.parts;
  expect(planTotals(copies).weights).toBe(weights! + reference! + published!);
});

describe("advice", () => {
  const wanted = request(5 * MIB, { options: {} });

  test("names no setting that what is opened fixes", async () => {
    const free = await adviceFor(wanted);
    expect(free).toContain("model.lora_rank=16");
    const fixed = await adviceFor({ ...wanted, fixedSettings: ["model.lora_rank"] });
    expect(fixed).toEqual(free.filter((set) => !set.includes("model.lora_rank")));
    expect(await adviceFor({ ...wanted, fixedSettings: "all" })).toEqual([]);
  });

  test("of a rank leaves that of a checkpoint alone", async () => {
    const ranked = { ...request(3.6 * MIB, { options: { lora: { rank: 64 }, quantization: "nf4" as const } }) };
    expect(await adviceFor(ranked)).toContain("model.lora_rank=8");
    expect(String(await adviceFor({ ...ranked, fixedSettings: ["model.lora_rank"] }))).not.toContain("lora_rank");
  });

  test("leaves to the plan what the settings fold, and is tried without a folded copy", async () => {
    const { info } = new CpuDevice();
    const fits = async (budget: number, foldAdapter: boolean | "auto") =>
      fitsAtLeast(request(budget, { info, options: { lora: LORA, foldAdapter } }));
    const budgets = Array.from({ length: 24 }, (_, i) => (2 + i / 2) * MIB);
    const short = await firstWhere(budgets, async (it) => (await fits(it, "auto")) && !(await fits(it, true)));
    expect(await fits(short, false)).toBe(true);
    expect(await adviceFor(request(short, { info, options: { lora: LORA, foldAdapter: true } }))).toContain(
      "model.fold_adapter=auto",
    );
  });
});

async function firstWhere(values: readonly number[], holds: (value: number) => Promise<boolean>): Promise<number> {
  for (const value of values) if (await holds(value)) return value;
  throw new Error("there is no such value");
}

describe("an adapter that is folded by default", () => {
  const { info } = new CpuDevice();
  const planned = (budget: number, foldAdapter?: boolean | "auto") =>
    planRun(request(budget, { info, options: { lora: LORA, foldAdapter } }));
  const holdsCopy = ({ phases }: Plan) => phases.some(({ parts }) => parts.folded_weights !== undefined);

  test("is folded where there is room, and on software adapters only", async () => {
    const [plan, given] = [await planned(GIB), await planned(GIB, "auto")];
    expect(holdsCopy(plan)).toBe(true);
    expect(given).toEqual({ ...plan, options: { ...plan.options, foldAdapter: "auto" } });
    expect(holdsCopy(await planned(GIB, false))).toBe(false);
    expect(holdsCopy(await planRun(request(GIB)))).toBe(false);
  });

  test("lies beside the base where a copy would leave less than enough, and is folded from some budget on", async () => {
    const plans: Plan[] = [];
    for (let mib = 3; mib <= 30; mib += 3) plans.push(await planned(mib * MIB));
    const first = plans.findIndex(holdsCopy);
    expect(plans.map(holdsCopy)).toEqual(plans.map((_, i) => i >= first));
    expect(plans.slice(0, first).filter(({ fits }) => fits).length).toBeGreaterThan(1);
    for (const plan of plans.slice(0, first)) expect(plan).toEqual(await planned(plan.budget, false));
    for (const { fits, tokensPerPass, slots } of plans.slice(first))
      expect({ fits, slots, isEnough: tokensPerPass >= 16 * 64 }).toEqual({ fits: true, slots: 16, isEnough: true });
  });

  test("is folded at any price where the settings say so", async () => {
    const short = await firstWhere(
      Array.from({ length: 28 }, (_, i) => (3 + i) * MIB),
      async (budget) => {
        const plan = await planned(budget);
        return plan.fits && !holdsCopy(plan);
      },
    );
    expect(holdsCopy(await planned(short, true))).toBe(true);
  });
});

test("candidate sizes of a pass are whole numbers of longest sequences", () => {
  expect(passSizes(900, 2048)).toEqual([900, 1800, 2048]);
  expect(passSizes(512, 2048)).toEqual([512, 1024, 1536, 2048]);
  expect(passSizes(64, 64)).toEqual([64]);
  expect(passSizes(5, 3)).toEqual([5]);
});

test("work that is not known limits the bytes of the cache, not the number of sequences", async () => {
  const device = new CpuDevice({ memoryBudgetBytes: GIB });
  const { cache } = await fittingOptions(device, request(0), { isExact: false });
  expect(cache!.bytes).toBeGreaterThan(0);
  expect(cache!.maxSequences).toBeUndefined();
  const known = await fittingOptions(device, request(0));
  expect(known.cache).toMatchObject({ maxSequences: 16 });
});

test("a model that cannot fit is refused before its weights are read", async () => {
  const config = parseModelConfig(publishedConfig("SmolLM2-135M"));
  const dir = join(folder, "large");
  mkdirSync(dir);
  writeFileSync(join(dir, "config.json"), JSON.stringify(modelConfigJson(config)));
  const device = new CpuDevice({ memoryBudgetBytes: 300 * MIB });
  // Its weights are not even there.
  await expect(LocalBackend.open(dir, { device })).rejects.toThrow(/model.safetensors/);
  const work = { model: { config, typeOf: () => undefined }, options: {}, shape: DEFAULT_SHAPE };
  const refused: unknown = await fittingOptions(device, work).catch((error) => error);
  expect(refused).toBeInstanceOf(OutOfMemoryError);
  expect(String(refused)).toMatch(/budget of 0.29 GiB: training needs at least .* GiB \(.*\)\. /);
  expect(device.memory.peak).toBe(0);
});

test("passes of a fixed size are planned with the tokens that a batch has", async () => {
  const whole = SHAPE.prompts * SHAPE.groupSize * (SHAPE.promptTokens + SHAPE.replyTokens);
  const options = (maxTokensPerPass: number) => ({ lora: LORA, maxTokensPerPass, gradientCheckpointing: false });
  const { peakBytes } = await planRun(request(GIB, { options: options(whole) }));
  const budget = 1.5 * peakBytes;
  expect((await planRun(request(budget, { options: options(whole) }))).fits).toBe(true);
  expect((await planRun(request(budget, { options: options(8 * whole) }))).fits).toBe(true);
});

test("rollout.max_num_seqs is the most: advice holds where fewer sequences fit", async () => {
  const fits = (budget: number, maxSequences: number) =>
    fitsAtLeast(request(budget, { options: { lora: LORA, cache: { maxSequences } } }));
  const budgets = Array.from({ length: 24 }, (_, i) => (2 + i / 4) * MIB);
  const alone = await Promise.all(budgets.map((budget) => fits(budget, 1)));
  expect(new Set(alone).size).toBe(2);
  expect(await Promise.all(budgets.map((budget) => fits(budget, 16)))).toEqual(alone);
});
