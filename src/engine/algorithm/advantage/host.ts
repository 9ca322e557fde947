/** Advantages on the host, in float64: the reference of the device's, and the way without one. */
import { forEachRow } from "../../packing/offsets.ts";
import { mergeSettings } from "../settings.ts";
import type { AdvantageBatch, Estimate, EstimatorSettings } from "./definition.ts";
import { findEstimator } from "./estimators.ts";
import { packGroups } from "./groups.ts";
import { checkAdvantages } from "./level.ts";

/**
 * Advantages of a packed batch.
 * @param name of any registered estimator
 * @throws {ConfigError} for an unknown estimator or setting, a field that it needs and the batch lacks, or an estimate whose
 * length is not that of its level
 * @see verl core_algos (0.10), rLLM trainer/algorithms (`rllm.NAME`), TRL GRPOTrainer (`trl.grpo`)
 */
export function advantages(batch: AdvantageBatch, name: string, settings: EstimatorSettings = {}): Estimate {
  const estimator = findEstimator(name);
  const estimate = estimator.estimate(batch, mergeSettings("estimator", estimator, settings));
  const size = { rows: batch.offsets.length - 1, tokens: batch.mask.length };
  checkAdvantages(estimate, { ...size, from: `the estimator ${name}` });
  return estimate;
}

/**
 * One advantage per trajectory from the rewards of groups alone, for estimators that need nothing else.
 * Batch-wide statistics weigh every trajectory as one token.
 * @param rewards by group, then by trajectory
 * @throws {ConfigError} like {@link advantages}
 */
export function groupAdvantages(
  rewards: readonly (readonly number[])[],
  name: string,
  settings: EstimatorSettings = {},
): number[][] {
  const scores = rewards.flat();
  const groupOfRow = Uint32Array.from(rewards.flatMap((group, g) => group.map(() => g)));
  const batch: AdvantageBatch = {
    offsets: Uint32Array.from({ length: scores.length + 1 }, (_, i) => i),
    mask: new Uint32Array(scores.length).fill(1),
    groups: packGroups(groupOfRow, rewards.length),
    scores,
  };
  const flat = advantages(batch, name, settings).values.values();
  return rewards.map((group) => group.map(() => flat.next().value as number));
}

/** An estimate per token, [T]: rows spread over their trained tokens, 0 where mask = 0; per-token values unchanged. */
export function perToken(
  batch: Pick<AdvantageBatch, "offsets" | "mask">,
  estimate: Estimate,
): { advantages: Float64Array; returns: Float64Array } {
  const spread = (values: Float64Array) => (estimate.level === "token" ? values : spreadRows(batch, values));
  const advantages = spread(estimate.values);
  return { advantages, returns: estimate.returns ? spread(estimate.returns) : advantages };
}

function spreadRows({ offsets, mask }: Pick<AdvantageBatch, "offsets" | "mask">, values: Float64Array): Float64Array {
  const tokens = new Float64Array(mask.length);
  forEachRow(offsets, (row, first, end) => {
    for (let t = first; t < end; t++) tokens[t] = mask[t] === 0 ? 0 : values[row]!;
  });
  return tokens;
}
