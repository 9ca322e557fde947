/**
 * The values of a LoRA adapter on a device. It is folded into a copy of the base weights after each change, so forward
 * passes and sampling run the same kernels as without one, at the same cost.
 */
import type { Device } from "../../compute/device.ts";
import { matmul } from "../../compute/matmul/matmul.ts";
import { ConfigError } from "../../errors.ts";
import { mulberry32 } from "../../random.ts";
import type { Adapter } from "../files/peft.ts";
import { describeLora, type LoraConfig, moduleOf, UNEMBED_TARGET } from "../lora.ts";
import { layOut, ParameterSet } from "../parameters.ts";
import type { Part, Weights } from "../weights.ts";

export class LoraAdapter {
  readonly config: LoraConfig;
  readonly device: Device;
  readonly base: Weights;
  /** `MODULE.A` [rank, in] and `MODULE.B` [out, rank]. */
  readonly values: ParameterSet;
  /** The tensors that the adapter changes, by their fused matrix. */
  readonly parts: ReadonlyMap<string, readonly Part[]>;
  /** Number of changes of the values. Code that changes them calls {@link changed}. */
  version = 0;

  /**
   * A fresh adapter: A uniform in ±1/sqrt(in) from the seed, as in PEFT, and B zero, so that it changes nothing yet.
   * Without a seed all values are zero, for a caller that overwrites them.
   * @throws ConfigError for a target that the model lacks.
   */
  constructor(base: Weights, config: LoraConfig, seed?: number) {
    this.device = base.device;
    this.base = base;
    this.config = config;
    this.parts = targetedParts(base, config);
    const shapes = this.tensors().flatMap(({ tensor, rows, columns }) => [
      [`${moduleOf(tensor)}.A`, { rows: config.rank, columns }] as const,
      [`${moduleOf(tensor)}.B`, { rows, columns: config.rank }] as const,
    ]);
    this.values = new ParameterSet(base.device, layOut(base.device, shapes), "adapter");
    if (seed !== undefined) this.draw(seed);
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
      const values = Float32Array.from({ length: rows * columns }, () => (next() * 2 - 1) * bound);
      this.values.write(name, values);
    }
  }

  /** Another adapter with the current values. Copies on the device; records only. */
  snapshot(): LoraAdapter {
    const copy = new LoraAdapter(this.base, this.config);
    copy.values.copyFrom(this.values);
    return copy;
  }

  /** Invalidates copies of the weights that contain this adapter. */
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
  }

  private checkShape(saved: Adapter, file: string): void {
    const { rank, alpha, targets } = this.config;
    if (saved.rank !== rank || saved.alpha !== alpha || !isSameSet(saved.targets, targets))
      throw new ConfigError(
        `Cannot load the adapter: it has ${describeLora(saved)}, and the model's has ${describeLora(this.config)}. Open the model with the shape of the saved adapter.`,
        { file },
      );
    const own = new Set(this.tensors().map(({ tensor }) => moduleOf(tensor)));
    const other = [...saved.modules.keys()].find((module) => !own.has(module));
    if (other === undefined) return;
    throw new ConfigError(
      `Cannot load the adapter: the model has no module ${other}. The adapter belongs to another model.`,
      { file },
    );
  }

  /** into = base + this adapter. Records only. */
  fold(into: Weights): void {
    into.values.copyFrom(this.base.values);
    this.addTo(into);
  }

  /** into += this adapter. Records only. */
  addTo(into: Weights): void {
    for (const { tensor, fused, row, rows, columns } of this.tensors())
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
    into.refresh();
  }
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
  if (missing.length === 0) return found;
  const isTied = missing.includes(UNEMBED_TARGET) && base.config.tied;
  const hint = isTied ? " Its output matrix is the embedding table: set model.train_unembed=false." : "";
  throw new ConfigError(`Cannot put an adapter on ${missing.join(", ")}: this model has no such matrix.${hint}`, {
    path: "model",
  });
}
