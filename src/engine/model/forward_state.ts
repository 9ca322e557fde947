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
  /** Each block's input, and the state that its kind keeps. Absent where inputs alone are kept. */
  readonly blocks?: readonly BlockState[];
}

export interface BlockState {
  /** [T, C]. */
  readonly x: Buffer;
  /** Absent: the kind computes it again. */
  readonly state: unknown;
}

export interface ForwardState {
  readonly input: PackedInput;
  /** Empty where nothing is kept. */
  readonly layers: readonly LayerState[];
  /** Output of the last layer, before the final norm, [T, C]. */
  readonly hidden: Buffer;
}
