/** GRPO for pass@k: only the best of a group learns. */

import { ConfigError } from "../../../../leaves/errors.ts";
import { deviation } from "../../../../leaves/statistics.ts";
import { forEachRow } from "../../../packing/offsets.ts";
import { type Estimator, perRow } from "../definition.ts";
import { byGroup } from "../groups.ts";
import { type GroupNorm, groupNormOf, isByDeviation, normSettings } from "./grpo.ts";

/**
 * The first best row gets its lead over the second best, over (deviation + epsilon) with `byDeviation`; the others 0.
 * @throws {ConfigError} for a group of one
 * @see https://arxiv.org/abs/2503.19595, verl core_algos.compute_grpo_passk_outcome_advantage
 */
export function leadOfBest(scores: readonly number[], norm: GroupNorm): number[] {
  refuseSingleton(scores.length);
  const highest = Math.max(...scores);
  const best = scores.indexOf(highest);
  const gap = highest - Math.max(...scores.filter((_, k) => k !== best));
  const lead = norm.byDeviation ? gap / (deviation(scores, norm.ddof) + norm.epsilon) : gap;
  return scores.map((_, k) => (k === best ? lead : 0));
}

/** @throws {ConfigError} for a group of one. */
export function refuseSingleton(size: number): void {
  if (size !== 1) return;
  throw new ConfigError(
    "Cannot estimate grpo_passk: every group needs two trajectories or more, and one has 1. Raise rllm.rollout.n, or drop that group.",
  );
}

export const grpoPassk: Estimator = {
  name: "grpo_passk",
  describe: "the best row's lead over the second best, over the sample deviation plus 1e-6; the others 0",
  sources: ["https://arxiv.org/abs/2503.19595"],
  elsewhere: { verl: "grpo_passk" },
  settings: normSettings(1, 1e-6),
  scope: "group",
  estimate: (batch, settings) => perRow(byGroup(batch, (scores) => leadOfBest(scores, groupNormOf(settings)))),
  record(r) {
    forEachRow(r.groups.offsets, (_, first, end) => refuseSingleton(end - first));
    return { advantages: r.group(r.need("scores"), { form: "best", byDeviation: isByDeviation(r.settings) }) };
  },
};
