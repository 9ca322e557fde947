/**
 * The values of a LoRA adapter on a device. It is applied beside the base weights (adapted_weights.ts), or folded into a
 * copy of them after each change (generate/folded.ts).
 */

import { ConfigError } from "../../../leaves/errors.ts";
import { mulberry32 } from "../../../leaves/random.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { matmul } from "../../compute/matmul/matmul.ts";
import type { MatmulOptions } from "../../compute/matmul/product.ts";
import type { Adapter } from "../files/peft.ts";
import type { Part } from "../fused_parts.ts";
import { initialScore } from "../initial_score.ts";
import { describeLora, type LoraConfig, moduleOf, UNEMBED_TARGET } from "../lora.ts";
import { layOutParameters, layoutBytes, ParameterSet } from "../parameters.ts";
import type { Scratch } from "../scratch.ts";
import type { StoredWeights } from "../stored_weights.ts";
import { transposeInto } from "../transpose_into.ts";
import { EMBEDDING, SCORE } from "../weights.ts";

/** A factor as operand B of a product, without the other operands. */
type FactorOperand = Pick<MatmulOptions, "b" | "transposeB">;

/** The factors of all tensors in a fused matrix, one below the other. */
export interface StackedFactors {
  /** [rank per tensor, in]. */
  readonly A: Buffer;
  /** [out, rank]. */
  readonly B: Buffer;
  /** The rows of the fused matrix at which its tensors begin. */
  readonly starts: readonly number[];
}

/** Most tensors of a fused matrix: q, k and v. */
const MOST_STACKED = 3;

export class LoraAdapter {
  readonly config: LoraConfig;
  readonly device: Device;
  readonly base: StoredWeights;
  /** `MODULE.A` [rank, in] and `MODULE.B` [out, rank], and the weight of a scalar head that trains with them. */
  readonly values: ParameterSet;
  /** The tensors that the adapter changes, by their fused matrix. */
  readonly parts: ReadonlyMap<string, readonly Part[]>;
  private readonly stacks = new Map<string, StackedFactors | undefined>();
  /** Number of changes of the values. Code that changes them calls {@link changed}. */
  version = 0;
  /**
   * Factors on software adapters, whose products are fast in one orientation only: `FUSED.A` [in, rank per part],
   * `MODULE.B` [rank, out].
   */
  private turned: { readonly values: ParameterSet; version: number } | undefined;

  /**
   * A fresh adapter: A uniform in ±1/sqrt(in) from the seed, as in PEFT, and B zero, so that it changes nothing yet.
   * Without a seed all values are zero, for a caller that overwrites them.
   * @throws ConfigError for a target that the model lacks.
   */
  constructor(base: StoredWeights, config: LoraConfig, seed?: number) {
    this.device = base.device;
    this.base = base;
    this.config = config;
    this.parts = targetedParts(base, config);
    // Those of a fused matrix lie together, so that one product can take them all.
    const shapes = [...this.parts.values()].flatMap((parts) => [
      ...parts.map(({ tensor, columns }) => [`${moduleOf(tensor)}.A`, { rows: config.rank, columns }] as const),
      ...parts.map(({ tensor, rows }) => [`${moduleOf(tensor)}.B`, { rows, columns: config.rank }] as const),
    ]);
    const score = [SCORE, { rows: 1, columns: base.config.hiddenSize }] as const;
    const layout = layOutParameters(base.device, config.scoreHead ? [...shapes, score] : shapes);
    this.values = new ParameterSet(base.device, layout, "adapter");
    if (seed !== undefined) this.draw(seed);
  }

  /** Bytes on the device beside a base, including the transposed factors even before they exist. */
  get byteLength(): number {
    const turned = this.device.info.family === "tiled" ? 0 : layoutBytes(this.transposedLayout());
    return this.values.byteLength + turned;
  }

  /** alpha / rank. */
  get scale(): number {
    return this.config.alpha / this.config.rank;
  }

  /** The tensors that the adapter changes, in the model's order. */
  tensors(): Part[] {
    return [...this.parts.values()].flat();
  }

  private draw(seed: number): void {
    const next = mulberry32(seed);
    for (const { name, rows, columns } of this.values.layout.entries.values()) {
      if (!name.endsWith(".A")) continue;
      const bound = 1 / Math.sqrt(columns);
      const values = new Float32Array(rows * columns);
      for (let i = 0; i < values.length; i++) values[i] = (next() * 2 - 1) * bound;
      this.values.write(name, values);
    }
    if (this.config.scoreHead) this.values.write(SCORE, initialScore(this.base.config, next));
  }

  /** Another adapter with the current values. Copies on the device; records only. */
  snapshot(): LoraAdapter {
    const copy = new LoraAdapter(this.base, this.config);
    copy.copyFrom(this);
    return copy;
  }

  /** Takes the values of another adapter of the same shape. Records only. */
  copyFrom(other: LoraAdapter): void {
    this.values.copyFrom(other.values);
    this.changed();
  }

  /** Invalidates the transposed factors, and copies of the weights that contain this adapter. */
  changed(): void {
    this.version++;
  }

  /**
   * Takes the values of a saved adapter of the same shape.
   * @param file named in errors.
   * @throws ConfigError with both shapes where they differ.
   */
  load(saved: Adapter, file: string): void {
    this.checkShape(saved, file);
    for (const { tensor, rows, columns } of this.tensors()) {
      const module = moduleOf(tensor);
      const factors = saved.modules.get(module);
      if (factors?.inSize !== columns || factors.outSize !== rows) {
        const found = factors ? `[${factors.outSize}, ${factors.inSize}]` : "missing";
        const message = `Cannot load the adapter: ${module} must be [${rows}, ${columns}] (${found}). It belongs to another model.`;
        throw new ConfigError(message, { file });
      }
      this.values.write(`${module}.A`, factors.a);
      this.values.write(`${module}.B`, factors.b);
    }
    if (this.config.scoreHead) this.values.write(SCORE, saved.score!);
    this.changed();
  }

  private checkShape(saved: Adapter, file: string): void {
    const { rank, alpha, targets } = this.config;
    const isAlike = saved.rank === rank && saved.alpha === alpha && isSameSet(saved.targets, targets);
    if (!isAlike || (saved.scoreHead ?? false) !== (this.config.scoreHead ?? false))
      throw new ConfigError(
        `Cannot load the adapter: it has ${describeLora(saved)}, and the model's has ${describeLora(this.config)}. Open the model with the shape of the saved adapter.`,
        { file },
      );
    const modules = new Set(this.tensors().map(({ tensor }) => moduleOf(tensor)));
    const other = [...saved.modules.keys()].find((module) => !modules.has(module));
    if (other === undefined) return;
    throw new ConfigError(
      `Cannot load the adapter: the model has no module ${other}. The adapter belongs to another model.`,
      { file },
    );
  }

  /** Whether weights that do not train take it over as they are loaded: it takes no memory from then on. */
  get isMerged(): boolean {
    return !this.isOnTiedTable && this.base.plain !== undefined;
  }

  /** Whether it changes the output matrix of a model whose output matrix is the embedding table. */
  get isOnTiedTable(): boolean {
    return this.parts.has(EMBEDDING);
  }

  /**
   * into += this adapter. Records only.
   * @throws ConfigError where the output matrix is the embedding table, which must not change.
   */
  addTo(into: StoredWeights): void {
    if (this.isOnTiedTable)
      throw new ConfigError(
        "Cannot fold the adapter into the weights: it changes the output matrix (lm_head), which this model shares with its embedding. Set model.fold_adapter=auto, or model.train_unembed=false.",
        { path: "model.fold_adapter" },
      );
    for (const part of this.tensors()) this.addPart(part, into.values.get(part.fused));
    into.refresh();
  }

  /** A fused matrix in f32 += this adapter's product for one of its parts. Records only. */
  addPart({ tensor, row, rows, columns }: Part, matrix: Buffer): void {
    matmul(this.device, {
      m: rows,
      n: columns,
      k: this.config.rank,
      a: { buffer: this.values.get(`${moduleOf(tensor)}.B`) },
      b: { buffer: this.values.get(`${moduleOf(tensor)}.A`) },
      c: { buffer: matrix, offset: row * columns },
      alpha: this.scale,
      accumulate: true,
    });
  }

  /**
   * The products that make x A^T [m, rank per part] for the parts of one fused matrix, without their x and result: one for
   * all parts, or one each. `first`: the column of the result that a product starts at.
   */
  inputFactors(parts: readonly Part[]): { options: FactorOperand & { n: number; k: number }; first: number }[] {
    const { rank } = this.config;
    const [{ fused, columns: k }] = parts as [Part];
    const turned = this.transposed();
    if (turned) return [{ options: { b: { buffer: turned.get(`${fused}.A`) }, n: parts.length * rank, k }, first: 0 }];
    const stacked = this.stacked(fused);
    if (stacked)
      return [{ options: { b: { buffer: stacked.A }, transposeB: true, n: parts.length * rank, k }, first: 0 }];
    return parts.map(({ tensor }, i) => {
      const b = { buffer: this.values.get(`${moduleOf(tensor)}.A`) };
      return { options: { b, transposeB: true, n: rank, k }, first: i * rank };
    });
  }

  /**
   * On GPUs, the factors of a fused matrix that the adapter changes as a whole. Undefined where it leaves out one of its tensors,
   * or where they do not lie on end, or in whole vec4.
   */
  stacked(fused: string): StackedFactors | undefined {
    if (!this.stacks.has(fused)) this.stacks.set(fused, this.stack(fused));
    return this.stacks.get(fused);
  }

  private stack(fused: string): StackedFactors | undefined {
    const parts = this.parts.get(fused);
    if (!parts || this.device.info.family !== "tiled" || this.config.rank % 4 !== 0) return undefined;
    const modules = parts.map(({ tensor }) => moduleOf(tensor));
    const A = this.values.span(modules.map((module) => `${module}.A`));
    const B = this.values.span(modules.map((module) => `${module}.B`));
    const rows = parts.reduce((sum, part) => sum + part.rows, 0);
    const isWhole = rows === this.base.shapeOf(fused).rows && parts.length <= MOST_STACKED;
    return A && B && isWhole ? { A, B, starts: parts.map(({ row }) => row) } : undefined;
  }

  /** dy B of each part of a fused matrix, side by side: [m, rank per part]. Rows of dy are `stride` elements apart. Records only. */
  outputProducts(
    parts: readonly Part[],
    { dy, m, stride, scratch }: { dy: Buffer; m: number; stride: number; scratch: Scratch },
  ): Buffer {
    const { rank } = this.config;
    const width = parts.length * rank;
    const dyB = scratch.floats(m * width, "dy B");
    for (const [i, { tensor, row, rows }] of parts.entries())
      matmul(this.device, {
        ...{ m, n: rank, k: rows },
        a: { buffer: dy, offset: row, stride },
        b: { buffer: this.values.get(`${moduleOf(tensor)}.B`) },
        c: { buffer: dyB, offset: i * rank, stride: width },
      });
    return dyB;
  }

  /** B of one module, to multiply rows of x A^T. */
  outputFactor({ tensor }: Part): FactorOperand {
    const name = `${moduleOf(tensor)}.B`;
    const turned = this.transposed();
    return { b: { buffer: (turned ?? this.values).get(name) }, transposeB: !turned };
  }

  /** Builds the transposed factors, which are otherwise built on first use. Records only. */
  prepare(): void {
    this.transposed();
  }

  /** The factors transposed, up to date with the values; none on GPUs, whose kernels take either orientation. */
  private transposed(): ParameterSet | undefined {
    if (this.device.info.family === "tiled") return undefined;
    this.turned ??= {
      values: new ParameterSet(this.device, this.transposedLayout(), "adapter, transposed"),
      version: -1,
    };
    if (this.turned.version !== this.version) this.transposeInto(this.turned.values);
    this.turned.version = this.version;
    return this.turned.values;
  }

  private transposedLayout() {
    const { rank } = this.config;
    const inputs = [...this.parts].map(([fused, parts]) => {
      return [`${fused}.A`, { rows: parts[0]!.columns, columns: parts.length * rank }] as const;
    });
    const outputs = this.tensors().map(({ tensor, rows }) => {
      return [`${moduleOf(tensor)}.B`, { rows: rank, columns: rows }] as const;
    });
    return layOutParameters(this.device, [...inputs, ...outputs]);
  }

  private transposeInto(turned: ParameterSet): void {
    const { rank } = this.config;
    for (const [fused, parts] of this.parts)
      for (const [i, { tensor, rows, columns }] of parts.entries()) {
        const [A, B] = [`${moduleOf(tensor)}.A`, `${moduleOf(tensor)}.B`];
        const to = { y: turned.get(`${fused}.A`), offset: i * rank, stride: parts.length * rank };
        transposeInto(this.device, { x: this.values.get(A), rows: rank, columns }, to);
        transposeInto(this.device, { x: this.values.get(B), rows, columns: rank }, { y: turned.get(B) });
      }
  }

  release(): void {
    this.values.release();
    this.turned?.values.release();
  }
}

function isSameSet(a: readonly string[], b: readonly string[]): boolean {
  return `${[...new Set(a)].sort()}` === `${[...new Set(b)].sort()}`;
}

/** The tensors that an adapter of this shape changes. A tied output matrix is a module too: the rows of the table. */
function targetedParts(base: StoredWeights, { targets, modules }: LoraConfig): Map<string, Part[]> {
  const found = new Map<string, Part[]>();
  const met = new Set<string>();
  for (const part of adaptableParts(base)) {
    const target = targets.find((name) => moduleOf(part.tensor).split(".").includes(name));
    if (!target || !part.tensor.endsWith(".weight")) continue;
    if (modules && !modules.has(moduleOf(part.tensor))) continue;
    met.add(target);
    found.set(part.fused, [...(found.get(part.fused) ?? []), part]);
  }
  const missing = targets.filter((name) => !met.has(name));
  if (missing.length === 0) return found;
  throw new ConfigError(`Cannot put an adapter on ${missing.join(", ")}: this model has no such matrix.`, {
    path: "model",
  });
}

function adaptableParts({ parts, config }: StoredWeights): readonly Part[] {
  if (!config.tied) return parts;
  const table = parts.find(({ tensor }) => tensor === EMBEDDING)!;
  return [...parts, { ...table, tensor: `${UNEMBED_TARGET}.weight` }];
}
