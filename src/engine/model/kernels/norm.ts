/** RMSNorm over rows that may lie inside a wider buffer (q and k heads inside qkv), and its gradients. */
import type { DeviceInfo } from "../../compute/device.ts";
import { defineKernel, folded, type Grid } from "../../compute/kernel.ts";
import { quads, rowStart, THREADS, threads } from "./rows.ts";

const ROWS = {
  rows: "u32",
  width: "u32",
  per_token: "u32",
  x_stride: "u32",
  x_offset: "u32",
  y_stride: "u32",
  y_offset: "u32",
} as const;

const NORM_CONSTANTS = { ...THREADS, WEIGHT_OFFSET: 0 } as const;

type Rows = { readonly [K in keyof typeof ROWS]: number };

const xLayout = ({ per_token, width, x_stride, x_offset }: Rows) => ({
  per_token,
  width,
  stride: x_stride,
  offset: x_offset,
});
const yLayout = ({ per_token, width, y_stride, y_offset }: Rows) => ({
  per_token,
  width,
  stride: y_stride,
  offset: y_offset,
});

/** Params where x and y are plain [rows, width]. */
export function plainRows(rows: number, width: number): Rows {
  return { rows, width, per_token: 1, x_stride: width, x_offset: 0, y_stride: width, y_offset: 0 };
}

/** Width at which each thread of a row's workgroup has a vec4. */
const WIDE_ROW = 256;

type Family = Pick<DeviceInfo, "family">;
type Width = Pick<Rows, "width">;

function takesGroups({ family }: Family, { width }: Width): boolean {
  return family === "tiled" && width >= WIDE_ROW;
}

const GROUP_PER_ROW = {
  constants: { WEIGHT_OFFSET: 0 },
  grid({ rows, width }: Pick<Rows, "rows" | "width">): Grid {
    quads(width, "width");
    return folded(rows);
  },
} as const;

/**
 * y = x * r * (WEIGHT_OFFSET + weight) with r = 1 / sqrt(mean(x^2) + epsilon), per row. weight [width]; inverseRms [rows]
 * stores r. WEIGHT_OFFSET, default 0, is 1 for Gemma.
 * @see https://arxiv.org/abs/1910.07467
 */
export const rmsNorm = defineKernel({
  name: "norm/rms_norm",
  bindings: { x: "read f32", weight: "read f32", y: "write f32", inverseRms: "write f32" },
  params: { ...ROWS, epsilon: "f32" },
  constants: NORM_CONSTANTS,
  grid: (params, constants) => {
    quads(params.width, "width");
    return threads(params.rows, constants);
  },
  reference({ x, weight, y, inverseRms }, params, { WEIGHT_OFFSET = 0 }) {
    const { rows, width, epsilon } = params;
    for (let row = 0; row < rows; row++) {
      const from = rowStart(row, xLayout(params));
      const to = rowStart(row, yLayout(params));
      let squares = 0;
      for (let c = 0; c < width; c++) squares += x[from + c]! * x[from + c]!;
      const r = 1 / Math.sqrt(squares / width + epsilon);
      inverseRms[row] = r;
      for (let c = 0; c < width; c++) y[to + c] = x[from + c]! * r * (WEIGHT_OFFSET + weight[c]!);
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-6 },
});

/** {@link rmsNorm} of wide rows on GPUs, with a workgroup per row. */
export const rmsNormTiled = defineKernel({ ...rmsNorm, name: "norm/rms_norm_tiled", ...GROUP_PER_ROW });

/** A thread per row where barriers are slow or rows are narrow, a workgroup per row on GPUs. */
export function chooseRmsNorm(info: Family, rows: Width): typeof rmsNorm {
  return takesGroups(info, rows) ? rmsNormTiled : rmsNorm;
}

/**
 * Gradient of {@link rmsNorm} in x, laid out as x: g = yGrad * (WEIGHT_OFFSET + weight); xGrad (+)= r * (g - x * r^2 * mean(g * x)).
 * Added to xGrad where `accumulate` is 1, written where 0.
 */
export const rmsNormBackward = defineKernel({
  name: "norm/rms_norm_backward",
  bindings: {
    x: "read f32",
    weight: "read f32",
    inverseRms: "read f32",
    yGrad: "read f32",
    xGrad: "write f32",
  },
  params: { ...ROWS, accumulate: "u32" },
  constants: NORM_CONSTANTS,
  grid: (params, constants) => {
    quads(params.width, "width");
    return threads(params.rows, constants);
  },
  reference({ x, weight, inverseRms, yGrad, xGrad }, params, { WEIGHT_OFFSET = 0 }) {
    const { rows, width, accumulate } = params;
    for (let row = 0; row < rows; row++) {
      const from = rowStart(row, xLayout(params));
      const to = rowStart(row, yLayout(params));
      const r = inverseRms[row]!;
      let dot = 0;
      for (let c = 0; c < width; c++) dot += yGrad[to + c]! * (WEIGHT_OFFSET + weight[c]!) * x[from + c]!;
      const pull = (dot * r * r) / width;
      for (let c = 0; c < width; c++) {
        const value = r * (yGrad[to + c]! * (WEIGHT_OFFSET + weight[c]!) - x[from + c]! * pull);
        xGrad[from + c] = accumulate ? xGrad[from + c]! + value : value;
      }
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

/** {@link rmsNormBackward} of wide rows on GPUs, with a workgroup per row. */
export const rmsNormBackwardTiled = defineKernel({
  ...rmsNormBackward,
  name: "norm/rms_norm_backward_tiled",
  ...GROUP_PER_ROW,
});

/** Chooses like {@link chooseRmsNorm}. */
export function chooseRmsNormBackward(info: Family, rows: Width): typeof rmsNormBackward {
  return takesGroups(info, rows) ? rmsNormBackwardTiled : rmsNormBackward;
}

/** Row blocks of {@link rmsNormWeightPartials}: fixed, so that a sum repeats bit for bit on every device. */
export const NORM_BLOCKS = 64;

/**
 * Gradient of {@link rmsNorm} in weight, first step: partials[b, offset + c] = sum over block b of yGrad * x * r.
 * partials [NORM_BLOCKS, partials_stride]: several norms can lie side by side and share one `columnSum`.
 */
export const rmsNormWeightPartials = defineKernel({
  name: "norm/rms_norm_weight_partials",
  bindings: { x: "read f32", inverseRms: "read f32", yGrad: "read f32", partials: "write f32" },
  params: { ...ROWS, partials_stride: "u32", partials_offset: "u32" },
  constants: { ...THREADS, BLOCKS: NORM_BLOCKS },
  grid: (params, constants) => threads(constants.BLOCKS! * quads(params.width, "width"), constants),
  reference({ x, inverseRms, yGrad, partials }, params, { BLOCKS }) {
    const { rows, width, partials_stride, partials_offset } = params;
    const perBlock = Math.ceil(rows / BLOCKS!);
    const sum = new Float64Array(width);
    for (let block = 0; block < BLOCKS!; block++) {
      sum.fill(0);
      for (let row = block * perBlock; row < Math.min((block + 1) * perBlock, rows); row++) {
        const from = rowStart(row, xLayout(params));
        const to = rowStart(row, yLayout(params));
        for (let c = 0; c < width; c++) sum[c]! += yGrad[to + c]! * x[from + c]! * inverseRms[row]!;
      }
      partials.set(sum, block * partials_stride + partials_offset);
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});
