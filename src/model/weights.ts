/**
 * A transformer's weights on a device. Matrices that multiply the same input lie together (q, k, v; gate, up), in
 * Hugging Face's orientation [out, in]; software adapters also hold them transposed, because their products are fast in
 * one orientation only. A LoRA adapter is folded into a copy of the weights, W + (alpha / rank) B A, so that forward
 * passes and sampling cost the same as without one.
 */
import type { Buffer, Device } from "../compute/device.ts";
import { fusesInput, matmul, prefersColumns } from "../compute/matmul/matmul.ts";
import type { MatmulOptions } from "../compute/matmul/product.ts";
import { type ModelConfig, weightShapes } from "./files/config.ts";
import { transpose } from "./kernels/elementwise.ts";
import { embedding } from "./kernels/embedding.ts";
import { type Layout, layOut, ParameterSet } from "./parameters.ts";
import { rowWindows } from "./row_windows.ts";

export const EMBEDDING = "model.embed_tokens.weight";

/** A Hugging Face tensor's rows inside a fused matrix. */
export interface Part {
  /** Name of the tensor in a model folder. */
  readonly tensor: string;
  /** Name of the fused matrix or vector. */
  readonly fused: string;
  /** First row inside it. */
  readonly row: number;
  readonly rows: number;
  readonly columns: number;
}

const FUSED: readonly (readonly [RegExp, string])[] = [
  [/self_attn\.[qkv]_proj\.weight$/, "self_attn.qkv.weight"],
  [/self_attn\.[qkv]_proj\.bias$/, "self_attn.qkv.bias"],
  [/mlp\.(gate|up)_proj\.weight$/, "mlp.gate_up.weight"],
];

/** The place of each tensor of a model folder in the fused layout. Vectors are one row; fused biases are concatenated. */
export function fusedParts(config: ModelConfig): Part[] {
  const used = new Map<string, number>();
  return [...weightShapes(config)].map(([tensor, shape]) => {
    let fused = tensor;
    for (const [pattern, name] of FUSED) fused = fused.replace(pattern, name);
    const isBias = fused.endsWith("qkv.bias");
    const [length = 1, width = 1] = shape;
    const [rows, columns] = shape.length === 2 || isBias ? [length, width] : [1, length];
    const row = used.get(fused) ?? 0;
    used.set(fused, row + rows);
    return { tensor, fused, row, rows, columns };
  });
}

function fusedShapes(parts: readonly Part[]): Map<string, { rows: number; columns: number }> {
  const shapes = new Map<string, { rows: number; columns: number }>();
  for (const { fused, row, rows, columns } of parts) {
    // The vocabulary is padded with rows of zeros, so that logits are whole vec4s. The padding is never read.
    const padded = isVocabulary(fused) ? Math.ceil(rows / 4) * 4 : row + rows;
    shapes.set(fused, { rows: padded, columns });
  }
  return shapes;
}

function isVocabulary(name: string): boolean {
  return /(lm_head|embed_tokens)\.weight$/.test(name);
}

/** True for matrices that multiply activations, not for norms and biases. */
function isMatrix(name: string): boolean {
  return /(proj|qkv|gate_up)\.weight$/.test(name) || isVocabulary(name);
}

export interface ApplyOptions {
  readonly x: Buffer;
  readonly y: Buffer;
  readonly m: number;
  /** Laid out as y. */
  readonly addend?: Buffer;
  /** Default: the matrix's rows. */
  readonly stride?: number | undefined;
  readonly input?: MatmulOptions["input"];
}

/** The weights a forward pass uses. */
export class Weights {
  readonly config: ModelConfig;
  readonly device: Device;
  readonly parts: readonly Part[];
  readonly values: ParameterSet;
  /** Layout of the transposed copies of the matrices; absent on GPUs, whose kernels take either orientation. */
  readonly transposedLayout: Layout | undefined;
  private readonly label: string;
  private turned: ParameterSet | undefined;
  private isStale = true;

  constructor(device: Device, config: ModelConfig, label = "weights") {
    this.device = device;
    this.config = config;
    this.label = label;
    this.parts = fusedParts(config);
    const shapes = fusedShapes(this.parts);
    this.values = new ParameterSet(device, layOut(device, shapes), label);
    if (device.info.family === "tiled") return;
    const turned = [...shapes]
      .filter(([name]) => isMatrix(name))
      .map(([name, { rows, columns }]) => [name, { rows: columns, columns: rows }] as const);
    this.transposedLayout = layOut(device, turned);
  }

  get layout(): Layout {
    return this.values.layout;
  }

  /** Bytes on the device, including the transposed copies even before they exist. */
  get byteLength(): number {
    const turned = this.transposedLayout?.shardBytes ?? [];
    return this.values.byteLength + turned.reduce((sum, bytes) => sum + bytes, 0);
  }

  /**
   * Transposed copies of the matrices; none on GPUs. This call builds or rebuilds them, so weights that never multiply,
   * such as an adapter's base, need none. Records only.
   */
  transposed(): ParameterSet | undefined {
    if (!this.transposedLayout) return undefined;
    this.turned ??= new ParameterSet(this.device, this.transposedLayout, `${this.label}, transposed`);
    if (this.isStale) this.transposeInto(this.turned);
    this.isStale = false;
    return this.turned;
  }

  /** Invalidates the transposed copies after a change of the values; they are rebuilt on next use. */
  refresh(): void {
    this.isStale = true;
  }

  private transposeInto(turned: ParameterSet): void {
    for (const { name, rows: columns, columns: rows } of turned.layout.entries.values())
      for (const x of rowWindows(this.device, this.values.get(name), { rows, width: columns }))
        for (const y of rowWindows(this.device, turned.get(name), { rows: columns, width: rows }))
          this.device.dispatch(transpose, {
            buffers: { x: x.buffer, y: y.buffer },
            params: {
              rows: x.rows,
              columns: y.rows,
              x_offset: y.first,
              x_stride: columns,
              y_offset: x.first,
              y_stride: rows,
            },
          });
  }

  /** Rows of the embedding table by token id: out [count, C]. Records only. */
  embed(io: { tokens: Buffer; out: Buffer; count: number }): void {
    const { rows, columns: width } = this.values.entry(EMBEDDING);
    for (const table of rowWindows(this.device, this.values.get(EMBEDDING), { rows, width }))
      this.device.dispatch(embedding, {
        buffers: { tokens: io.tokens, table: table.buffer, out: io.out },
        params: { tokens: io.count, width, first_row: table.first, row_count: table.rows },
      });
  }

  /** Whether fusing an activation of m rows with its product by this matrix is possible and faster. */
  fusesInput(name: string, m: number): boolean {
    const { rows: n, columns: k } = this.values.entry(name);
    const isBound = n * k * 4 <= this.device.info.limits.maxBindingBytes;
    return fusesInput(this.device) && isBound && !prefersColumns(this.device, { m, n, k });
  }

  /** Writes one tensor of a model folder into its place. */
  writeTensor(part: Part, data: Float32Array): void {
    this.device.write(this.values.get(part.fused), data, part.row * part.columns * 4);
  }

  /** All tensors by their names in a model folder. @param from another set of the same layout, such as gradients. */
  async readTensors(from: ParameterSet = this.values): Promise<Map<string, Float32Array>> {
    const fused = await from.read();
    return new Map(
      this.parts.map(({ tensor, fused: name, row, rows, columns }) => [
        tensor,
        fused.get(name)!.subarray(row * columns, (row + rows) * columns),
      ]),
    );
  }

  /** y = f(x) W^T (+ addend): x [m, in], y [m, out] with rows `stride` elements apart. Records only. */
  apply(name: string, io: ApplyOptions): void {
    const { rows: n, columns: k } = this.values.entry(name);
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

  /** dx = dy W: dy [m, out] (rows `stride` apart), dx [m, in]. */
  applyBackward(name: string, io: { dy: Buffer; dx: Buffer; m: number; stride?: number }): void {
    const { rows: k, columns: n } = this.values.entry(name);
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
