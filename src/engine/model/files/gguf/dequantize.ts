/**
 * Values of quantised blocks, bit for bit those of the Python package `gguf`: each product and difference is rounded to f32.
 * Formulas: the block structures of ggml-quants.
 * @see https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c
 */
import { halfValue } from "../../../../leaves/half.ts";
import { GGML_TYPES, type QuantizedType } from "./types.ts";

const f = Math.fround;

/** A block of bytes, and where its values go. */
interface Block {
  readonly view: DataView;
  /** First byte. */
  readonly at: number;
  readonly out: Float32Array;
  /** First value. */
  readonly to: number;
}

const DECODERS: Readonly<Record<QuantizedType, (block: Block) => void>> = {
  Q4_0: nibbles({ shift: 8, hasMinimum: false, hasFifth: false }),
  Q4_1: nibbles({ shift: 0, hasMinimum: true, hasFifth: false }),
  Q5_0: nibbles({ shift: 16, hasMinimum: false, hasFifth: true }),
  Q5_1: nibbles({ shift: 0, hasMinimum: true, hasFifth: true }),
  Q8_0: bytes,
  Q2_K: twoBits,
  Q3_K: threeBits,
  Q4_K: superBlocks({ hasFifth: false }),
  Q5_K: superBlocks({ hasFifth: true }),
  Q6_K: sixBits,
};

/** The values of whole blocks. */
export function dequantize(source: Uint8Array, type: QuantizedType): Float32Array {
  const { block, bytes: size } = GGML_TYPES[type];
  const view = new DataView(source.buffer, source.byteOffset, source.byteLength);
  const out = new Float32Array((source.length / size) * block);
  const decode = DECODERS[type];
  for (let at = 0, to = 0; at < source.length; at += size, to += block) decode({ view, at, out, to });
  return out;
}

const half = ({ view, at }: Block, offset: number) => halfValue(view.getUint16(at + offset, true));

/** 32 values of 4 bits, or 5 with one bit each in a word before: d q + m, or d (q - shift). */
function nibbles({ shift, hasMinimum, hasFifth }: { shift: number; hasMinimum: boolean; hasFifth: boolean }) {
  return (block: Block): void => {
    const { view, at, out, to } = block;
    const d = half(block, 0);
    const m = hasMinimum ? half(block, 2) : 0;
    const head = hasMinimum ? 4 : 2;
    const fifth = hasFifth ? view.getUint32(at + head, true) : 0;
    const first = at + head + (hasFifth ? 4 : 0);
    for (let i = 0; i < 32; i++) {
      const byte = view.getUint8(first + (i & 15));
      const q = (i < 16 ? byte & 15 : byte >> 4) | (((fifth >>> i) & 1) << 4);
      out[to + i] = hasMinimum ? f(d * q) + m : d * (q - shift);
    }
  };
}

function bytes(block: Block): void {
  const { view, at, out, to } = block;
  const d = half(block, 0);
  for (let i = 0; i < 32; i++) out[to + i] = d * view.getInt8(at + 2 + i);
}

/** 16 groups of 16: scales and minima of 4 bits, values of 2. */
function twoBits(block: Block): void {
  const { view, at, out, to } = block;
  const [d, dmin] = [half(block, 80), half(block, 82)];
  for (let i = 0; i < 256; i++) {
    const scale = view.getUint8(at + (i >> 4));
    const [part, within] = [i >> 7, i & 127];
    const q = (view.getUint8(at + 16 + part * 32 + (within & 31)) >> (2 * (within >> 5))) & 3;
    out[to + i] = f(f(d * (scale & 15)) * q) - f(dmin * (scale >> 4));
  }
}

/** 16 groups of 16: scales of 6 bits less 32, values of 2 bits and one more in a mask, less 4. */
function threeBits(block: Block): void {
  const { view, at, out, to } = block;
  const d = half(block, 108);
  const scaleOf = (group: number) => {
    const low = view.getUint8(at + 96 + (group & 7));
    const high = view.getUint8(at + 104 + (group & 3));
    return ((group < 8 ? low & 15 : low >> 4) | (((high >> (2 * (group >> 2))) & 3) << 4)) - 32;
  };
  for (let i = 0; i < 256; i++) {
    const [part, within] = [i >> 7, i & 127];
    const low = (view.getUint8(at + 32 + part * 32 + (within & 31)) >> (2 * (within >> 5))) & 3;
    const isHigh = (view.getUint8(at + (i & 31)) >> (i >> 5)) & 1;
    out[to + i] = f(d * scaleOf(i >> 4)) * (low - (isHigh ? 0 : 4));
  }
}

/** 8 groups of 32: scales and minima of 6 bits, values of 4 bits, or 5 with the fifth in a mask. */
function superBlocks({ hasFifth }: { hasFifth: boolean }) {
  return (block: Block): void => {
    const { view, at, out, to } = block;
    const [d, dmin] = [half(block, 0), half(block, 2)];
    const first = at + 16 + (hasFifth ? 32 : 0);
    for (let group = 0; group < 8; group++) {
      const [scale, minimum] = sixBitPair(view, { at: at + 4, group });
      const [ds, dm] = [f(d * scale), f(dmin * minimum)];
      for (let i = 0; i < 32; i++) {
        const byte = view.getUint8(first + (group >> 1) * 32 + i);
        const fifth = hasFifth ? (view.getUint8(at + 16 + i) >> group) & 1 : 0;
        const q = (group & 1 ? byte >> 4 : byte & 15) | (fifth << 4);
        out[to + group * 32 + i] = f(ds * q) - dm;
      }
    }
  };
}

/** A scale and a minimum out of 12 bytes. */
function sixBitPair(view: DataView, { at, group }: { at: number; group: number }): readonly [number, number] {
  const byte = (i: number) => view.getUint8(at + i);
  if (group < 4) return [byte(group) & 63, byte(group + 4) & 63];
  const low = byte(group + 4);
  return [(low & 15) | ((byte(group - 4) >> 6) << 4), (low >> 4) | ((byte(group) >> 6) << 4)];
}

/** 16 groups of 16: scales of 8 bits, values of 4 bits and 2 more, less 32. */
function sixBits(block: Block): void {
  const { view, at, out, to } = block;
  const d = half(block, 208);
  for (let i = 0; i < 256; i++) {
    const [part, within] = [i >> 7, i & 127];
    const low = view.getUint8(at + part * 64 + (within & 63));
    const high = (view.getUint8(at + 128 + part * 32 + (within & 31)) >> (2 * (within >> 5))) & 3;
    const q = ((within < 64 ? low & 15 : low >> 4) | (high << 4)) - 32;
    out[to + i] = f(d * view.getInt8(at + 192 + (i >> 4))) * q;
  }
}
