import { describe, expect, test } from "vitest";
import { adamw, clipFactor, squareSum } from "../../../../src/engine/model/kernels/adamw.ts";
import { addScaled, scaleInPlace, scaleRows, transpose } from "../../../../src/engine/model/kernels/elementwise.ts";
import { embedding, embeddingBackward, groupByToken } from "../../../../src/engine/model/kernels/embedding.ts";
import { GATED } from "../../../../src/engine/model/kernels/geglu.ts";
import { expectGradient, integers, noise, runOn, runOnBoth, unwritten, useDevices, weightedSum } from "./run.ts";

const devices = useDevices();

describe("embedding", () => {
  test.each([
    [0, 4, 3],
    [1, 4, 1],
    [65, 8, 7],
    [1000, 64, 512],
  ])("%i tokens of width %i from %i rows", async (tokens, width, rows) => {
    const { out } = await runOnBoth(devices, embedding, {
      buffers: {
        tokens: integers(tokens, rows, 3),
        table: noise(rows * width, 4),
        out: new Float32Array(tokens * width),
      },
      params: { tokens, width, first_row: 0, row_count: rows },
    });
    expect(out.length).toBe(tokens * width);
  });

  test("more than 65,535 workgroups", async () => {
    const [tokens, width] = [70_001, 256];
    await runOnBoth(devices, embedding, {
      buffers: {
        tokens: integers(tokens, 5),
        table: noise(5 * width),
        out: unwritten(tokens * width),
      },
      params: { tokens, width, first_row: 0, row_count: 5 },
    });
  });

  test("two windows of the table equal the whole", async () => {
    const tokens = integers(50, 10, 5);
    const table = noise(10 * 8);
    const params = { tokens: 50, width: 8 };
    let out = new Float32Array(50 * 8);
    for (const first_row of [0, 4])
      ({ out } = (await runOnBoth(devices, embedding, {
        buffers: { tokens, table: table.slice(first_row * 8, first_row ? 80 : 32), out },
        params: { ...params, first_row, row_count: first_row ? 6 : 4 },
      })) as { out: Float32Array<ArrayBuffer> });
    for (const [t, token] of tokens.entries())
      expect(out.subarray(t * 8, t * 8 + 8)).toEqual(table.subarray(token * 8, token * 8 + 8));
  });

  test.each([
    [0, 4, 3],
    [1, 4, 1],
    [333, 68, 20],
  ])("gradient: %i tokens of width %i into %i rows", async (tokens, width, rows) => {
    const ids = integers(tokens, rows, 9);
    const groups = groupByToken(ids);
    const outGrad = noise(tokens * width, 2);
    const tableGrad = noise(rows * width, 3);
    const wanted = Float64Array.from(tableGrad);
    for (let i = 0; i < outGrad.length; i++) wanted[ids[Math.floor(i / width)]! * width + (i % width)]! += outGrad[i]!;
    const got = await runOnBoth(devices, embeddingBackward, {
      buffers: { ...groups, outGrad, tableGrad },
      params: { rows: groups.rows.length, width, first_row: 0, row_count: rows },
    });
    for (const [i, value] of wanted.entries()) expect(got.tableGrad[i]).toBeCloseTo(value, 4);
  });
});

describe.each(Object.keys(GATED) as (keyof typeof GATED)[])("the gated activation %s", (name) => {
  const { forward, backward } = GATED[name];

  test.each([
    [0, 4],
    [1, 4],
    [65, 4],
    [37, 172],
  ])("%i rows of width %i, and the gradient", async (rows, width) => {
    const gateUp = noise(rows * 2 * width, 5).map((x) => x * 6);
    const outGrad = noise(rows * width, 6);
    const params = { rows, width };
    const { out } = await runOnBoth(devices, forward, { buffers: { gateUp, out: unwritten(rows * width) }, params });
    const { gateUpGrad, outGrad: replaced } = await runOnBoth(devices, backward, {
      buffers: { gateUp, outGrad, gateUpGrad: unwritten(rows * 2 * width) },
      params,
    });
    expect(replaced).toEqual(out);
    const loss = () => {
      const out = new Float64Array(rows * width) as never;
      forward.reference({ gateUp, out }, params, {});
      return weightedSum(out, outGrad);
    };
    expectGradient(gateUp, gateUpGrad, { loss, name: "gateUp", stride: rows > 1 ? 97 : 1 });
  });
});

describe("gates far from 0", () => {
  test.each(Object.keys(GATED) as (keyof typeof GATED)[])("%s and its gradient stay finite", async (name) => {
    const gates = [-1e9, -1e4, -90, -12, 0, 12, 90, 1e4];
    const gateUp = Float32Array.of(...gates, ...gates.map(() => 1));
    const params = { rows: 1, width: gates.length };
    const { forward, backward } = GATED[name];
    const { out } = await runOnBoth(devices, forward, { buffers: { gateUp, out: unwritten(gates.length) }, params });
    const outGrad = new Float32Array(gates.length).fill(1);
    const { gateUpGrad } = await runOnBoth(devices, backward, {
      buffers: { gateUp, outGrad, gateUpGrad: unwritten(gateUp.length) },
      params,
    });
    for (const [i, gate] of gates.entries()) {
      expect(out[i]).toBeCloseTo(Math.max(gate, 0), 3);
      expect(gateUpGrad[i]).toBeCloseTo(gate > 0 ? 1 : gate < 0 ? 0 : 0.5, 3);
    }
  });

  test("the GELU is that of its tanh form", async () => {
    const gates = [-3, -1, -0.1, 0.1, 1, 3].concat([0, 0]);
    const gateUp = Float32Array.of(...gates, ...gates.map(() => 1));
    const params = { rows: 1, width: 8 };
    const buffers = { gateUp, out: unwritten(8) };
    const { out } = await runOnBoth(devices, GATED.gelu_pytorch_tanh.forward, { buffers, params });
    for (const [i, x] of gates.entries())
      expect(out[i]).toBeCloseTo(0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))), 6);
  });
});

describe("scaleInPlace", () => {
  test.each([0, 4, 260, 70_000 * 256])("%i values", async (length) => {
    const x = noise(length);
    const got = await runOnBoth(devices, scaleInPlace, { buffers: { x }, params: { length, scale: 25.25 } });
    for (const i of [0, length - 1]) if (length > 0) expect(got.x[i]).toBeCloseTo(x[i]! * 25.25, 4);
  });

  test("leaves what lies behind its length", async () => {
    const { x } = await runOnBoth(devices, scaleInPlace, {
      buffers: { x: new Float32Array(12).fill(2) },
      params: { length: 8, scale: 3 },
    });
    expect([...x]).toEqual([6, 6, 6, 6, 6, 6, 6, 6, 2, 2, 2, 2]);
  });
});

describe("scaleRows", () => {
  test.each([
    [0, 8],
    [1, 4],
    [33, 12],
    [70_001, 256],
  ])("%i rows of %i", async (rows, width) => {
    const x = noise(rows * width);
    const factors = noise(rows, 7);
    const got = await runOnBoth(devices, scaleRows, { buffers: { x, factors }, params: { rows, width } });
    for (const [i, value] of got.x.entries())
      if (i % 997 === 0) expect(value).toBeCloseTo(x[i]! * factors[Math.floor(i / width)]!, 5);
  });

  test("leaves the rows behind its own", async () => {
    const { x } = await runOnBoth(devices, scaleRows, {
      buffers: { x: new Float32Array(12).fill(2), factors: Float32Array.of(3, 5, 7) },
      params: { rows: 2, width: 4 },
    });
    expect([...x]).toEqual([6, 6, 6, 6, 10, 10, 10, 10, 2, 2, 2, 2]);
  });
});

describe("addScaled and transpose", () => {
  test.each([0, 1])("strided, accumulate %i", async (accumulate) => {
    const params = { rows: 33, width: 12, x_stride: 20, x_offset: 4, y_stride: 16, y_offset: 4 };
    await runOnBoth(devices, addScaled, {
      buffers: { x: noise(33 * 20), y: noise(33 * 16, 2) },
      params: { ...params, scale: 0.5, accumulate },
    });
  });

  test.each([
    [0, 5],
    [1, 1],
    [3, 5],
    [65, 7],
    [130, 66],
  ])("transpose of [%i, %i]", async (rows, columns) => {
    const [x_stride, y_stride] = [columns + 3, rows + 5];
    const x = noise(rows * x_stride + 2);
    const { y } = await runOnBoth(devices, transpose, {
      buffers: { x, y: new Float32Array(columns * y_stride + 1) },
      params: { rows, columns, x_offset: 2, x_stride, y_offset: 1, y_stride },
    });
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) expect(y[1 + c * y_stride + r]).toBe(x[2 + r * x_stride + c]);
    for (let c = 0; c < columns; c++) expect(y[1 + c * y_stride + rows]).toBe(0);
  });
});

describe("adamw", () => {
  const settings = { learning_rate: 1e-2, epsilon: 1e-8, weight_decay: 0.1 };
  const atStep = (step: number) => ({
    mean_rate: 1 - 0.9,
    variance_rate: 1 - 0.999,
    correction1: 1 - 0.9 ** step,
    correction2: 1 - 0.999 ** step,
  });

  test.each([
    [0, 0],
    [0, 4],
    [8, 260],
    [4, 20_000],
  ])("from %i, %i elements", async (first, count) => {
    const length = first + count + 4;
    const got = await runOnBoth(devices, adamw, {
      buffers: {
        gradient: noise(length),
        clip: Float32Array.of(2, 0.5, 0, 0),
        parameter: noise(length, 2),
        mean: noise(length, 3),
        variance: noise(length, 4).map(Math.abs),
      },
      params: { first, count, ...settings, ...atStep(3) },
    });
    expect(got.parameter.slice(first + count)).toEqual(noise(length, 2).slice(first + count));
  });

  test("the first step moves by the learning rate against the gradient's sign", async () => {
    const got = await runOn(devices.gpu, adamw, {
      buffers: {
        gradient: Float32Array.of(3, -0.001, 7, -9),
        clip: Float32Array.of(1, 1, 0, 0),
        parameter: new Float32Array(4),
        mean: new Float32Array(4),
        variance: new Float32Array(4),
      },
      params: { first: 0, count: 4, ...settings, ...atStep(1) },
    });
    for (const [i, sign] of [-1, 1, -1, 1].entries()) expect(got.parameter[i]).toBeCloseTo(sign * 1e-2, 6);
  });

  test("a norm that is not finite changes nothing", async () => {
    const parameter = noise(64, 2);
    const got = await runOnBoth(devices, adamw, {
      buffers: {
        gradient: new Float32Array(64).fill(Number.NaN),
        clip: Float32Array.of(Number.NaN, 0, 1, 0),
        parameter,
        mean: noise(64, 3),
        variance: noise(64, 4),
      },
      params: { first: 0, count: 64, ...settings, ...atStep(1) },
    });
    expect(got.parameter).toEqual(parameter);
  });

  test.each([0, 4, 260, 16_388, 100_000])("sum of squares of %i", async (count) => {
    const x = noise(count + 4);
    const { partials } = await runOnBoth(devices, squareSum, {
      buffers: { x, partials: new Float32Array(66) },
      params: { count, partials_offset: 1 },
    });
    let wanted = 0;
    for (let i = 0; i < count; i++) wanted += x[i]! * x[i]!;
    const got = (partials as Float32Array).reduce((a, b) => a + b, 0);
    expect(Math.abs(got - wanted)).toBeLessThanOrEqual(1e-6 * wanted);
  });

  test.each([
    [Float32Array.of(9, 16), 1, [5, 1 / (5 + 1e-6), 0]],
    [Float32Array.of(9, 16), 10, [5, 1, 0]],
    [Float32Array.of(9, 16), 0, [5, 1, 0]],
    [new Float32Array(130).fill(2), 1, [Math.sqrt(260), 1 / (Math.sqrt(260) + 1e-6), 0]],
    [Float32Array.of(), 1, [0, 1, 0]],
  ])("clip factor of %o at %d", async (partials, max_norm, wanted) => {
    const { clip } = await runOnBoth(devices, clipFactor, {
      buffers: { partials, clip: new Float32Array(4) },
      params: { count: partials.length, max_norm },
    });
    for (const [i, value] of wanted.entries()) expect(clip[i]).toBeCloseTo(value, 5);
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, 3e38])("a partial of %d is flagged", async (value) => {
    const got = await runOn(devices.gpu, clipFactor, {
      buffers: { partials: Float32Array.of(3e38, value, 3e38), clip: unwritten(4) },
      params: { count: 3, max_norm: 1 },
    });
    expect([...got.clip.slice(1, 3)]).toEqual([0, 1]);
  });
});
