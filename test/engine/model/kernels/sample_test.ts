import { describe, expect, test } from "vitest";
import { maskLogits } from "../../../../src/engine/model/kernels/mask_logits.ts";
import { drawToken, samplingSettings } from "../../../../src/engine/model/kernels/sample.ts";
import { sampleOnBoth } from "./record.ts";
import { integers, noise, runOnBoth, useDevices } from "./run.ts";

const devices = useDevices();

interface Case {
  readonly rows: number;
  readonly vocabulary: number;
  readonly temperature: number;
  readonly topP?: number;
  readonly topK?: number;
}

function setUp({ rows, vocabulary, temperature, topP = 1, topK = 0 }: Case, logits?: Float32Array) {
  const stride = Math.ceil(vocabulary / 4) * 4;
  const padded = logits ?? noise(rows * stride).map((x, i) => (i % stride < vocabulary ? x * 4 : 1e9));
  const [shift, history_stride] = [2, 5];
  return {
    buffers: {
      logits: padded,
      seeds: integers(rows, 2 ** 31, 5),
      positions: integers(rows, 1000, 6),
      settings: Float32Array.from(
        Array.from({ length: rows }, () => samplingSettings({ temperature, top_p: topP, top_k: topK })).flat(),
      ),
      next: new Uint32Array(rows),
      tokens: new Uint32Array(rows * history_stride),
      logprobs: new Float32Array(rows * history_stride),
    },
    params: { rows, first_row: 0, vocabulary, stride, shift, history_stride },
  };
}

describe.each(["scalar", "tiled"] as const)("sample, %s", (family) => {
  const draw = (run: ReturnType<typeof setUp>) => sampleOnBoth(devices, { family, run });

  test.each<Case>([
    { rows: 0, vocabulary: 4, temperature: 1 },
    { rows: 1, vocabulary: 1, temperature: 1 },
    { rows: 9, vocabulary: 5, temperature: 0 },
    { rows: 65, vocabulary: 511, temperature: 1 },
    { rows: 65, vocabulary: 511, temperature: 0.6, topP: 0.9 },
    { rows: 65, vocabulary: 511, temperature: 1, topK: 7 },
    { rows: 65, vocabulary: 512, temperature: 1.5, topK: 50, topP: 0.8 },
    { rows: 5, vocabulary: 40_003, temperature: 1, topP: 0.95 },
    { rows: 3, vocabulary: 300, temperature: 1, topK: 1 },
    { rows: 3, vocabulary: 300, temperature: 1, topP: 0 },
  ])("the same tokens as the reference: %o", async (settings) => {
    const run = setUp(settings);
    const { next, tokens } = await draw(run);
    for (const [row, token] of next.entries()) {
      expect(token).toBeLessThan(settings.vocabulary);
      expect(tokens[row * 5 + 2]).toBe(token);
    }
    if (settings.topK === 1 || settings.topP === 0)
      expect(next).toEqual((await draw(setUp({ ...settings, temperature: 0 }, run.buffers.logits))).next);
  });

  test("greedy takes the lowest id of equals, with its log-probability at temperature 1", async () => {
    const logits = Float32Array.of(1, 3, 3, 0, -1, 2, 3, 9);
    const run = setUp({ rows: 1, vocabulary: 7, temperature: 0 }, logits);
    const { next, logprobs } = await draw(run);
    const total = [1, 3, 3, 0, -1, 2, 3].reduce((sum, x) => sum + Math.exp(x), 0);
    expect(next[0]).toBe(1);
    expect(logprobs[2]).toBeCloseTo(3 - Math.log(total), 5);
  });

  // p = 0.4, 0.2, 0.2, 0.1, 0.1: ties at the threshold stay, and top-p looks at what top-k left.
  test.each([
    [{ topK: 2 }, [0, 1, 2]],
    [{ topK: 4 }, [0, 1, 2, 3, 4]],
    [{ topP: 0.39 }, [0]],
    [{ topP: 0.41 }, [0, 1, 2]],
    [{ topP: 0.85 }, [0, 1, 2, 3, 4]],
    [{ topK: 1, topP: 0.99 }, [0]],
    [{ topK: 2, topP: 0.45 }, [0]],
    [{ topK: 2, topP: 0.55 }, [0, 1, 2]],
  ])("%o draws from %o only", async (filter, allowed) => {
    const p = [0.4, 0.2, 0.2, 0.1, 0.1, 0, 0, 0];
    const rows = 400;
    const logits = Float32Array.from({ length: rows * 8 }, (_, i) => Math.log(p[i % 8]!));
    const run = setUp({ rows, vocabulary: 5, temperature: 1, ...filter }, logits);
    const { next } = await draw({ ...run, params: { ...run.params, stride: 8 } });
    expect([...new Set(next)].sort()).toEqual(allowed);
  });

  test("frequencies follow softmax(logits / temperature)", async () => {
    const [rows, vocabulary, temperature] = [20_000, 6, 0.8];
    const row = noise(8, 12).map((x) => x * 2);
    const logits = Float32Array.from({ length: rows * 8 }, (_, i) => row[i % 8]!);
    const run = setUp({ rows, vocabulary, temperature }, logits);
    const { next, logprobs } = await draw({
      ...run,
      params: { ...run.params, stride: 8 },
    });
    const counts = new Float64Array(vocabulary);
    for (const token of next) counts[token]!++;
    const weights = Float64Array.from(row.subarray(0, vocabulary), (x) => Math.exp(x / temperature));
    const total = weights.reduce((a, b) => a + b);
    for (const [token, weight] of weights.entries()) {
      const p = weight / total;
      const spread = Math.sqrt((p * (1 - p)) / rows);
      expect(Math.abs(counts[token]! / rows - p), `token ${token}`).toBeLessThan(4 * spread);
    }
    for (const [i, token] of next.entries())
      expect(logprobs[i * 5 + 2]).toBeCloseTo(Math.log(weights[token]! / total), 4);
  });

  test("a row's draw depends only on its seed and position", async () => {
    const all = setUp({ rows: 7, vocabulary: 100, temperature: 1 });
    const { next } = await draw(all);
    const one = setUp({ rows: 1, vocabulary: 100, temperature: 1 });
    for (let row = 0; row < 7; row++) {
      const buffers = {
        ...one.buffers,
        logits: all.buffers.logits.slice(row * 100, (row + 1) * 100),
        seeds: all.buffers.seeds.slice(row, row + 1),
        positions: all.buffers.positions.slice(row, row + 1),
      };
      expect((await draw({ ...one, buffers })).next[0]).toBe(next[row]);
    }
  });
});

// Weights 1, 1/2, 1/2 in exact arithmetic, after a token of probability 0.
describe("the reference draws", () => {
  const LOGITS = [Number.NEGATIVE_INFINITY, 0, Math.log(0.5), Math.log(0.5)];
  const LAST = 1 - 2 ** -32;
  test.each([
    ["never a token of probability 0", { uniform: 0 }, 1],
    ["the first token below its share", { uniform: 0.4999 }, 1],
    ["the next token from the share on", { uniform: 0.5 }, 2],
    ["the last token", { uniform: LAST }, 3],
    ["within the top-p that its tokens reach exactly", { uniform: LAST, topP: 0.5 }, 1],
    ["ties at the edge of a larger top-p", { uniform: LAST, topP: 0.51 }, 3],
    ["within top-k", { uniform: LAST, topK: 1 }, 1],
    ["ties at the edge of top-k", { uniform: LAST, topK: 2 }, 3],
    ["the best when greedy", { uniform: LAST, greedy: true }, 1],
  ])("%s", (_, draw, token) => {
    const usual = { greedy: false, inverse: 1, topP: 1, topK: 0 };
    const drawn = drawToken(LOGITS, { ...usual, ...draw });
    expect(drawn.token).toBe(token);
    // At the temperature, before any filter.
    expect(drawn.logprob).toBeCloseTo(Math.log(token === 1 ? 0.5 : 0.25), 12);
  });
});

describe("maskLogits", () => {
  test.each([
    { rows: 0, stride: 4 },
    { rows: 1, stride: 4 },
    { rows: 3, stride: 36 },
    { rows: 65, stride: 260 },
    { rows: 2, stride: 40_004 },
  ])("hides the logits whose bit is clear: %o", async ({ rows, stride }) => {
    const words = Math.ceil(stride / 32);
    const masks = integers(rows * words, 2 ** 32, 9);
    const buffers = { logits: noise(rows * stride), masks, masked: new Float32Array(rows * stride) };
    const { masked } = await runOnBoth(devices, maskLogits, { buffers, params: { rows, stride, words } });
    for (const [i, value] of masked.entries()) {
      const [row, token] = [Math.floor(i / stride), i % stride];
      const isAllowed = Math.floor(masks[row * words + (token >> 5)]! / 2 ** (token % 32)) % 2 === 1;
      expect(value).toBe(isAllowed ? buffers.logits[i] : Math.fround(-1e30));
    }
  });
});
