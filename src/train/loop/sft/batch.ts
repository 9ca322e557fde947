/** The batch of a supervised step: rows packed end to end, so that no row sees another. */
import type { MaskedConversation } from "../../../chat/assistant_mask.ts";
import type { TrainBatch } from "../../../engine/contract/backend.ts";
import { offsetsOf } from "../../../engine/packing/offsets.ts";

/** A batch whose `weights` say what each token counts in the loss. */
export type SupervisedBatch = TrainBatch & { readonly weights: Float32Array };

/** Packs rows. First tokens count nothing, because nothing comes before them. */
export function supervisedBatch(rows: readonly MaskedConversation[]): SupervisedBatch {
  const offsets = offsetsOf(rows.map(({ ids }) => ids.length));
  const tokens_T = new Uint32Array(offsets[rows.length]!);
  const mask_T = new Uint32Array(tokens_T.length);
  const weights_T = new Float32Array(tokens_T.length);
  rows.forEach((row, i) => {
    const first = offsets[i]!;
    tokens_T.set(row.ids, first);
    mask_T.set(row.mask, first);
    weights_T.set(row.weights ?? row.mask, first);
    if (row.ids.length > 0) mask_T[first] = weights_T[first] = 0;
  });
  const advantages = { level: "row", values: new Float32Array(rows.length).fill(1) } as const;
  return { offsets, tokens: tokens_T, mask: mask_T, advantages, weights: weights_T };
}

/** The sum of the weights: what a mean over the tokens divides by. */
export function totalWeight({ weights }: SupervisedBatch): number {
  return weights.reduce((sum, weight) => sum + weight, 0);
}
