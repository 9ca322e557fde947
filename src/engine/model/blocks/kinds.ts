/** Every kind of block. A kind is its module and its name here; a model's layers are lists of blocks of these kinds. */
import { attentionKind } from "./attention.ts";
import type { AttentionBlock } from "./attention_block.ts";
import type { AnyBlock, BlockKind } from "./block.ts";
import { type GatedMlpBlock, gatedMlpKind } from "./gated_mlp.ts";

/** One block of a layer. */
export type Block = AttentionBlock | GatedMlpBlock;

/** The blocks of a layer, in the order of the forward pass. */
export interface Layer {
  readonly index: number;
  readonly blocks: readonly Block[];
}

const KINDS = { attention: attentionKind, gated_mlp: gatedMlpKind };

/** The kind of a block, which takes that block. */
export function blockKind<B extends Block>(block: B): BlockKind<B, unknown> {
  return KINDS[block.kind] as BlockKind<AnyBlock, unknown> as BlockKind<B, unknown>;
}
