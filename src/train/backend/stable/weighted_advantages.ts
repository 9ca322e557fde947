/** The advantages of a batch for a loss that sums over tokens. */
import { resolveLoss } from "../../../engine/algorithm/loss/resolve.ts";
import { advantageReader, checkAdvantages, countRows, factorsOf, weightOfRow } from "../../../engine/algorithm/mod.ts";
import type { LossSpec, TrainBatch } from "../../../engine/contract/backend.ts";

/** [T]: each trained token's advantage times its share of the loss; 0 elsewhere. */
export function weightedAdvantages(batch: TrainBatch, spec: LossSpec): Float32Array {
  const { offsets, mask, rolloutIsWeights: correction } = batch;
  const counts = countRows(offsets, mask);
  const { weight } = resolveLoss(spec, counts);
  const size = { rows: counts.trained.length, tokens: counts.tokens };
  const advantage = advantageReader(checkAdvantages(factorsOf(batch), size));
  const weighted = new Float32Array(mask.length);
  for (const [row, trained] of counts.trained.entries()) {
    const share = weightOfRow(weight, trained);
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++)
      if (mask[t] !== 0) weighted[t] = advantage(t, row) * share * (correction?.[t] ?? 1);
  }
  return weighted;
}
