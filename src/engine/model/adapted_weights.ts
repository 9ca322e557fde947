/**
 * A LoRA adapter beside the weights: y = W x + s B (A x), with s = alpha / rank. No copy of the weights is made, and the
 * weights may be stored in any format.
 */
import type { Buffer, Device } from "../compute/device.ts";
import { matmul } from "../compute/matmul/matmul.ts";
import type { ModelConfig } from "./config.ts";
import type { Part } from "./fused_parts.ts";
import { moduleOf } from "./lora.ts";
import type { ParameterSet, ParameterShape } from "./parameters.ts";
import { Scratch } from "./scratch.ts";
import type { StoredWeights } from "./stored_weights.ts";
import type { LoraAdapter, StackedFactors } from "./train/lora_adapter.ts";
import type { ApplyBackwardOptions, ApplyOptions, FusedRows, Weights } from "./weights.ts";

/** The weights that a model starts from. */
export interface BaseWeights {
  readonly weights: StoredWeights;
  /** Adapters that are part of the model and not merged into its weights, in their order. */
  readonly adapters: readonly LoraAdapter[];
}

/** The weights with adapters beside them, the first one innermost. */
export function withAdapters(weights: Weights, adapters: readonly LoraAdapter[]): Weights {
  return adapters.reduce<Weights>((inner, adapter) => new AdaptedWeights(inner, adapter), weights);
}

/**
 * A view of weights with an adapter beside them. Holds no memory: it reads the adapter's current values whenever work is
 * recorded. Views nest, for several adapters on one base.
 *
 * A row's bits do not depend on the number of rows: every product sums along k in order (matmul.ts), and the parts of a
 * fused matrix are added in their own order.
 */
export class AdaptedWeights implements Weights {
  readonly device: Device;
  readonly config: ModelConfig;
  readonly plain = undefined;
  readonly base: Weights;
  private readonly adapter: LoraAdapter;

  constructor(base: Weights, adapter: LoraAdapter) {
    this.base = base;
    this.adapter = adapter;
    this.device = base.device;
    this.config = base.config;
  }

  get values(): ParameterSet {
    return this.base.values;
  }

  prepare(): void {
    this.base.prepare();
    this.adapter.prepare();
  }

  state(): readonly (object | number)[] {
    return [...this.base.state(), this.adapter, this.adapter.version];
  }

  shapeOf(name: string): ParameterShape {
    return this.base.shapeOf(name);
  }

  /** The table itself: an adapter on a tied output matrix does not change the embedding. */
  embed(io: { tokens: Buffer; out: Buffer; count: number }): void {
    this.base.embed(io);
  }

  /** Whether the adapter changes this matrix. */
  adapts(name: string): boolean {
    return this.adapter.parts.has(name);
  }

  /**
   * Returns whether a product fuses. With a matrix that the adapter changes it does so only in a product that adds what
   * the adapter does: that lies in between.
   */
  fuses(name: string, { part, m }: FusedRows): boolean {
    return (!this.adapts(name) || this.stacked(name, m) !== undefined) && this.base.fuses(name, { part, m });
  }

  apply(name: string, io: ApplyOptions): void {
    const factors = this.stacked(name, io.m);
    if (factors) this.applyFused(name, { ...io, factors });
    else {
      this.base.apply(name, io);
      this.addTo(name, io);
    }
  }

  /** The factors of a matrix, where its product adds what the adapter does. */
  private stacked(name: string, m: number): StackedFactors | undefined {
    const factors = this.adapter.stacked(name);
    return factors && this.base.fuses(name, { part: "adapter", m }) ? factors : undefined;
  }

  /** y = g(f(x) W^T + s (f(x) A^T) B^T (+ addend)) in two products. */
  private applyFused(name: string, io: ApplyOptions & { factors: StackedFactors }): void {
    const { device, adapter } = this;
    const { m, x, input, factors, first = 0 } = io;
    const { A, B, starts } = factors;
    const { rank } = adapter.config;
    const n = rank * starts.length;
    const { columns: k } = this.shapeOf(name);
    Scratch.during(device, (scratch) => {
      const low = scratch.floats(m * n, "x A^T");
      const a = { buffer: x, offset: first * k, stride: k };
      matmul(device, { m, n, k, a, b: { buffer: A }, transposeB: true, c: { buffer: low }, input });
      this.base.apply(name, { ...io, adapter: { low, factor: B, rank, scale: adapter.scale, starts } });
    });
  }

  /** y += s (x A^T) B^T, what the adapter adds to the product of the base. Records only. */
  addTo(name: string, io: ApplyOptions): void {
    const parts = this.adapter.parts.get(name);
    if (parts) this.addProducts(parts, { ...io, stride: io.stride ?? this.shapeOf(name).rows });
  }

  /** y[:, rows of a part] += s (x A^T) B^T. */
  private addProducts(parts: readonly Part[], io: ApplyOptions & { stride: number }): void {
    const { adapter, device } = this;
    const { rank } = adapter.config;
    const { first: row = 0 } = io;
    const inner = parts.length * rank;
    Scratch.during(device, (scratch) => {
      const xA = scratch.floats(io.m * inner, "x A^T");
      for (const { options, first } of adapter.inputFactors(parts))
        matmul(device, {
          ...options,
          m: io.m,
          a: { buffer: io.x, offset: row * options.k },
          c: { buffer: xA, offset: first, stride: inner },
        });
      for (const [i, part] of parts.entries())
        matmul(device, {
          ...adapter.outputFactor(part),
          m: io.m,
          n: part.rows,
          k: rank,
          a: { buffer: xA, offset: i * rank, stride: inner },
          c: { buffer: io.y, offset: row * io.stride + part.row, stride: io.stride },
          alpha: adapter.scale,
          accumulate: true,
        });
    });
  }

  applyBackward(name: string, io: ApplyBackwardOptions): void {
    this.base.applyBackward(name, io);
    const stride = io.stride ?? this.shapeOf(name).rows;
    const parts = this.adapter.parts.get(name) ?? [];
    const factors = this.adapter.stacked(name);
    if (factors) this.addStackedBackward({ ...io, stride, parts, A: factors.A });
    else for (const part of parts) this.addPartBackward(part, { ...io, stride });
  }

  /** dx += s (dy B of every part, side by side) A. */
  private addStackedBackward(io: ApplyBackwardOptions & { stride: number; parts: readonly Part[]; A: Buffer }): void {
    const { adapter, device } = this;
    const { m, dx, parts, A } = io;
    const [k, n] = [parts.length * adapter.config.rank, parts[0]!.columns];
    Scratch.during(device, (scratch) => {
      const a = { buffer: adapter.outputProducts(parts, { ...io, scratch }) };
      matmul(device, { m, n, k, a, b: { buffer: A }, c: { buffer: dx }, alpha: adapter.scale, accumulate: true });
    });
  }

  /** dx += s (dy[:, rows of a part] B) A. */
  private addPartBackward(part: Part, io: ApplyBackwardOptions & { stride: number }): void {
    const { adapter, device } = this;
    const { m } = io;
    const A = { buffer: adapter.values.get(`${moduleOf(part.tensor)}.A`) };
    Scratch.during(device, (scratch) => {
      const dyB = { buffer: adapter.outputProducts([part], { ...io, scratch }) };
      const added = { alpha: adapter.scale, accumulate: true };
      matmul(device, { ...added, m, n: part.columns, k: adapter.config.rank, a: dyB, b: A, c: { buffer: io.dx } });
    });
  }
}
