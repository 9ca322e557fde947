/**
 * Operations that a model's tokens need, by its shape: what utilisation counts, whatever kernels and passes do. Of products, two
 * operations for each weight and token, and of attention, four for each query, key and element of a head. Norms, activations,
 * rotations and the embedding are left out, and so is what memory is saved by: the second forward pass of gradient checkpointing.
 */
import type { BlockCost } from "./blocks/block.ts";
import { blockKind } from "./blocks/kinds.ts";
import type { ModelConfig } from "./config.ts";
import { blocksOf } from "./layers.ts";

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
  return costsOf(config).reduce((sum, { matrixElements }) => sum + matrixElements, 0);
}

function costsOf(config: ModelConfig): readonly BlockCost[] {
  return blocksOf(config).map((block) => blockKind(block).cost(block, config.hiddenSize));
}

function attentionFlop(config: ModelConfig, { lengths, known: computed }: ComputedTokens): number {
  // Operations for a pair, of all blocks with the same window.
  const windows = new Map<number, number>();
  for (const { pairs } of costsOf(config))
    if (pairs) windows.set(pairs.window, (windows.get(pairs.window) ?? 0) + pairs.operations);
  let flop = 0;
  for (const [window, operations] of windows)
    for (const [i, length] of lengths.entries())
      flop += operations * (pairsOf(length, window) - pairsOf(computed?.[i] ?? 0, window));
  return flop;
}

/** Pairs of a query and a key that it attends to, in a sequence. */
function pairsOf(length: number, window: number): number {
  const full = Math.min(length, window);
  return (full * (full + 1)) / 2 + (length - full) * full;
}
