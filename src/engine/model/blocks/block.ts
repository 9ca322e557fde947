/**
 * The form of a block: the part of a layer that reads the residual stream through a norm and adds to it, x += mix(norm(x)), as data. Its
 * kind (kinds.ts) knows how it is computed.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import type { GradientSink } from "../gradient_sink.ts";
import type { Norms } from "../norms.ts";
import type { PackedInput } from "../packed_input.ts";
import type { RopeTables } from "../rope_tables.ts";
import type { Scratch } from "../scratch.ts";
import type { Weights } from "../weights.ts";
import type { Output, Residual } from "./residual.ts";

/** Fields that all kinds have in common. */
export interface AnyBlock {
  readonly kind: string;
  /** Number of its layer. */
  readonly layer: number;
  /** The norm in front of it. */
  readonly inputNorm: string;
  readonly output: Output;
}

/** A tensor of a block, as a model folder holds it. */
export interface BlockTensor {
  readonly name: string;
  /** Matrices are [out, in]. */
  readonly shape: readonly number[];
  readonly role: "matrix" | "bias" | "norm";
  /** The matrix or vector that it is rows of, because both multiply the same input. Default: itself. */
  readonly fused?: string | undefined;
  /** Whether it writes into the residual stream: such matrices are drawn smaller. */
  readonly isOutput?: boolean | undefined;
  /** llama.cpp's name of its module, within a layer. */
  readonly gguf: string;
  /** Number of heads in rows that rotate by position. */
  readonly rotatedHeads?: number | undefined;
}

/** The parts of a model on a device that its blocks compute with. */
export interface BlockContext {
  readonly device: Device;
  /** C. */
  readonly hiddenSize: number;
  readonly norms: Norms;
  readonly ropes: RopeTables;
  readonly residual: Residual;
}

interface Rows<B> {
  readonly block: B;
  /** The block's input, [T, C]. */
  readonly x: Buffer;
  readonly scratch: Scratch;
}

/** A forward pass over packed sequences. */
export interface ForwardRows<B> extends Rows<B> {
  readonly input: PackedInput;
  /** Whether what the backward pass needs stays alive. */
  readonly keep: boolean;
  readonly visit?: KeysVisitor | undefined;
}

/** A block's result for its rows, [T, C], and the state for its backward pass. */
export interface ForwardResult<S> {
  readonly out: Buffer;
  readonly state: S | undefined;
}

/** A backward pass over packed sequences. */
export interface BackwardRows<B, S> extends Rows<B> {
  readonly input: PackedInput;
  /** State that the forward pass kept. Absent: it is computed again. */
  readonly state: S | undefined;
  /** Gradient of the block's result, [T, C]; overwritten by that of its input. */
  readonly grad: Buffer;
  readonly sink: GradientSink;
}

/** A decoding step: one token of each of many sequences. */
export interface DecodedRows<B> extends Rows<B> {
  /** [rows, C]. */
  readonly out: Buffer;
  readonly rows: CachedRows;
  /** Cache of the block's layer; absent for a kind without keys. */
  readonly cache: LayerCache | undefined;
  /** Number of the step within its chunk, from 0. */
  readonly shift: number;
}

/** The rows of a decoding step and their places in the cache. */
export interface CachedRows {
  readonly count: number;
  /** Pages of the cache by position, [rows, rowPages]. */
  readonly pages: Buffer;
  readonly rowPages: number;
  /** Positions of the tokens that the first step of a chunk reads, [rows]. */
  readonly positions: Buffer;
  /** Whether rows may read keys that others of this step write: each layer then keeps all keys before a row reads them. */
  readonly sharesSequences?: boolean | undefined;
}

/** Keys and values of one layer, [pages, PAGE_TOKENS, KV D] each. */
export interface LayerCache {
  readonly dtype: "float32" | "bfloat16";
  readonly keys: Buffer;
  readonly values: Buffer;
}

/** Keys and values that attention reads in place of those of the pass, [first + T, KV D] each. Released once they are read. */
export interface GivenKeys {
  readonly k: Buffer;
  readonly v: Buffer;
  /** Tokens before those of the pass. */
  readonly first: number;
  /** First tokens of sequences, as in the input, for all these tokens. */
  readonly sequenceStart: Buffer;
}

/** The place of keys and values in the rows of a fused projection. */
export interface KeyValueRows {
  readonly layer: number;
  /** Elements of k, and of v. */
  readonly width: number;
  readonly stride: number;
  readonly keyOffset: number;
  readonly valueOffset: number;
}

/** Called with the keys and values of each block that has some, to fill a cache. It may return the keys for attention. */
export type KeysVisitor = (at: KeyValueRows, projected: Buffer) => GivenKeys | undefined;

/** Work of a pass, as flop.ts counts it: products by weights, and pairs of a query and a key. */
export interface BlockCost {
  /** Elements of the matrices that each token is multiplied by. */
  readonly matrixElements: number;
  /** Work of attention: operations for a pair of a query and a key, and the tokens that a query sees. */
  readonly pairs?: { readonly operations: number; readonly window: number } | undefined;
}

/** A kind of block as the rest of the model sees it. `S` is the state that its forward pass keeps. */
export interface BlockKind<B extends AnyBlock, S> {
  /** Returns the tensors in the order of a model folder. @param hiddenSize C */
  weights(block: B, hiddenSize: number): readonly BlockTensor[];
  cost(block: B, hiddenSize: number): BlockCost;
  /** Elements of a token's row that one binding must cover for all tokens of a pass. */
  widest(block: B): number;
  /** Elements of the keys, and of the values, that a token leaves in the cache; absent for a kind that leaves none. */
  cachedWidth?(block: B): number;
  /** Records only, as all three. */
  forward(context: BlockContext, weights: Weights, at: ForwardRows<B>): ForwardResult<S>;
  backward(context: BlockContext, weights: Weights, at: BackwardRows<B, S>): void;
  step(context: BlockContext, weights: Weights, at: DecodedRows<B>): void;
}
