/**
 * Operations that a model's tokens need, by its shape: what utilisation counts, whatever kernels and passes do. Of products, two
 * operations for each weight and token, and of attention, four for each query, key and element of a head. Norms, activations,
 * rotations and the embedding are left out, and so is what memory is saved by: the second forward pass of gradient checkpointing.
 */
import { type ModelConfig, weightShapes, windowOf } from "./files/config.ts";

/** Work that is computed of a number of tokens. */
export interface ComputedTokens {
  /** Through the layers. */
  readonly tokens: number;
  /** Through the output matrix. */
  readonly targets: number;
  /** Lengths of the sequences that the tokens belong to. */
  readonly lengths: readonly number[];
  /** Tokens at the start of each sequence that were computed before, such as a prompt. Default 0. */
  readonly known?: readonly number[] | undefined;
}

/** Operations of a forward pass. @param adapter parameters of a LoRA adapter beside the weights */
export function forwardFlop(config: ModelConfig, work: ComputedTokens, adapter: number = 0): number {
  return productFlop(config, work) + attentionFlop(config, work) + 2 * adapter * work.tokens;
}

/**
 * Operations of a forward and a backward pass. All weights: three times those of the forward pass. An adapter: the weights that do
 * not train have no gradient of their own, so that their part is twice that of the forward pass, and the adapter's three times.
 */
export function trainingFlop(config: ModelConfig, work: ComputedTokens, adapter?: number): number {
  const products = productFlop(config, work);
  const attention = 3 * attentionFlop(config, work);
  return adapter === undefined ? 3 * products + attention : 2 * products + attention + 6 * adapter * work.tokens;
}

function productFlop(config: ModelConfig, { tokens, targets }: ComputedTokens): number {
  const output = config.scoreHead ? config.hiddenSize : config.vocabSize * config.hiddenSize;
  return 2 * (tokens * layerWeights(config) + targets * output);
}

/** Elements of the matrices of all layers. */
function layerWeights(config: ModelConfig): number {
  let sum = 0;
  for (const [name, [rows, columns]] of weightShapes(config))
    if (name.startsWith("model.layers.") && columns !== undefined) sum += rows! * columns;
  return sum;
}

function attentionFlop(config: ModelConfig, { lengths, known: earlier }: ComputedTokens): number {
  const windows = Array.from({ length: config.layers }, (_, layer) => windowOf(config, layer));
  let pairs = 0;
  for (const window of new Set(windows)) {
    const layers = windows.filter((width) => width === window).length;
    for (const [i, length] of lengths.entries())
      pairs += layers * (pairsOf(length, window) - pairsOf(earlier?.[i] ?? 0, window));
  }
  return 4 * config.heads * config.headDim * pairs;
}

/** Pairs of a query and a key that it attends to, in a sequence. */
function pairsOf(length: number, window: number): number {
  const full = Math.min(length, window);
  return (full * (full + 1)) / 2 + (length - full) * full;
}
