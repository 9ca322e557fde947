/** Matrices as matrix units multiply them: in blocks of 16 x 16, rows scaled by powers of two into the range of f16. */
import { halfBits, halfValue } from "../../../leaves/half.ts";
import type { MatrixInputs } from "../device.ts";
import { type Constants, defineKernel, folded, type Grid, type Values } from "../kernel.ts";
import { elementReader, FORMAT } from "../packed.ts";

/** Sides of a block. */
const BLOCK = 16;
/** Rows are filled up to a multiple of this. */
const ROWS = 128;

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

/** Returns the power that a row of this magnitude is multiplied by, and its inverse: as in `matmul/parts/powers.wgsl`. */
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

const BLOCK_PARAMS = { m: "u32", k: "u32", a_offset: "u32", a_row: "u32", a_k: "u32" } as const;

const blocksShared = {
  params: BLOCK_PARAMS,
  constants: { WORKGROUP: 64 },
  grid: ({ m, k }: Values<typeof BLOCK_PARAMS>, { WORKGROUP }: Constants) =>
    folded(Math.ceil(filledElements(m, k) / 2 / WORKGROUP!)),
  // WGSL leaves open to which neighbour a conversion to f16 rounds.
  tolerance: { relative: 1e-3, absolute: 0 },
};

/** A [m, k] in f16, rows multiplied by their powers. {@link blocksBytes} says how large it is, {@link elementAt} where elements lie. */
export const halves = defineKernel({
  ...blocksShared,
  name: "matmul/halves",
  bindings: { a: "read f32", magnitudes: "read u32", halves: "write u32" },
  reference({ a, magnitudes, halves }, params) {
    const { m, k } = params;
    halves.fill(0, 0, filledElements(m, k) / 2);
    forEachScaled({ a, magnitudes }, params, (at, value) => {
      halves[at >> 1]! |= halfBits(value) << ((at % 2) * 16);
    });
  },
});

/** The same in f32. */
export const blocks = defineKernel({
  ...blocksShared,
  name: "matmul/blocks",
  bindings: { a: "read f32", magnitudes: "read u32", blocks: "write f32" },
  reference({ a, magnitudes, blocks }, params) {
    blocks.fill(0, 0, filledElements(params.m, params.k));
    forEachScaled({ a, magnitudes }, params, (at, value) => {
      blocks[at] = value;
    });
  },
});

function forEachScaled(
  { a, magnitudes }: { a: Float32Array; magnitudes: Uint32Array },
  { m, k, a_offset, a_row, a_k }: Values<typeof BLOCK_PARAMS>,
  put: (at: number, value: number) => void,
): void {
  for (let i = 0; i < m; i++) {
    const { power } = powersFor(magnitudes[i]!);
    for (let j = 0; j < k; j++) put(elementAt(i, j, { k }), a[a_offset + i * a_row + j * a_k]! * power);
  }
}

/** Elements of a matrix [m, k] in blocks. */
function filledElements(m: number, k: number): number {
  return Math.ceil(m / ROWS) * ROWS * Math.ceil(k / BLOCK) * BLOCK;
}

/** Bytes of a matrix [m, k] in blocks. */
export function blocksBytes(m: number, k: number, { inputs }: { inputs: MatrixInputs }): number {
  return filledElements(m, k) * (inputs === "f16" ? 2 : 4);
}

/** Returns where an element of a matrix with `k` columns lies. */
export function elementAt(row: number, column: number, { k }: { k: number }): number {
  const block = Math.floor(row / BLOCK) * Math.ceil(k / BLOCK) + Math.floor(column / BLOCK);
  return (block * BLOCK + (row % BLOCK)) * BLOCK + (column % BLOCK);
}

/** An element of `matmul/halves`, with its row's power. */
export function halfAt(halves: Uint32Array, at: number): number {
  return halfValue((halves[at >> 1]! >>> ((at % 2) * 16)) & 0xffff);
}
