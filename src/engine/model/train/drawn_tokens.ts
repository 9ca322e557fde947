/** Tokens drawn from the distribution after each position, on the host, from logits read in windows. */

import { STREAM_SEEDS } from "../../../leaves/random.ts";
import type { PromptDraws } from "../../contract/engine.ts";
import { logitStride } from "../logit_windows.ts";
import type { Transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { type TopLogprobs, windowLogits } from "./top_logprobs.ts";

/**
 * @param tokens one sequence
 * @returns the draws after each position, [positions, k] row-major, with their log-probs at temperature 1
 */
export async function drawnTokens(
  transformer: Transformer,
  weights: Weights,
  { tokens, k, temperature, seed }: PromptDraws & { readonly tokens: Uint32Array },
): Promise<TopLogprobs> {
  const count = tokens.length;
  const drawn = { tokens: new Uint32Array(count * k), logprobs: new Float32Array(count * k) };
  const { vocabSize } = transformer.config;
  const stride = logitStride(vocabSize);
  const offsets = Uint32Array.of(0, count);
  let done = 0;
  for await (const window of windowLogits(transformer, weights, { rows: { tokens, offsets } }))
    for (let row = 0; row < window.rows; row++, done++)
      drawRow(window.logits.subarray(row * stride, row * stride + vocabSize), {
        temperature,
        // The distribution after a position concerns the next place.
        uniform: (draw) => STREAM_SEEDS.promptDraw(seed, { place: done + 1, draw }) / 2 ** 32,
        tokens: drawn.tokens.subarray(done * k, (done + 1) * k),
        logprobs: drawn.logprobs.subarray(done * k, (done + 1) * k),
      });
  return drawn;
}

/** Fills one row: token j is the first whose cumulative probability exceeds uniform number j. */
export function drawRow(
  logits: Float32Array,
  of: {
    temperature: number;
    uniform: (draw: number) => number;
    tokens: Uint32Array;
    logprobs: Float32Array;
  },
): void {
  let best = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id]! > logits[best]!) best = id;
  const max = logits[best]!;
  const sums = new Float64Array(logits.length);
  let [total, whole] = [0, 0];
  for (let id = 0; id < logits.length; id++) {
    whole += Math.exp(logits[id]! - max);
    total += of.temperature === 0 ? Number(id === best) : Math.exp((logits[id]! - max) / of.temperature);
    sums[id] = total;
  }
  for (let j = 0; j < of.tokens.length; j++) {
    const id = firstAbove(sums, of.uniform(j) * total);
    of.tokens[j] = id;
    of.logprobs[j] = logits[id]! - max - Math.log(whole);
  }
}

/** The first place of ascending sums that lies above a value below the last of them. */
function firstAbove(sums: Float64Array, value: number): number {
  let [low, high] = [0, sums.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sums[middle]! > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
