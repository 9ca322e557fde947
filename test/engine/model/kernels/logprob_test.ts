import { describe, expect, test } from "vitest";
import { chooseGreedyHits, chooseLogprobBackward, logprob } from "../../../../src/engine/model/kernels/logprob.ts";
import { logprobOnBoth } from "./record.ts";
import { expectGradient, integers, noise, runOnBoth, unwritten, useDevices } from "./run.ts";

const devices = useDevices();

interface Shape {
  readonly rows: number;
  readonly vocabulary: number;
  readonly stride: number;
}

const CASES: [Shape, number][] = [
  [{ rows: 0, vocabulary: 8, stride: 8 }, 1],
  [{ rows: 1, vocabulary: 1, stride: 4 }, 1],
  [{ rows: 1, vocabulary: 5, stride: 8 }, 0.7],
  [{ rows: 9, vocabulary: 17, stride: 20 }, 1.3],
  [{ rows: 65, vocabulary: 512, stride: 512 }, 1],
  [{ rows: 3, vocabulary: 32_771, stride: 32_776 }, 1],
];

/** Columns between the vocabulary and the stride hold values that must not count. */
function logitsOf({ rows, vocabulary, stride }: Shape, scale = 5): Float32Array {
  return noise(rows * stride).map((x, i) => (i % stride < vocabulary ? x * scale : 1e4));
}

describe.each(["scalar", "tiled"] as const)("logprob, %s", (family) => {
  const gradient = chooseLogprobBackward({ family });

  test.each(CASES)("%o at temperature %d, with the gradient", async (shape, temperature) => {
    const { rows, vocabulary } = shape;
    const first_row = 2;
    const length = rows + first_row;
    const params = { ...shape, first_row, inverse_temperature: 1 / temperature };
    const logits = logitsOf(shape);
    const targets = integers(length, vocabulary, 8);
    const perRow = () => new Float32Array(length);
    const buffers = { logits, targets, logprobs: perRow(), entropies: perRow(), logSumExps: perRow() };
    const forward = await logprobOnBoth(devices, { family, run: { buffers, params } });
    const grads = { logprobGrads: noise(length, 3), entropyGrads: noise(length, 4) };
    const backward = await runOnBoth(devices, gradient, {
      buffers: {
        logits,
        targets,
        logSumExps: forward.logSumExps,
        entropies: forward.entropies,
        ...grads,
      },
      params,
    });
    const loss = () => {
      const [logprobs, entropies] = [new Float64Array(length), new Float64Array(length)];
      const outputs = { logprobs, entropies, logSumExps: new Float64Array(length) } as never;
      logprob.reference({ logits, targets, ...(outputs as object) } as never, params, {});
      let sum = 0;
      for (let i = first_row; i < length; i++)
        sum += logprobs[i]! * grads.logprobGrads[i]! + entropies[i]! * grads.entropyGrads[i]!;
      return sum;
    };
    const stride = logits.length > 300 ? Math.ceil(logits.length / 40) : 1;
    const logitGrads = (backward.logits as Float32Array).slice();
    for (let i = 0; i < logitGrads.length; i++)
      if (i % shape.stride >= vocabulary) expect(logitGrads[i], `padding ${i}`).toBe(0);
    expectGradient(logits, logitGrads, { loss, name: "logits", stride, step: 1e-2 });
  });

  test("logits far apart and far from zero", async () => {
    const shape = { rows: 4, vocabulary: 100, stride: 100 };
    const logits = logitsOf(shape, 80).map((x) => x - 300);
    const targets = Uint32Array.of(0, 1, 2, 3);
    const buffers = { logits, targets, logprobs: unwritten(4), entropies: unwritten(4), logSumExps: unwritten(4) };
    const params = { ...shape, first_row: 0, inverse_temperature: 1 };
    const tolerance = { relative: 1e-5, absolute: 2e-4 };
    const { logprobs } = await logprobOnBoth(devices, { family, run: { buffers, params }, tolerance });
    for (const value of logprobs) expect(value).toBeLessThanOrEqual(1e-4);
  });

  test.each([
    { rows: 2, vocabulary: 300_001, stride: 300_004 },
    { rows: 65_540, vocabulary: 3, stride: 4 },
  ])("many segments: %o", async (shape) => {
    const { rows, vocabulary } = shape;
    const perRow = () => new Float32Array(rows);
    const buffers = { logprobs: perRow(), entropies: perRow(), logSumExps: perRow() };
    await logprobOnBoth(devices, {
      family,
      run: {
        buffers: { ...buffers, logits: logitsOf(shape), targets: integers(rows, vocabulary, 8) },
        params: { ...shape, first_row: 0, inverse_temperature: 0.8 },
      },
    });
  });

  test("more than 65,535 workgroups of the gradient", async () => {
    const shape = { rows: 65_540, vocabulary: 4, stride: 4 };
    await runOnBoth(devices, gradient, {
      buffers: {
        logits: noise(shape.rows * 4),
        targets: integers(shape.rows, 4),
        logSumExps: new Float32Array(shape.rows).fill(1.5),
        entropies: new Float32Array(shape.rows).fill(1),
        logprobGrads: noise(shape.rows, 3),
        entropyGrads: noise(shape.rows, 4),
      },
      params: { ...shape, first_row: 0, inverse_temperature: 1 },
    });
  });
});

describe.each(["scalar", "tiled"] as const)("the target that greedy decoding would draw, %s", (family) => {
  const greedyHits = chooseGreedyHits({ family });
  const params = (shape: Shape) => ({ ...shape, first_row: 2, inverse_temperature: 1 });

  test.each(CASES)("%o", async (shape) => {
    const logits = logitsOf(shape);
    const { rows, vocabulary, stride } = shape;
    const best = Array.from({ length: rows }, (_, row) => {
      const own = logits.subarray(row * stride, row * stride + vocabulary);
      return own.indexOf(Math.max(...own));
    });
    // Every other row asks for the largest logit.
    const targets = integers(rows + 2, vocabulary, 8).map((target, i) => (i % 2 === 0 ? (best[i - 2] ?? 0) : target));
    const { greedy } = await runOnBoth(devices, greedyHits, {
      buffers: { logits, targets, greedy: new Float32Array(rows + 2).fill(7) },
      params: params(shape),
    });
    const expected = best.map((token, row) => Number(token === targets[row + 2]));
    expect([...greedy]).toEqual([7, 7, ...expected]);
  });

  test("is the first of equal ones", async () => {
    const logits = Float32Array.of(1, 3, 3, 0, 2, 3, 3, 3);
    const shape = { rows: 2, vocabulary: 4, stride: 4 };
    for (const [targets, expected] of [
      [Uint32Array.of(0, 0, 1, 1), [1, 1]],
      [Uint32Array.of(0, 0, 2, 2), [0, 0]],
    ] as const) {
      const { greedy } = await runOnBoth(devices, greedyHits, {
        buffers: { logits, targets, greedy: new Float32Array(4) },
        params: params(shape),
      });
      expect([...greedy].slice(2)).toEqual(expected);
    }
  });

  test("in more than 65,535 workgroups", async () => {
    const shape = { rows: family === "tiled" ? 65_540 : 8 * 65_540, vocabulary: 1, stride: 4 };
    await runOnBoth(devices, greedyHits, {
      buffers: {
        logits: noise(shape.rows * 4),
        targets: new Uint32Array(shape.rows + 2),
        greedy: new Float32Array(shape.rows + 2),
      },
      params: params(shape),
    });
  });
});
