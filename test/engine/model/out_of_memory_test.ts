/** A pass that runs out of memory is repeated in smaller passes, and changes no number beyond the order of sums. */
import { describe, expect, test } from "vitest";
import { CountingDevice } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import {
  LanguageModel,
  type LanguageModelOptions,
  type PassOutputs,
} from "../../../src/engine/model/language_model.ts";
import type { TrainingPass } from "../../../src/engine/model/train/passes.ts";
import { refusing } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { likelihood } from "../../fixtures/likelihood.ts";
import { expectClose, uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const next = uniform(8);
const sequencesOf = (lengths: readonly number[]) =>
  pack(lengths.map((length) => Array.from({ length }, () => Math.floor(next() * SMALL_MODEL.vocabSize))));
const ROWS = sequencesOf([9, 1, 17, 12, 25]);
const LORA = { rank: 3, alpha: 8, targets: ["q_proj", "o_proj", "up_proj", "down_proj"] };

const RATE = { learning_rate: 0.02, beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0, grad_clip_norm: 0 };

/** What a step computes: of the pass, of the scores, and its warnings. `arm` starts the refusals. */
async function stepOf(
  device: Device,
  options: LanguageModelOptions,
  arm: () => void,
  loss: TrainingPass["loss"] = likelihood(device),
) {
  const model = LanguageModel.create(device, SMALL_MODEL, { ...options, seed: 3 });
  const warnings: string[] = [];
  model.onWarning((message) => warnings.push(message));
  const batch = { ...ROWS, mask: new Uint32Array(ROWS.tokens.length).fill(1) };
  await model.accumulate(batch, { temperature: 1, loss: likelihood(device) });
  await model.optimStep(RATE);
  const live = device.memory.live;
  arm();
  const passes = await model.accumulate(batch, { temperature: 1, loss });
  expect(device.memory.live).toBe(live);
  const gradients = await model.optimizer.gradients.read();
  const scores = await model.logprobs(ROWS, { policy: "current", temperature: 0.7 });
  model.release();
  return { gradients, ...scores, warnings, passes: passes.length };
}

type Step = Awaited<ReturnType<typeof stepOf>>;

function expectSame(actual: Step, expected: Step): void {
  for (const [name, values] of expected.gradients) {
    const absolute = 1e-6 * Math.hypot(...values);
    expectClose(actual.gradients.get(name)!, values, { relative: 0, absolute }, name);
  }
  expectClose(actual.logprobs, expected.logprobs, { relative: 0, absolute: 1e-6 });
  expectClose(actual.entropy, expected.entropy, { relative: 0, absolute: 1e-6 });
}

const WARNING =
  "the device ran out of memory (LABEL, 3.0 MiB), and the pass was repeated. From now on passes hold at most 32 tokens; to start like that, set training.max_tokens_per_pass=32";

overDevices("a pass that is refused memory once", (real) => {
  describe.each([
    ["all weights", {}],
    ["a folded adapter, with gradient checkpointing", { lora: LORA, foldAdapter: true, gradientCheckpointing: true }],
    ["an adapter beside the weights", { lora: LORA, foldAdapter: false }],
  ] as const)("%s", (_, options) => {
    test("is repeated in halves wherever the refusal comes, and nothing is held back", async () => {
      const counted = refusing(real, {});
      let before = 0;
      const expected = await stepOf(counted.device, options, () => {
        before = counted.seen.alloc;
      });
      expect(expected).toMatchObject({ passes: 1, warnings: [] });
      // Of the second pass of training, and of scoring after it.
      const last = counted.seen.alloc;
      const places = [0, 5, 0.2, 0.4, 0.55, 0.7, 0.9].map((at) =>
        at < 1 ? Math.floor(before + at * (last - before)) : before + at,
      );
      for (const alloc of [...places, last - 1]) {
        const at = { alloc: -1 };
        const refused = refusing(real, at);
        const actual = await stepOf(refused.device, options, () => {
          at.alloc = alloc;
        });
        expectSame(actual, expected);
        expect(actual.warnings).toHaveLength(1);
        const text = actual.warnings[0]!.replace(/\(.*?,/, "(LABEL,");
        const also = "gradientCheckpointing" in options;
        if (!also) expect(text).toBe(WARNING);
        else expect(text).toContain("hold at most 32 tokens and keep only the input of each layer; to start");
      }
    });

    test("is repeated where the driver refuses when the work is submitted", async () => {
      const counted = refusing(real, {});
      let first = 0;
      const expected = await stepOf(counted.device, options, () => {
        first = counted.seen.read;
      });
      const at = { read: -1 };
      const actual = await stepOf(refusing(real, at).device, options, () => {
        at.read = first;
      });
      expectSame(actual, expected);
      expect(actual).toMatchObject({ passes: 3, warnings: [expect.stringContaining("read back")] });
    });
  });

  test("is repeated with its loss, which reads from the device", async () => {
    const loss = async (outputs: PassOutputs) => {
      await real.read([{ buffer: outputs.logprobs, type: "f32", length: 1 }]);
      return likelihood(real)(outputs);
    };
    const counted = refusing(real, {});
    let before = 0;
    const arm = () => {
      before = counted.seen.alloc;
    };
    const expected = await stepOf(counted.device, {}, arm, loss);
    const at = { alloc: -1 };
    const refused = refusing(real, at);
    const actual = await stepOf(
      refused.device,
      {},
      () => {
        // In the backward pass: the forward pass has run by then.
        at.alloc = before + Math.floor(0.5 * (counted.seen.alloc - before));
      },
      loss,
    );
    expectSame(actual, expected);
    expect(actual.warnings).toHaveLength(1);
  });
});

describe("a budget that does not hold a pass", () => {
  const rows = sequencesOf([32, 32, 32, 32]);
  const batch = { ...rows, mask: new Uint32Array(rows.tokens.length).fill(1) };

  /** Highest memory of a training pass over so many tokens. */
  async function peakOf(options: LanguageModelOptions): Promise<number> {
    const device = new CountingDevice({ info: new CpuDevice().info });
    const model = LanguageModel.create(device, SMALL_MODEL, options);
    await model.accumulate(batch, { temperature: 1, loss: likelihood(device) });
    return device.memory.peak;
  }

  async function gradientsWithin(memoryBudgetBytes: number | undefined, options: LanguageModelOptions = {}) {
    const device = new CpuDevice({ memoryBudgetBytes });
    const model = LanguageModel.create(device, SMALL_MODEL, { ...options, seed: 2 });
    const warnings: string[] = [];
    model.onWarning((message) => warnings.push(message));
    const passes = [];
    for (const _ of [1, 2])
      passes.push((await model.accumulate(batch, { temperature: 1, loss: likelihood(device) })).length);
    return { gradients: await model.optimizer.gradients.read(), warnings, passes };
  }

  test("makes the passes smaller for the rest of the run, and says so once", async () => {
    const budget = await peakOf({ maxTokensPerPass: 64 });
    expect(budget).toBeLessThan(await peakOf({}));
    const expected = await gradientsWithin(undefined, { maxTokensPerPass: 64 });
    const actual = await gradientsWithin(budget);
    expect(actual.passes).toEqual([2, 2]);
    // From the first halving on these are the same passes.
    expect(actual.gradients).toEqual(expected.gradients);
    expect(actual.warnings).toEqual([expect.stringContaining("training.max_tokens_per_pass=64")]);
  });

  test("has single sequences run their layers again, with the same gradients", async () => {
    const budget = await peakOf({ maxTokensPerPass: 1, gradientCheckpointing: true });
    expect(budget).toBeLessThan(await peakOf({ maxTokensPerPass: 1 }));
    const expected = await gradientsWithin(undefined, { maxTokensPerPass: 1 });
    const actual = await gradientsWithin(budget);
    expect(actual.passes).toEqual([4, 4]);
    expect(actual.gradients).toEqual(expected.gradients);
    expect(actual.warnings).toEqual([
      expect.stringMatching(/hold at most 32 tokens and keep only .* training\.gradient_checkpointing=true$/),
    ]);
  });

  test("is an error that says what to change where one sequence never fits", async () => {
    const budget = (await peakOf({ maxTokensPerPass: 1, gradientCheckpointing: true })) - 256;
    await expect(gradientsWithin(budget)).rejects.toThrow(
      /^Cannot train on a sequence of 32 tokens: a pass over it alone exceeds the device's memory, with gradient checkpointing \(.*, .*KiB\)\. Shorten prompts or responses .*memory_budget_bytes \(memory_budget_bytes\)\./,
    );
  });
});
