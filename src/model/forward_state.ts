/** State that a forward pass leaves to its backward pass. transformer.ts has the legend of the shapes. */
import type { Buffer } from "../compute/device.ts";
import type { PackedInput } from "./packed_input.ts";

/**
 * State that a forward pass keeps for the backward pass: nothing, each layer's input (gradient checkpointing: the layer
 * runs again before its backward), or all that is not cheap to compute again.
 */
export type Kept = "nothing" | "inputs" | "activations";

/** Kept state of one layer. The outputs of norms and activations are computed again in any case. */
export interface LayerState {
  /** The layer's input, [T, C]. */
  readonly x: Buffer;
  /** Absent where inputs alone are kept, as is `gateUp`. */
  readonly attention?: AttentionState;
  /** Products by the runs of `Transformer.mlpRuns`, [rows, 2 F] each. */
  readonly gateUp?: readonly Buffer[];
}

export interface AttentionState {
  /** [T, Q + 2 KV D]: rotated, or before normalisation and rotation where the model normalises q and k. */
  readonly qkv: Buffer;
  /** [T, Q]. */
  readonly attended: Buffer;
  readonly statistics: Buffer;
  /** x + attention, [T, C]. */
  readonly middle: Buffer;
}

/** q, k and v as attention reads them. */
export interface Heads {
  readonly qkv: Buffer;
  /** 1 / rms of each head, where q and k are normalised. */
  readonly inverseQ?: Buffer;
  readonly inverseK?: Buffer;
}

export interface ForwardState {
  readonly input: PackedInput;
  /** Empty where nothing is kept. */
  readonly layers: readonly LayerState[];
  /** Output of the last layer, before the final norm, [T, C]. */
  readonly hidden: Buffer;
}
