/** Rotary frequencies: how far a pair of channels turns per position, and the ways to stretch them for long contexts. */

/** Llama 3.1's stretch: long waves are slowed by `factor`, short ones kept, those between interpolated. */
export interface Llama3Scaling {
  readonly factor: number;
  readonly lowFreqFactor: number;
  readonly highFreqFactor: number;
  readonly originalContextLength: number;
}

/** All waves are slowed by `factor`. */
export interface LinearScaling {
  readonly factor: number;
}

/** YaRN: a ramp over the pairs from those kept to those slowed by `factor`, and longer q and k. */
export interface YarnScaling {
  readonly factor: number;
  /** Turns within the original context from which a wave is kept, and below which it is slowed by the whole factor. */
  readonly betaFast: number;
  readonly betaSlow: number;
  readonly originalContextLength: number;
  /** Factor of cos and sin. */
  readonly attentionFactor: number;
  /** True where the ends of the ramp are whole numbers. */
  readonly truncate: boolean;
}

export type RopeScaling = Llama3Scaling | LinearScaling | YarnScaling;

/** Rotary positions of a layer. */
export interface Rope {
  readonly ropeTheta: number;
  readonly ropeScaling?: RopeScaling | undefined;
}

export function isLlama3(scaling: RopeScaling): scaling is Llama3Scaling {
  return "lowFreqFactor" in scaling;
}

export function isYarn(scaling: RopeScaling): scaling is YarnScaling {
  return "betaFast" in scaling;
}

/**
 * Rotation per position of each pair of channels, [headDim / 2]: theta^(-2i / headDim), stretched by `ropeScaling`.
 * @see https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
 */
export function ropeFrequencies(rope: Rope & { readonly headDim: number }): Float64Array {
  const { headDim, ropeTheta, ropeScaling: scaling } = rope;
  const plain = Float64Array.from({ length: headDim / 2 }, (_, i) => ropeTheta ** ((-2 * i) / headDim));
  if (!scaling) return plain;
  if (isYarn(scaling)) return plain.map(yarnStretch(scaling, rope));
  if (isLlama3(scaling)) return plain.map(llama3Stretch(scaling));
  return plain.map((frequency) => frequency / scaling.factor);
}

/** Factor of cos and sin: YaRN's attention factor, otherwise 1. */
export function ropeAttentionFactor({ ropeScaling: scaling }: Rope): number {
  return scaling && isYarn(scaling) ? scaling.attentionFactor : 1;
}

/** YaRN's attention factor where a configuration gives none, 0.1 `mscale` ln(factor) + 1. */
export function yarnAttentionFactor(factor: number, mscale = 1): number {
  return factor <= 1 ? 1 : 0.1 * mscale * Math.log(factor) + 1;
}

function llama3Stretch({ originalContextLength, lowFreqFactor: low, highFreqFactor: high, factor }: Llama3Scaling) {
  return (frequency: number) => {
    const turns = (originalContextLength * frequency) / (2 * Math.PI);
    if (turns < low) return frequency / factor;
    if (turns > high) return frequency;
    const smooth = (turns - low) / (high - low);
    return ((1 - smooth) / factor + smooth) * frequency;
  };
}

/** @see https://arxiv.org/abs/2309.00071 */
function yarnStretch(scaling: YarnScaling, { headDim, ropeTheta }: Rope & { readonly headDim: number }) {
  const { originalContextLength, factor, truncate } = scaling;
  // The pair, not rounded, that turns so many times within the original context.
  const pairAt = (turns: number) =>
    (headDim * Math.log(originalContextLength / (turns * 2 * Math.PI))) / (2 * Math.log(ropeTheta));
  const [fast, slow] = [pairAt(scaling.betaFast), pairAt(scaling.betaSlow)];
  const first = Math.max(truncate ? Math.floor(fast) : fast, 0);
  const last = Math.min(truncate ? Math.ceil(slow) : slow, headDim - 1);
  const length = last === first ? 0.001 : last - first;
  return (frequency: number, i: number) => {
    const slowed = Math.min(Math.max((i - first) / length, 0), 1);
    return (frequency / factor) * slowed + frequency * (1 - slowed);
  };
}
