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
  /** For `int8` and `nf4`: one f32 for each block of 64 elements, counted from the start of the buffer. */
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
  /** What is done to A's rows when they are read, where `fusesInput` allows it. */
  readonly input?: SwigluInput | undefined;
}

/** Rows of A hold a gate and an upper half of k elements each; the product takes silu(gate) * up. */
export interface SwigluInput {
  readonly kind: "swiglu";
}
