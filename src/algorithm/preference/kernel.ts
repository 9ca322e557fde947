/** The kernel of preference losses: sums of rows, the loss of each unit, and its gradient, in one pass over the tokens. */
import { defineKernel, folded } from "../../compute/kernel.ts";
import { findPreferenceLoss, preferenceLossNames } from "./losses.ts";
import { COLUMNS, takeUnit } from "./unit.ts";

export const preferencePairs = defineKernel({
  name: "preference/pairs",
  bindings: {
    logprobs: "read f32",
    ref_logprobs: "read f32",
    mask: "read u32",
    nll_mask: "read u32",
    offsets: "read u32",
    labels: "read u32",
    rows: "write f32",
    dlogprobs: "write f32",
  },
  params: {
    units: "u32",
    scale: "f32",
    nll_scale: "f32",
    beta: "f32",
    smoothing: "f32",
    gamma: "f32",
    kl: "f32",
    desirable: "f32",
    undesirable: "f32",
  },
  constants: { LOSS: 0, REFERENCE: 1, MEAN: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: ({ units }) => folded(units),
  reference(buffers, { units, nll_scale: nllScale, scale, ...settings }, { LOSS, REFERENCE, MEAN }) {
    const { ref_logprobs, nll_mask: nllMask, rows, dlogprobs } = buffers;
    const loss = { ...lossOfCode(LOSS!), hasReference: REFERENCE === 1, isMean: MEAN === 1 };
    const streams = { ...buffers, nllMask, ref: loss.hasReference ? ref_logprobs : undefined };
    let row = 0;
    for (let unit = 0; unit < units; unit++)
      for (const sums of takeUnit(unit, { streams, plan: { loss, settings, scale, nllScale } }, dlogprobs)) {
        rows.set(
          COLUMNS.map((name) => sums[name]),
          COLUMNS.length * row,
        );
        row++;
      }
  },
});

function lossOfCode(code: number) {
  return preferenceLossNames()
    .map(findPreferenceLoss)
    .find((loss) => loss.code === code)!;
}
