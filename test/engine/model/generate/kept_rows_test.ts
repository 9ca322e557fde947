/** Steps of decoding that are recorded once and kept from chunk to chunk: the bits of steps that are all recorded, whatever changes meanwhile. */
import { describe, expect, test } from "vitest";
import type { Buffer, Device, KeptWork } from "../../../../src/engine/compute/device.ts";
import { WebGpuDevice } from "../../../../src/engine/compute/webgpu/device.ts";
import type { SampledSequence, SampleRequest } from "../../../../src/engine/contract/backend.ts";
import type { AttentionBlock } from "../../../../src/engine/model/blocks/attention_block.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { gpuDevice } from "../../../fixtures/devices.ts";
import { floats } from "../../../fixtures/numbers.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const CONFIG: ModelConfig = { ...SMALL_MODEL, contextLength: 96 };
const OPTIONS = { weightVersion: 3 };
const LORA = { rank: 4, alpha: 32, targets: ["q_proj", "v_proj", "down_proj"] };

/** Counts chunks that take a kept step from their first one on, and those for which it is of no use any more. */
function watched(device: Device) {
  const seen = { kept: 0, lost: 0 };
  const keep = (mark: number): KeptWork | undefined => {
    const work = device.keep!(mark);
    return (
      work && {
        record(repetition) {
          const isRecorded = work.record(repetition);
          if (repetition.from === 0) seen[isRecorded ? "kept" : "lost"]++;
          return isRecorded;
        },
        release: () => work.release(),
      }
    );
  };
  return { device: changed(device, { keep }), seen };
}

/** Draws on a model of its own. */
type Draw = (model: LanguageModel) => Promise<readonly SampledSequence[]>;

/** What was drawn with steps kept, after checks that it is what is drawn without, and that memory is as before. */
async function drawn(device: Device, options: LanguageModelOptions & { config?: ModelConfig }, draw: Draw) {
  const { device: keeping, seen } = watched(device);
  const { config = CONFIG, ...rest } = options;
  const { live } = device.memory;
  const results: (readonly SampledSequence[])[] = [];
  for (const on of [changed(device, { keep: () => undefined }), keeping]) {
    const model = LanguageModel.create(on, config, { seed: 6, ...rest });
    results.push(await draw(model));
    model.release();
    expect(device.memory.live).toBe(live);
  }
  expect(results[1]).toEqual(results[0]);
  return { ...seen, results: results[1]! };
}

/** A request without a stop token, whose listener disturbs the batch once `at` tokens were read. */
function disturbed(of: SampleRequest, at: number, disturb: () => void): SampleRequest {
  let read = 0;
  return {
    ...endless(of),
    onTokens({ length }) {
      if (read < at && read + length >= at) disturb();
      read += length;
    },
  };
}

function endless(of: SampleRequest): SampleRequest {
  return { ...of, params: { ...of.params, stop_token_ids: [] } };
}

describe.skipIf(!gpuDevice)("steps kept from chunk to chunk", () => {
  const device = gpuDevice!;
  const tiled = changed(device, { info: { ...device.info, family: "tiled" } });

  describe.each([
    ["its own kernels", device],
    ["the kernels of GPUs", tiled],
  ] as const)("by %s", (_, on) => {
    describe.each([true, false])("pipelined: %s", (pipelined) => {
      test("draw the same while sequences join and leave", async () => {
        const { kept } = await drawn(on, { pipelined, cache: { maxSequences: 5 } }, (model) =>
          model.sample(REQUESTS, OPTIONS),
        );
        expect(kept).toBeGreaterThan(0);
      });

      test("are kept for a stream from its second chunk to its last", async () => {
        const stream = disturbed(request(3, 41, 1), 1, () => {});
        const { kept, lost } = await drawn(on, { pipelined }, (model) => model.sample([stream], OPTIONS));
        // The first token comes with the prompt.
        expect({ kept, lost }).toEqual({ kept: 40 / (pipelined ? 2 : 4) - 1, lost: 0 });
      });

      test("are kept where another sequence takes the place of one, with its own pages, seed and settings", async () => {
        const requests = [1, 2, 3].map((seed) => endless(request(4 + seed, 40, seed)));
        Object.assign(requests[1]!.params, { temperature: 0.5 });
        const { kept } = await drawn(on, { pipelined, cache: { maxSequences: 1 } }, (model) =>
          model.sample(requests, OPTIONS),
        );
        expect(kept).toBeGreaterThan(pipelined ? 12 : 6);
      });

      test.each([[{ top_k: 2 }], [{ top_p: 0.3 }]])(
        "are recorded again where the place is taken by one with %j",
        async (filters) => {
          const requests = [1, 2].map((seed) => endless(request(4 + seed, 60, seed)));
          Object.assign(requests[1]!.params, filters);
          const { results } = await drawn(on, { pipelined, cache: { maxSequences: 1 } }, (model) =>
            model.sample(requests, OPTIONS),
          );
          for (const [i, each] of requests.entries()) {
            const { results: alone } = await drawn(on, { pipelined }, (model) => model.sample([each], OPTIONS));
            expect(results[i]).toEqual(alone[0]);
          }
        },
      );

      test("are recorded again where contexts grow: longer tables, then attention in chunks", async () => {
        const config = { ...CONFIG, contextLength: 1400 };
        for (const length of [230, 1000]) {
          const requests = [1, 2].map((seed) => endless(request(length, 60, seed)));
          const { kept } = await drawn(on, { pipelined, config }, (model) => model.sample(requests, OPTIONS));
          expect(kept).toBeGreaterThan(0);
        }
      }, 60_000);

      test("draw with new weights as soon as a copy of the policy has them", async () => {
        const draw = (isUpdated: boolean): Draw => {
          return async (model) => {
            const copy = model.copyPolicy();
            copy.update();
            const stream = disturbed(request(5, 60, 1), 21, () => {
              if (!isUpdated) return;
              for (const { name, rows, columns } of model.trainable.layout.entries.values())
                model.trainable.write(name, floats(rows * columns, 3, 0.4));
              model.refresh();
              copy.update();
            });
            const results = await model.sample([stream], { ...OPTIONS, policy: copy });
            copy.release();
            return results;
          };
        };
        for (const options of [{}, { lora: LORA, foldAdapter: false }, { lora: LORA, foldAdapter: true }]) {
          const { results, kept } = await drawn(on, { pipelined, ...options }, draw(true));
          const { results: others } = await drawn(on, { pipelined, ...options }, draw(false));
          expect(kept).toBeGreaterThan(3);
          const [own, other] = [results, others].map((of) => of[0]!.logprobs);
          expect(own!.slice(0, 20)).toEqual(other!.slice(0, 20));
          expect(own!.slice(30)).not.toEqual(other!.slice(30));
        }
      });

      test("are recorded again after another adapter was folded into the copy that they read", async () => {
        const { kept } = await drawn(on, { pipelined, foldAdapter: true, adapterSlots: 1 }, async (model) => {
          const policies = [1, 2].map((seed) => {
            const branch = model.branch({ lora: LORA, seed });
            for (const { name, rows, columns } of branch.trainable.layout.entries.values())
              branch.trainable.write(name, floats(rows * columns, seed, 0.4));
            branch.refresh();
            const policy = branch.freeze();
            branch.release();
            return policy;
          });
          const alone = await model.sample([endless(request(5, 60, 1))], { ...OPTIONS, policy: policies[0]! });
          const stream = disturbed(request(5, 60, 1), 21, () => void policies[1]!.weights());
          const results = await model.sample([stream], { ...OPTIONS, policy: policies[0]! });
          expect(results).toEqual(alone);
          for (const policy of policies) policy.release();
          return results;
        });
        expect(kept).toBeGreaterThan(3);
      });

      test("keep apart policies whose rows change in number and place", async () => {
        const { kept } = await drawn(on, { pipelined, foldAdapter: false }, async (model) => {
          const branches = [1, 2].map((seed) => model.branch({ lora: { ...LORA, rank: 4 * seed }, seed }));
          for (const branch of branches) {
            for (const { name, rows, columns } of branch.trainable.layout.entries.values())
              branch.trainable.write(name, floats(rows * columns, rows, 0.4));
            branch.refresh();
          }
          const policies = branches.map((branch) => branch.freeze());
          // Three at a time: of one policy two and one, then the other way round.
          const requests = [0, 0, 1, 1, 0, 1, 1].map((of, i) => ({
            ...endless(request(5 + i, i < 2 ? 30 : 50, i)),
            policy: policies[of]!,
          }));
          const results = await model.sample(requests, OPTIONS);
          for (const it of [...policies, ...branches]) it.release();
          return results;
        });
        expect(kept).toBeGreaterThan(0);
      });

      test("are recorded again where rotary tables were replaced", async () => {
        const config = { ...CONFIG, contextLength: 8192 };
        let tables = 0;
        const { lost } = await drawn(on, { pipelined, config }, async (model) => {
          const others: ReturnType<Device["upload"]>[] = [];
          const { ropes, blocks } = model.passes.transformer;
          const block = blocks[0] as AttentionBlock;
          const stream = disturbed(request(5, 60, 1), 21, () => {
            const before = ropes.table(block);
            ropes.reserve(8192);
            if (ropes.table(block) !== before) tables++;
            // Takes the memory of the old one.
            others.push(on.upload(new Float32Array(before.byteLength / 4).fill(7), "other"));
          });
          const results = await model.sample([stream], OPTIONS);
          on.release(...others);
          return results;
        });
        expect([tables, lost]).toEqual([2, 1]);
      });
    });
  });

  test("are recorded again where their memory was needed", async () => {
    const small = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 24 }))!;
    const { lost, kept } = await drawn(small, { pipelined: true }, (model) => {
      const stream = disturbed(request(5, 60, 1), 21, () => {
        const taken: Buffer[] = [];
        for (let left = Infinity; left >= 256; left = small.memory.budget - small.memory.live)
          if (left < Infinity) taken.push(small.alloc(2 ** Math.floor(Math.log2(left)), "all that is left"));
        small.release(...taken);
      });
      return model.sample([stream], OPTIONS);
    });
    expect(lost).toBe(1);
    expect(kept).toBeGreaterThan(20);
    small.destroy();
  });
});
