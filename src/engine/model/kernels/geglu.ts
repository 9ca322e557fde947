/** The gated feed-forward activation of Gemma, and the choice among the two. */
import { defineKernel } from "../../compute/kernel.ts";
import { swiglu, swigluBackward } from "./swiglu.ts";

const SLOPE = 2 * Math.sqrt(2 / Math.PI);
const CUBIC = 0.044715;

/** gelu(gate) / gate in the form with tanh: (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)). */
function share(gate: number): number {
  return 1 / (1 + Math.exp(-SLOPE * gate * (1 + CUBIC * gate * gate)));
}

/** out = gelu(gate) * up, by the tanh form of the GELU; laid out as in `swiglu`. @see https://arxiv.org/abs/1606.08415 */
export const geglu = defineKernel({
  ...swiglu,
  name: "layer/geglu",
  reference({ gateUp, out }, { rows, width }) {
    for (let row = 0; row < rows; row++)
      for (let c = 0; c < width; c++) {
        const gate = gateUp[row * 2 * width + c]!;
        out[row * width + c] = gate * share(gate) * gateUp[row * 2 * width + width + c]!;
      }
  },
});

/** Gradient of {@link geglu}, laid out as gateUp; `outGrad` becomes out. */
export const gegluBackward = defineKernel({
  ...swigluBackward,
  name: "layer/geglu_backward",
  reference({ gateUp, outGrad, gateUpGrad }, { rows, width }) {
    for (let row = 0; row < rows; row++)
      for (let c = 0; c < width; c++) {
        const at = row * 2 * width + c;
        const gate = gateUp[at]!;
        const s = share(gate);
        const slope = s + gate * s * (1 - s) * (SLOPE * (1 + 3 * CUBIC * gate * gate));
        const up = gateUp[at + width]!;
        const grad = outGrad[row * width + c]!;
        gateUpGrad[at] = grad * up * slope;
        gateUpGrad[at + width] = grad * gate * s;
        outGrad[row * width + c] = gate * s * up;
      }
  },
});

/** The activation of a model's MLP and its gradient. */
export const GATED = {
  silu: { forward: swiglu, backward: swigluBackward },
  gelu_pytorch_tanh: { forward: geglu, backward: gegluBackward },
} as const;
