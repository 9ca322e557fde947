/**
 * A row's tokens and log-probs have the same bits alone and in any batch, through prefill, decoding, scoring and
 * training, in every family of kernels. A failure counts the values whose bits differ, by stage.
 */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device, DeviceInfo } from "../../../src/engine/compute/device.ts";
import type { SampledSequence, SampleRequest } from "../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { LanguageModel, type PassLoss, type PassOutputs } from "../../../src/engine/model/language_model.ts";
import { changed, narrowDevice } from "../../fixtures/changed_device.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { MODEL_NAMES, modelFolder, pack } from "../../fixtures/golden_model.ts";
import { floats, uniform } from "../../fixtures/numbers.ts";
import { hasShared } from "../../fixtures/shared.ts";

const LORA = { rank: 4, alpha: 8, targets: ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"] };
const ADAPTERS = [
  ["", {}],
  [", LoRA", { lora: LORA }],
  [", LoRA beside", { lora: { ...LORA, rank: 3, targets: [...LORA.targets, "lm_head"] }, foldAdapter: false }],
] as const;
/** All matrices of a layer: the products of few rows on a GPU add what it does. */
const WHOLE = { ...LORA, targets: [...LORA.targets, "k_proj", "up_proj"] };
/** Not a power of two, and its inverse is not exact. */
const TEMPERATURE = 0.7;

interface Scale {
  readonly companies: number;
  /** Batch sizes. */
  readonly companions: readonly number[];
  /** Most new tokens per row. */
  readonly tokens: number;
}
/** The claim is of 64 companies: GRPU_COMPANIES=64 draws them, in ten minutes on two cores. */
const COMPANIES = Number(process.env.GRPU_COMPANIES ?? 6);
const FULL: Scale = { companies: COMPANIES, companions: [1, 2, 3, 6, 7, 8, 15, 30, 31, 37, 64], tokens: 20 };
const SMALL: Scale = { companies: COMPANIES, companions: [1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 33], tokens: 4 };
const FEW: Scale = { companies: COMPANIES / 2, companions: [1, 3, 7, 8, 15, 40], tokens: 9 };

const WIDE_SCALE: Scale = { companies: 3, companions: [2, 9, 20], tokens: 4 };

const withInfo = (device: Device, info: Partial<DeviceInfo>) => changed(device, { info: { ...device.info, ...info } });

/** Every family of kernels that this machine runs, and bindings so small that products and tables are cut. */
const VARIANTS: readonly (readonly [string, Device, Scale | undefined])[] = [
  ["cpu", new CpuDevice(), SMALL],
  ...(gpuDevice
    ? ([
        ["webgpu", gpuDevice, FULL],
        ["webgpu, no subgroups", withInfo(gpuDevice, { subgroupSize: 0 }), FEW],
        ["webgpu, tiled", withInfo(gpuDevice, { family: "tiled" }), FEW],
        ["webgpu, small bindings", narrowDevice(gpuDevice, 2 ** 16), FEW],
        ["webgpu, bindings that cut wide products", narrowDevice(gpuDevice, 2 ** 18), undefined],
      ] as const)
    : []),
];

const WIDE: ModelConfig = {
  architecture: "qwen2",
  vocabSize: 515,
  hiddenSize: 384,
  intermediateSize: 512,
  layers: 2,
  heads: 6,
  kvHeads: 2,
  headDim: 64,
  contextLength: 128,
  rmsNormEps: 1e-6,
  ropeTheta: 10_000,
  tied: true,
  qkNorm: false,
  qkvBias: true,
  eosTokenIds: [],
};
const GEMMA: ModelConfig = {
  ...WIDE,
  architecture: "gemma3_text",
  layers: 3,
  qkvBias: false,
  qkNorm: true,
  activation: "gelu_pytorch_tanh",
  unitOffsetNorms: true,
  outputNorms: true,
  embeddingScale: Math.sqrt(384),
  queryPreAttnScalar: 96,
  slidingWindow: 11,
  layerTypes: ["sliding_attention", "full_attention", "sliding_attention"],
  slidingRopeTheta: 1000,
};
/**
 * Wide: few rows take other kernels than many, and heads another attention. Narrow: the chained kernels of a decoding
 * step take it with any number of rows. Then layers that see a window, heads of 256, and layers without rotation.
 */
const MADE: readonly (readonly [string, ModelConfig])[] = [
  ["wide, with biases", WIDE],
  ["Gemma 3, in part with a window", GEMMA],
  ["width 256", { ...WIDE, architecture: "llama", hiddenSize: 256, heads: 8, headDim: 32, qkvBias: false }],
  [
    "windows and heads of 256",
    {
      ...WIDE,
      architecture: "gemma3_text",
      hiddenSize: 128,
      heads: 2,
      kvHeads: 1,
      headDim: 256,
      qkvBias: false,
      qkNorm: true,
      outputNorms: true,
      unitOffsetNorms: true,
      activation: "gelu_pytorch_tanh",
      slidingWindow: 11,
      layerTypes: ["sliding_attention", "full_attention"],
      slidingRopeTheta: 1000,
    },
  ],
  [
    "windows over narrow heads, a layer without rotation",
    {
      ...WIDE,
      architecture: "smollm3",
      hiddenSize: 64,
      heads: 4,
      headDim: 16,
      qkvBias: false,
      slidingWindow: 9,
      layerTypes: ["full_attention", "sliding_attention"],
      layersWithoutRope: [1],
    },
  ],
];

/** The row whose bits are compared, and the other requests of its batch. */
function requestsOf({ vocabSize }: ModelConfig, { tokens, companions }: Scale) {
  const next = uniform(5);
  const whole = (below: number) => Math.floor(next() * below);
  const request = (length: number, params: Partial<SampleRequest["params"]>): SampleRequest => ({
    prompt_ids: Array.from({ length }, () => whole(vocabSize)),
    seed: whole(2 ** 32),
    params: {
      temperature: 1,
      top_p: 1,
      top_k: -1,
      max_tokens: 1 + whole(tokens),
      stop_token_ids: [],
      ...params,
    },
  });
  const own = { temperature: TEMPERATURE, max_tokens: tokens };
  const rows = [request(1, own), request(8, { ...own, top_p: 0.9 }), request(21, { ...own, top_k: 20 })];
  const others = Array.from({ length: 64 }, (_, i) =>
    request(1 + whole(32), { temperature: (i % 3) / 2, top_p: i % 2 ? 1 : 0.8 }),
  );
  const company = (i: number) => {
    const size = companions[whole(companions.length)]!;
    const chosen = Array.from({ length: size }, () => others[whole(others.length)]!);
    const at = whole(size + 1);
    return { requests: [...chosen.slice(0, at), rows[i % rows.length]!, ...chosen.slice(at)], at };
  };
  return { rows, company };
}

/** Number of values whose bits differ, as "n of m"; absent when all are equal. */
class Differences {
  private readonly counts = new Map<string, { differ: number; of: number }>();

  add(stage: string, actual: readonly number[], expected: readonly number[]): void {
    const count = this.counts.get(stage) ?? { differ: 0, of: 0 };
    const [a, b] = [actual, expected].map((values) => new Uint32Array(Float32Array.from(values).buffer));
    count.of += Math.max(a!.length, b!.length);
    for (let i = 0; i < Math.max(a!.length, b!.length); i++) if (a![i] !== b![i]) count.differ++;
    this.counts.set(stage, count);
  }

  get found(): Record<string, string> {
    const differing = [...this.counts].filter(([, { differ }]) => differ > 0);
    return Object.fromEntries(differing.map(([stage, { differ, of }]) => [stage, `${differ} of ${of}`]));
  }
}

const sequenceOf = ({ prompt_ids }: SampleRequest, { tokens }: SampledSequence) => [...prompt_ids, ...tokens];

async function scored(model: LanguageModel, sequences: readonly (readonly number[])[]) {
  const rows = pack(sequences);
  const { logprobs, entropy } = await model.logprobs(rows, { policy: "current", temperature: TEMPERATURE });
  const of = (values: Float32Array, i: number) => [...values.slice(rows.offsets[i]! + 1, rows.offsets[i + 1])];
  return { logprobs: (i: number) => of(logprobs, i), entropies: (i: number) => of(entropy, i) };
}

/** Log-probs of the training pass, of every token except first ones. */
async function trained(model: LanguageModel, sequences: readonly (readonly number[])[]): Promise<number[][]> {
  const rows = pack(sequences);
  const mask = new Uint32Array(rows.tokens.length).fill(1);
  const found: number[][] = [];
  const loss = async (outputs: PassOutputs): Promise<PassLoss> => {
    const { offsets, logprobs } = outputs;
    const length = offsets[offsets.length - 1]!;
    const [values] = await model.device.read([{ buffer: logprobs, type: "f32", length }]);
    for (let i = 0; i + 1 < offsets.length; i++) found.push([...values!.slice(offsets[i], offsets[i + 1])]);
    const slopes = model.device.upload(new Float32Array(length), "slopes");
    return { dlogprobs: slopes, reads: [], release: () => model.device.release(slopes) };
  };
  await model.accumulate({ ...rows, mask }, { temperature: TEMPERATURE, loss });
  return found;
}

async function differences(model: LanguageModel, scale: Scale): Promise<Record<string, string>> {
  const { rows, company } = requestsOf(model.config, scale);
  const found = new Differences();
  const sample = (requests: readonly SampleRequest[]) => model.sample(requests, { weightVersion: 0 });
  const alone = [];
  for (const row of rows) {
    const drawn = (await sample([row]))[0]!;
    const sequence = sequenceOf(row, drawn);
    const score = await scored(model, [sequence]);
    const [training] = await trained(model, [sequence]);
    found.add("sampled against scored", drawn.logprobs, score.logprobs(0).slice(-drawn.tokens.length));
    found.add("scored against trained", score.logprobs(0), training!);
    alone.push({ drawn, logprobs: score.logprobs(0), entropies: score.entropies(0) });
  }
  for (let i = 0; i < scale.companies; i++) {
    const { requests, at } = company(i);
    const { drawn, logprobs, entropies } = alone[i % rows.length]!;
    const together = await sample(requests);
    found.add("tokens drawn", together[at]!.tokens, drawn.tokens);
    found.add("log-probs drawn", together[at]!.logprobs, drawn.logprobs);
    const sequences = requests.map((request, j) => sequenceOf(request, j === at ? drawn : together[j]!));
    const score = await scored(model, sequences);
    found.add("log-probs scored", score.logprobs(at), logprobs);
    found.add("entropies scored", score.entropies(at), entropies);
    if (i % 8 === 0) found.add("log-probs trained", (await trained(model, sequences))[at]!, logprobs);
  }
  return found.found;
}

async function check(model: LanguageModel, scale: Scale): Promise<void> {
  for (const { name, rows, columns } of model.adapter?.values.layout.entries.values() ?? [])
    model.adapter!.values.write(name, floats(rows * columns, rows, 0.1));
  model.refresh();
  expect(await differences(model, scale)).toEqual({});
  model.release();
}

describe.each(VARIANTS)("the same bits on %s:", (what, device, scale) => {
  const stored = MODEL_NAMES.flatMap((name) => ADAPTERS.map(([how, options]) => ({ name, how, options })));
  for (const { name, how, options } of scale ? stored : [])
    test.skipIf(!hasShared)(`a row alone and in ${scale!.companies} companies, ${name}${how}`, async () =>
      check(await LanguageModel.load(device, await modelFolder(name), options), scale!),
    );

  // Their passes exceed small bindings, and `cpu` has one kernel for every width.
  test.skipIf(what.endsWith("small bindings") || what === "cpu").each(MADE)(
    "a row alone and in a few companies, %s",
    async (_, config) => {
      const pieces = { maxBatchedTokens: 16 };
      for (const how of [
        pieces,
        { lora: LORA, foldAdapter: false },
        { lora: LORA, dtype: "bfloat16" as const, ...pieces },
        { lora: WHOLE, dtype: "bfloat16" as const },
        { lora: WHOLE, foldAdapter: false },
      ])
        await check(LanguageModel.create(device, config, { seed: 4, maxTokensPerPass: 100, ...how }), WIDE_SCALE);
    },
  );
});
