/**
 * nf4 of QLoRA: four bits choose one of 16 levels in [-1, 1], dense around 0 as normally distributed weights are, times the
 * block's largest magnitude. A value is off by at most half the widest gap between levels, 0.152 absmax (between -1 and
 * -0.696), and its rounding to f32.
 * @see Dettmers et al. 2023, QLoRA: Efficient Finetuning of Quantized LLMs, appendix E.
 */
import { NF4_LEVELS, SCALE_BLOCK } from "../../compute/packed.ts";

/** A value above MIDDLES[i] is nearer to level i + 1 than to level i. */
const MIDDLES = Float64Array.from({ length: 16 }, (_, i) => (NF4_LEVELS[i]! + (NF4_LEVELS[i + 1] ?? Infinity)) / 2);
/** Buckets of [-1, 1]: narrower than any gap between two middles, so that one comparison finds the level. */
const BUCKETS = 64;
const FIRST_CODES = Uint8Array.from({ length: BUCKETS + 1 }, (_, bucket) => {
  const least = (bucket / BUCKETS) * 2 - 1;
  return MIDDLES.findIndex((middle) => least <= middle);
});
const ZERO = NF4_LEVELS.indexOf(0);

/** The bytes of elements, the even one of two in the high half. */
export function packNf4(values: Float32Array, maxima: Float32Array, bytes: Uint8Array): void {
  for (let block = 0; block < maxima.length; block++) {
    const most = maxima[block]!;
    const end = Math.min((block + 1) * SCALE_BLOCK, values.length);
    for (let i = block * SCALE_BLOCK; i < end; i += 2) {
      const high = codeOf(values[i]!, most);
      const low = i + 1 < end ? codeOf(values[i + 1]!, most) : ZERO;
      bytes[i / 2] = (high << 4) | low;
    }
  }
}

function codeOf(value: number, most: number): number {
  if (most === 0) return ZERO;
  const level = value / most;
  const code = FIRST_CODES[((level + 1) * (BUCKETS / 2)) | 0]!;
  return level > MIDDLES[code]! ? code + 1 : code;
}
