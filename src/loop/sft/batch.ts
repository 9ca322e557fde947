/** The batch of a supervised step: rows packed end to end, so that no row sees another. */
import type { MaskedConversation } from "../../chat/assistant_mask.ts";
import type { TrainBatch } from "../../contract/backend.ts";
import { offsetsOf } from "../../data/offsets.ts";

/** A batch whose `weights` say what each token counts in the loss. */
export type SupervisedBatch = TrainBatch & { readonly weights: Float32Array };

/** Packs rows. First tokens count nothing, because nothing comes before them. */
export function supervisedBatch(rows: readonly MaskedConversation[]): SupervisedBatch {
  const offsets = offsetsOf(rows.map(({ ids }) => ids.length));
  const tokens = new Uint32Array(offsets[rows.length]!);
  const mask = new Uint32Array(tokens.length);
  const weights = new Float32Array(tokens.length);
  rows.forEach((row, i) => {
    const first = offsets[i]!;
    tokens.set(row.ids, first);
    mask.set(row.mask, first);
    weights.set(row.weights ?? row.mask, first);
    if (row.ids.length > 0) mask[first] = weights[first] = 0;
  });
  const advantages = { level: "row", values: new Float32Array(rows.length).fill(1) } as const;
  return { offsets, tokens, mask, advantages, weights };
}

/** The sum of the weights: what a mean over the tokens divides by. */
export function totalWeight({ weights }: SupervisedBatch): number {
  return weights.reduce((sum, weight) => sum + weight, 0);
}
