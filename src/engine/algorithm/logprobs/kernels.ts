/** Kernels from logits to token statistics (log-prob of the target, entropy, sum of squared probabilities), and back. */
import { type Constants, defineKernel, folded, type Grid } from "../../compute/kernel.ts";

/** Rows of one dispatch, and the columns of the vocabulary that its logits hold. */
const PARAMS = {
  rows: "u32",
  first_row: "u32",
  columns: "u32",
  column_offset: "u32",
  stride: "u32",
  inverse_temperature: "f32",
} as const;

export type PassParams = { readonly [K in keyof typeof PARAMS]: number };

/** Floats of a row's softmax state. */
export const STATE_FLOATS = 4;
/** Vec4s of a lane of the backward kernel. */
const DEPTH = 16;

/** Online softmax state of one row, with e = exp(x - highest): highest, sum e, sum e (x - highest), sum e^2. */
type State = [number, number, number, number];
const EMPTY_STATE: State = [Number.NEGATIVE_INFINITY, 0, 0, 0];

function absorb([highest, total, weighted, squares]: State, x: number): State {
  if (x <= highest) {
    const weight = Math.exp(x - highest);
    return [highest, total + weight, weighted + weight * (x - highest), squares + weight * weight];
  }
  const keep = Math.exp(highest - x);
  const moved = total === 0 ? 0 : keep * (weighted + total * (highest - x));
  return [x, total * keep + 1, moved, squares * keep * keep + 1];
}

/**
 * Adds columns to the rows' states; on the last columns, writes the statistics.
 * FIRST starts from an empty state, LAST ends; both together need no state between dispatches.
 */
export const logitsForward = defineKernel({
  name: "head/logits_forward",
  bindings: {
    logits: "read f32",
    targets: "read u32",
    states: "write f32",
    logprobs: "write f32",
    entropies: "write f32",
    log_sum_exps: "write f32",
    sums_pi_squared: "write f32",
  },
  params: PARAMS,
  constants: { WORKGROUP: 8, FIRST: 1, LAST: 1 },
  tolerance: { relative: 2e-5, absolute: 5e-6 },
  grid: ({ rows }, { WORKGROUP }: Constants): Grid => folded(Math.ceil(rows / WORKGROUP!)),
  reference(buffers, params, constants) {
    const { logits, targets, states, logprobs, entropies, log_sum_exps, sums_pi_squared } = buffers;
    const { rows, first_row, columns, column_offset, stride, inverse_temperature } = params;
    for (let index = 0; index < rows; index++) {
      const row = first_row + index;
      const scaled = (k: number) => logits[index * stride + k]! * inverse_temperature;
      let state = constants.FIRST ? EMPTY_STATE : stateAt(states, row);
      for (let k = 0; k < columns; k++) state = absorb(state, scaled(k));
      const target = targets[row]! - column_offset;
      const held = constants.FIRST ? 0 : logprobs[row]!;
      const chosen = target >= 0 && target < columns ? scaled(target) : held;
      logprobs[row] = chosen;
      if (!constants.LAST) {
        states.set(state, row * STATE_FLOATS);
        continue;
      }
      const [highest, total, weighted, squares] = state;
      logprobs[row] = chosen - highest - Math.log(total);
      entropies[row] = Math.log(total) - weighted / total;
      log_sum_exps[row] = highest + Math.log(total);
      sums_pi_squared[row] = squares / (total * total);
    }
  },
});

function stateAt(states: Float32Array, row: number): State {
  return Array.from(states.subarray(row * STATE_FLOATS, (row + 1) * STATE_FLOATS)) as State;
}

/**
 * d(loss)/d(logit_k) = (a [k = target] - p_k (a + b (log p_k + H))) / temperature, in place, with the entropy H and the
 * gradients a of the log-prob and b of the entropy.
 */
export const logitsBackward = defineKernel({
  name: "head/logits_backward",
  bindings: {
    logits: "write f32",
    targets: "read u32",
    log_sum_exps: "read f32",
    entropies: "read f32",
    dlogprobs: "read f32",
    dentropy: "read f32",
  },
  params: PARAMS,
  constants: { WORKGROUP: 8, ENTROPY: 1 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: ({ rows, stride }, { WORKGROUP }: Constants): Grid =>
    folded(rows * Math.ceil(stride / 4 / (WORKGROUP! * DEPTH))),
  reference({ logits, targets, log_sum_exps, entropies, dlogprobs, dentropy }, params, constants) {
    const { rows, first_row, columns, column_offset, stride, inverse_temperature } = params;
    for (let index = 0; index < rows; index++) {
      const row = first_row + index;
      const a = dlogprobs[row]!;
      const b = constants.ENTROPY ? dentropy[row]! : 0;
      const [logSumExp, entropy] = [log_sum_exps[row]!, entropies[row]!];
      for (let k = 0; k < stride; k++) {
        const at = index * stride + k;
        const logP = logits[at]! * inverse_temperature - logSumExp;
        const chosen = k + column_offset === targets[row] ? a : 0;
        const gradient = inverse_temperature * (chosen - Math.exp(logP) * (a + b * (logP + entropy)));
        logits[at] = k < columns ? gradient : 0;
      }
    }
  },
});
