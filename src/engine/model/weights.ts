/**
 * The weights of a model as the passes read them. How the matrices are stored (stored_weights.ts), and whether a LoRA
 * adapter lies beside them (adapted_weights.ts), is hidden from the passes.
 */
import type { Buffer, Device } from "../compute/device.ts";
import type { FusedPart } from "../compute/matmul/matmul.ts";
import type { MatmulOptions } from "../compute/matmul/product.ts";
import type { ModelConfig } from "./config.ts";
import type { ParameterLayout, ParameterSet, ParameterShape } from "./parameters.ts";
import type { RowRun } from "./row_windows.ts";

export const EMBEDDING = "model.embed_tokens.weight";
export const FINAL_NORM = "model.norm.weight";
/** The output matrix of a model that does not share it with the embedding. */
export const UNEMBED = "lm_head.weight";
/** The weight of a scalar head, [1, C]. */
export const SCORE = "score.weight";

export interface ApplyOptions {
  readonly x: Buffer;
  readonly y: Buffer;
  readonly m: number;
  /** Row of x, y and the addend that the m rows start at. Default 0. */
  readonly first?: number | undefined;
  /** Laid out as y. */
  readonly addend?: Buffer;
  /** Added to every row, instead of an addend, where `fuses` allows it. */
  readonly bias?: Buffer | undefined;
  /** Default: what a row of y holds. */
  readonly stride?: number | undefined;
  readonly input?: MatmulOptions["input"];
  readonly output?: MatmulOptions["output"];
  readonly adapter?: MatmulOptions["adapter"];
}

/** A kernel beside a product of m rows; adding a bias is one too. */
export interface FusedRows {
  readonly part: FusedPart | "bias";
  readonly m: number;
}

export interface ApplyBackwardOptions {
  readonly dy: Buffer;
  readonly dx: Buffer;
  readonly m: number;
  /** Stride of dy. Default: the matrix's rows. */
  readonly stride?: number | undefined;
}

/** The weights that a forward or a backward pass uses. */
export interface Weights {
  readonly config: ModelConfig;
  readonly device: Device;
  /** Norms and biases; in float32 weights the matrices too. */
  readonly values: ParameterSet;
  /**
   * Weights for kernels that read many matrices in one dispatch. Absent where some are not f32, or an adapter is beside
   * them.
   */
  readonly plain: PlainWeights | undefined;
  /**
   * Builds what is otherwise built on first use (transposed copies), so that work which is forgotten (`Device.rollback`)
   * takes none of it with it. Records only.
   */
  prepare(): void;
  /**
   * Returns the state that recorded work depends on besides the values: while no entry changes, work for the same rows
   * would be recorded the same, and nothing has to be built before it.
   */
  state(): readonly (object | number)[];
  /** Returns the shape of a fused matrix. */
  shapeOf(name: string): ParameterShape;
  /** Rows of the embedding table by token id: out [count, C]. Records only. */
  embed(io: { tokens: Buffer; out: Buffer; count: number }): void;
  /** Whether `apply` takes over such a kernel with the same bits, and is faster by it. */
  fuses(name: string, kernel: FusedRows): boolean;
  /** y = g(f(x) W^T (+ addend)): x [m, in], y [m, out] with rows `stride` elements apart. Records only. */
  apply(name: string, io: ApplyOptions): void;
  /** dx = dy W: dy [m, out] (rows `stride` apart), dx [m, in]. Records only. */
  applyBackward(name: string, io: ApplyBackwardOptions): void;
  /** The runs of rows with the same weights, in order. Absent: all rows have the same. */
  readonly segments?: readonly Segment[];
  /** These weights for some of their rows, where rows have different ones. Absent: all rows have the same. */
  ofRows?(run: RowRun): Weights;
}

/** Rows of one policy. */
export interface Segment extends RowRun {
  readonly weights: Weights;
}

/** Weights that are all f32. */
export interface PlainWeights {
  readonly values: ParameterSet;
  /** ParameterLayout of the transposed copies of the matrices; absent on GPUs, whose kernels take either orientation. */
  readonly transposedLayout: ParameterLayout | undefined;
  /** Transposed copies of the matrices; none on GPUs. Records only. */
  transposed(): ParameterSet | undefined;
}
