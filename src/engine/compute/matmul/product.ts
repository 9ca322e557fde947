/** A matrix product: its operands and what is done to them. */
import type { Buffer } from "../device.ts";
import type { MatrixFormat, PackedFormat } from "../packed.ts";

/** A matrix inside a buffer. Element (r, c) lies at `offset + r * stride + c`, in elements. */
export interface Matrix {
  readonly buffer: Buffer;
  /** Default 0. */
  readonly offset?: number | undefined;
  /** Elements from a row to the next. Default: the row's length. */
  readonly stride?: number | undefined;
  /** How elements lie in the buffer; default `float32`. Only B may be packed. */
  readonly format?: MatrixFormat | undefined;
  /** Scales of `int8` and `nf4`: one f32 for each block of 64 elements, counted from the start of the buffer. */
  readonly scales?: Buffer | undefined;
}

/** The format of a matrix that kernels must unpack. */
export function packedFormat({ format }: Matrix): PackedFormat | undefined {
  return format === "float32" ? undefined : format;
}

/** C = alpha op(A) op(B), added to nothing, to C or to an addend; op is the identity or the transpose. */
export interface MatmulOptions {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** [m, k], or [k, m] with `transposeA`. */
  readonly a: Matrix;
  /** [k, n], or [n, k] with `transposeB`. Many rows by f32 are slower so on software adapters: hold a transposed copy. */
  readonly b: Matrix;
  /** [m, n]. */
  readonly c: Matrix;
  readonly transposeA?: boolean | undefined;
  readonly transposeB?: boolean | undefined;
  /** Default 1. */
  readonly alpha?: number;
  /** Adds the product to what C holds. */
  readonly accumulate?: boolean;
  /** C = addend + product; laid out as C. Must not share C's allocation. */
  readonly addend?: Buffer | undefined;
  /** C = product + bias, n elements that are added to every row. Instead of an addend. */
  readonly bias?: { readonly buffer: Buffer; readonly offset?: number | undefined } | undefined;
  /** Sums continue from what C holds, as if k had not been cut there. Needs an alpha of 1. */
  readonly continues?: boolean;
  /**
   * Allows sums in parts along k, added first to last, where a GPU would otherwise have few workgroups: of gradients, whose bits may
   * depend on the number of rows.
   */
  readonly splits?: boolean;
  /** Function of A's rows when they are read, where `fuses` allows it. */
  readonly input?: SwigluInput | RmsNormInput | undefined;
  /** Function of the sums, where `fuses` allows it. Needs an alpha of 1 and nothing that is added. */
  readonly output?: SwigluOutput | undefined;
  /** Added to the sums, after an addend and before a bias, where `fuses` allows it. Needs an alpha of 1. */
  readonly adapter?: AdapterProduct | undefined;
}

/** Rows of A hold a gate and an upper half of k elements each; the product takes silu(gate) * up. */
export interface SwigluInput {
  readonly kind: "swiglu";
}

/** The product takes a * r * (weightOffset + weight) of each row of A, with r = 1 / sqrt(mean(a^2) + epsilon). */
export interface RmsNormInput {
  readonly kind: "rms_norm";
  /** [k]. */
  readonly weight: Buffer;
  /** 1 where the model stores weights less one. */
  readonly weightOffset: number;
  readonly epsilon: number;
}

/** Columns of B are gates, then as many upper halves; C [m, n / 2] holds silu(gate) * up. */
export interface SwigluOutput {
  readonly kind: "swiglu";
}

/** A LoRA adapter's addend of C: scale * low * factor^T, each matrix that lies in C with its own columns of `low`. */
export interface AdapterProduct {
  /** [m, rank * matrices]. */
  readonly low: Buffer;
  /** [n, rank], the matrices one below the other. */
  readonly factor: Buffer;
  readonly rank: number;
  readonly scale: number;
  /** The columns of C at which the matrices begin, at most three; the first is 0. */
  readonly starts: readonly number[];
}

/** Elements in a row of A. */
export function widthOfA({ k, input }: Pick<MatmulOptions, "k" | "input">): number {
  return input?.kind === "swiglu" ? 2 * k : k;
}

/** Elements in a row of C. */
export function widthOfC({ n, output }: Pick<MatmulOptions, "n" | "output">): number {
  return output?.kind === "swiglu" ? n / 2 : n;
}
