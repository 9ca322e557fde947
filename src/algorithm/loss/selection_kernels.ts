/** Chooses the tokens of clip_cov and kl_cov on the device: covariance keys, then a radix search for the smallest one. */

import type { Buffer, Device } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import type { Advantages } from "../../contract/backend.ts";
import { COUNT_EPSILON, type RowCounts, trainedTokens } from "./aggregation.ts";
import type { Selection } from "./definition.ts";
import { clamp } from "./definition.ts";
import { hashToken } from "./selection.ts";

const GROUPS = 64;
const COUNTERS = 256;
const EXACT = { relative: 0, absolute: 0 };

export const selectionMeans = defineKernel({
  name: "loss/selection_means",
  bindings: {
    logprobs: "read f32",
    mask: "read u32",
    row_of_token: "read u32",
    advantages: "read f32",
    workspace: "write f32",
    scratch: "write f32",
  },
  params: { tokens: "u32", row_stride: "u32" },
  constants: { TOKEN_ADVANTAGE: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: () => [GROUPS],
  reference(
    { logprobs, mask, row_of_token, advantages, workspace, scratch },
    { tokens, row_stride },
    constants,
  ) {
    const sums = new Float64Array(2 * GROUPS);
    for (let t = 0; t < tokens; t++) {
      if (mask[t] === 0) continue;
      sums[0]! += constants.TOKEN_ADVANTAGE ? advantages[t]! : workspace[row_stride + row_of_token[t]!]!;
      sums[1]! += logprobs[t]!;
    }
    scratch.set(sums);
  },
});

const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);

/** Bits of an f32, reordered so that u32 order is float order. */
function ordered(x: number): number {
  float[0] = x;
  return (bits[0]! ^ (bits[0]! >>> 31 ? 0xffffffff : 0x80000000)) >>> 0;
}

export const selectionKeys = defineKernel({
  name: "loss/selection_keys",
  bindings: {
    logprobs: "read f32",
    old: "read f32",
    mask: "read u32",
    row_of_token: "read u32",
    advantages: "read f32",
    workspace: "write f32",
    scratch: "write f32",
    keys: "write u32",
  },
  params: {
    tokens: "u32",
    row_stride: "u32",
    seed: "u32",
    count: "f32",
    lower: "f32",
    upper: "f32",
    low: "f32",
    high: "f32",
  },
  constants: { TOKEN_ADVANTAGE: 0, RANDOM: 0, OLD: 1 },
  tolerance: EXACT,
  grid: () => [GROUPS],
  reference(buffers, params, constants) {
    const { logprobs, old, mask, row_of_token, advantages, workspace, scratch, keys } = buffers;
    const mean = [0, 1].map((k) => {
      let sum = 0;
      for (let group = 0; group < GROUPS; group++) sum += scratch[2 * group + k]!;
      return sum / params.count;
    });
    for (let t = 0; t < params.tokens; t++) {
      const a = constants.TOKEN_ADVANTAGE ? advantages[t] : workspace[params.row_stride + row_of_token[t]!];
      const cov = (a! - mean[0]!) * (logprobs[t]! - mean[1]!);
      const r = constants.OLD ? Math.exp(logprobs[t]! - old[t]!) : 1;
      const clipped = -a! * clamp(r, params.low, params.high) > -a! * r;
      const candidate = cov > params.lower && cov < params.upper && !clipped;
      const key = constants.RANDOM ? (candidate ? Math.max(hashToken(t, params.seed), 1) : 0) : ordered(cov);
      keys[t] = mask[t] === 0 ? 0 : key;
    }
  },
});

export const selectionHistogram = defineKernel({
  name: "loss/selection_histogram",
  bindings: { keys: "read u32", counts: "write u32" },
  params: { tokens: "u32", shift: "u32" },
  tolerance: EXACT,
  grid: () => [GROUPS],
  reference({ keys, counts }, { tokens, shift }) {
    const above = (key: number) => key / 2 ** (shift + 8) - ((key / 2 ** (shift + 8)) % 1);
    for (let t = 0; t < tokens; t++)
      if (keys[t] !== 0 && above(keys[t]!) === above(counts[256]!)) counts[(keys[t]! >>> shift) & 255]!++;
  },
});

export const selectionThreshold = defineKernel({
  name: "loss/selection_threshold",
  bindings: { counts: "write u32", workspace: "write f32" },
  params: { shift: "u32", wanted: "u32", threshold_at: "u32" },
  tolerance: EXACT,
  grid: () => [1],
  reference({ counts, workspace }, { shift, wanted: total, threshold_at }) {
    let wanted = shift === 24 ? total : counts[257];
    let byte = COUNTERS - 1;
    for (; byte > 0 && counts[byte]! < wanted!; byte--) wanted! -= counts[byte]!;
    if (byte === 0 && counts[0]! < wanted!) wanted! -= counts[0]!;
    counts.fill(0, 0, COUNTERS);
    counts[256] = (counts[256]! | (byte << shift)) >>> 0;
    counts[257] = wanted!;
    if (shift === 0)
      new Uint32Array(workspace.buffer, workspace.byteOffset)[threshold_at] = Math.max(counts[256], 1);
  },
});

interface SelectionInput {
  readonly buffers: {
    readonly logprobs: Buffer;
    readonly oldLogprobs?: Buffer | undefined;
    readonly mask: Buffer;
    readonly trajectoryOfToken: Buffer;
    readonly advantages: Advantages<Buffer>;
  };
  readonly counts: RowCounts;
  /** u32 [T] out: a token is chosen where its key reaches the threshold. */
  readonly keys: Buffer;
  /** Row table in; the threshold out, as u32 bits. */
  readonly workspace: Buffer;
  readonly rowStride: number;
  readonly thresholdAt: number;
}

/** Records the choice: keys and their threshold. Tokens tied with the last one chosen are chosen too. */
export function recordSelection(device: Device, selection: Selection, input: SelectionInput): void {
  const { buffers, counts, workspace, keys, rowStride } = input;
  const { tokens } = counts;
  const trained = trainedTokens(counts);
  const random = selection.kind === "random-between";
  const scratch = device.alloc(2 * GROUPS * 4, "selection means");
  const counters = device.alloc((COUNTERS + 2) * 4, "selection counters");
  const { logprobs, mask, trajectoryOfToken: row_of_token, oldLogprobs } = buffers;
  const isPerToken = buffers.advantages.level === "token";
  const advantages = isPerToken ? buffers.advantages.values : logprobs;
  const constants = { TOKEN_ADVANTAGE: isPerToken ? 1 : 0 };
  const common = { logprobs, mask, row_of_token, advantages, workspace, scratch };
  device.clear(counters);
  device.dispatch(selectionMeans, { buffers: common, params: { tokens, row_stride: rowStride }, constants });
  const { seed, lower, upper, low, high } = selection;
  device.dispatch(selectionKeys, {
    buffers: { ...common, old: oldLogprobs ?? logprobs, keys },
    params: {
      tokens,
      row_stride: rowStride,
      seed,
      count: trained + (random ? COUNT_EPSILON : 0),
      lower,
      upper,
      low,
      high,
    },
    constants: { ...constants, RANDOM: random ? 1 : 0, OLD: oldLogprobs ? 1 : 0 },
  });
  const wanted = Math.max(Math.floor(selection.ratio * trained), 1);
  for (const shift of [24, 16, 8, 0]) {
    device.dispatch(selectionHistogram, { buffers: { keys, counts: counters }, params: { tokens, shift } });
    const params = { shift, wanted, threshold_at: input.thresholdAt };
    device.dispatch(selectionThreshold, { buffers: { counts: counters, workspace }, params });
  }
  device.release(scratch, counters);
}
