/** Floats as f16 and as q8_0, bit for bit as ggml and its Python package encode them. */
import { ConfigError } from "../../../leaves/errors.ts";
import { halfBits } from "../../../leaves/half.ts";

const BLOCK = 32;
const LARGEST_HALF = 65_504;

/** f16 bits, rounded to nearest even. @throws ConfigError for a value that f16 cannot hold. */
export function encodeF16(name: string, values: Float32Array): Uint8Array {
  const halves = new Uint16Array(values.length);
  for (let i = 0; i < values.length; i++) halves[i] = halfBits(values[i]!);
  const at = values.findIndex((value) => !(Math.abs(value) <= LARGEST_HALF));
  if (at < 0) return new Uint8Array(halves.buffer);
  throw new ConfigError(
    `Cannot export the model as f16: ${name} holds ${values[at]} at index ${at}, and f16 ends at 65504. Export bf16 or f32 instead.`,
  );
}

/** Blocks of 32: the scale max |x| / 127 as f16, then 32 bytes round(x / scale), ties away from 0. */
export function encodeQ8(values: Float32Array): Uint8Array {
  const blocks = values.length / BLOCK;
  const out = new Uint8Array(blocks * (BLOCK + 2));
  const view = new DataView(out.buffer);
  for (let b = 0; b < blocks; b++) {
    const block = values.subarray(b * BLOCK, (b + 1) * BLOCK);
    let largest = 0;
    for (const value of block) largest = Math.max(largest, Math.abs(value));
    const scale = Math.fround(largest / 127);
    const inverse = scale === 0 ? 0 : Math.fround(1 / scale);
    view.setUint16(b * (BLOCK + 2), halfBits(scale), true);
    for (let i = 0; i < BLOCK; i++) {
      const scaled = Math.fround(block[i]! * inverse);
      view.setInt8(b * (BLOCK + 2) + 2 + i, Math.sign(scaled) * Math.floor(Math.abs(scaled) + 0.5));
    }
  }
  return out;
}
