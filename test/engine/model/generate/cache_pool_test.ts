/** Sampling over a paged cache: the same bits whatever fits, and what it may take. */
import { describe, expect, test } from "vitest";
import { CountingDevice } from "../../../../src/engine/compute/counting.ts";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { SampleRequest } from "../../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { BatchSampler } from "../../../../src/engine/model/generate/batch_sampler.ts";
import type { CacheOptions } from "../../../../src/engine/model/generate/key_value_cache.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { StoredWeights } from "../../../../src/engine/model/stored_weights.ts";
import { Transformer } from "../../../../src/engine/model/transformer.ts";
import { OutOfMemoryError } from "../../../../src/leaves/errors.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const NARROW: ModelConfig = { ...SMALL_MODEL, contextLength: 96, kvHeads: 1 };
/** Its heads are too wide for the chained kernels of a decoding step. */
const WIDE: ModelConfig = { ...NARROW, hiddenSize: 64, heads: 2, kvHeads: 1, headDim: 40, intermediateSize: 64 };
/** Of the keys and values of both layers. */
const NARROW_PAGE_BYTES = 2 * 2 * 16 * 8 * 4;

/** Prompt 48 and 43 more that are read. */
const LARGEST_PAGES = 6;

overDevices("sampling", (device) => {
  describe.each([
    ["a narrow model", NARROW],
    ["a wide one", WIDE],
  ])("%s", (_, config) => {
    const pageBytes = 2 * config.layers * 16 * config.kvHeads * config.headDim * 4;
    const draw = async (cache: CacheOptions, maxTokensPerPass?: number) => {
      const model = LanguageModel.create(device, config, { seed: 6, cache, maxTokensPerPass });
      const samples = await model.sample(REQUESTS, { weightVersion: 0 });
      const live = device.memory.live;
      model.release();
      return { samples, live };
    };

    test.each(["float32", "bfloat16"] as const)("draws the same bits whatever its cache of %s holds", async (dtype) => {
      const bytes = dtype === "float32" ? pageBytes : pageBytes / 2;
      const { samples } = await draw({ dtype });
      expect(new Set(samples.map(({ tokens }) => tokens.length)).size).toBeGreaterThan(4);
      for (const pages of [LARGEST_PAGES, LARGEST_PAGES + 1, 11, 23])
        expect((await draw({ dtype, bytes: pages * bytes })).samples).toEqual(samples);
      for (const maxSequences of [1, 3, 7]) expect((await draw({ dtype, maxSequences })).samples).toEqual(samples);
      expect((await draw({ dtype }, 20)).samples).toEqual(samples);
    });
  });

  test("bfloat16 moves log-probs a little, and draws from them", async () => {
    const drawn = [];
    for (const dtype of ["float32", "bfloat16"] as const) {
      const model = LanguageModel.create(device, WIDE, { seed: 6, cache: { dtype } });
      drawn.push(await model.sample(REQUESTS, { weightVersion: 0 }));
      model.release();
    }
    const [exact, rounded] = drawn;
    let most = 0;
    for (const [i, { tokens, logprobs }] of exact!.entries()) {
      const other = rounded![i]!;
      const same = tokens.findIndex((token, t) => token !== other.tokens[t]);
      for (let t = 0; t < (same < 0 ? tokens.length : same); t++)
        most = Math.max(most, Math.abs(logprobs[t]! - other.logprobs[t]!));
    }
    // Measured: 0.010.
    expect(most).toBeGreaterThan(1e-5);
    expect(most).toBeLessThan(0.02);
  });

  test.each([
    [
      { bytes: 5 * NARROW_PAGE_BYTES },
      Number.POSITIVE_INFINITY,
      "cache.bytes, which a run plans by memory_budget_bytes, allows 10 KiB. Raise it",
    ],
    [{}, 11_000, "11 KiB of memory_budget_bytes are free. Raise it"],
  ])("refuses a request that never fits: %o", async (cache, budget, message) => {
    const memory = { live: 0, pooled: 0, peak: 0, budget, budgetSource: "the test" };
    const model = LanguageModel.create(changed(device, { memory }), NARROW, { cache });
    const sampling = model.sample(REQUESTS, { weightVersion: 0 });
    await expect(sampling).rejects.toThrow(`max_tokens take 12 KiB, and ${message}`);
    await expect(sampling).rejects.toThrow(`(requests[${REQUESTS.length - 1}])`);
    model.release();
  });

  test("a prefill that runs out of memory is repeated over fewer prompts, to the same bits", async () => {
    const draw = async (mostTokens: number) => {
      const limit = mostTokens * NARROW.hiddenSize * 4;
      const refused: string[] = [];
      const alloc: Device["alloc"] = (bytes, label) => {
        if (label !== "residual" || bytes <= limit) return device.alloc(bytes, label);
        refused.push(label);
        throw new OutOfMemoryError(`Cannot allocate ${label}: refused.`, { label, bytes });
      };
      const model = LanguageModel.create(changed(device, { alloc }), NARROW, { seed: 6 });
      const warnings: string[] = [];
      model.onWarning((message) => warnings.push(message));
      const samples = await model.sample(REQUESTS, { weightVersion: 0 }).finally(() => model.release());
      return { samples, refused: refused.length, warnings };
    };
    const whole = await draw(1000);
    const parts = await draw(48);
    expect(parts.samples).toEqual(whole.samples);
    // All 130 prompt tokens, then the 49 that fit in 65.
    expect(whole.refused).toBe(0);
    expect(parts.refused).toBe(2);
    expect(parts.warnings.join()).toMatch(/training.max_tokens_per_pass=\d+/);
    // A prompt that is refused alone is computed in pieces, as long as a piece fits.
    for (const mostTokens of [47, 16]) {
      const pieces = await draw(mostTokens);
      expect(pieces.samples).toEqual(whole.samples);
      expect(pieces.warnings.join()).toMatch(/set rollout.max_num_batched_tokens=16/);
    }
    await expect(draw(15)).rejects.toThrow(/Cannot sample after a sequence of \d+ tokens/);
    const { live } = device.memory;
    await expect(draw(15)).rejects.toThrow();
    expect(device.memory.live).toBe(live);
  });

  test.each(["when it allocates", "when it runs"])(
    "a step that memory is refused to %s is repeated over fewer sequences, to the same bits",
    async (when) => {
      const draw = async (mostRows: number) => {
        const limit = mostRows * NARROW.vocabSize * 4;
        let refused: OutOfMemoryError | undefined;
        const refuse = () => {
          const error = refused;
          refused = undefined;
          if (error) throw error;
        };
        const alloc: Device["alloc"] = (bytes, label) => {
          if (label === "logits" && bytes > limit)
            refused = new OutOfMemoryError(`Cannot allocate ${label}: refused.`, { label, bytes });
          if (when === "when it allocates") refuse();
          return device.alloc(bytes, label);
        };
        const read: Device["read"] = async (requests) => {
          // Nothing that was recorded runs.
          if (refused) device.rollback(0);
          refuse();
          return device.read(requests);
        };
        const cache = { maxSequences: 7 };
        const narrow = changed(device, { alloc, read });
        const model = LanguageModel.create(narrow, NARROW, { seed: 6, cache, maxTokensPerPass: 8 });
        const warnings: string[] = [];
        model.onWarning((message) => warnings.push(message));
        const samples = await model.sample(REQUESTS, { weightVersion: 0 }).finally(() => model.release());
        return { samples, warnings };
      };
      const whole = await draw(100);
      expect(whole.warnings).toEqual([]);
      // The first tokens of a group of four are drawn together.
      const parts = await draw(4);
      expect(parts.samples).toEqual(whole.samples);
      expect(parts.warnings).toHaveLength(1);
      expect(parts.warnings[0]).toContain("logits");
      expect(parts.warnings[0]).toContain("set rollout.max_num_seqs=");
    },
  );

  test("refuses a cache without sequences", async () => {
    const model = LanguageModel.create(device, NARROW, { cache: { maxSequences: 0 } });
    await expect(model.sample(REQUESTS, { weightVersion: 0 })).rejects.toThrow("cache.maxSequences must be");
    model.release();
  });
});

describe("memory", () => {
  const shape: ModelConfig = {
    ...SMALL_MODEL,
    layers: 3,
    vocabSize: 151_936,
    hiddenSize: 896,
    intermediateSize: 4864,
    heads: 14,
    kvHeads: 2,
    headDim: 64,
    contextLength: 2048,
    tied: true,
  };
  const requests = Array.from({ length: 64 }, (_, seed) => request(256 + Math.floor(seed / 8), 80, seed));

  async function count(cache: CacheOptions, drawn: readonly SampleRequest[] = requests) {
    const device = new CountingDevice();
    const model = new Transformer(device, shape);
    const weights = new StoredWeights(device, shape);
    const before = device.memory.live;
    device.startPhase();
    await new BatchSampler(model, { cache }).sample({ weights: () => weights }, drawn, { weightVersion: 0 });
    const { bytes, byLabel } = device.phasePeak;
    return { bytes: bytes - before, byLabel, left: device.memory.live - before };
  }

  test("a group's prompt lies in the cache once, and bfloat16 halves it", async () => {
    const { byLabel, left } = await count({});
    const cache = byLabel.get("key cache")! + byLabel.get("value cache")!;
    // 8 prompts of 16 pages, 64 sequences with 5 or 6 pages of their own; the pool of buffers adds up to an eighth.
    const pages = 8 * 16 + 16 * 5 + 48 * 6;
    const exact = pages * 16 * 2 * 64 * 4 * 2 * shape.layers;
    expect(cache).toBeGreaterThanOrEqual(exact);
    expect(cache).toBeLessThan(exact * 1.125);
    const halved = await count({ dtype: "bfloat16" });
    expect(halved.byLabel.get("key cache")! * 2).toBe(byLabel.get("key cache"));
    expect(left).toBe(0);
  });

  test("takes at most the bytes it is given, rounding included, and almost all of them", async () => {
    for (const bytes of [3_000_000, 4_194_304, 5_000_001, 7_340_032]) {
      const { byLabel } = await count({ bytes });
      const taken = byLabel.get("key cache")! + byLabel.get("value cache")!;
      expect(taken).toBeLessThanOrEqual(bytes);
      expect(taken).toBeGreaterThan(bytes * 0.8);
    }
  });

  test.each([
    [64, 1],
    [256, 3],
  ])("a step of %i rows over 152k tokens holds logits of at most 64 MiB, and one layer", async (rows, windows) => {
    const { bytes, byLabel } = await count(
      {},
      Array.from({ length: rows }, (_, seed) => request(1, 9, seed)),
    );
    const perWindow = Math.min(rows, Math.floor(2 ** 26 / (151_936 * 4)));
    expect(Math.ceil(rows / perWindow)).toBe(windows);
    const logits = perWindow * 151_936 * 4;
    expect(byLabel.get("logits")).toBeGreaterThanOrEqual(logits);
    const layer = rows * (3 * shape.intermediateSize + 4 * shape.hiddenSize) * 4;
    expect(bytes - byLabel.get("key cache")! * 2).toBeLessThan((logits + layer) * 1.125);
  });
});
