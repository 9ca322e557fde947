import { describe, expect, test } from "vitest";
import { columnPartials, columnSum, recordColumnSum } from "../../../../src/engine/model/kernels/column_sum.ts";
import {
  NORM_BLOCKS,
  plainRows,
  rmsNorm,
  rmsNormBackward,
  rmsNormBackwardTiled,
  rmsNormTiled,
  rmsNormWeightPartials,
} from "../../../../src/engine/model/kernels/norm.ts";
import { rope, ropeTable } from "../../../../src/engine/model/kernels/rope.ts";
import { ropeFrequencies } from "../../../../src/engine/model/rope.ts";
import { recordedOnBoth } from "./record.ts";
import { expectGradient, integers, noise, runOnBoth, unwritten, useDevices, weightedSum } from "./run.ts";

const devices = useDevices();

/** The q heads of a fused [tokens, stride] buffer, normalised into another of the same layout. */
function headRows(tokens: number, heads: number, width: number) {
  const layout = { x_stride: (heads + 2) * width, x_offset: width };
  return {
    rows: tokens * heads,
    width,
    per_token: heads,
    ...layout,
    y_stride: (heads + 1) * width,
    y_offset: 0,
  };
}

describe("rmsNorm", () => {
  test.each([
    ["no rows", plainRows(0, 4), 0],
    ["one", plainRows(1, 4), 0],
    ["one above the workgroup", plainRows(65, 64), 0],
    ["heads inside qkv", headRows(7, 3, 8), 0],
    ["one, with 1 + weight", plainRows(1, 4), 1],
    ["one above the workgroup, with 1 + weight", plainRows(65, 64), 1],
    ["heads inside qkv, with 1 + weight", headRows(7, 3, 8), 1],
    ["wider than the workgroup", plainRows(3, 1028), 1],
  ])("%s, with both gradients", async (_, rows, WEIGHT_OFFSET) => {
    const constants = { WEIGHT_OFFSET };
    const tokens = rows.rows / rows.per_token;
    const x = noise(tokens * rows.x_stride).map((v) => v + 0.1);
    const weight = noise(rows.width, 2);
    const yGrad = noise(tokens * rows.y_stride, 3);
    const params = { ...rows, epsilon: 1e-5 };
    const forward = {
      buffers: { x, weight, y: new Float32Array(yGrad.length), inverseRms: unwritten(rows.rows) },
      params,
      constants,
    };
    const { inverseRms } = await runOnBoth(devices, rmsNorm, forward);
    await runOnBoth(devices, rmsNormTiled, forward);
    const backward = {
      buffers: { x, weight, inverseRms, yGrad, xGrad: new Float32Array(x.length) },
      params: { ...rows, accumulate: 0 },
      constants,
    };
    const { xGrad } = await runOnBoth(devices, rmsNormBackward, backward);
    await runOnBoth(devices, rmsNormBackwardTiled, backward);
    const loss = () => {
      const y = new Float64Array(yGrad.length) as never;
      const scratch = new Float64Array(rows.rows) as never;
      rmsNorm.reference({ x, weight, y, inverseRms: scratch }, params, constants);
      return weightedSum(y, yGrad);
    };
    // y's gaps (v heads) stay 0, and so does their share of the loss.
    const stride = x.length > 500 ? 61 : 1;
    expectGradient(x, xGrad, { loss, name: "x", stride, step: 1e-3 });
    expectGradient(weight, await weightGrad(rows, { x, inverseRms: inverseRms as Float32Array, yGrad }), {
      loss,
      name: "weight",
    });
  });

  test("an offset of 1 is the norm by weights that are larger by 1", async () => {
    const params = { ...plainRows(5, 8), epsilon: 1e-6 };
    const [x, weight] = [noise(40), noise(8, 2)];
    const run = (weight: Float32Array, WEIGHT_OFFSET: number) =>
      runOnBoth(devices, rmsNorm, {
        buffers: { x, weight, y: unwritten(40), inverseRms: unwritten(5) },
        params,
        constants: { WEIGHT_OFFSET },
      });
    const [offset, larger] = [
      await run(weight, 1),
      await run(
        weight.map((w) => w + 1),
        0,
      ),
    ];
    for (let i = 0; i < 40; i++) expect(offset.y[i]).toBeCloseTo(larger.y[i]!, 6);
  });

  async function weightGrad(
    rows: ReturnType<typeof plainRows>,
    buffers: { x: Float32Array; inverseRms: Float32Array; yGrad: Float32Array },
  ): Promise<Float32Array> {
    const stride = rows.width + 8;
    const { partials } = await runOnBoth(devices, rmsNormWeightPartials, {
      buffers: { ...buffers, partials: new Float32Array(NORM_BLOCKS * stride) },
      params: { ...rows, partials_stride: stride, partials_offset: 4 },
    });
    const before = noise(stride, 7);
    const { out } = await runOnBoth(devices, columnSum, {
      buffers: { x: partials, out: before },
      params: { rows: NORM_BLOCKS, width: stride, accumulate: 1 },
    });
    expect(out.slice(0, 4)).toEqual(before.slice(0, 4));
    return (out as Float32Array).map((v, i) => v - before[i]!).slice(4, 4 + rows.width);
  }

  test.each([rmsNormBackward, rmsNormBackwardTiled])(
    "$name is added to the gradient of the residual stream",
    async (kernel) => {
      const rows = plainRows(9, 16);
      const buffers = { x: noise(144), weight: noise(16, 2), inverseRms: noise(9, 3), yGrad: noise(144, 4) };
      const run = (accumulate: number, xGrad: Float32Array) =>
        runOnBoth(devices, kernel, {
          buffers: { ...buffers, xGrad },
          params: { ...rows, accumulate },
        });
      const base = noise(144, 5);
      const added = await run(1, base);
      const alone = await run(0, unwritten(144));
      for (let i = 0; i < 144; i++) expect(added.xGrad[i]).toBeCloseTo(base[i]! + alone.xGrad[i]!, 5);
    },
  );

  test("more than 65,535 workgroups", async () => {
    const rows = plainRows(70_000 * 64 + 1, 4);
    await runOnBoth(devices, rmsNorm, {
      buffers: {
        x: new Float32Array(rows.rows * 4).fill(2),
        weight: noise(4),
        y: unwritten(rows.rows * 4),
        inverseRms: unwritten(rows.rows),
      },
      params: { ...rows, epsilon: 0 },
    });
  });
});

test("rmsNormTiled in more than 65,535 workgroups", async () => {
  const rows = plainRows(65_540, 4);
  await runOnBoth(devices, rmsNormTiled, {
    buffers: {
      x: noise(rows.rows * 4),
      weight: noise(4, 2),
      y: unwritten(rows.rows * 4),
      inverseRms: unwritten(rows.rows),
    },
    params: { ...rows, epsilon: 1e-5 },
  });
});

test("rmsNormBackwardTiled in more than 65,535 workgroups", async () => {
  const rows = plainRows(65_540, 4);
  await runOnBoth(devices, rmsNormBackwardTiled, {
    buffers: {
      x: noise(rows.rows * 4),
      weight: noise(4, 2),
      inverseRms: noise(rows.rows, 3),
      yGrad: noise(rows.rows * 4, 4),
      xGrad: unwritten(rows.rows * 4),
    },
    params: { ...rows, accumulate: 0 },
  });
});

describe("sums over rows", () => {
  test.each([
    { rows: 0, width: 4 },
    { rows: 1, width: 4 },
    { rows: 63, width: 12 },
    { rows: 65, width: 260 },
    { rows: 1001, width: 36 },
    { rows: 3, width: 65_540 * 4 },
  ])("in blocks: %o", async (params) => {
    const { rows, width } = params;
    // Rows that must not count follow.
    const buffers = { x: noise((rows + 9) * width), partials: unwritten(64 * width) };
    await runOnBoth(devices, columnPartials, { buffers, params });
  });

  test.each([64, 65, 1000, 1024])("of %i rows are those of one kernel, whatever the family", async (rows) => {
    const [width, accumulate] = [36, 1];
    const run = { buffers: { x: noise(rows * width), out: noise(width, 2) }, params: { rows, width, accumulate } };
    await recordedOnBoth(devices, {
      ...{ family: "tiled", kernel: columnSum, run },
      record: (device, options) => recordColumnSum(device, options),
    });
  });
});

describe("rope", () => {
  test.each([
    [0, 1, 8],
    [1, 1, 4],
    [17, 3, 8],
    [33, 2, 12],
    [5, 4, 128],
  ])("%i tokens, %i heads of width %i, there and back", async (tokens, heads, width) => {
    const layout = { per_token: heads, stride: (heads + 1) * width, offset: width };
    const x = noise(tokens * layout.stride);
    const run = (x: Float32Array, sign: number) =>
      runOnBoth(devices, rope, {
        buffers: {
          positions: integers(tokens, 90),
          table: ropeTable(100, ropeFrequencies({ headDim: width, ropeTheta: 10_000 })),
          x,
        },
        params: { rows: tokens * heads, width, ...layout, shift: 3, sign },
      });
    const turned = await run(x, 1);
    const back = await run(turned.x as Float32Array, -1);
    for (let i = 0; i < x.length; i++) expect(back.x[i]).toBeCloseTo(x[i]!, 5);
    if (tokens > 1) expect(turned.x).not.toEqual(x);
  });

  test("turns halves: (x[d], x[d + D/2]) by position * theta^(-2d/D)", async () => {
    const { x } = await runOnBoth(devices, rope, {
      buffers: {
        positions: Uint32Array.of(2),
        table: ropeTable(8, ropeFrequencies({ headDim: 4, ropeTheta: 100 })),
        x: Float32Array.of(1, 1, 0, 0),
      },
      params: { rows: 1, width: 4, per_token: 1, stride: 4, offset: 0, shift: 0, sign: 1 },
    });
    const angles = [2, 0.2];
    const wanted = [...angles.map(Math.cos), ...angles.map(Math.sin)];
    for (const [i, value] of wanted.entries()) expect(x[i]).toBeCloseTo(value, 6);
  });
});
