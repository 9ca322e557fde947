/** Copies of the weights with adapters folded in: which is made again, which is reused, and when to fold at all. */
import { afterAll, describe, expect, test } from "vitest";
import { CountingDevice, TYPICAL_GPU } from "../../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import { FoldedWeights, isFolded } from "../../../../src/engine/model/generate/folded.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { LoraAdapter } from "../../../../src/engine/model/train/lora_adapter.ts";
import { expectClose, floats } from "../../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const device = new CpuDevice();
afterAll(() => device.destroy());
const CONFIG = { rank: 2, alpha: 6, targets: ["q_proj"] };
const NAME = "model.layers.0.self_attn.q_proj";

function setUp() {
  const model = LanguageModel.create(device, SMALL_MODEL, { seed: 3 });
  const base = { weights: model.base, adapters: [] };
  const adapters = [1, 2, 3].map((seed) => {
    const adapter = new LoraAdapter(model.base, CONFIG, seed);
    adapter.values.write(`${NAME}.B`, floats(32, seed));
    return adapter;
  });
  return { base, adapters };
}

/** Weights of layer 0's q. */
async function queriesOf(weights: LanguageModel["base"]): Promise<Float32Array> {
  return (await weights.readTensors()).get(`${NAME}.weight`)!;
}

test("a fold is the base and alpha / rank B A, and is made again where the adapter has changed", async () => {
  const { base, adapters } = setUp();
  const adapter = adapters[0]!;
  const folded = new FoldedWeights(base, { slots: 1 });
  const expected = async () => {
    const values = await adapter.values.read();
    const [a, b] = [values.get(`${NAME}.A`)!, values.get(`${NAME}.B`)!];
    const plain = await queriesOf(base.weights);
    return plain.map(
      (w, i) => w + 3 * (b[Math.floor(i / 16) * 2]! * a[i % 16]! + b[Math.floor(i / 16) * 2 + 1]! * a[16 + (i % 16)]!),
    );
  };
  const first = folded.of(adapter);
  const close = { relative: 1e-5, absolute: 1e-6 };
  expectClose(await queriesOf(first), await expected(), close);
  const before = await expected();
  adapter.values.write(`${NAME}.B`, floats(32, 9));
  expect(folded.of(adapter)).toBe(first);
  // Nothing said that the values have changed.
  expectClose(await queriesOf(first), before, close);
  adapter.changed();
  expect(folded.of(adapter)).toBe(first);
  expectClose(await queriesOf(first), await expected(), close);
});

test("copies are reused from the one used longest ago, and one that is forgotten first of all", () => {
  const { base, adapters } = setUp();
  const [a, b, c] = adapters as [LoraAdapter, LoraAdapter, LoraAdapter];
  const live = device.memory.live;
  const folded = new FoldedWeights(base, { slots: 2 });
  const [ofA, ofB] = [folded.of(a), folded.of(b)];
  expect(ofB).not.toBe(ofA);
  expect(folded.of(a)).toBe(ofA);
  expect(folded.of(c)).toBe(ofB);
  expect(folded.of(a)).toBe(ofA);
  // c was used before a, and a is forgotten.
  folded.forget(a);
  folded.forget(a);
  expect(folded.of(b)).toBe(ofA);
  expect(folded.of(c)).toBe(ofB);
  folded.release();
  expect(device.memory.live).toBe(live);
  expect(folded.of(a)).not.toBe(ofA);
  folded.release();
});

test("there is at least one copy", () => {
  const { base, adapters } = setUp();
  const folded = new FoldedWeights(base, { slots: 0 });
  expect(folded.of(adapters[0]!)).toBe(folded.of(adapters[1]!));
});

describe("whether to fold", () => {
  const SCALAR = { ...TYPICAL_GPU, family: "scalar" } as const;
  const on = (info: typeof TYPICAL_GPU, config: object = {}, options: object = {}) => {
    const shape = { ...SMALL_MODEL, ...config };
    const model = LanguageModel.unread(new CountingDevice({ info }), { config: shape, typeOf: () => "F32" } as never, {
      lora: { rank: 1, targets: ["q_proj"] },
      ...options,
    });
    return [{ weights: model.base, adapters: [] }, model.adapter!] as const;
  };
  test.each([
    ["on a software adapter", SCALAR, {}, {}, true],
    ["on a GPU", TYPICAL_GPU, {}, {}, false],
    ["beside bfloat16 weights", SCALAR, {}, { dtype: "bfloat16" }, false],
    ["with 17 million weights", SCALAR, { vocabSize: 2 ** 20, tied: true }, {}, true],
    ["with 34 million weights", SCALAR, { vocabSize: 2 ** 21 + 2 ** 13, tied: true }, {}, false],
    ["on a tied table", SCALAR, { tied: true }, { lora: { rank: 1, targets: ["lm_head"] } }, false],
  ] as const)("%s", (_, info, config, options, expected) => {
    const [base, adapter] = on(info as typeof TYPICAL_GPU, config, options);
    expect(isFolded(adapter, { base, choice: "auto" })).toBe(expected);
    expect(isFolded(adapter, { base, choice: !expected })).toBe(!expected);
  });
});
