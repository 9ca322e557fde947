/** The optimiser's state: moments, steps, clipping and gradients that are not numbers. */
import { expect, test } from "vitest";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import { layOutParameters, ParameterSet } from "../../../../src/engine/model/parameters.ts";
import { AdamW } from "../../../../src/engine/model/train/optimizer.ts";
import { narrowDevice } from "../../../fixtures/changed_device.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { expectClose, floats } from "../../../fixtures/numbers.ts";

const PARAMS = { learning_rate: 0.1, beta1: 0.8, beta2: 0.9, eps: 1e-3, weight_decay: 0.05, grad_clip_norm: 1.5 };
const SHAPES = [
  ["a", { rows: 3, columns: 5 }],
  ["b", { rows: 1, columns: 300 }],
] as const;
const CLOSE = { relative: 1e-5, absolute: 1e-6 };

/** One step by torch's rule, in float64; returns the norm before clipping. */
function reference() {
  const state = new Map(SHAPES.map(([name]) => [name as string, { m: [] as number[], v: [] as number[] }]));
  let t = 0;
  return (values: Map<string, number[]>, gradients: Map<string, Float32Array>, p: typeof PARAMS) => {
    t++;
    const norm = Math.sqrt([...gradients.values()].flatMap((g) => [...g]).reduce((sum, g) => sum + g * g, 0));
    const factor = p.grad_clip_norm > 0 ? Math.min(1, p.grad_clip_norm / (norm + 1e-6)) : 1;
    for (const [name, x] of values)
      for (const i of x.keys()) {
        const { m, v } = state.get(name)!;
        const g = gradients.get(name)![i]! * factor;
        m[i] = p.beta1 * (m[i] ?? 0) + (1 - p.beta1) * g;
        v[i] = p.beta2 * (v[i] ?? 0) + (1 - p.beta2) * g * g;
        const denominator = Math.sqrt(v[i]! / (1 - p.beta2 ** t)) + p.eps;
        x[i] =
          x[i]! * (1 - p.learning_rate * p.weight_decay) - (p.learning_rate * m[i]!) / (1 - p.beta1 ** t) / denominator;
      }
    return norm;
  };
}

overDevices("AdamW", (real) => {
  // With narrow bindings the 300 elements take several windows.
  test.each([Number.POSITIVE_INFINITY, 1024])(
    "follows torch's rule over three steps, in bindings of %f bytes",
    async (limit) => {
      const device = narrowDevice(real, limit);
      const parameters = new ParameterSet(device, layOutParameters(device, SHAPES), "weights");
      const optimizer = new AdamW(device, parameters);
      const step = reference();
      const values = new Map<string, number[]>();
      for (const [i, [name, { rows, columns }]] of SHAPES.entries()) {
        const start = floats(rows * columns, i + 1);
        parameters.write(name, start);
        values.set(name, [...start]);
      }
      for (const [round, clip] of [1.5, 0, 1000].entries()) {
        const gradients = new Map(
          SHAPES.map(([name, { rows, columns }]) => [name as string, floats(rows * columns, 10 + round)]),
        );
        for (const [name, gradient] of gradients) optimizer.gradients.write(name, gradient);
        const params = { ...PARAMS, grad_clip_norm: clip };
        let calls = 0;
        const norm = await optimizer.apply(params, () => calls++);
        expect(norm / step(values, gradients, params)).toBeCloseTo(1, 5);
        expect([calls, optimizer.step]).toEqual([1, round + 1]);
        for (const [name, found] of await parameters.read()) expectClose(found, values.get(name)!, CLOSE, name);
        for (const [, left] of await optimizer.gradients.read()) expect(left.every((value) => value === 0)).toBe(true);
      }
      optimizer.release();
      parameters.release();
    },
  );

  test.each([Number.NaN, Number.POSITIVE_INFINITY, 3e38])(
    "a gradient of %f changes nothing, counts no step, and is cleared",
    async (bad) => {
      const parameters = new ParameterSet(real, layOutParameters(real, SHAPES), "weights");
      parameters.write("a", floats(15, 1));
      const optimizer = new AdamW(real, parameters);
      optimizer.gradients.write("b", floats(300, 2));
      expect(await optimizer.apply(PARAMS, () => {})).toBeGreaterThan(0);
      const before = [await parameters.read(), await optimizer.means.read(), await optimizer.variances.read()];
      optimizer.gradients.write("a", floats(15, 3).fill(bad, 4, 5));
      expect(await optimizer.apply(PARAMS, () => {})).toBeNaN();
      expect(optimizer.step).toBe(1);
      expect([await parameters.read(), await optimizer.means.read(), await optimizer.variances.read()]).toEqual(before);
      for (const [, left] of await optimizer.gradients.read()) expect(left.every((value) => value === 0)).toBe(true);
      optimizer.reset();
      expect(optimizer.step).toBe(0);
      for (const set of [optimizer.means, optimizer.variances])
        for (const [, left] of await set.read()) expect(left.every((value) => value === 0)).toBe(true);
      optimizer.release();
      parameters.release();
    },
  );
});

test("an optimiser that does not fit holds nothing", () => {
  const device = new CpuDevice({ memoryBudgetBytes: 3 * 1536 + 256 });
  const parameters = new ParameterSet(device, layOutParameters(device, SHAPES), "weights");
  const { live } = device.memory;
  expect(() => new AdamW(device, parameters)).toThrow(/second moments/);
  expect(device.memory.live).toBe(live);
});
