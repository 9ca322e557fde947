/** Operations by a model's shape, against sums written out. */
import { expect, test } from "vitest";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { forwardFlop, trainingFlop } from "../../../src/engine/model/flop.ts";

const CONFIG = {
  vocabSize: 100,
  hiddenSize: 8,
  intermediateSize: 12,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 4,
} as ModelConfig;
// q [16, 8], k and v [8, 8], o [8, 16], gate, up and down [12, 8].
const LAYER = 16 * 8 + 2 * 8 * 8 + 8 * 16 + 3 * 12 * 8;
const HEAD = 100 * 8;
/** Two sequences of 3 and 2 tokens: 6 and 3 pairs of a query and a key. */
const WORK = { tokens: 5, targets: 3, lengths: [3, 2] };
const ATTENTION = 2 * 4 * 4 * 4 * 9;

test("a forward pass is two operations a weight and token, and four a pair and element of a head", () => {
  expect(forwardFlop(CONFIG, WORK)).toBe(2 * 5 * 2 * LAYER + 2 * 3 * HEAD + ATTENTION);
  expect(forwardFlop(CONFIG, WORK, 10)).toBe(forwardFlop(CONFIG, WORK) + 2 * 5 * 10);
});

test("training is three forward passes, and two where an adapter trains", () => {
  expect(trainingFlop(CONFIG, WORK)).toBe(3 * forwardFlop(CONFIG, WORK));
  const products = forwardFlop(CONFIG, WORK) - ATTENTION;
  expect(trainingFlop(CONFIG, WORK, 10)).toBe(2 * products + 3 * ATTENTION + 6 * 5 * 10);
});

test("biases and norms do not count, and a score head is one row", () => {
  const biased = { ...CONFIG, qkvBias: true, qkNorm: true, outputBias: true, mlpBias: true };
  expect(forwardFlop(biased, WORK)).toBe(forwardFlop(CONFIG, WORK));
  expect(forwardFlop(CONFIG, WORK) - forwardFlop({ ...CONFIG, scoreHead: true }, WORK)).toBe(2 * 3 * (HEAD - 8));
});

test("a sliding layer meets the keys of its window", () => {
  const layerTypes = ["full_attention", "sliding_attention"] as const;
  const sliding: ModelConfig = { ...CONFIG, slidingWindow: 2, layerTypes };
  // In the sequence of 3 the last query meets 2 keys in place of 3.
  expect(forwardFlop(CONFIG, WORK) - forwardFlop(sliding, WORK)).toBe(4 * 4 * 4);
});

test("tokens that are known count neither in products nor as queries", () => {
  const whole = forwardFlop(CONFIG, { tokens: 7, targets: 0, lengths: [7] });
  const prompt = forwardFlop(CONFIG, { tokens: 4, targets: 0, lengths: [4] });
  const rest = forwardFlop(CONFIG, { tokens: 3, targets: 0, lengths: [7], known: [4] });
  expect(prompt + rest).toBe(whole);
});
