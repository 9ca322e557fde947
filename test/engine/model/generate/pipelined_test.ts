/** Chunks of decoding that are submitted before the last one is read: the same results, whatever happens meanwhile. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { SampleRequest, TokenConstraint } from "../../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { OutOfMemoryError } from "../../../../src/leaves/errors.ts";
import { changed, refusing } from "../../../fixtures/changed_device.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const NARROW: ModelConfig = { ...SMALL_MODEL, contextLength: 96, kvHeads: 1 };
/** Of the keys and values of both layers. */
const PAGE_BYTES = 2 * 2 * 16 * 8 * 4;
const OPTIONS = { weightVersion: 3 };

const openOn = (device: Device, options: LanguageModelOptions = {}) =>
  LanguageModel.create(device, NARROW, { seed: 6, pipelined: true, ...options });

/** Most reads that were under way together, the reads, the numbers that the first range of each had, and the rows that
 * chunks took over from one of others. */
function watched(device: Device) {
  const seen = { most: 0, reads: 0, lengths: [] as (number | undefined)[], carried: [] as number[] };
  let underWay = 0;
  const changes: Partial<Device> = {
    async read(requests) {
      seen.reads++;
      seen.lengths.push(requests[0]!.length);
      seen.most = Math.max(seen.most, ++underWay);
      try {
        return await device.read(requests);
      } finally {
        underWay--;
      }
    },
    dispatch(kernel, options) {
      if (kernel.name === "decode/gather_tokens") seen.carried.push(options.params.rows!);
      device.dispatch(kernel, options);
    },
  };
  return { device: changed(device, changes), seen };
}

/** Masked at every third token from the sixth on. */
const SOMETIMES_MASKED: TokenConstraint = {
  start() {
    let drawn = 0;
    return {
      fill: (mask) => void mask.fill(0x55555555),
      advance: () => void drawn++,
      get isFree() {
        return drawn < 6 || drawn % 3 > 0;
      },
    };
  },
};

overDevices("pipelined sampling", (device) => {
  const plain = async (requests: readonly SampleRequest[]) => {
    const model = openOn(device, { pipelined: false });
    const results = await model.sample(requests, OPTIONS);
    model.release();
    return results;
  };

  test("two chunks are under way at a time, and the bits are those of one after another", async () => {
    for (const [pipelined, most] of [
      [true, 2],
      [false, 1],
    ] as const) {
      const { device: counted, seen } = watched(device);
      const model = openOn(counted, { pipelined });
      expect(await model.sample(REQUESTS, OPTIONS)).toEqual(await plain(REQUESTS));
      expect(seen.most).toBe(most);
      model.release();
    }
  });

  test.each([
    ["pages that others take as soon as a sequence ends", { bytes: 6 * PAGE_BYTES }],
    ["a few more of them", { bytes: 11 * PAGE_BYTES }],
    ["places for three", { maxSequences: 3 }],
    ["a cache of bfloat16", { dtype: "bfloat16" }],
  ] as const)("the same bits with %s", async (_, cache) => {
    const drawn = [];
    for (const pipelined of [true, false]) {
      const model = openOn(device, { cache, pipelined });
      drawn.push(await model.sample(REQUESTS, OPTIONS));
      model.release();
    }
    expect(drawn[0]).toEqual(drawn[1]);
    expect(drawn[0]!.some(({ finish_reason }) => finish_reason === "stop")).toBe(true);
  });

  test("no chunk follows one that completes all by their limits", async () => {
    const { device: counted, seen } = watched(device);
    const model = openOn(counted);
    const never = (max_tokens: number, seed: number): SampleRequest => {
      const { params, ...rest } = request(15, max_tokens, seed);
      return { ...rest, params: { ...params, stop_token_ids: [] } };
    };
    // The first token comes with the prompt, then a chunk of eight steps.
    await model.sample([never(9, 1), never(5, 2)], OPTIONS);
    expect(seen).toMatchObject({ reads: 2, carried: [] });
    await model.sample([never(10, 1), never(9, 2)], OPTIONS);
    expect(seen).toMatchObject({ reads: 5, carried: [1] });
    model.release();
  });

  test("a sequence that has ended is in the chunk under way, and in none after it", async () => {
    const { device: counted, seen } = watched(device);
    const model = openOn(counted);
    const never = { ...request(15, 44, 1).params, stop_token_ids: [] };
    const requests = [1, 2, 3].map((seed) => ({ ...request(15, 44, seed), params: never }));
    // In the second of the chunks of eight that come after the first token.
    const ends = (tokens: readonly number[]) => tokens.length === 12;
    const [long, ...short] = await model.sample(
      [requests[0]!, ...requests.slice(1).map((it) => ({ ...it, ends }))],
      OPTIONS,
    );
    expect(seen.carried).toEqual([1]);
    expect(seen.lengths).toEqual([3, 24, 24, 24, 8, 8, 8]);
    expect([long!, ...short].map(({ tokens }) => tokens.length)).toEqual([44, 12, 12]);
    model.release();
  });

  test("listeners get each token once, and none after the end", async () => {
    const heard = REQUESTS.map(() => [] as number[]);
    const ends = (tokens: readonly number[]) => tokens.length === 13;
    const listening = REQUESTS.map((it, i) => ({
      ...it,
      ends,
      isLive: i % 2 === 0,
      onTokens: (tokens: readonly number[]) => void heard[i]!.push(...tokens),
    }));
    const model = openOn(device);
    const results = await model.sample(listening, OPTIONS);
    expect(heard).toEqual(results.map(({ tokens }) => tokens));
    expect(results).toEqual(await plain(REQUESTS.map((it) => ({ ...it, ends }))));
    model.release();
  });

  test("rows that need the host, always or at times, draw the same beside others", async () => {
    const mixed = REQUESTS.map((it, i) => {
      if (i % 5 === 1) return { ...it, allowed: SOMETIMES_MASKED };
      return i % 7 === 2 ? { ...it, top_logprobs: 2 } : it;
    });
    const model = openOn(device);
    expect(await model.sample(mixed, OPTIONS)).toEqual(await plain(mixed));
    const late = [{ ...request(16, 44, 7), allowed: SOMETIMES_MASKED }, request(16, 44, 8)];
    expect(await model.sample(late, OPTIONS)).toEqual(await plain(late));
    model.release();
  });

  test("requests that join while chunks are under way draw the same", async () => {
    const order = [...REQUESTS].reverse();
    const model = openOn(device);
    const left = order.slice(1);
    const results = await model.sample(order.slice(0, 1), {
      ...OPTIONS,
      more: async (start) => {
        if (left.length > 0 && start(left.slice(0, 2))) left.splice(0, 2);
        // Whoever lets others in may use the device itself.
        await device.submit();
      },
    });
    expect(results.length).toBeGreaterThan(6);
    expect(results).toEqual((await plain(order)).slice(0, results.length));
    model.release();
  });

  test("an abort with chunks under way rejects, and leaves no memory and no trace", async () => {
    const { device: counted, seen } = watched(device);
    const model = openOn(counted);
    const expected = await model.sample(REQUESTS, OPTIONS);
    const live = device.memory.live;
    const aborting = new AbortController();
    seen.most = 0;
    const onTokens = () => seen.most === 2 && aborting.abort(new Error("enough"));
    const run = model.sample([{ ...request(17, 44, 1), onTokens }, request(33, 44, 2)], {
      ...OPTIONS,
      signal: aborting.signal,
    });
    await expect(run).rejects.toThrow("enough");
    expect(device.memory.live).toBe(live);
    expect(await model.sample(REQUESTS, OPTIONS)).toEqual(expected);
    model.release();
  });

  test("what a request's own code throws rejects the call, or ends its sequence alone", async () => {
    const model = openOn(device);
    const expected = await model.sample(REQUESTS, OPTIONS);
    const live = device.memory.live;
    const broken = {
      ...request(16, 44, 7),
      ends(tokens: readonly number[]) {
        if (tokens.length === 11) throw new Error("broken rule");
        return false;
      },
    };
    const requests = [broken, ...REQUESTS];
    await expect(model.sample(requests, OPTIONS)).rejects.toThrow("broken rule");
    expect(device.memory.live).toBe(live);
    const failures: unknown[] = [];
    const results = await model.sample(requests, { ...OPTIONS, onFail: (error) => failures.push(error) });
    expect(failures).toEqual([new Error("broken rule")]);
    expect(results.slice(1)).toEqual(expected);
    model.release();
  });

  describe("memory that is refused once", () => {
    const requests = [...REQUESTS.slice(8, 16), request(16, 40, 50), request(16, 40, 51)];

    test.each(["alloc", "read"] as const)("by any %s of a chunk changes no bit", async (kind) => {
      const expected = await plain(requests);
      const at: { alloc?: number; read?: number } = {};
      const { device: refuser, seen } = refusing(device, at);
      /** Calls of a run whose call number `refused` fails. */
      const callsOf = async (refused: number) => {
        const model = openOn(refuser);
        await model.sample(requests.slice(0, 1), OPTIONS);
        const live = device.memory.live;
        const before = seen[kind];
        at[kind] = before + refused;
        expect(await model.sample(requests, OPTIONS)).toEqual(expected);
        expect(device.memory.live).toBe(live);
        model.release();
        return seen[kind] - before;
      };
      const calls = await callsOf(Number.NaN);
      // From the first chunk after the prompts to the end.
      for (let i = 0; i < 12; i++) await callsOf(calls - 1 - Math.floor((i * calls * 0.6) / 12));
    });

    test("and every time after that rejects", async () => {
      let isRefusing = false;
      const refused = new OutOfMemoryError("Cannot allocate logits: refused.", { label: "logits", bytes: 1 });
      const read: Device["read"] = (reads) => (isRefusing ? Promise.reject(refused) : device.read(reads));
      const model = openOn(changed(device, { read }));
      const onTokens = () => {
        isRefusing = true;
      };
      const run = model.sample([{ ...request(15, 44, 1), onTokens }, request(15, 44, 2)], OPTIONS);
      await expect(run).rejects.toBe(refused);
      model.release();
    });
  });
});
