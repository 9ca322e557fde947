import { describe, expect, test } from "vitest";
import { columnSum } from "../../../../src/engine/model/kernels/column_sum.ts";
import {
  VALUE_BLOCKS,
  valueHead,
  valueHeadBackward,
  valueHeadWeightPartials,
} from "../../../../src/engine/model/kernels/value_head.ts";
import { expectGradient, noise, runOnBoth, unwritten, useDevices, weightedSum } from "./run.ts";

const devices = useDevices();

describe("valueHead", () => {
  test.each([
    ["no rows", 0, 4],
    ["one", 1, 4],
    ["an odd number", 7, 20],
    ["one above the workgroup", 65, 64],
    ["more rows than blocks", 3 * VALUE_BLOCKS + 1, 8],
  ])("%s, with both gradients", async (_, rows, width) => {
    const params = { rows, width };
    const [x, weight, valueGrads] = [noise(rows * width), noise(width, 2), noise(rows, 3)];
    const { values } = await runOnBoth(devices, valueHead, { buffers: { x, weight, values: unwritten(rows) }, params });
    const { xGrad } = await runOnBoth(devices, valueHeadBackward, {
      buffers: { weight, valueGrads, xGrad: unwritten(x.length) },
      params,
    });
    const { partials } = await runOnBoth(devices, valueHeadWeightPartials, {
      buffers: { x, valueGrads, partials: unwritten(VALUE_BLOCKS * width) },
      params,
    });
    const { out } = await runOnBoth(devices, columnSum, {
      buffers: { x: partials, out: new Float32Array(width) },
      params: { rows: VALUE_BLOCKS, width, accumulate: 1 },
    });
    expect(values.length).toBe(rows);
    const loss = () => {
      const again = new Float64Array(rows) as never;
      valueHead.reference({ x, weight, values: again }, params, {});
      return weightedSum(again, valueGrads);
    };
    expectGradient(x, xGrad, { loss, name: "x", stride: x.length > 500 ? 61 : 1 });
    expectGradient(weight, out, { loss, name: "weight" });
  });

  test("more than 65,535 workgroups", async () => {
    const rows = 65_537;
    const x = new Float32Array(4 * rows).fill(1);
    const { values } = await runOnBoth(devices, valueHead, {
      buffers: { x, weight: Float32Array.of(1, 2, 3, 4), values: unwritten(rows) },
      params: { rows, width: 4 },
      constants: { WORKGROUP: 1 },
    });
    expect([values[0], values[rows - 1]]).toEqual([10, 10]);
  });
});
