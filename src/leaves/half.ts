/** Numbers of 16 bits (IEEE binary16, f16), to and from their bits. */

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** The bits of the nearest f16, ties to even. Beyond 65,504 infinite; NaN stays NaN. */
export function halfBits(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  float[0] = value;
  const sign = (word[0]! >>> 16) & 0x8000;
  const size = Math.abs(value);
  // Below the smallest normal number, halves are multiples of 2^-24.
  if (size < 2 ** -14) return sign | roundEven(size * 2 ** 24);
  const bits = word[0]! & 0x7fff_ffff;
  const rounded = bits + 0xfff + ((bits >>> 13) & 1);
  return sign | Math.min((rounded >>> 13) - (112 << 10), 0x7c00);
}

function roundEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}

/** The value of f16 bits. */
export function halfValue(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}
