/** An adapter's gradients with the kernels of GPUs, which take the factors of a fused matrix together, against the `cpu` device. */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../../../src/engine/model/lora.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { gpuDevice } from "../../../fixtures/devices.ts";
import { pack } from "../../../fixtures/golden_model.ts";
import { likelihood } from "../../../fixtures/likelihood.ts";
import { expectClose, floats, uniform } from "../../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const next = uniform(5);
const ROWS = pack([9, 1, 17].map((length) => Array.from({ length }, () => Math.floor(next() * SMALL_MODEL.vocabSize))));
const MASK = new Uint32Array(ROWS.tokens.length).fill(1);
const ALL = [...ATTENTION_TARGETS, ...MLP_TARGETS];

/** Number of products, and the adapter's gradients by tensor. */
async function gradientsOf(device: Device, { rank, targets }: { rank: number; targets: readonly string[] }) {
  const lora = { rank, alpha: 8, targets };
  const model = LanguageModel.create(device, { ...SMALL_MODEL, qkvBias: true }, { lora, foldAdapter: false, seed: 3 });
  for (const [i, { name, rows, columns }] of [...model.adapter!.values.layout.entries.values()]
    .sort((a, b) => a.name.localeCompare(b.name))
    .entries())
    model.adapter!.values.write(name, floats(rows * columns, i + 1, 0.1));
  model.refresh();
  await model.accumulate({ ...ROWS, mask: MASK }, { temperature: 1, loss: likelihood(device) });
  const gradients = await model.optimizer.gradients.read();
  const stacked = ["self_attn.qkv", "mlp.gate_up"].map(
    (name) => model.adapter!.stacked(`model.layers.0.${name}.weight`) !== undefined,
  );
  model.release();
  return { gradients, stacked };
}

describe.skipIf(!gpuDevice)("the gradient of an adapter with the kernels of GPUs", () => {
  const tiled = () => changed(gpuDevice!, { info: { ...gpuDevice!.info, family: "tiled" } });
  test.each([
    // With a rank of 8 each factor fills whole steps of 256 bytes, so that they lie on end.
    ["all tensors", { rank: 8, targets: ALL }, [true, true]],
    ["a rank that leaves gaps", { rank: 3, targets: ALL }, [false, false]],
    [
      "a tensor of qkv and one of gate and up left out",
      { rank: 8, targets: ["q_proj", "v_proj", "up_proj"] },
      [false, false],
    ],
    ["all of gate and up", { rank: 8, targets: MLP_TARGETS }, [false, true]],
  ])("%s", async (what, lora, stacked) => {
    const found = await gradientsOf(tiled(), lora);
    const { gradients: expected } = await gradientsOf(new CpuDevice(), lora);
    expect(found.stacked).toEqual(stacked);
    expect([...found.gradients.keys()].sort()).toEqual([...expected.keys()].sort());
    for (const [name, values] of expected) {
      expect(values.some((value) => value !== 0)).toBe(true);
      expectClose(found.gradients.get(name)!, values, { relative: 1e-4, absolute: 1e-5 }, `${what}, ${name}`);
    }
  });
});
