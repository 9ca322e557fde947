/**
 * A transformer's weights on a device. Matrices that multiply the same input lie together (q, k, v; gate, up), in
 * Hugging Face's orientation [out, in]; software adapters also hold them transposed, because their products are fast in
 * one orientation only. Matrices that do not train may be packed (storage_format.ts); their products unpack them.
 */
import type { Buffer, Device } from "../compute/device.ts";
import { fuses, matmul, multipliesByLanes, prefersColumns } from "../compute/matmul/matmul.ts";
import { type Matrix, widthOfA, widthOfC } from "../compute/matmul/product.ts";
import { type MatrixFormat, matrixBytes, type PackedFormat } from "../compute/packed.ts";
import type { ModelConfig } from "./config.ts";
import { embedRows } from "./embed_rows.ts";
import { packElements } from "./formats/pack.ts";
import { fusedParts, fusedShapes, matrixNames, type Part } from "./fused_parts.ts";
import { PackedMatrices } from "./packed_matrices.ts";
import {
  layOutParameters,
  layoutBytes,
  type ParameterLayout,
  ParameterSet,
  type ParameterShape,
} from "./parameters.ts";
import { transposeInto } from "./transpose_into.ts";
import {
  type ApplyBackwardOptions,
  type ApplyOptions,
  EMBEDDING,
  type FusedRows,
  type PlainWeights,
  type Weights,
} from "./weights.ts";

export class StoredWeights implements Weights, PlainWeights {
  readonly config: ModelConfig;
  readonly device: Device;
  readonly parts: readonly Part[];
  readonly values: ParameterSet;
  readonly transposedLayout: ParameterLayout | undefined;
  private readonly packed: PackedMatrices;
  private readonly label: string;
  private turned: ParameterSet | undefined;
  private isStale = true;
  /** Changes of the values so far. */
  private version = 0;

  /** @param options.formats of the matrices that are not float32. */
  constructor(
    device: Device,
    config: ModelConfig,
    { label = "weights", formats = new Map() }: { label?: string; formats?: ReadonlyMap<string, PackedFormat> } = {},
  ) {
    this.device = device;
    this.config = config;
    this.label = label;
    this.parts = fusedParts(config);
    const shapes = fusedShapes(this.parts);
    const matrices = matrixNames(this.parts);
    const packed = [...formats].map(([name, format]) => [name, { ...shapes.get(name)!, format }] as const);
    for (const name of formats.keys()) shapes.delete(name);
    const { values, transposed } = float32Layouts(device, { shapes, matrices });
    this.values = new ParameterSet(device, values, label);
    this.packed = new PackedMatrices(device, packed, label);
    this.transposedLayout = transposed;
  }

  get plain(): PlainWeights | undefined {
    return this.packed.matrices.size === 0 ? this : undefined;
  }

  /** Bytes on the device, including the transposed copies even before they exist. */
  get byteLength(): number {
    return (
      this.values.byteLength + this.packed.byteLength + (this.transposedLayout ? layoutBytes(this.transposedLayout) : 0)
    );
  }

  shapeOf(name: string): ParameterShape {
    return this.packed.matrices.get(name) ?? this.values.entry(name);
  }

  /** Transposed copies of the matrices. Built or rebuilt here, so weights that never multiply need none. */
  transposed(): ParameterSet | undefined {
    if (!this.transposedLayout) return undefined;
    this.turned ??= new ParameterSet(this.device, this.transposedLayout, `${this.label}, transposed`);
    if (this.isStale) this.transposeAll(this.turned);
    this.isStale = false;
    return this.turned;
  }

  prepare(): void {
    this.transposed();
  }

  state(): readonly (object | number)[] {
    return [this, this.version];
  }

  /** Invalidates the transposed copies after a change of the values; they are rebuilt on next use. */
  refresh(): void {
    this.isStale = true;
    this.version++;
  }

  private transposeAll(turned: ParameterSet): void {
    for (const { name, rows, columns } of turned.layout.entries.values())
      transposeInto(this.device, { x: this.values.get(name), rows: columns, columns: rows }, { y: turned.get(name) });
  }

  embed(io: { tokens: Buffer; out: Buffer; count: number }): void {
    const { rows, columns: width } = this.shapeOf(EMBEDDING);
    embedRows(this.device, { ...this.operand(EMBEDDING), rows, width }, io);
  }

  fuses(name: string, { part, m }: FusedRows): boolean {
    // A bias not on the cpu, which sums in float64 and would round once instead of twice.
    if (part === "bias") return this.device.info.kind === "webgpu";
    const { rows: n, columns: k } = this.shapeOf(name);
    const isBound = matrixBytes(this.formatOf(name), n * k) <= this.device.info.limits.maxBindingBytes;
    // Lanes read an input only beside rows of B, which packed matrices do not have.
    const isReadable = !(this.packed.matrices.has(name) && multipliesByLanes(this.device));
    return isReadable && isBound && fuses(this.device, { part, m, n, k });
  }

  /** How the elements of a fused matrix or vector lie. */
  formatOf(name: string): MatrixFormat {
    return this.packed.matrices.get(name)?.format ?? "float32";
  }

  /**
   * Writes elements of a tensor of a model folder into their place, in its format.
   * @param from first element of the tensor; a multiple of 64 where the matrix is packed.
   */
  writeTensor(part: Part, data: Float32Array, from = 0): void {
    const format = this.formatOf(part.fused);
    const first = part.row * part.columns + from;
    if (format === "float32") this.device.write(this.values.get(part.fused), data, first * 4);
    else this.packed.write(part.fused, { first, ...packElements(format, data, part.tensor) });
  }

  /** Writes elements of a bfloat16 tensor, as a model file has them, into a bfloat16 matrix. */
  writeBfloat16(part: Part, bytes: Uint8Array, from = 0): void {
    this.packed.write(part.fused, { first: part.row * part.columns + from, words: wordsOf(bytes) });
  }

  /** Takes the values of other weights of the same shape, unpacked. For float32 weights. Records only. */
  copyFrom(other: StoredWeights): void {
    if (other.plain) this.values.copyFrom(other.values);
    else for (const name of this.values.layout.entries.keys()) other.copyMatrix(name, this.values.get(name));
    this.refresh();
  }

  /** Writes a fused matrix or vector into an f32 buffer. Records only. */
  copyMatrix(name: string, into: Buffer): void {
    if (this.packed.matrices.has(name)) this.packed.unpack(name, into);
    else this.device.copy(this.values.get(name), into);
  }

  /** All tensors by their names in a model folder. @param from another set of the values' layout, such as gradients. */
  async readTensors(from?: ParameterSet): Promise<Map<string, Float32Array>> {
    const fused = await (from ?? this.values).read();
    if (!from) for (const name of this.packed.matrices.keys()) fused.set(name, await this.packed.read(name));
    return new Map(this.parts.map((part) => [part.tensor, fusedRows(part, fused.get(part.fused)!)]));
  }

  apply(name: string, io: ApplyOptions): void {
    const { rows: n, columns: k } = this.shapeOf(name);
    const turned = this.turnedFor(name, io);
    const { first = 0, input, output, adapter } = io;
    const [stride, width] = [widthOfA({ k, input }), widthOfC({ n, output })];
    matmul(this.device, {
      m: io.m,
      n,
      k,
      a: { buffer: io.x, offset: first * stride, stride },
      b: turned ? { buffer: turned } : this.operand(name),
      c: { buffer: io.y, offset: first * (io.stride ?? width), stride: io.stride },
      transposeB: !turned,
      addend: io.addend,
      bias: io.bias && { buffer: io.bias },
      input,
      output,
      adapter,
    });
  }

  /** The transposed copy, where there is one and the product is faster by it. */
  private turnedFor(name: string, { m, input }: Pick<ApplyOptions, "m" | "input">): Buffer | undefined {
    const { rows: n, columns: k } = this.shapeOf(name);
    if (this.packed.matrices.has(name) || (!input && prefersColumns(this.device, { m, n, k }))) return undefined;
    return this.transposed()?.get(name);
  }

  private operand(name: string): Matrix {
    return this.packed.matrices.get(name) ?? { buffer: this.values.get(name) };
  }

  applyBackward(name: string, io: ApplyBackwardOptions): void {
    const { rows: k, columns: n } = this.shapeOf(name);
    matmul(this.device, {
      m: io.m,
      n,
      k,
      a: { buffer: io.dy, stride: io.stride },
      b: this.operand(name),
      c: { buffer: io.dx },
      splits: true,
    });
  }

  release(): void {
    this.values.release();
    this.packed.release();
    this.turned?.release();
  }
}

/** Bytes of a model's weights in f32 on this device, with the transposed copies. */
export function float32Bytes(device: Device, config: ModelConfig): number {
  const parts = fusedParts(config);
  const { values, transposed } = float32Layouts(device, { shapes: fusedShapes(parts), matrices: matrixNames(parts) });
  return layoutBytes(values) + (transposed ? layoutBytes(transposed) : 0);
}

function float32Layouts(
  device: Device,
  { shapes, matrices }: { shapes: ReadonlyMap<string, ParameterShape>; matrices: ReadonlySet<string> },
): { values: ParameterLayout; transposed: ParameterLayout | undefined } {
  const values = layOutParameters(device, shapes);
  if (device.info.family === "tiled") return { values, transposed: undefined };
  const turned = [...shapes]
    .filter(([name]) => matrices.has(name))
    .map(([name, { rows, columns }]) => [name, { rows: columns, columns: rows }] as const);
  return { values, transposed: layOutParameters(device, turned) };
}

/** A tensor's elements in those of its fused matrix. */
export function fusedRows({ row, rows, columns }: Part, fused: Float32Array): Float32Array {
  return fused.subarray(row * columns, (row + rows) * columns);
}

/** Whole words of bytes; copied where they do not start at one. */
function wordsOf(bytes: Uint8Array): Uint32Array {
  const { buffer, byteOffset, byteLength } = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice();
  return new Uint32Array(buffer, byteOffset, byteLength / 4);
}
