/**
 * A LoRA adapter: W + (alpha / rank) B A for chosen matrices, A [rank, in], B [out, rank].
 *
 * It is folded into a copy of the base weights after each change, so forward passes and sampling cost nothing extra
 * and run the same kernels. Gradients follow from dW: dB = s dW A^T, dA = s B^T dW.
 * @see https://arxiv.org/abs/2106.09685
 */
import type { Buffer, Device } from "../compute/device.ts";
import { matmul } from "../compute/matmul.ts";
import { ConfigError } from "../errors.ts";
import { layOut, ParameterSet } from "./parameters.ts";
import { uniforms } from "./random.ts";
import type { GradientSink, MatrixGradient } from "./transformer.ts";
import type { Part, Weights } from "./weights.ts";

export interface LoraConfig {
  readonly rank: number;
  readonly alpha: number;
  /** `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`, `lm_head`. */
  readonly targets: readonly string[];
}

export const ATTENTION_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"] as const;
export const MLP_TARGETS = ["gate_proj", "up_proj", "down_proj"] as const;

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
    const next = uniforms(seed);
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

  /** into = base + this adapter. */
  fold(into: Weights): void {
    into.values.copyFrom(this.base.values);
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

  private accumulate(gradients: ParameterSet, part: Part, io: MatrixGradient): void {
    const { device, scale: alpha } = this;
    const { tensor, row, rows, columns } = part;
    const module = moduleOf(tensor);
    const weightGrad = device.alloc(rows * columns * 4, "gradient");
    matmul(device, {
      m: rows,
      n: columns,
      k: io.m,
      a: { buffer: io.dy, offset: row, stride: io.stride ?? this.base.values.entry(part.fused).rows },
      b: { buffer: io.x },
      c: { buffer: weightGrad },
      transposeA: true,
    });
    this.addFactorGradients(gradients, { module, weightGrad, rows, columns, alpha });
    device.release(weightGrad);
  }

  private addFactorGradients(
    gradients: ParameterSet,
    at: { module: string; weightGrad: Buffer; rows: number; columns: number; alpha: number },
  ): void {
    const { module, weightGrad, rows, columns, alpha } = at;
    const { rank } = this.config;
    matmul(this.device, {
      m: rows,
      n: rank,
      k: columns,
      a: { buffer: weightGrad },
      b: { buffer: this.values.get(`${module}.A`) },
      c: { buffer: gradients.get(`${module}.B`) },
      transposeB: true,
      alpha,
      accumulate: true,
    });
    matmul(this.device, {
      m: rank,
      n: columns,
      k: rows,
      a: { buffer: this.values.get(`${module}.B`) },
      b: { buffer: weightGrad },
      c: { buffer: gradients.get(`${module}.A`) },
      transposeA: true,
      alpha,
      accumulate: true,
    });
  }
}

function targetedParts(base: Weights, { targets }: LoraConfig): Map<string, Part[]> {
  const found = new Map<string, Part[]>();
  const met = new Set<string>();
  for (const part of base.parts) {
    const target = targets.find((name) => moduleOf(part.tensor).split(".").includes(name));
    if (!target || !part.tensor.endsWith(".weight")) continue;
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
