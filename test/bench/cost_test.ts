/** Counted costs: what a dispatch moves and computes, how dispatches add up, and the steps that are counted for. */
import { describe, expect, test } from "vitest";
import { CostDevice, type Dispatch } from "../../bench/cost/counted.ts";
import { byKernel, costOf, leastSeconds, MACHINES } from "../../bench/cost/machines.ts";
import { countPhases } from "../../bench/cost/phases.ts";
import { countedModels } from "../../bench/cost_bench.ts";
import { compareFigures, type Figure } from "../../bench/history.ts";
import { TYPICAL_GPU } from "../../src/engine/compute/counting.ts";
import { matmul } from "../../src/engine/compute/matmul/matmul.ts";
import type { MatmulOptions } from "../../src/engine/compute/matmul/product.ts";
import { rmsNorm } from "../../src/engine/model/kernels/norm.ts";

function deviceWith(...bytes: number[]) {
  const device = new CostDevice();
  return { device, buffers: bytes.map((length, i) => device.alloc(length, `buffer ${i}`)) };
}

describe("a dispatch", () => {
  const [m, n, k] = [16, 64, 128];
  test.each<[string, Partial<MatmulOptions>, number]>([
    ["writes C", {}, 4 * (m * k + n * k + m * n)],
    ["reads C to add to it", { accumulate: true }, 4 * (m * k + n * k + 2 * m * n)],
  ])("of a product %s", (_, more, bytes) => {
    // Buffers are larger than the matrices.
    const { device, buffers } = deviceWith(2 ** 20, 2 ** 20, 2 ** 20);
    const [a, b, c] = buffers.map((buffer) => ({ buffer }));
    matmul(device, { m, n, k, a: a!, b: b!, c: c!, transposeB: true, ...more });
    const expected = { kernel: "matmul/tiled_narrow", workgroups: 2, bytes, flop: 2 * m * n * k };
    expect(device.dispatches).toEqual([expected]);
  });

  test("of a product by packed weights reads them and their scales", () => {
    const { device, buffers } = deviceWith(2 ** 20, 2 ** 20, 2 ** 20, 2 ** 20);
    const [A, B, C, scales] = buffers;
    const b = { buffer: B!, format: "nf4", scales: scales! } as const;
    matmul(device, { m, n, k, a: { buffer: A! }, b, c: { buffer: C! }, transposeB: true });
    expect(device.dispatches[0]!.bytes).toBe(4 * (m * k + m * n) + (n * k) / 2 + ((n * k) / 64) * 4);
  });

  test("of another kernel moves each range once, and computes nothing that counts", () => {
    const { device, buffers } = deviceWith(4096, 256, 4096, 256);
    const [x, weight, y, inverseRms] = buffers;
    const params = {
      rows: 16,
      width: 64,
      per_token: 1,
      x_stride: 64,
      x_offset: 0,
      y_stride: 64,
      y_offset: 0,
      epsilon: 1,
    };
    device.dispatch(rmsNorm, { buffers: { x: x!, weight: weight!, y: y!, inverseRms: inverseRms! }, params });
    device.dispatch(rmsNorm, { buffers: { x: x!, weight: weight!, y: x!, inverseRms: inverseRms! }, params });
    expect(device.dispatches.map(({ bytes, flop }) => [bytes, flop])).toEqual([
      [2 * 4096 + 2 * 256, 0],
      [4096 + 2 * 256, 0],
    ]);
    expect(device.dispatches[0]!.workgroups).toBeGreaterThan(0);
    device.dispatch(rmsNorm, {
      buffers: { x: x!, weight: weight!, y: y!, inverseRms: inverseRms! },
      params: { ...params, rows: 0 },
    });
    expect(device.dispatches).toHaveLength(2);
    device.restart();
    expect(device.dispatches).toHaveLength(0);
  });

  test("takes at least the time of its bytes or of its operations, whichever is longer", () => {
    const machine = { name: "", flops: 10, bandwidth: 100 };
    expect(leastSeconds({ flop: 20, bytes: 100 }, machine)).toBe(2);
    expect(leastSeconds({ flop: 20, bytes: 300 }, machine)).toBe(3);
  });
});

test("dispatches add up, by step and by kernel", () => {
  const [first] = MACHINES;
  const of = (kernel: string, workgroups: number, seconds: number): Dispatch => ({
    ...{ kernel, workgroups, bytes: 0, flop: seconds * first!.flops },
  });
  const dispatches = [of("a", 64, 1), of("b", 63, 3), of("a", 100, 4)];
  const cost = costOf(dispatches, { readBacks: 1, per: 2 });
  expect(cost).toMatchObject({ dispatches: 1.5, readBacks: 0.5, bytes: 0, flop: 4 * first!.flops });
  expect(cost.smallest).toMatchObject({ kernel: "b", workgroups: 63 });
  expect(cost.narrowShare).toBeCloseTo(3 / 8);
  expect(cost.seconds[first!.name]).toBeCloseTo(4);
  expect(byKernel(dispatches).map(({ kernel, count }) => [kernel, count])).toEqual([
    ["a", 2],
    ["b", 1],
  ]);
});

test("a decoding step of Qwen2.5-0.5B is a known number of dispatches, and reads its weights and its cache once", async () => {
  const [model] = await countedModels();
  const phases = await countPhases(model!, TYPICAL_GPU);
  const [prefill, one, many, oneLong, manyLong, oneAdapted, manyAdapted, training] = phases.map(({ cost }) => cost);
  // 24 layers of five, embedding, norm, head and the two of a draw without filters; an adapter has four of its own.
  expect([one!.dispatches, many!.dispatches]).toEqual([125, 125]);
  expect([oneAdapted!.dispatches, manyAdapted!.dispatches]).toEqual([221, 221]);
  // A workgroup for each row at least, norms among them.
  expect(many!.smallest.workgroups).toBeGreaterThanOrEqual(64);
  // One row with a longer context attends by chunks, which a further dispatch a layer folds. The rest moves more of the cache alone:
  // keys and values of 2 heads of 64 in float32.
  expect([oneLong!.dispatches, manyLong!.dispatches]).toEqual([149, 125]);
  const longer = 24 * 2 * (2 * 64) * 4 * (8192 - 512);
  // Written and read: 33 chunks of 14 heads, 64 sums, a total and a highest score each; and the row's position.
  const chunks = 24 * (2 * 14 * 33 * (64 + 4) * 4 + 4);
  expect([oneLong!.bytes - one!.bytes, manyLong!.bytes - many!.bytes]).toEqual([longer + chunks, 64 * longer]);
  expect([prefill!.readBacks, one!.readBacks, training!.readBacks]).toEqual([1, 1 / 16, 1]);
  // The matrices, the tied table among them, in bfloat16, and keys and values of two heads of 64.
  const { hiddenSize: C, intermediateSize: F, vocabSize: V, layers } = model!.shape.config;
  const matrices = layers * (C * (C + 256) + C * C + 3 * C * F) + V * C;
  const cache = (rows: number) => rows * layers * model!.promptTokens * 2 * 128 * 4;
  for (const [rows, { bytes, flop }] of [
    [1, one!],
    [64, many!],
  ] as const) {
    expect(flop).toBeGreaterThan(2 * rows * matrices);
    expect(flop).toBeLessThan(2.2 * rows * matrices);
    expect(bytes).toBeGreaterThan(2 * matrices + cache(rows));
  }
  expect(one!.bytes).toBeLessThan(1.01 * (2 * matrices + cache(1)));
  // Every token but the first of its sequence is trained on: forward, and backward by the inputs alone.
  const products = 4 * model!.passTokens * matrices;
  expect(training!.flop).toBeGreaterThan(products);
  expect(training!.flop).toBeLessThan(1.5 * products);
});

test("of costs, more is slower", () => {
  const figure = (value: number, low: number, high: number): Figure => ({
    ...{ date: "", commit: "", device: "", driver: "", name: "a", unit: "bytes", lowerIsBetter: true },
    ...{ value, low, high },
  });
  const verdict = (after: Figure) => compareFigures([figure(10, 9, 11)], [after])[0]!;
  expect(verdict(figure(12, 12, 12))).toMatchObject({ verdict: "slower", change: 1.2 });
  expect(verdict(figure(8, 8, 8))).toMatchObject({ verdict: "faster" });
  expect(verdict(figure(11, 11, 11))).toMatchObject({ verdict: "same" });
  expect(compareFigures([figure(0, 0, 0)], [figure(0, 0, 0)])[0]).toMatchObject({ verdict: "same", change: 1 });
});
