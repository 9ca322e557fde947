/** The entropy bonus: its aggregate and its gradient. */
import { defineKernel } from "../../compute/kernel.ts";
import { TOKEN_GROUPS } from "./aggregation.ts";

/** Threads of a workgroup of the entropy's pass. */
const ENTROPY_THREADS = 256;

export const lossEntropy = defineKernel({
  name: "loss/entropy",
  bindings: {
    entropy: "read f32",
    mask: "read u32",
    row_of_token: "read u32",
    workspace: "write f32",
    dentropy: "write f32",
  },
  params: { tokens: "u32", partials_at: "u32", weight: "f32", coef: "f32" },
  constants: { ROW_WEIGHTED: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: () => [TOKEN_GROUPS],
  reference({ entropy, mask, row_of_token, workspace, dentropy }, params, constants) {
    const sums = new Float64Array(TOKEN_GROUPS);
    for (let t = 0; t < params.tokens; t++) {
      const isTrained = mask[t] !== 0;
      const weight = constants.ROW_WEIGHTED ? workspace[row_of_token[t]!]! : params.weight;
      const group = Math.floor((t % (ENTROPY_THREADS * TOKEN_GROUPS)) / ENTROPY_THREADS);
      sums[group]! += isTrained ? weight * entropy[t]! : 0;
      dentropy[t] = isTrained ? -params.coef * weight : 0;
    }
    workspace.set(sums, params.partials_at);
  },
});
