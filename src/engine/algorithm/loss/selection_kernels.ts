/** Chooses the tokens of clip_cov and kl_cov on the device: covariance keys, then a radix search for the smallest of them. */

import { addStrided } from "../../../leaves/statistics.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { defineKernel } from "../../compute/kernel.ts";
import type { Advantages } from "../../contract/backend.ts";
import { F32_BYTES } from "../f32.ts";
import { COUNT_EPSILON, type RowCounts, trainedTokens } from "../rows.ts";
import type { Selection } from "./definition.ts";
import { hashToken, selectedCount } from "./selection.ts";
import { clamp } from "./token.ts";

const GROUPS = 64;
/** Keys by one of their bytes; then the bytes found so far, and how many keys are still wanted. */
const COUNTERS = 256;
const PREFIX_AT = COUNTERS;
const WANTED_AT = COUNTERS + 1;
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
  reference(buffers, { tokens, row_stride }, constants) {
    const { logprobs, mask, row_of_token, advantages, workspace, scratch } = buffers;
    let [advantage, logprob] = [0, 0];
    for (let t = 0; t < tokens; t++) {
      if (mask[t] === 0) continue;
      advantage += constants.TOKEN_ADVANTAGE ? advantages[t]! : workspace[row_stride + row_of_token[t]!]!;
      logprob += logprobs[t]!;
    }
    scratch.fill(0, 0, 2 * GROUPS);
    scratch.set([advantage, logprob]);
  },
});

const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);

/** Bits of an f32, reordered so that u32 order is float order. */
function ordered(x: number): number {
  float[0] = x;
  const [u = 0] = bits;
  return (u ^ (u >>> 31 ? 0xffffffff : 0x80000000)) >>> 0;
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
    const sums = addStrided(scratch.subarray(0, 2 * GROUPS), 2);
    const [meanAdvantage, meanLogprob] = sums.map((sum) => sum / params.count) as [number, number];
    for (let t = 0; t < params.tokens; t++) {
      const [row, logprob] = [row_of_token[t]!, logprobs[t]!];
      const advantage = constants.TOKEN_ADVANTAGE ? advantages[t]! : workspace[params.row_stride + row]!;
      const covariance = (advantage - meanAdvantage) * (logprob - meanLogprob);
      const r = constants.OLD ? Math.exp(logprob - old[t]!) : 1;
      const isClipped = -advantage * clamp(r, params.low, params.high) > -advantage * r;
      const isCandidate = covariance > params.lower && covariance < params.upper && !isClipped;
      const drawn = isCandidate ? Math.max(hashToken(t, params.seed), 1) : 0;
      keys[t] = mask[t] === 0 ? 0 : constants.RANDOM ? drawn : ordered(covariance);
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
    const above = (key: number) => Math.floor(key / 2 ** (shift + 8));
    const prefix = above(counts[PREFIX_AT]!);
    for (let t = 0; t < tokens; t++) {
      const key = keys[t]!;
      if (key !== 0 && above(key) === prefix) counts[(key >>> shift) & 255]!++;
    }
  },
});

export const selectionThreshold = defineKernel({
  name: "loss/selection_threshold",
  bindings: { counts: "write u32", workspace: "write f32" },
  params: { shift: "u32", wanted: "u32", threshold_at: "u32" },
  tolerance: EXACT,
  grid: () => [1],
  reference({ counts, workspace }, { shift, wanted: total, threshold_at }) {
    let wanted = shift === 24 ? total : counts[WANTED_AT]!;
    let byte = COUNTERS - 1;
    for (; byte > 0 && counts[byte]! < wanted; byte--) wanted -= counts[byte]!;
    if (byte === 0 && counts[0]! < wanted) wanted -= counts[0]!;
    counts.fill(0, 0, COUNTERS);
    const prefix = (counts[PREFIX_AT]! | (byte << shift)) >>> 0;
    counts.set([prefix, wanted], PREFIX_AT);
    if (shift === 0) new Uint32Array(workspace.buffer, workspace.byteOffset)[threshold_at] = Math.max(prefix, 1);
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

/** Records keys and their threshold. Tokens that tie with the last one chosen are chosen too. */
export function recordSelection(device: Device, selection: Selection, input: SelectionInput): void {
  const { buffers, counts, workspace, keys, rowStride } = input;
  const { tokens } = counts;
  const trained = trainedTokens(counts);
  const isRandom = selection.kind === "random-between";
  const scratch = device.alloc(2 * GROUPS * F32_BYTES, "selection means");
  const counters = device.alloc((COUNTERS + 2) * F32_BYTES, "selection counters");
  const { logprobs, mask, trajectoryOfToken: row_of_token, oldLogprobs } = buffers;
  const isPerToken = buffers.advantages.level === "token";
  const advantages = isPerToken ? buffers.advantages.values : logprobs;
  const constants = { TOKEN_ADVANTAGE: Number(isPerToken) };
  const common = { logprobs, mask, row_of_token, advantages, workspace, scratch };
  device.clear(counters);
  device.dispatch(selectionMeans, { buffers: common, params: { tokens, row_stride: rowStride }, constants });
  const { seed, lower, upper, low, high } = selection;
  const count = trained + (isRandom ? COUNT_EPSILON : 0);
  device.dispatch(selectionKeys, {
    buffers: { ...common, old: oldLogprobs ?? logprobs, keys },
    params: { tokens, row_stride: rowStride, seed, count, lower, upper, low, high },
    constants: { ...constants, RANDOM: Number(isRandom), OLD: Number(oldLogprobs !== undefined) },
  });
  const wanted = selectedCount(selection, trained);
  for (const shift of [24, 16, 8, 0]) {
    device.dispatch(selectionHistogram, { buffers: { keys, counts: counters }, params: { tokens, shift } });
    const params = { shift, wanted, threshold_at: input.thresholdAt };
    device.dispatch(selectionThreshold, { buffers: { counts: counters, workspace }, params });
  }
  device.release(scratch, counters);
}
