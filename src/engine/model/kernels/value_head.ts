/** A scalar head: one value per row, and its gradients. */
import { defineKernel } from "../../compute/kernel.ts";
import { NORM_BLOCKS } from "./norm.ts";
import { quads, THREADS, threads } from "./rows.ts";

const ROWS = { rows: "u32", width: "u32" } as const;

/** values[row] = x[row, :] . weight; x [rows, width], weight [width], values [rows]. */
export const valueHead = defineKernel({
  name: "head/value",
  bindings: { x: "read f32", weight: "read f32", values: "write f32" },
  params: ROWS,
  constants: THREADS,
  grid: (params, constants) => {
    quads(params.width, "width");
    return threads(params.rows, constants);
  },
  reference({ x, weight, values }, { rows, width }) {
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let c = 0; c < width; c++) sum += x[row * width + c]! * weight[c]!;
      values[row] = sum;
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/** Gradient of {@link valueHead} in x: xGrad[row, c] = valueGrads[row] * weight[c]. */
export const valueHeadBackward = defineKernel({
  name: "head/value_backward",
  bindings: { weight: "read f32", valueGrads: "read f32", xGrad: "write f32" },
  params: ROWS,
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ weight, valueGrads, xGrad }, { rows, width }) {
    for (let row = 0; row < rows; row++)
      for (let c = 0; c < width; c++) xGrad[row * width + c] = valueGrads[row]! * weight[c]!;
  },
  tolerance: { relative: 1e-6, absolute: 0 },
});

/** Row blocks of {@link valueHeadWeightPartials}, fixed like those of the norms. */
export const VALUE_BLOCKS = NORM_BLOCKS;

/**
 * Gradient of {@link valueHead} in weight, first step: partials[b, c] = sum over block b of valueGrads * x,
 * [VALUE_BLOCKS, width]. `columnSum` adds the blocks.
 */
export const valueHeadWeightPartials = defineKernel({
  name: "head/value_weight_partials",
  bindings: { x: "read f32", valueGrads: "read f32", partials: "write f32" },
  params: ROWS,
  constants: { ...THREADS, BLOCKS: VALUE_BLOCKS },
  grid: ({ width }, constants) => threads(constants.BLOCKS! * quads(width, "width"), constants),
  reference({ x, valueGrads, partials }, { rows, width }, { BLOCKS }) {
    const perBlock = Math.ceil(rows / BLOCKS!);
    for (let block = 0; block < BLOCKS!; block++) {
      const sum = new Float64Array(width);
      for (let row = block * perBlock; row < Math.min((block + 1) * perBlock, rows); row++)
        for (let c = 0; c < width; c++) sum[c]! += valueGrads[row]! * x[row * width + c]!;
      partials.set(sum, block * width);
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});
