/**
 * C = alpha A B (+ addend) in the orientations a transformer needs, by the kernel that suits the adapter.
 *
 * Measured (LOG.md): software drivers issue each storage load lane by lane and pay for every barrier, so their kernels
 * hold large register tiles and share loads by subgroup broadcast; GPUs stage tiles in workgroup memory.
 */
import type { Device } from "../device.ts";
import type { Constants } from "../kernel.ts";
import { hasScales } from "../packed.ts";
import { FEW_ROWS, INPUT, MATMUL_KERNELS, type MatmulFamily, MODE, type ProductParams, TILES } from "./kernels.ts";
import { bindableParts } from "./parts.ts";
import type { MatmulOptions } from "./product.ts";
import { multiplyUnpacked } from "./unpack.ts";

/** True where products take an `input`, which saves a dispatch in the small products of decoding. */
export function fusesInput(device: Device): boolean {
  return device.info.kind === "webgpu" && matmulFamily(device) === "subgroup";
}

/**
 * Records one matrix product. Sums run over k in f32, first to last, for every m, n and kernel: a row of C has the same
 * bits whatever other rows are computed with it.
 * Costs 2mnk floating-point operations. A zero m or n does nothing; a zero k gives zeros (or the addend).
 * Matrices larger than one binding are computed in parts, {@link bindableParts}.
 */
export function matmul(device: Device, options: MatmulOptions): void {
  checkFormats(options);
  for (const part of bindableParts(options, device.info.limits.maxBindingBytes))
    if ((part.b.format ?? "float32") === "float32") multiplyBound(device, part);
    else multiplyUnpacked(device, part, (unpacked) => multiplyBound(device, unpacked));
}

function checkFormats({ a, b, c }: MatmulOptions): void {
  for (const { format = "float32", buffer } of [a, c])
    if (format !== "float32")
      throw new RangeError(`Cannot multiply: ${buffer.label} is ${format}, and only B may be packed. Unpack it.`);
  if (hasScales(b.format ?? "float32") && !b.scales)
    throw new RangeError(`Cannot multiply by ${b.buffer.label}: ${b.format} needs scales. Pass \`scales\`.`);
}

function multiplyBound(device: Device, options: MatmulOptions): void {
  const { m, n, k, a, b, c } = options;
  const aStride = a.stride ?? (options.transposeA ? m : k);
  const bStride = b.stride ?? (options.transposeB ? k : n);
  const params: ProductParams = {
    m,
    n,
    k,
    a_offset: a.offset ?? 0,
    a_row: options.transposeA ? 1 : aStride,
    a_k: options.transposeA ? aStride : 1,
    b_offset: b.offset ?? 0,
    b_k: options.transposeB ? 1 : bStride,
    b_column: options.transposeB ? bStride : 1,
    c_offset: c.offset ?? 0,
    c_row: c.stride ?? n,
    alpha: options.alpha ?? 1,
    mode: modeOf(options),
  };
  const family = familyFor(device, params);
  if (options.input && family !== "subgroup")
    throw new RangeError(
      `Cannot fuse ${options.input.kind} into a product: this device or its shape does not allow it (${m} x ${n} x ${k}). Ask fusesInput first.`,
    );
  device.dispatch(MATMUL_KERNELS[family], {
    buffers: { a: a.buffer, b: b.buffer, addend: options.addend ?? b.buffer, c: c.buffer },
    params,
    constants: CONSTANTS[family]?.(options),
  });
}

function modeOf({ accumulate, addend, continues }: MatmulOptions): number {
  if (continues) return addend ? MODE.continueAndAdd : MODE.continue;
  return accumulate ? MODE.accumulate : addend ? MODE.add : MODE.write;
}

/** A product of few rows is bound by reading B, one of many by arithmetic: with few rows a kernel keeps fewer sums. */
const CONSTANTS: Readonly<Partial<Record<MatmulFamily, (options: MatmulOptions) => Constants>>> = {
  subgroup: ({ m, input }) => ({
    ROWS: m <= FEW_ROWS ? FEW_ROWS : TILES.subgroup.rows,
    INPUT: INPUT[input?.kind ?? "plain"],
  }),
  few: ({ m }) => ({ ROWS: [1, 2, 4].find((rows) => rows >= m) ?? FEW_ROWS }),
};

/** Least elements of B for which columns gain more than a dispatch costs. */
const MIN_FEW_ELEMENTS = 2 ** 17;

/**
 * True where a product runs faster with B held by columns (`transposeB`) than by rows: few rows of a wide model on a
 * software adapter.
 */
export function prefersColumns(device: Device, { m, n, k }: { m: number; n: number; k: number }): boolean {
  return fusesInput(device) && m <= FEW_ROWS && k % 4 === 0 && n * k >= MIN_FEW_ELEMENTS;
}

/** The family for large well-shaped products on this device. */
export function matmulFamily(device: Device): MatmulFamily {
  if (device.info.family === "tiled") return "tiled";
  return device.info.subgroupSize === 8 ? "subgroup" : "rows";
}

/** The multiple that a product's columns are rounded up to: a narrower product costs as much. */
export function tileColumns(device: Device): number {
  return TILES[matmulFamily(device)].columns;
}

function familyFor(device: Device, p: ProductParams): MatmulFamily {
  const family = matmulFamily(device);
  if (family === "tiled" || device.info.kind === "cpu") return family;
  const inFours = (...numbers: readonly number[]) => numbers.every((x) => x % 4 === 0);
  if (p.b_column === 1 && inFours(p.n, p.b_offset, p.b_k, p.c_offset, p.c_row)) return family;
  const isAlongK = p.a_k === 1 && p.b_k === 1 && inFours(p.k, p.a_offset, p.a_row, p.b_offset, p.b_column);
  return family === "subgroup" && isAlongK && p.m <= FEW_ROWS ? "few" : "any";
}
