/** Guessed tokens, verified several in a step: the tokens and log-probs of decoding without guesses, in fewer steps. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { SampledSequence, SampleRequest, TokenConstraint } from "../../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { lookupOf, NgramIndex, type NgramOptions } from "../../../../src/engine/model/generate/ngram.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { mulberry32 } from "../../../../src/leaves/random.ts";
import { changed, refusing } from "../../../fixtures/changed_device.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { REQUESTS, request } from "../../../fixtures/sample_requests.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const SPECULATIVE = { method: "ngram", numSpeculativeTokens: 6, promptLookupMax: 3, promptLookupMin: 1 } as const;
const OPTIONS = { weightVersion: 3 };
const CONFIG: ModelConfig = { ...SMALL_MODEL, contextLength: 200 };
const WINDOWED: ModelConfig = {
  ...CONFIG,
  architecture: "gemma3_text",
  hiddenSize: 48,
  heads: 2,
  kvHeads: 1,
  headDim: 64,
  layers: 3,
  slidingWindow: 21,
  layerTypes: ["sliding_attention", "full_attention", "sliding_attention"],
  slidingRopeTheta: 1000,
};

function guessOf(tokens: readonly number[], lookup: NgramOptions): number[] {
  const index = new NgramIndex(lookup);
  for (const token of tokens) index.add(token);
  expect(index.length).toBe(tokens.length);
  return index.guess();
}

/** The same from a scan of the whole sequence. */
function scannedGuess(tokens: readonly number[], { most, longest, shortest }: NgramOptions): number[] {
  const last = tokens.length - 1;
  let [length, after] = [0, 0];
  for (let at = 0; at < last && length < longest; at++) {
    let n = 0;
    while (n < longest && n <= at && tokens[at - n] === tokens[last - n]) n++;
    if (n > length) [length, after] = [n, at + 1];
  }
  return length < shortest ? [] : tokens.slice(after, after + most);
}

describe("a guess", () => {
  const lookup = lookupOf({ method: "ngram", numSpeculativeTokens: 3, promptLookupMax: 3, promptLookupMin: 2 });

  test.each([
    ["nothing of nothing", [], []],
    ["nothing after one token", [1], []],
    ["nothing where the last tokens are new", [1, 2, 3, 4], []],
    ["nothing for fewer tokens than the shortest", [1, 2, 3, 9, 2], []],
    ["what followed the last tokens", [1, 2, 3, 4, 5, 1, 2], [3, 4, 5]],
    ["fewer where the sequence ends", [1, 2, 1, 2], [1, 2]],
    ["what followed the longest occurrence, also after a shorter one", [2, 3, 8, 1, 2, 3, 9, 1, 2, 3], [9, 1, 2]],
    ["what followed the earliest of equal ones", [1, 2, 5, 1, 2, 6, 1, 2], [5, 1, 2]],
    ["the period of a repetition", [4, 4, 4, 4, 4, 4, 4], [4, 4, 4]],
    ["no more than lies there", [4, 4, 4, 4], [4]],
    ["an occurrence that the sequence's start cuts", [2, 3, 8, 7, 1, 2, 3], [8, 7, 1]],
  ])("%s", (_, tokens, guess) => {
    expect(guessOf(tokens, lookup)).toEqual(guess);
  });

  test("is that of a scan of the whole sequence after each token of random ones", () => {
    const next = mulberry32(5);
    const upTo = (most: number) => 1 + Math.floor(next() * most);
    let guessed = 0;
    for (let round = 0; round < 200; round++) {
      const shortest = upTo(4);
      const of: NgramOptions = { most: upTo(6), shortest, longest: shortest + upTo(5) - 1 };
      const [index, tokens, kinds] = [new NgramIndex(of), [] as number[], upTo(6)];
      for (let i = upTo(120); i > 0; i--) {
        // Some of the largest ids that a vocabulary has, and repeats of what there is.
        const token = next() < 0.3 ? (tokens[tokens.length - kinds] ?? 0) : upTo(kinds) * 43_000;
        tokens.push(token);
        index.add(token);
        const guess = index.guess();
        expect(guess).toEqual(scannedGuess(tokens, of));
        if (guess.length > 0) guessed++;
      }
      expect(index.guess(1)).toEqual(scannedGuess(tokens, of).slice(0, 1));
    }
    expect(guessed).toBeGreaterThan(3000);
  });

  test("takes time and memory in proportion to the sequence", () => {
    const index = new NgramIndex({ most: 5, longest: 4, shortest: 2 });
    const next = mulberry32(6);
    const nodes = () => (index as unknown as { after: number[] }).after.length;
    for (let i = 0; i < 20_000; i++) {
      index.add(Math.floor(next() * 50));
      expect(nodes()).toBeLessThanOrEqual(1 + 4 * (i + 1));
    }
    const before = nodes();
    for (let i = 0; i < 1000; i++) index.add(7);
    expect(nodes() - before).toBeLessThan(10);
  });

  test("looks up five tokens unless the options say otherwise, as vLLM does", () => {
    const of = (promptLookupMax?: number, promptLookupMin?: number) =>
      lookupOf({ method: "ngram", numSpeculativeTokens: 2, promptLookupMax, promptLookupMin });
    expect(of()).toEqual({ most: 2, longest: 5, shortest: 5 });
    expect(of(3)).toEqual({ most: 2, longest: 3, shortest: 3 });
    expect(of(undefined, 4)).toEqual({ most: 2, longest: 4, shortest: 4 });
    expect(of(7, 2)).toEqual({ most: 2, longest: 7, shortest: 2 });
  });

  test("refuses numbers that allow none", () => {
    const of = (numSpeculativeTokens: number, promptLookupMax?: number, promptLookupMin?: number) =>
      lookupOf({ method: "ngram", numSpeculativeTokens, promptLookupMax, promptLookupMin });
    expect(() => of(0)).toThrow("Cannot speculate: num_speculative_tokens must be a whole number above 0 (0)");
    expect(() => of(2, 1.5)).toThrow("prompt_lookup_max must be a whole number above 0 (1.5)");
    expect(() => of(2, 3, 4)).toThrow("Cannot speculate: prompt_lookup_min is above prompt_lookup_max (4 > 3)");
  });
});

/** Draws of few tokens, so that sequences repeat themselves. */
const repeating = (temperature: number): SampleRequest[] =>
  [1, 15, 16, 33, 60].map((length, seed) => ({
    ...request(length, [40, 90, 1, 60, 2][seed]!, seed),
    params: { ...request(length, [40, 90, 1, 60, 2][seed]!, seed).params, temperature, top_k: 3 },
  }));

/** Masks two tokens of seven, which are then even. */
const SOMETIMES: TokenConstraint = {
  start() {
    let drawn = 0;
    return {
      fill: (mask) => void mask.fill(0x55555555),
      advance: () => void drawn++,
      get isFree() {
        return drawn % 7 < 5;
      },
    };
  },
};

function withoutCounts({ speculated: _, ...drawn }: SampledSequence): SampledSequence {
  return drawn;
}

function checkCounts({ tokens, speculated: it }: SampledSequence, { speculative }: LanguageModelOptions): void {
  // The first token comes with the prompt.
  expect(it !== undefined).toBe(speculative !== undefined && tokens.length > 1);
  if (!it) return;
  expect(it.num_accepted_tokens).toBeLessThanOrEqual(it.num_draft_tokens);
  expect(it.num_draft_tokens).toBeGreaterThanOrEqual(it.num_drafts);
  expect(it.num_draft_tokens).toBeLessThanOrEqual(it.num_drafts * speculative!.numSpeculativeTokens);
}

/** Counts steps, and their rows. */
function counting(device: Device) {
  const counts = { steps: 0, rows: 0 };
  const dispatch: Device["dispatch"] = (kernel, options) => {
    if (/^decode\/sample(_tiled)?$/.test(kernel.name)) {
      counts.steps++;
      counts.rows += options.params.rows!;
    }
    device.dispatch(kernel, options);
  };
  // Without repetitions, so that each step is a dispatch.
  return { device: changed(device, { dispatch, keep: () => undefined }), counts };
}

overDevices("guessed tokens", (device) => {
  const tiled = changed(device, { info: { ...device.info, family: "tiled" } });
  const KERNELS: readonly (readonly [string, Device])[] =
    device.info.kind === "cpu"
      ? [["its own kernels", device]]
      : [
          ["its own kernels", device],
          ["the kernels of GPUs", tiled],
        ];

  async function draw(
    on: Device,
    requests: readonly SampleRequest[],
    options: LanguageModelOptions & { config?: ModelConfig } = {},
  ) {
    const { config = CONFIG, ...rest } = options;
    const model = LanguageModel.create(on, config, { seed: 6, ...rest });
    try {
      const results = await model.sample(requests, OPTIONS);
      for (const result of results) checkCounts(result, rest);
      return results.map(withoutCounts);
    } finally {
      model.release();
    }
  }

  describe.each(KERNELS)("by %s", (_, on) => {
    test.each([
      ["greedy", 0, CONFIG, "float32"],
      ["sampled", 0.4, CONFIG, "float32"],
      ["sampled, with layers that have a window", 0.4, WINDOWED, "float32"],
      ["sampled, with a cache of bfloat16", 0.4, CONFIG, "bfloat16"],
    ] as const)("change no token and no log-prob: %s", async (_, temperature, config, dtype) => {
      const requests = repeating(temperature);
      const options = { config, cache: { dtype } };
      const expected = await draw(on, requests, options);
      for (const each of [SPECULATIVE, { ...SPECULATIVE, numSpeculativeTokens: 1 }])
        expect(await draw(on, requests, { ...options, speculative: each })).toEqual(expected);
    });
  });

  test("change nothing where they are many, and where sequences end at stop tokens", async () => {
    const requests = [...REQUESTS, ...REQUESTS.map((it) => ({ ...it, seed: it.seed + 100 }))];
    const speculative = { ...SPECULATIVE, numSpeculativeTokens: 20 };
    expect(await draw(device, requests, { speculative })).toEqual(await draw(device, requests));
  });

  test("change nothing where a mask comes and goes while others are drawn", async () => {
    const requests = repeating(0.4).map((it, i) => (i % 2 === 1 ? { ...it, allowed: SOMETIMES } : it));
    const expected = await draw(device, requests);
    expect(expected[1]!.constrained!.masked_tokens).toBeGreaterThan(0);
    expect(await draw(device, requests, { speculative: SPECULATIVE })).toEqual(expected);
  });

  test("save steps where a sequence repeats itself", async () => {
    const [plain, guessed] = [counting(device), counting(device)];
    const requests = [{ ...request(16, 120, 1), params: { ...request(16, 120, 1).params, temperature: 0 } }];
    const expected = await draw(plain.device, requests);
    expect(await draw(guessed.device, requests, { speculative: SPECULATIVE })).toEqual(expected);
    expect(guessed.counts.steps).toBeLessThan(plain.counts.steps * 0.75);
    expect(guessed.counts.rows).toBeGreaterThan(guessed.counts.steps);
    const model = LanguageModel.create(guessed.device, CONFIG, { seed: 6, speculative: SPECULATIVE });
    guessed.counts.steps = guessed.counts.rows = 0;
    const [{ tokens, speculated }] = (await model.sample(requests, OPTIONS)) as [SampledSequence];
    const { steps, rows } = guessed.counts;
    // Each step draws a token, and each guess that is right another one.
    expect(speculated).toMatchObject({ num_accepted_tokens: tokens.length - steps, num_draft_tokens: rows - steps });
    model.release();
  });

  test("are given to a reader as they are drawn, each once", async () => {
    const heard: number[] = [];
    const [first] = repeating(0.4).slice(1);
    const reader = { ...first!, onTokens: (tokens: readonly number[]) => void heard.push(...tokens) };
    const [result] = await draw(device, [reader], { speculative: SPECULATIVE });
    expect(heard).toEqual(result!.tokens);
  });

  test("lose nothing when memory is refused for them", async () => {
    const requests = repeating(0.4);
    const expected = await draw(device, requests);
    const at: { alloc?: number } = {};
    const { device: refuser, seen } = refusing(device, at);
    const callsOf = async (refused: number) => {
      const warnings: string[] = [];
      const model = LanguageModel.create(refuser, CONFIG, { seed: 6, speculative: SPECULATIVE });
      model.onWarning((message) => void warnings.push(message));
      await model.sample(requests.slice(0, 1), OPTIONS);
      const { live } = device.memory;
      const before = seen.alloc;
      at.alloc = before + refused;
      expect((await model.sample(requests, OPTIONS)).map(withoutCounts)).toEqual(expected);
      expect(device.memory.live).toBe(live);
      model.release();
      return { calls: seen.alloc - before, warnings: warnings.join() };
    };
    const { calls } = await callsOf(Number.NaN);
    const said: string[] = [];
    for (let i = 1; i < 12; i++) said.push((await callsOf(Math.floor((calls * (i + 4)) / 16))).warnings);
    expect(said.join()).toMatch(/for a step with guessed tokens.*rollout\.speculative_config\.method=null/);
  });
});
