/** Several adapters of one base in one batch: every row has the bits that it has alone. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { SampledSequence, SampleRequest } from "../../../../src/engine/contract/backend.ts";
import type { DrawRequest } from "../../../../src/engine/model/generate/sequence.ts";
import {
  type FrozenPolicy,
  LanguageModel,
  type LanguageModelOptions,
} from "../../../../src/engine/model/language_model.ts";
import { changed, narrowDevice } from "../../../fixtures/changed_device.ts";
import { gpuDevice, overDevices } from "../../../fixtures/devices.ts";
import { floats } from "../../../fixtures/numbers.ts";
import { request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const CONFIG = { ...SMALL_MODEL, contextLength: 96 };
/** Ranks and targets differ: some parts of a fused matrix have a factor of one adapter only. */
const ADAPTERS = [
  { rank: 1, alpha: 4, targets: ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"] },
  { rank: 5, alpha: 32, targets: ["k_proj", "down_proj", "lm_head"] },
  { rank: 8, alpha: 8, targets: ["o_proj", "up_proj"] },
];

/** Prompts that end before and after a page's end; the last one runs longest. */
const REQUESTS = [1, 15, 17, 33, 2, 16].map((length, seed) => request(length, 3 + 5 * seed, seed));

/** The base and three adapters on it, and the policies of each, the base's last. */
function open(device: Device, options: LanguageModelOptions) {
  const model = LanguageModel.create(device, CONFIG, { seed: 6, adapterSlots: 3, ...options });
  const policies = ADAPTERS.map((lora, seed) => {
    const branch = model.branch({ lora, seed });
    for (const { name, rows, columns } of branch.adapter!.values.layout.entries.values())
      branch.adapter!.values.write(name, floats(rows * columns, seed + rows, 0.3));
    branch.refresh();
    const policy = branch.freeze();
    branch.release();
    return policy;
  });
  const release = () => {
    for (const policy of policies) policy.release();
    model.release();
  };
  return { model, policies: [...policies, model.untrained], release };
}

/** Draws together. How many guesses there was room for depends on the others, so their counts are left out. */
async function together(model: LanguageModel, of: readonly DrawRequest[], policy: FrozenPolicy) {
  const results = await model.sample(of, { weightVersion: 0, policy });
  return results.map(({ speculated: _, ...drawn }) => drawn);
}

async function alone(model: LanguageModel, of: readonly DrawRequest[]): Promise<SampledSequence[]> {
  const results: SampledSequence[] = [];
  for (const { policy, ...request } of of) results.push(...(await together(model, [request], policy as FrozenPolicy)));
  return results;
}

/** Requests for the policies in turn, so that rows of one policy do not come together. */
function mixed(requests: readonly SampleRequest[], policies: readonly FrozenPolicy[]): DrawRequest[] {
  return requests.map((it, i) => ({ ...it, policy: policies[(i * 7) % policies.length]! }));
}

async function check(device: Device, options: LanguageModelOptions): Promise<void> {
  const live = device.memory.live;
  const { model, policies, release } = open(device, options);
  const requests = mixed(REQUESTS, policies);
  const expected = await alone(model, requests);
  expect(await together(model, requests, policies[0]!)).toEqual(expected);
  // The policies differ, so rows that took another's weights would show.
  const swapped = requests.map((it, i) => ({ ...it, policy: requests[(i + 1) % requests.length]!.policy }));
  const other = await model.sample(swapped, { weightVersion: 0, policy: policies[0]! });
  const same = other.filter(({ logprobs }, i) => `${logprobs}` === `${expected[i]!.logprobs}`);
  expect(same).toEqual([]);
  release();
  expect(device.memory.live).toBe(live);
}

overDevices("adapters of several ranks in one batch", (device) => {
  test.each<[how: string, options: LanguageModelOptions]>([
    ["beside the base", { foldAdapter: false }],
    ["beside a base of bfloat16", { foldAdapter: false, dtype: "bfloat16", frozen: true }],
    ["folded into copies", { foldAdapter: true }],
    ["of which few run together", { foldAdapter: false, cache: { maxSequences: 3 }, maxTokensPerPass: 50 }],
    [
      "with guessed tokens",
      { foldAdapter: false, speculative: { method: "ngram", numSpeculativeTokens: 3, promptLookupMax: 1 } },
    ],
  ])("draw the bits that each draws alone, %s", (_, options) => check(device, options));

  test("draw them where the MLP is cut into runs of rows", () =>
    check(narrowDevice(device, 2 ** 13), { foldAdapter: false }));

  test("the same prompt under two policies shares no keys and values", async () => {
    const { model, policies, release } = open(device, { foldAdapter: false });
    const group = Array.from({ length: 4 }, (_, seed) => request(20, 6, seed));
    const requests = mixed(group, policies);
    expect(await model.sample(requests, { weightVersion: 0, policy: policies[0]! })).toEqual(
      await alone(model, requests),
    );
    release();
  });

  test("adapters join a running batch", async () => {
    const { model, policies, release } = open(device, { foldAdapter: false });
    const requests = mixed([...REQUESTS].reverse(), policies);
    const expected = await alone(model, requests);
    const [first, ...rest] = requests;
    const results = await model.sample([first!], {
      weightVersion: 0,
      policy: policies[0]!,
      more: async (start) => {
        await Promise.resolve();
        while (rest.length > 0 && start(rest.slice(0, 2))) rest.splice(0, 2);
      },
    });
    expect(results.length).toBeGreaterThan(2);
    expect(results).toEqual(expected.slice(0, results.length));
    release();
  });
});

describe.runIf(gpuDevice)("in the kernels of other adapters", () => {
  test("of GPUs, which stage tiles", () =>
    check(changed(gpuDevice!, { info: { ...gpuDevice!.info, family: "tiled" } }), { foldAdapter: false }));
});
