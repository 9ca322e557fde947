/** Draws one token per row of logits with temperature, top-k, top-p and a random number of the sequence's seed. */

import { uniformAt } from "../../../leaves/random.ts";
import { defineKernel, folded } from "../../compute/kernel.ts";
import { inverseTemperature } from "./logprob.ts";

/** Floats per row of `settings`: {@link samplingSettings}. */
export const SETTING_FLOATS = 4;

/** temperature, top_p, top_k, and the inverse temperature of the log-probabilities (1 when greedy). */
export function samplingSettings(of: { temperature: number; top_p: number; top_k: number }): number[] {
  const { temperature, top_p, top_k } = of;
  return [temperature, top_p, top_k, temperature === 0 ? 1 : inverseTemperature(temperature)];
}

/**
 * next[r] = a token drawn from logits[r, 0..V). Its log-probability is that of softmax(logits / temperature) before top-k
 * and top-p (of softmax(logits) when greedy), bit for bit as in `logprob`. Both are also written to [r, shift] of the
 * histories tokens, logprobs [rows, history_stride], so that many steps can be recorded before one read-back.
 *
 * Temperature 0 is greedy; among equal logits the lowest id wins. top_k <= 0 and top_p >= 1 are off. As in vLLM, top-k
 * comes first, then the smallest set whose share of the remaining mass reaches top_p, never empty. Logits equal to the
 * last one kept are kept too, under both. The random number is Philox 2x32-10 of (seeds[r], positions[r] + shift):
 * {@link uniformAt}. Rows may be a window of a larger batch from `first_row` on.
 */
export const sample = defineKernel({
  name: "decode/sample",
  bindings: {
    logits: "read f32",
    seeds: "read u32",
    positions: "read u32",
    settings: "read f32",
    next: "write u32",
    tokens: "write u32",
    logprobs: "write f32",
  },
  params: {
    rows: "u32",
    first_row: "u32",
    vocabulary: "u32",
    stride: "u32",
    shift: "u32",
    history_stride: "u32",
  },
  constants: { WORKGROUP: 8 },
  grid: ({ rows }, { WORKGROUP }) => folded(Math.ceil(rows / WORKGROUP!)),
  reference({ logits, seeds, positions, settings, next, tokens, logprobs }, params) {
    const { rows, first_row, vocabulary, stride, shift, history_stride } = params;
    for (let local = 0; local < rows; local++) {
      const row = first_row + local;
      const [temperature = 0, topP = 0, topK = 0, inverse = 0] = settings.subarray(row * SETTING_FLOATS);
      const drawn = drawToken(logits.subarray(local * stride, local * stride + vocabulary), {
        greedy: temperature === 0,
        inverse,
        topP,
        topK,
        uniform: uniformAt(seeds[row]!, positions[row]! + shift),
      });
      next[row] = drawn.token;
      tokens[row * history_stride + shift] = drawn.token;
      logprobs[row * history_stride + shift] = drawn.logprob;
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-5 },
});

interface Draw {
  readonly greedy: boolean;
  /** 1 / temperature; 1 when greedy. */
  readonly inverse: number;
  readonly topP: number;
  readonly topK: number;
  /** Random number in [0, 1). */
  readonly uniform: number;
  /** The smallest logit kept, where it is known; else found by top-k and top-p. */
  readonly least?: number | undefined;
}

/** Draws from one row, in the reference. */
export function drawToken(logits: ArrayLike<number>, draw: Draw): { token: number; logprob: number } {
  const { greedy, inverse } = draw;
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i]! > logits[best]!) best = i;
  const max = logits[best]! * inverse;
  const weights = Float64Array.from(logits, (x) => Math.exp(x * inverse - max));
  let total = 0;
  for (const weight of weights) total += weight;
  const token = greedy ? best : pick(logits, weights, { ...draw, best });
  return { token, logprob: logits[token]! * inverse - max - Math.log(total) };
}

/** Inverts the cumulative sum, in the order of ids, over the logits that top-k and top-p keep. */
function pick(logits: ArrayLike<number>, weights: Float64Array, draw: Draw & { best: number }): number {
  const least = draw.least ?? leastKept(logits, weights, draw);
  let mass = 0;
  for (let i = 0; i < weights.length; i++) if (logits[i]! >= least) mass += weights[i]!;
  const target = draw.uniform * mass;
  let last = draw.best;
  let below = 0;
  for (let i = 0; i < weights.length; i++) {
    if (!(logits[i]! >= least)) continue;
    last = i;
    below += weights[i]!;
    if (below > target) break;
  }
  return last;
}

/** The smallest logit that top-k and top-p keep. */
function leastKept(logits: ArrayLike<number>, weights: Float64Array, { topK, topP }: Draw): number {
  const size = logits.length;
  const byK = topK > 0 && topK < size;
  if (!byK && topP >= 1) return -Infinity;
  const order = Array.from({ length: size }, (_, i) => i).sort((a, b) => logits[b]! - logits[a]!);
  let kept = size;
  if (byK) for (kept = topK; kept < size && logits[order[kept]!] === logits[order[topK - 1]!]; ) kept++;
  let mass = 0;
  for (let i = 0; i < kept; i++) mass += weights[order[i]!]!;
  let reached = 0;
  for (let i = 0; i < kept && topP < 1; i++) {
    reached += weights[order[i]!]!;
    if (reached >= topP * mass) return logits[order[i]!]!;
  }
  return logits[order[kept - 1]!]!;
}
