/** Decoding steps of narrow models on software adapters: few dispatches, with the bits of a pass that scores. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { multipliesByLanes } from "../../../../src/engine/compute/matmul/matmul.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { gpuDevice } from "../../../fixtures/devices.ts";
import { floats } from "../../../fixtures/numbers.ts";
import { request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

/** Kernels in the order of their dispatches, each of them recorded. */
function listed(device: Device) {
  const names: string[] = [];
  const dispatch: Device["dispatch"] = (kernel, options) => {
    names.push(kernel.name);
    device.dispatch(kernel, options);
  };
  return { device: changed(device, { dispatch, keep: () => undefined }), names };
}

describe.skipIf(!(gpuDevice && multipliesByLanes(gpuDevice)))("a chained step", () => {
  const LAYER = ["decode/attention_step", "decode/decode_rows"];
  const CHAIN = ["decode/decode_rows", ...LAYER, ...LAYER];

  test.each([
    ["takes a small head", { vocabSize: 20 }, CHAIN],
    ["takes a small head of its own", { vocabSize: 19, tied: true }, CHAIN],
    ["leaves a head that is larger than a layer", { vocabSize: 200 }, [...CHAIN, "norm/rms_norm", "matmul"]],
  ] as const)("%s", async (_, shape, expected) => {
    const { device, names } = listed(gpuDevice!);
    const model = LanguageModel.create(device, { ...SMALL_MODEL, ...shape }, { seed: 4 });
    // Fresh norms are all ones.
    for (const { name, columns } of model.base.values.layout.entries.values())
      if (name.endsWith("norm.weight")) model.base.values.write(name, floats(columns, name.length, 0.3));
    for (const rows of [1, 9, 33]) {
      const requests = Array.from({ length: rows }, (_, seed) => {
        const of = request(3 + (seed % 3), 6, seed);
        return { ...of, params: { ...of.params, stop_token_ids: [] } };
      });
      names.length = 0;
      const sampled = await model.sample(requests, { weightVersion: 0 });
      const from = names.lastIndexOf("decode/sample", names.length - 2) + 1;
      const step = names.slice(from).map((name) => (name.startsWith("matmul/") ? "matmul" : name));
      expect(step).toEqual([...expected, "decode/sample"]);
      const tokens = requests.flatMap(({ prompt_ids }, i) => [...prompt_ids, ...sampled[i]!.tokens]);
      const offsets = Uint32Array.from({ length: rows + 1 }, (_, i) =>
        requests.slice(0, i).reduce((sum, { prompt_ids }, k) => sum + prompt_ids.length + sampled[k]!.tokens.length, 0),
      );
      const packed = { tokens: Uint32Array.from(tokens), offsets };
      const { logprobs } = await model.logprobs(packed, { policy: "current", temperature: 1 });
      for (const [i, { prompt_ids }] of requests.entries()) {
        const scored = logprobs.subarray(offsets[i]! + prompt_ids.length, offsets[i + 1]);
        expect([...scored]).toEqual(sampled[i]!.logprobs);
      }
    }
    model.release();
  });

  test("of two policies in copies has a kernel for each, between attentions that they share", async () => {
    const { device, names } = listed(gpuDevice!);
    const options = { seed: 4, adapterSlots: 2, foldAdapter: true };
    const model = LanguageModel.create(device, { ...SMALL_MODEL, vocabSize: 20 }, options);
    const branch = model.branch({ lora: { rank: 4, alpha: 8, targets: ["q_proj", "down_proj"] }, seed: 5 });
    const policies = [branch.freeze(), model.untrained];
    const requests = Array.from({ length: 6 }, (_, seed) => ({
      ...request(3, 6, seed),
      policy: policies[seed % 2]!,
    }));
    names.length = 0;
    await model.sample(requests, { weightVersion: 0 });
    const step = names.slice(names.lastIndexOf("decode/sample", names.length - 2) + 1);
    const both = ["decode/decode_rows", "decode/decode_rows"];
    const layer = ["decode/attention_step", ...both];
    expect(step).toEqual([...both, ...layer, ...layer, "decode/sample"]);
    for (const { release } of policies) release();
    branch.release();
    model.release();
  });
});
