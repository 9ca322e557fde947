/**
 * A LoRA adapter: W + (alpha / rank) B A for chosen matrices, A [rank, in], B [out, rank].
 *
 * It is folded into a copy of the base weights after each change, so forward passes and sampling cost nothing extra
 * and run the same kernels. Gradients follow from dW, dB = s dW A^T and dA = s B^T dW, or, where that is less work, from
 * its factors: dB = s dy^T (x A^T), dA = s (dy B)^T x.
 * @see https://arxiv.org/abs/2106.09685
 */
import type { Device } from "../../compute/device.ts";
import { matmul, tileColumns } from "../../compute/matmul/matmul.ts";
import type { Matrix } from "../../compute/matmul/product.ts";
import { ConfigError } from "../../errors.ts";
import { mulberry32 } from "../../random.ts";
import type { Adapter } from "../files/peft.ts";
import { transpose } from "../kernels/elementwise.ts";
import { layOut, ParameterSet } from "../parameters.ts";
import { Scratch } from "../scratch.ts";
import type { GradientSink, MatrixGradient } from "../transformer.ts";
import type { Part, Weights } from "../weights.ts";

export interface LoraConfig {
  readonly rank: number;
  readonly alpha: number;
  /** `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`, `lm_head`. */
  readonly targets: readonly string[];
  /** Only these modules of the targets' (`model.layers.0.self_attn.q_proj`). Default: all of them. */
  readonly modules?: { has(module: string): boolean };
}

export const ATTENTION_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"] as const;
export const MLP_TARGETS = ["gate_proj", "up_proj", "down_proj"] as const;

/** A {@link LoraConfig} with defaults: `alpha` 32, every matrix of attention and MLP. */
export type LoraOptions = Pick<LoraConfig, "rank"> & Partial<LoraConfig>;

export function loraConfig(options: LoraOptions): LoraConfig {
  const { alpha = 32, targets = [...ATTENTION_TARGETS, ...MLP_TARGETS] } = options;
  return { ...options, alpha, targets };
}

/** `model.layers.0.self_attn.q_proj` of `model.layers.0.self_attn.q_proj.weight`. */
export function moduleOf(tensor: string): string {
  return tensor.replace(/\.weight$/, "");
}

export class LoraAdapter {
  readonly config: LoraConfig;
  readonly values: ParameterSet;
  /** Counts the changes of the values; whoever changes them calls {@link changed}. */
  version = 0;
  /** The tensors it changes, by their fused matrix. */
  readonly parts: ReadonlyMap<string, readonly Part[]>;
  private readonly device: Device;
  private readonly base: Weights;

  /**
   * A fresh adapter: A uniform in ±1/sqrt(in) from the seed (as PEFT draws it), B zero, so that it changes nothing yet.
   * Without a seed all values are zero, for whoever writes them next.
   * @throws ConfigError for a target that the model lacks.
   */
  constructor(base: Weights, config: LoraConfig, seed?: number) {
    this.device = base.device;
    this.base = base;
    this.config = config;
    this.parts = targetedParts(base, config);
    const shapes = [...this.parts.values()]
      .flat()
      .flatMap(({ tensor, rows, columns }) => [
        [`${moduleOf(tensor)}.A`, { rows: config.rank, columns }] as const,
        [`${moduleOf(tensor)}.B`, { rows, columns: config.rank }] as const,
      ]);
    this.values = new ParameterSet(base.device, layOut(base.device, shapes), "adapter");
    if (seed !== undefined) this.draw(seed);
  }

  private draw(seed: number): void {
    const next = mulberry32(seed);
    for (const { name, rows, columns } of this.values.layout.entries.values()) {
      if (!name.endsWith(".A")) continue;
      const bound = 1 / Math.sqrt(columns);
      this.values.write(
        name,
        Float32Array.from({ length: rows * columns }, () => (next() * 2 - 1) * bound),
      );
    }
  }

  /** A further adapter with the values that this one has now. Copies on the device; records only. */
  snapshot(): LoraAdapter {
    const copy = new LoraAdapter(this.base, this.config);
    copy.values.copyFrom(this.values);
    return copy;
  }

  /** Says that the values are new, so that copies of the weights with this adapter in them are old. */
  changed(): void {
    this.version++;
  }

  get scale(): number {
    return this.config.alpha / this.config.rank;
  }

  /**
   * Takes over the values of a saved adapter of the same shape.
   * @param file named in errors.
   * @throws ConfigError with both shapes where they differ: it would be another policy.
   */
  load(saved: Adapter, file: string): void {
    this.checkShape(saved, file);
    for (const { tensor, rows, columns } of [...this.parts.values()].flat()) {
      const module = moduleOf(tensor);
      const factors = saved.modules.get(module);
      const isFitting = factors?.inSize === columns && factors.outSize === rows;
      if (!factors || !isFitting) {
        const found = factors ? `[${factors.outSize}, ${factors.inSize}]` : "missing";
        const message = `Cannot load the adapter: ${module} must be [${rows}, ${columns}]: ${found}. The adapter is another model's.`;
        throw new ConfigError(message, { file });
      }
      this.values.write(`${module}.A`, factors.a);
      this.values.write(`${module}.B`, factors.b);
    }
  }

  private checkShape(saved: Adapter, file: string): void {
    const own = new Set([...this.parts.values()].flat().map(({ tensor }) => moduleOf(tensor)));
    const isSame = saved.rank === this.config.rank && saved.alpha === this.config.alpha;
    const other = [...saved.modules.keys()].find((module) => !own.has(module));
    if (isSame && isSameSet(saved.targets, this.config.targets) && other === undefined) return;
    throw new ConfigError(
      other !== undefined && isSameSet(saved.targets, this.config.targets)
        ? `Cannot load the adapter: the model has no module ${other}. The adapter is another model's.`
        : `Cannot load the adapter: it has ${describeLora(saved)}, and the model's has ${describeLora(this.config)}. Open the model with the adapter's own shape.`,
      { file },
    );
  }

  /** into = base + this adapter. */
  fold(into: Weights): void {
    into.values.copyFrom(this.base.values);
    this.addTo(into);
  }

  /** into = into + this adapter, without a copy. */
  addTo(into: Weights): void {
    for (const parts of this.parts.values())
      for (const part of parts) {
        const { tensor, fused, row, rows, columns } = part;
        matmul(this.device, {
          m: rows,
          n: columns,
          k: this.config.rank,
          a: { buffer: this.values.get(`${moduleOf(tensor)}.B`) },
          b: { buffer: this.values.get(`${moduleOf(tensor)}.A`) },
          c: { buffer: into.values.get(fused), offset: row * columns },
          alpha: this.scale,
          accumulate: true,
        });
      }
    into.refresh();
  }

  /** Where this adapter's gradients gather. `gradients` has the layout of `values`. */
  sink(gradients: ParameterSet): GradientSink {
    return {
      matrix: (name, io) => {
        for (const part of this.parts.get(name) ?? []) this.accumulate(gradients, part, io);
      },
      slot: () => undefined,
    };
  }

  private accumulate(gradients: ParameterSet, part: Part, { dy, x, m, stride }: MatrixGradient): void {
    const module = moduleOf(part.tensor);
    const at: ModuleGradient = {
      rows: part.rows,
      columns: part.columns,
      m,
      dy: {
        buffer: dy,
        offset: part.row,
        stride: stride ?? this.base.values.entry(part.fused).rows,
      },
      x: { buffer: x },
      A: { buffer: this.values.get(`${module}.A`) },
      B: { buffer: this.values.get(`${module}.B`) },
      gradA: { buffer: gradients.get(`${module}.A`) },
      gradB: { buffer: gradients.get(`${module}.B`) },
    };
    if (this.isFactoredLess(at)) this.accumulateFactored(at);
    else this.accumulateWhole(at);
  }

  /** Whether the factors' products are less work than dW, counted in the whole tiles of the kernels (LOG.md). */
  private isFactoredLess({ rows, columns, m }: ModuleGradient): boolean {
    const tile = tileColumns(this.device);
    const rank = Math.ceil(this.config.rank / tile) * tile;
    return 2 * m * rank * (rows + columns) < rows * columns * (m + 2 * rank);
  }

  /** By way of dW [rows, columns]. */
  private accumulateWhole({ rows, columns, m, dy, x, A, B, gradA, gradB }: ModuleGradient): void {
    const { device, scale: alpha } = this;
    const { rank } = this.config;
    const scratch = new Scratch(device);
    const c = { buffer: scratch.floats(rows * columns, "gradient") };
    matmul(device, { m: rows, n: columns, k: m, a: dy, b: x, c, transposeA: true });
    const shared = { alpha, accumulate: true };
    matmul(device, { ...shared, m: rows, n: rank, k: columns, a: c, b: A, c: gradB, transposeB: true });
    matmul(device, { ...shared, m: rank, n: columns, k: rows, a: B, b: c, c: gradA, transposeA: true });
    scratch.release();
  }

  /** By way of x A^T and dy B, [m, rank] each. */
  private accumulateFactored({ rows, columns, m, dy, x, A, B, gradA, gradB }: ModuleGradient): void {
    const { device, scale: alpha } = this;
    const { rank } = this.config;
    const scratch = new Scratch(device);
    const turned = { buffer: scratch.floats(rank * columns, "adapter, transposed") };
    const [xA, dyB] = ["x A^T", "dy B"].map((label) => ({ buffer: scratch.floats(m * rank, label) }));
    device.dispatch(transpose, {
      buffers: { x: A.buffer, y: turned.buffer },
      params: { rows: rank, columns, x_offset: 0, x_stride: columns, y_offset: 0, y_stride: rank },
    });
    matmul(device, { m, n: rank, k: columns, a: x, b: turned, c: xA! });
    matmul(device, { m, n: rank, k: rows, a: dy, b: B, c: dyB! });
    const shared = { alpha, accumulate: true, transposeA: true };
    matmul(device, { ...shared, m: rows, n: rank, k: m, a: dy, b: xA!, c: gradB });
    matmul(device, { ...shared, m: rank, n: columns, k: m, a: dyB!, b: x, c: gradA });
    scratch.release();
  }
}

/** What the gradients of one module's A [rank, columns] and B [rows, rank] follow from. */
interface ModuleGradient {
  readonly rows: number;
  readonly columns: number;
  /** dy [m, rows] and x [m, columns]. */
  readonly m: number;
  readonly dy: Matrix;
  readonly x: Matrix;
  readonly A: Matrix;
  readonly B: Matrix;
  readonly gradA: Matrix;
  readonly gradB: Matrix;
}

/** `rank 8, alpha 16 on q_proj, v_proj`. */
export function describeLora({ rank, alpha, targets }: LoraConfig): string {
  return `rank ${rank}, alpha ${alpha} on ${[...targets].sort().join(", ")}`;
}

function isSameSet(a: readonly string[], b: readonly string[]): boolean {
  return `${[...new Set(a)].sort()}` === `${[...new Set(b)].sort()}`;
}

function targetedParts(base: Weights, { targets, modules }: LoraConfig): Map<string, Part[]> {
  const found = new Map<string, Part[]>();
  const met = new Set<string>();
  for (const part of base.parts) {
    const target = targets.find((name) => moduleOf(part.tensor).split(".").includes(name));
    if (!target || !part.tensor.endsWith(".weight")) continue;
    if (modules && !modules.has(moduleOf(part.tensor))) continue;
    met.add(target);
    found.set(part.fused, [...(found.get(part.fused) ?? []), part]);
  }
  const missing = targets.filter((name) => !met.has(name));
  if (missing.length > 0)
    throw new ConfigError(
      `Cannot put an adapter on ${missing.join(", ")}: this model has no such matrix${missing.includes("lm_head") && base.config.tied ? " (its output matrix is the embedding table: set model.train_unembed=false)" : ""}.`,
      { path: "model" },
    );
  return found;
}
