/** Requests that join a running batch. */
import { expect, test } from "vitest";
import type { SampledSequence, SampleRequest } from "../../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import type { CacheOptions } from "../../../../src/engine/model/generate/key_value_cache.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { ConfigError } from "../../../../src/leaves/errors.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const NARROW: ModelConfig = { ...SMALL_MODEL, contextLength: 96, kvHeads: 1 };

overDevices("a batch that others join", (device) => {
  // Its chunks have as many steps on every device.
  const open = (cache: CacheOptions = {}) => LanguageModel.create(device, NARROW, { seed: 6, cache, pipelined: false });

  /** Starts the first request, and one more of the rest whenever the batch asks. */
  async function staggered(model: LanguageModel, requests: readonly SampleRequest[]) {
    const [first, ...rest] = requests;
    const ended = new Map<number, SampledSequence>();
    let [refused, calls] = [0, 0];
    const results = await model.sample([first!], {
      weightVersion: 3,
      more: (start) => {
        calls++;
        const next = rest[0];
        if (!next) return;
        if (start([next])) rest.shift();
        else refused++;
      },
      onEnd: (sequence, index) => void ended.set(index, sequence),
    });
    return { results, ended, refused, calls, left: rest };
  }

  test("draws the bits of one batch, in the order of arrival", async () => {
    const model = open();
    const together = await model.sample(REQUESTS, { weightVersion: 3 });
    // The longest first, so that the batch is open until all have joined.
    const order = [...REQUESTS.keys()].reverse();
    const { results, ended, left, calls } = await staggered(
      model,
      order.map((i) => REQUESTS[i]!),
    );
    expect(calls).toBeGreaterThan(1);
    expect(results).toEqual(order.slice(0, order.length - left.length).map((i) => together[i]));
    expect([...ended.keys()].sort((a, b) => a - b)).toEqual(results.map((_, i) => i));
    for (const [i, sequence] of ended) expect(sequence).toBe(results[i]);
    model.release();
  });

  test("a request with the prompt of a running one needs no second prefill, and draws the same", async () => {
    const model = open();
    const group = [40, 44, 30, 40].map((max_tokens, seed) => request(20, max_tokens, seed));
    const together = await model.sample(group, { weightVersion: 3 });
    const { results } = await staggered(model, group);
    expect(results.length).toBeGreaterThan(1);
    expect(results).toEqual(together.slice(0, results.length));
    model.release();
  });

  test.each([
    ["as many as are expected", 24, 24],
    ["16 at least", 2, 16],
  ])("has room for %s", async (_, expected, most) => {
    const model = open();
    let running = 1;
    await model.sample([request(4, 12, 0)], {
      weightVersion: 0,
      expected,
      more: (start) => {
        while (running < 40 && start([request(4, 12, running)])) running++;
      },
    });
    expect(running).toBe(most);
    model.release();
  });

  test("refuses what has no room now; memory is as before", async () => {
    const live = device.memory.live;
    const model = open({ maxSequences: 1 });
    const { results, refused, left } = await staggered(model, [
      request(15, 44, 3),
      request(1, 2, 0),
      request(1, 20, 1),
    ]);
    expect(refused).toBeGreaterThan(0);
    expect(results.length + left.length).toBe(3);
    model.release();
    expect(device.memory.live).toBe(live);
  });

  test("a request that breaks a rule throws to its caller, and the batch continues", async () => {
    const model = open();
    let fault: unknown;
    const [alone] = await model.sample([request(15, 44, 3)], { weightVersion: 0 });
    const results = await model.sample([request(15, 44, 3)], {
      weightVersion: 0,
      more: (start) => {
        try {
          start([{ ...request(1, 2, 0), prompt_ids: [] }]);
        } catch (error) {
          fault ??= error;
        }
      },
    });
    expect(fault).toBeInstanceOf(ConfigError);
    expect(results).toEqual([alone]);
    model.release();
  });
});
