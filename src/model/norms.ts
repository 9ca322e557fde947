/** The RMSNorms of a model: over rows of the residual stream, and over the heads of q and k. */
import type { Buffer, Device } from "../compute/device.ts";
import type { RmsNormInput } from "../compute/matmul/product.ts";
import type { ModelConfig } from "./files/config.ts";
import type { Heads } from "./forward_state.ts";
import { addScaled } from "./kernels/elementwise.ts";
import { chooseRmsNorm, plainRows, rmsNormTiled } from "./kernels/norm.ts";
import type { Layer } from "./layers.ts";
import { keyRows, qkvWidth, queryRows, valueRows } from "./qkv_layout.ts";
import type { Scratch } from "./scratch.ts";
import type { Weights } from "./weights.ts";

export class Norms {
  /** Constants of the kernels, including those of the gradients. */
  readonly constants: { readonly WEIGHT_OFFSET: number };
  private readonly device: Device;
  private readonly config: ModelConfig;

  constructor(device: Device, config: ModelConfig) {
    this.device = device;
    this.config = config;
    this.constants = { WEIGHT_OFFSET: config.unitOffsetNorms ? 1 : 0 };
  }

  /** RMSNorm of rows [rows, C], into `out` where given. `inverse`: 1 / rms of each row. */
  rows(
    weights: Weights,
    at: { name: string; x: Buffer; rows: number; scratch: Scratch; out?: Buffer },
  ): { normed: Buffer; inverse: Buffer } {
    const { hiddenSize: C, rmsNormEps: epsilon } = this.config;
    const normed = at.out ?? at.scratch.floats(at.rows * C, "normed");
    const inverse = at.scratch.floats(at.rows, "inverse rms");
    this.device.dispatch(chooseRmsNorm(this.device.info, { width: C }), {
      buffers: { x: at.x, weight: weights.values.get(at.name), y: normed, inverseRms: inverse },
      params: { ...plainRows(at.rows, C), epsilon },
      constants: this.constants,
    });
    return { normed, inverse };
  }

  /** Returns the norm that a product by `matrix` computes itself, with its bits; undefined where it does not. */
  fused(
    weights: Weights,
    { name, matrix, rows }: { name: string; matrix: string; rows: number },
  ): RmsNormInput | undefined {
    const { hiddenSize: width, rmsNormEps: epsilon } = this.config;
    // Products repeat the order of sums of that kernel.
    if (chooseRmsNorm(this.device.info, { width }) !== rmsNormTiled) return undefined;
    if (!weights.fuses(matrix, { part: "rms_norm_input", m: rows })) return undefined;
    const { WEIGHT_OFFSET: weightOffset } = this.constants;
    return { kind: "rms_norm", weight: weights.values.get(name), weightOffset, epsilon };
  }

  /** RMSNorm of every head of q and k; v is copied. */
  heads(weights: Weights, at: { layer: Layer; qkvRaw: Buffer; rows: number; scratch: Scratch }): Required<Heads> {
    const { layer, qkvRaw, rows, scratch } = at;
    const { heads, kvHeads, rmsNormEps: epsilon } = this.config;
    const qkv = scratch.floats(rows * qkvWidth(this.config), "qkv, normalised");
    const inverseQ = scratch.floats(rows * heads, "inverse rms");
    const inverseK = scratch.floats(rows * kvHeads, "inverse rms");
    for (const [part, inverseRms, layout] of [
      ["q", inverseQ, queryRows(this.config, rows)],
      ["k", inverseK, keyRows(this.config, rows)],
    ] as const) {
      const weight = weights.values.get(layer.name(`self_attn.${part}_norm.weight`));
      this.device.dispatch(chooseRmsNorm(this.device.info, layout), {
        buffers: { x: qkvRaw, weight, y: qkv, inverseRms },
        params: { ...layout, epsilon },
        constants: this.constants,
      });
    }
    this.device.dispatch(addScaled, {
      buffers: { x: qkvRaw, y: qkv },
      params: valueRows(this.config, rows),
    });
    return { qkv, inverseQ, inverseK };
  }
}
