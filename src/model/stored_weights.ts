/**
 * A transformer's weights on a device. Matrices that multiply the same input lie together (q, k, v; gate, up), in
 * Hugging Face's orientation [out, in]; software adapters also hold them transposed, because their products are fast in
 * one orientation only.
 */
import type { Buffer, Device } from "../compute/device.ts";
import { fusesInput, matmul, prefersColumns } from "../compute/matmul/matmul.ts";
import { embedRows } from "./embed_rows.ts";
import type { ModelConfig } from "./files/config.ts";
import { fusedParts, fusedShapes, isMatrix, type Part } from "./fused_parts.ts";
import { type Layout, layOut, ParameterSet, type Shape } from "./parameters.ts";
import { transposeInto } from "./transpose_into.ts";
import { type ApplyBackwardOptions, type ApplyOptions, EMBEDDING, type PlainWeights, type Weights } from "./weights.ts";

export class StoredWeights implements Weights, PlainWeights {
  readonly config: ModelConfig;
  readonly device: Device;
  readonly parts: readonly Part[];
  readonly values: ParameterSet;
  readonly transposedLayout: Layout | undefined;
  private readonly label: string;
  private turned: ParameterSet | undefined;
  private isStale = true;

  constructor(device: Device, config: ModelConfig, label = "weights") {
    this.device = device;
    this.config = config;
    this.label = label;
    this.parts = fusedParts(config);
    const { values, transposed } = float32Layouts(device, config);
    this.values = new ParameterSet(device, values, label);
    this.transposedLayout = transposed;
  }

  get plain(): PlainWeights {
    return this;
  }

  /** Bytes on the device, including the transposed copies even before they exist. */
  get byteLength(): number {
    return this.values.byteLength + sizeOf(this.transposedLayout);
  }

  shapeOf(name: string): Shape {
    return this.values.entry(name);
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

  /** Invalidates the transposed copies after a change of the values; they are rebuilt on next use. */
  refresh(): void {
    this.isStale = true;
  }

  private transposeAll(turned: ParameterSet): void {
    for (const { name, rows, columns } of turned.layout.entries.values())
      transposeInto(this.device, { x: this.values.get(name), rows: columns, columns: rows }, { y: turned.get(name) });
  }

  embed(io: { tokens: Buffer; out: Buffer; count: number }): void {
    const { rows, columns: width } = this.shapeOf(EMBEDDING);
    embedRows(this.device, { buffer: this.values.get(EMBEDDING), rows, width }, io);
  }

  fusesInput(name: string, m: number): boolean {
    const { rows: n, columns: k } = this.shapeOf(name);
    const isBound = n * k * 4 <= this.device.info.limits.maxBindingBytes;
    return fusesInput(this.device) && isBound && !prefersColumns(this.device, { m, n, k });
  }

  /** Writes one tensor of a model folder into its place. */
  writeTensor(part: Part, data: Float32Array): void {
    this.device.write(this.values.get(part.fused), data, part.row * part.columns * 4);
  }

  /** Takes the values of other weights of the same shape. Records only. */
  copyFrom(other: StoredWeights): void {
    this.values.copyFrom(other.values);
    this.refresh();
  }

  /** All tensors by their names in a model folder. @param from another set of the same layout, such as gradients. */
  async readTensors(from: ParameterSet = this.values): Promise<Map<string, Float32Array>> {
    const fused = await from.read();
    return new Map(this.parts.map((part) => [part.tensor, rowsOf(part, fused.get(part.fused)!)]));
  }

  /** Writes a fused matrix into an f32 buffer. Records only. */
  copyMatrix(name: string, into: Buffer): void {
    this.device.copy(this.values.get(name), into);
  }

  apply(name: string, io: ApplyOptions): void {
    const { rows: n, columns: k } = this.shapeOf(name);
    const isByColumns = !io.input && prefersColumns(this.device, { m: io.m, n, k });
    const turned = isByColumns ? undefined : this.transposed()?.get(name);
    matmul(this.device, {
      m: io.m,
      n,
      k,
      a: { buffer: io.x, stride: io.input?.kind === "swiglu" ? 2 * k : k },
      b: { buffer: turned ?? this.values.get(name) },
      c: { buffer: io.y, stride: io.stride },
      transposeB: !turned,
      addend: io.addend,
      input: io.input,
    });
  }

  applyBackward(name: string, io: ApplyBackwardOptions): void {
    const { rows: k, columns: n } = this.shapeOf(name);
    matmul(this.device, {
      m: io.m,
      n,
      k,
      a: { buffer: io.dy, stride: io.stride },
      b: { buffer: this.values.get(name) },
      c: { buffer: io.dx },
    });
  }

  release(): void {
    this.values.release();
    this.turned?.release();
  }
}

/** A tensor's elements in those of its fused matrix. */
export function rowsOf({ row, rows, columns }: Part, fused: Float32Array): Float32Array {
  return fused.subarray(row * columns, (row + rows) * columns);
}

/** Bytes of a model's weights in f32 on this device, with the transposed copies. */
export function float32Bytes(device: Device, config: ModelConfig): number {
  const { values, transposed } = float32Layouts(device, config);
  return sizeOf(values) + sizeOf(transposed);
}

function float32Layouts(device: Device, config: ModelConfig): { values: Layout; transposed: Layout | undefined } {
  const shapes = fusedShapes(fusedParts(config));
  const values = layOut(device, shapes);
  if (device.info.family === "tiled") return { values, transposed: undefined };
  const turned = [...shapes]
    .filter(([name]) => isMatrix(name))
    .map(([name, { rows, columns }]) => [name, { rows: columns, columns: rows }] as const);
  return { values, transposed: layOut(device, turned) };
}

function sizeOf(layout: Layout | undefined): number {
  return layout?.shardBytes.reduce((sum, bytes) => sum + bytes, 0) ?? 0;
}
