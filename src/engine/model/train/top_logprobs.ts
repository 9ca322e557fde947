/** The most likely tokens after each position, selected on the host from logits read in windows. */
import type { PackedTokens } from "../../contract/backend.ts";
import { gatherRows, logitStride, logitWindows, projectLogits } from "../logit_windows.ts";
import { packInput } from "../packed_input.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { FINAL_NORM, type Weights } from "../weights.ts";

/** The most likely tokens after each position, best first: [positions, k] row-major. */
export interface TopLogprobs {
  readonly tokens: Uint32Array;
  readonly logprobs: Float32Array;
}

/** Positions at which the most likely tokens are wanted, and how many. */
export interface TopOptions {
  readonly k: number;
  /** Divides the logits. Default 1. */
  readonly temperature?: number | undefined;
}

/**
 * @param at.rows what one pass takes
 * @param at.positions of these rows, ascending. Default: all.
 */
export async function topLogprobs(
  transformer: Transformer,
  weights: Weights,
  { rows, k, temperature = 1, positions }: TopOptions & { rows: PackedTokens; positions?: Uint32Array | undefined },
): Promise<TopLogprobs> {
  const count = positions?.length ?? rows.tokens.length;
  const top = { tokens: new Uint32Array(count * k), logprobs: new Float32Array(count * k).fill(-Infinity) };
  const { vocabSize } = transformer.config;
  const stride = logitStride(vocabSize);
  let done = 0;
  for await (const window of windowLogits(transformer, weights, { rows, positions }))
    for (let row = 0; row < window.rows; row++, done++) {
      const logits = window.logits.subarray(row * stride, row * stride + vocabSize);
      if (temperature !== 1) for (let id = 0; id < vocabSize; id++) logits[id]! /= temperature;
      selectTop(logits, {
        tokens: top.tokens.subarray(done * k, (done + 1) * k),
        logprobs: top.logprobs.subarray(done * k, (done + 1) * k),
      });
    }
  return top;
}

/** The logits after every position, or after some, a few rows at a time, in order. */
export async function* windowLogits(
  transformer: Transformer,
  weights: Weights,
  {
    rows,
    positions = Uint32Array.from(rows.tokens.keys()),
  }: { rows: PackedTokens; positions?: Uint32Array | undefined },
): AsyncGenerator<{ logits: Float32Array; rows: number }> {
  const { device } = transformer;
  const scratch = new Scratch(device);
  const mark = device.mark();
  try {
    const input = packInput(scratch, rows);
    const { hidden } = transformer.forward(weights, { input, scratch });
    const x = gatherRows(transformer, { from: hidden, positions, scratch });
    const { normed } = transformer.norms.rows(weights, { name: FINAL_NORM, x, rows: positions.length, scratch });
    const windows = logitWindows(transformer, positions.length);
    const stride = logitStride(transformer.config.vocabSize);
    const logits = scratch.floats((windows[0]?.rows ?? 0) * stride, "logits");
    for (const window of windows) {
      projectLogits(transformer, weights, { normed, logits, window });
      const length = window.rows * stride;
      const [data] = await device.read([{ buffer: logits, type: "f32", length }]);
      yield { logits: data as Float32Array, rows: window.rows };
    }
  } catch (error) {
    device.rollback(mark);
    throw error;
  } finally {
    scratch.release();
  }
}

/** Fills one row with the k most likely tokens. Among equal logits the lowest id comes first. */
export function selectTop(logits: Float32Array, into: { tokens: Uint32Array; logprobs: Float32Array }): void {
  const k = into.tokens.length;
  let kept = 0;
  let max = -Infinity;
  for (let id = 0; id < logits.length; id++) {
    max = Math.max(max, logits[id]!);
    if (kept === k && logits[id]! <= into.logprobs[k - 1]!) continue;
    let at = kept < k ? kept++ : k - 1;
    for (; at > 0 && logits[id]! > into.logprobs[at - 1]!; at--) {
      into.logprobs[at] = into.logprobs[at - 1]!;
      into.tokens[at] = into.tokens[at - 1]!;
    }
    into.logprobs[at] = logits[id]!;
    into.tokens[at] = id;
  }
  let total = 0;
  for (const logit of logits) total += Math.exp(logit - max);
  const logSumExp = max + Math.log(total);
  for (let i = 0; i < kept; i++) into.logprobs[i]! -= logSumExp;
}
