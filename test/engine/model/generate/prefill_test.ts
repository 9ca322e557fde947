/** Prompts that are computed in pieces between the chunks of other sequences: the same bits, and a bounded wait. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { SampledSequence, SampleRequest } from "../../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { changed, refusing } from "../../../fixtures/changed_device.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const NARROW: ModelConfig = { ...SMALL_MODEL, contextLength: 400, kvHeads: 1 };
/** Layers with a window and without, heads for the tiled kernels. */
const WINDOWED: ModelConfig = {
  ...NARROW,
  architecture: "gemma3_text",
  hiddenSize: 48,
  heads: 2,
  headDim: 64,
  layers: 3,
  slidingWindow: 21,
  layerTypes: ["sliding_attention", "full_attention", "sliding_attention"],
  slidingRopeTheta: 1000,
};
const OPTIONS = { weightVersion: 3 };
/** Of the keys and values of all layers. */
const PAGE_BYTES = 2 * NARROW.layers * 16 * NARROW.headDim * 4;
const NEVER = { temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] } as const;

const endless = (length: number, max_tokens: number, seed: number): SampleRequest => ({
  ...request(length, max_tokens, seed),
  params: { ...NEVER, max_tokens },
});

/** Rows of each layer's first product and of each step, in their order: "prompt 64", "step". */
function watched(device: Device) {
  const work: { kind: "prompt" | "step"; rows: number }[] = [];
  const dispatch: Device["dispatch"] = (kernel, options) => {
    if (/^attention\/(plain|tiled|subgroup)$/.test(kernel.name))
      work.push({ kind: "prompt", rows: options.params.tokens! });
    if (/^decode\/attention_/.test(kernel.name)) work.push({ kind: "step", rows: options.params.rows! });
    device.dispatch(kernel, options);
  };
  // Without kept steps, so that each is a dispatch.
  return { device: changed(device, { dispatch, keep: () => undefined }), work };
}

/** Most prompt tokens between two steps after the first one, of a model with `layers`. */
function longestWait(work: readonly { kind: string; rows: number }[], layers: number): number {
  let [wait, longest, hasBegun] = [0, 0, false];
  for (const { kind, rows } of work) {
    if (kind === "step") {
      hasBegun = true;
      wait = 0;
      continue;
    }
    wait += rows / layers;
    if (hasBegun) longest = Math.max(longest, wait);
  }
  return longest;
}

/** The first requests run for a chunk, then the others join. */
async function joining(model: LanguageModel, requests: readonly SampleRequest[], first = 1) {
  let calls = 0;
  return model.sample(requests.slice(0, first), {
    ...OPTIONS,
    expected: requests.length,
    more: (start) => {
      if (++calls === 2) expect(start(requests.slice(first))).toBe(true);
    },
  });
}

overDevices("prompts in pieces", (device) => {
  const tiled = changed(device, { info: { ...device.info, family: "tiled" } });
  const open = (on: Device, options: LanguageModelOptions & { config?: ModelConfig } = {}) =>
    LanguageModel.create(on, options.config ?? NARROW, { seed: 6, pipelined: false, ...options });

  async function draw(on: Device, requests: readonly SampleRequest[], options: Parameters<typeof open>[1] = {}) {
    const model = open(on, options);
    const results = await model.sample(requests, OPTIONS);
    model.release();
    return results;
  }

  const KERNELS: readonly (readonly [string, Device])[] =
    device.info.kind === "cpu"
      ? [["its own kernels", device]]
      : [
          ["its own kernels", device],
          ["the kernels of GPUs", tiled],
        ];
  describe.each(KERNELS)("by %s", (_, on) => {
    const long = [endless(300, 5, 1), endless(17, 9, 2), endless(131, 7, 3), endless(48, 7, 4), endless(300, 5, 5)];

    test.each([
      ["a layer for all", NARROW, "float32"],
      ["layers with a window", WINDOWED, "float32"],
      ["a cache of bfloat16", NARROW, "bfloat16"],
    ] as const)("have the bits of whole ones: %s", async (_, config, dtype) => {
      const cache = { dtype };
      const whole = await draw(on, long, { config, cache });
      for (const maxBatchedTokens of [1, 16, 40, 48, 128])
        expect(await draw(on, long, { config, cache, maxBatchedTokens })).toEqual(whole);
    });

    test.each([true, false])("have these bits while others decode, pipelined: %s", async (pipelined) => {
      const requests = [endless(20, 60, 9), ...long];
      const whole = await draw(on, requests);
      const model = open(on, { maxBatchedTokens: 48, pipelined });
      expect(await joining(model, requests)).toEqual(whole);
      model.release();
    });
  });

  test("make others wait for so many tokens between two chunks, and whole ones for all", async () => {
    const { device: counted, work } = watched(device);
    const requests = [endless(20, 120, 9), endless(300, 3, 1), endless(90, 3, 2)];
    for (const [maxBatchedTokens, most] of [
      [64, 64],
      [100, 96],
      [undefined, 390],
    ] as const) {
      const model = open(counted, { maxBatchedTokens });
      work.length = 0;
      await joining(model, requests);
      expect(longestWait(work, NARROW.layers)).toBe(most);
      model.release();
    }
  });

  test.each([true, false])(
    "are pieces of %s by default where someone reads tokens as they are drawn",
    async (isLive) => {
      const { device: counted, work } = watched(device);
      const model = open(counted);
      const heard: number[] = [];
      const reader = {
        ...endless(20, 120, 9),
        isLive,
        onTokens: (tokens: readonly number[]) => void heard.push(...tokens),
      };
      const [first] = await joining(model, [reader, endless(300, 3, 1)]);
      expect(heard).toEqual(first!.tokens);
      expect(longestWait(work, NARROW.layers)).toBe(isLive ? 64 : 300);
      model.release();
    },
  );

  test("are computed once for a group, also for those that join in the middle", async () => {
    const { device: counted, work } = watched(device);
    const group = [1, 2, 3].map((seed) => endless(205, 6, seed));
    const whole = await draw(device, [endless(20, 90, 9), ...group]);
    const model = open(counted, { maxBatchedTokens: 32 });
    const left = [...group];
    let calls = 0;
    const results = await model.sample([endless(20, 90, 9)], {
      ...OPTIONS,
      more: (start) => {
        if (++calls > 1 && left.length > 0 && start(left.slice(0, 1))) left.shift();
      },
    });
    expect(results).toEqual(whole);
    const tokens = work.filter(({ kind }) => kind === "prompt").reduce((sum, { rows }) => sum + rows, 0);
    expect(tokens).toBe((20 + 205) * NARROW.layers);
    model.release();
  });

  test("free their pages when their request is aborted in the middle", async () => {
    const others = [endless(20, 120, 9), endless(330, 30, 7)];
    const alone = await draw(device, others);
    // Pages for the first and one long prompt: the second finds room only where the aborted one has left.
    const cache = { bytes: 33 * PAGE_BYTES };
    const model = open(device, { maxBatchedTokens: 16, cache });
    await model.sample(others, OPTIONS);
    const live = device.memory.live;
    const aborting = new AbortController();
    const ended: [number, SampledSequence][] = [];
    let calls = 0;
    const results = await model.sample(others.slice(0, 1), {
      ...OPTIONS,
      expected: 2,
      more: (start) => {
        calls++;
        if (calls === 2) expect(start([{ ...endless(300, 30, 1), signal: aborting.signal }])).toBe(true);
        if (calls === 4) {
          expect(start(others.slice(1))).toBe(false);
          aborting.abort();
        }
        if (calls === 5) expect(start(others.slice(1))).toBe(true);
      },
      onEnd: (sequence, index) => void ended.push([index, sequence]),
    });
    expect(ended[0]).toEqual([1, { tokens: [], logprobs: [], finish_reason: "stop", weight_version: 3 }]);
    expect([results[0], results[2]]).toEqual(alone);
    expect(device.memory.live).toBe(live);
    model.release();
  });

  test("leave a shared prompt to the rest of its group when its first request is aborted in the middle", async () => {
    const group = [1, 2].map((seed) => endless(205, 6, seed));
    const whole = await draw(device, [endless(20, 90, 9), ...group]);
    const aborting = new AbortController();
    const model = open(device, { maxBatchedTokens: 32 });
    let calls = 0;
    const results = await model.sample([endless(20, 90, 9)], {
      ...OPTIONS,
      more: (start) => {
        if (++calls === 2) start([{ ...group[0]!, signal: aborting.signal }, group[1]!]);
        if (calls === 4) aborting.abort();
      },
    });
    expect(results[1]!.tokens).toEqual([]);
    expect([results[0], results[2]]).toEqual([whole[0], whole[2]]);
    model.release();
  });

  test.each(["alloc", "read"] as const)("lose nothing when memory is refused at any %s", async (kind) => {
    const requests = [endless(20, 40, 9), endless(21, 40, 8), endless(200, 3, 1), REQUESTS[9]!];
    const expected = await draw(device, requests);
    const at: { alloc?: number; read?: number } = {};
    const { device: refuser, seen } = refusing(device, at);
    const callsOf = async (refused: number) => {
      const model = open(refuser, { maxBatchedTokens: 64 });
      await model.sample(requests.slice(0, 1), OPTIONS);
      const live = device.memory.live;
      const before = seen[kind];
      at[kind] = before + refused;
      expect(await joining(model, requests, 2)).toEqual(expected);
      expect(device.memory.live).toBe(live);
      model.release();
      return seen[kind] - before;
    };
    const calls = await callsOf(Number.NaN);
    const first = kind === "alloc" ? Math.ceil(calls * 0.2) : 1;
    for (let i = 0; i < 14; i++) await callsOf(first + Math.floor((i * (calls - first - 1)) / 14));
  });
});
