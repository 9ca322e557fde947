/** The gated feed-forward activation. */
import { defineKernel } from "../../compute/kernel.ts";
import { quads, THREADS, threads } from "./rows.ts";

const PARAMS = { rows: "u32", width: "u32" } as const;

/** out = silu(gate) * up. gateUp [rows, 2 width]: gate, then up, in each row. out [rows, width]. */
export const swiglu = defineKernel({
  name: "layer/swiglu",
  bindings: { gateUp: "read f32", out: "write f32" },
  params: PARAMS,
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ gateUp, out }, { rows, width }) {
    for (let row = 0; row < rows; row++)
      for (let c = 0; c < width; c++) {
        const gate = gateUp[row * 2 * width + c]!;
        out[row * width + c] = (gate / (1 + Math.exp(-gate))) * gateUp[row * 2 * width + width + c]!;
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-6 },
});

/**
 * Gradient of {@link swiglu}, laid out as gateUp. d silu(g)/dg = s (1 + g (1 - s)), s = sigmoid(g). `outGrad` becomes out, with
 * the forward kernel's bits: the gradient of the matrix behind it takes that next.
 */
export const swigluBackward = defineKernel({
  name: "layer/swiglu_backward",
  bindings: { gateUp: "read f32", outGrad: "write f32", gateUpGrad: "write f32" },
  params: PARAMS,
  constants: THREADS,
  grid: ({ rows, width }, constants) => threads(rows * quads(width, "width"), constants),
  reference({ gateUp, outGrad, gateUpGrad }, { rows, width }) {
    for (let row = 0; row < rows; row++)
      for (let c = 0; c < width; c++) {
        const at = row * 2 * width + c;
        const gate = gateUp[at]!;
        const up = gateUp[at + width]!;
        const sigmoid = 1 / (1 + Math.exp(-gate));
        const grad = outGrad[row * width + c]!;
        gateUpGrad[at] = grad * up * sigmoid * (1 + gate * (1 - sigmoid));
        gateUpGrad[at + width] = grad * gate * sigmoid;
        outGrad[row * width + c] = (gate / (1 + Math.exp(-gate))) * up;
      }
  },
  tolerance: { relative: 1e-5, absolute: 1e-6 },
});
