/** The gradient of the log-probs in the windows that compute them, instead of with logits that are computed again. */
import { expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { Kernel } from "../../../../src/engine/compute/kernel.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { changed, narrowDevice } from "../../../fixtures/changed_device.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { pack } from "../../../fixtures/golden_model.ts";
import { expectClose, uniform } from "../../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

/** Logits of 4 rows fit a binding. */
const LIMIT_BYTES = 2 ** 14;
const CONFIG = { ...SMALL_MODEL, vocabSize: 1021, hiddenSize: 32, eosTokenIds: [] };
const LORA = { rank: 4, alpha: 8, targets: ["q_proj", "down_proj"] };

const next = uniform(5);
const ROWS = pack([7, 2, 12].map((length) => Array.from({ length }, () => Math.floor(next() * CONFIG.vocabSize))));
const MASK = Uint32Array.from(ROWS.tokens, (_, t) => Number(t % 5 !== 3));
/** One for each target, one of them 0. */
const SLOPES = Float32Array.from({ length: 30 }, (_, r) => (r === 4 ? 0 : 2 * next() - 1));
const BONUS = Float32Array.from({ length: 30 }, () => 2 * next() - 1);

interface Run {
  readonly on: Device;
  readonly model?: LanguageModelOptions;
  readonly usesEntropies?: boolean;
}

/** The gradients of a loss with these slopes, and how often each kernel ran. */
async function train({ on, model: options = { lora: LORA }, usesEntropies }: Run) {
  const ran = new Map<string, number>();
  const dispatch = (kernel: Kernel, ...rest: unknown[]) => {
    ran.set(kernel.name, (ran.get(kernel.name) ?? 0) + 1);
    return Reflect.apply(on.dispatch, on, [kernel, ...rest]);
  };
  const device = changed(on, { dispatch: dispatch as Device["dispatch"] });
  const model = LanguageModel.create(device, CONFIG, { ...options, seed: 3 });
  const [dlogprobs, dentropy] = [on.upload(SLOPES, "slopes"), on.upload(BONUS, "bonus")];
  ran.clear();
  await model.accumulate(
    { ...ROWS, mask: MASK },
    {
      temperature: 0.7,
      ...(usesEntropies !== undefined && { usesEntropies }),
      loss: () => ({ dlogprobs, ...(usesEntropies && { dentropy }), reads: [], release: () => {} }),
    },
  );
  const gradients = await model.optimizer.gradients.read();
  model.release();
  on.release(dlogprobs, dentropy);
  return { gradients, ran };
}

function expectSame(actual: Map<string, Float32Array>, expected: Map<string, Float32Array>): void {
  for (const [name, values] of expected)
    expectClose(actual.get(name)!, values, { relative: 0, absolute: 2e-6 * Math.hypot(...values) }, name);
}

overDevices("the gradient of a head in windows", (device) => {
  const narrow = narrowDevice(device, LIMIT_BYTES);

  test("is that of one window, and needs no logits twice", async () => {
    const whole = await train({ on: device, usesEntropies: false });
    const early = await train({ on: narrow, usesEntropies: false });
    const late = await train({ on: narrow });
    for (const { gradients } of [early, late]) expectSame(gradients, whole.gradients);
    const scaled = ({ ran }: { ran: Map<string, number> }) => ran.get("layer/scale_rows") ?? 0;
    expect([whole, early, late].map(scaled)).toEqual([0, 1, 0]);
    const dispatches = ({ ran }: typeof early) => [...ran.values()].reduce((sum, count) => sum + count, 0);
    expect(dispatches(early)).toBeLessThan(dispatches(late));
  });

  test.each([
    ["the loss has entropies", { usesEntropies: true }],
    ["an adapter of the output matrix trains", { model: { lora: { ...LORA, targets: ["q_proj", "lm_head"] } } }],
    ["all weights train", { model: {} }],
  ])("takes logits that are computed again where %s", async (_, of) => {
    const options = { usesEntropies: false, ...of };
    const { gradients, ran } = await train({ on: narrow, ...options });
    expect(ran.has("layer/scale_rows")).toBe(false);
    expectSame(gradients, (await train({ on: device, ...options })).gradients);
  });
});
