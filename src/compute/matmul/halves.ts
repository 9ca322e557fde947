/** Matrices in f16 as matrix units multiply them: rows scaled by powers of two into the range of f16, in blocks of 16 x 16. */
import { halfBits, halfValue } from "../../half.ts";
import { defineKernel, folded, type Grid, type Values } from "../kernel.ts";
import { elementReader, FORMAT } from "../packed.ts";

/** Sides of the blocks that matrix units multiply. */
export const BLOCK = 16;
/** Rows are filled up to a multiple of this. */
const ROWS = 128;
/** Words of a block: two elements each. */
const BLOCK_WORDS = BLOCK ** 2 / 2;

const MAGNITUDE_PARAMS = { rows: "u32", k: "u32", offset: "u32", row: "u32", along_k: "u32" } as const;
type MagnitudeParams = Values<typeof MAGNITUDE_PARAMS>;

const magnitudesShared = {
  params: MAGNITUDE_PARAMS,
  grid: ({ rows, k }: MagnitudeParams): Grid => {
    const [y, z] = folded(Math.ceil(rows / 16));
    return [Math.ceil(k / 256), y, z];
  },
  tolerance: { relative: 0, absolute: 0 },
};

/** The largest magnitude of each row, as the bits of an f32, joined with what `magnitudes` holds. Clear it first. */
export const magnitudes = defineKernel({
  ...magnitudesShared,
  name: "matmul/magnitudes",
  bindings: { x: "read f32", magnitudes: "write u32" },
  reference: ({ x, magnitudes }, params) => joinMagnitudes(magnitudes, { ...params, read: (at) => x[at]! }),
});

/** The same of a packed matrix. */
export const magnitudesPacked = defineKernel({
  ...magnitudesShared,
  name: "matmul/magnitudes_packed",
  bindings: { words: "read u32", scales: "read f32", magnitudes: "write u32" },
  constants: { FORMAT: FORMAT.bfloat16 },
  reference: ({ words, scales, magnitudes }, params, { FORMAT: format }) =>
    joinMagnitudes(magnitudes, { ...params, read: elementReader(format!, words, scales) }),
});

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

function joinMagnitudes(
  found: Uint32Array,
  { rows, k, offset, row, along_k, read }: MagnitudeParams & { read: (at: number) => number },
): void {
  for (let r = 0; r < rows; r++)
    for (let i = 0; i < k; i++) {
      float[0] = read(offset + r * row + i * along_k);
      found[r] = Math.max(found[r]!, word[0]! & 0x7fff_ffff);
    }
}

/** What a row of this magnitude is multiplied by, and its inverse: as in `matmul/parts/powers.wgsl`. */
export function powersFor(magnitude: number): { power: number; inverse: number } {
  const exponent = magnitude >>> 23;
  const limited = exponent === 255 ? 141 : Math.max(exponent, 15);
  return { power: 2 ** (141 - limited), inverse: 2 ** (limited - 141) };
}

/** The value that a row's element has in f16, with the power of two taken out again. */
export function halved(value: number, magnitude: number): number {
  const { power, inverse } = powersFor(magnitude);
  return halfValue(halfBits(value * power)) * inverse;
}

/** A [m, k] in f16. {@link halvesBytes} says how large the result is, {@link readHalves} where an element lies. */
export const halves = defineKernel({
  name: "matmul/halves",
  bindings: { a: "read f32", magnitudes: "read u32", halves: "write u32" },
  params: { m: "u32", k: "u32", a_offset: "u32", a_row: "u32", a_k: "u32" },
  constants: { WORKGROUP: 64 },
  grid: ({ m, k }, { WORKGROUP }) => folded(Math.ceil(halvesBytes(m, k) / 4 / WORKGROUP!)),
  reference({ a, magnitudes, halves }, { m, k, a_offset, a_row, a_k }) {
    halves.fill(0, 0, halvesBytes(m, k) / 4);
    for (let i = 0; i < m; i++) {
      const { power } = powersFor(magnitudes[i]!);
      for (let j = 0; j < k; j++)
        halves[wordOf(i, j, k)]! |= halfBits(a[a_offset + i * a_row + j * a_k]! * power) << ((j % 2) * 16);
    }
  },
  // WGSL leaves open to which neighbour a conversion rounds, so that bits are compared by their values in tests.
  tolerance: { relative: 0, absolute: 0 },
});

/** Bytes of a matrix [m, k] in f16, filled up. */
export function halvesBytes(m: number, k: number): number {
  return Math.ceil(m / ROWS) * ROWS * Math.ceil(k / BLOCK) * BLOCK * 2;
}

/** Element (row, column) of a matrix in f16, without the row's power of two taken out. */
export function readHalves(words: Uint32Array, at: { row: number; column: number; k: number }): number {
  const { row, column, k } = at;
  return halfValue((words[wordOf(row, column, k)]! >>> ((column % 2) * 16)) & 0xffff);
}

function wordOf(row: number, column: number, k: number): number {
  const block = Math.floor(row / BLOCK) * Math.ceil(k / BLOCK) + Math.floor(column / BLOCK);
  return block * BLOCK_WORDS + ((row % BLOCK) * BLOCK + (column % BLOCK)) / 2 - (column % 2) / 2;
}
