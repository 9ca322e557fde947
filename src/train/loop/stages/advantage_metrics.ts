/** Metrics of a role's rewards and advantages. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { mean, percentile, populationDeviation, spreadWithStd } from "../../../leaves/statistics.ts";
import { groupBy } from "../group_by.ts";

/** Below this an advantage counts as zero, and the rewards of a group as equal. */
const ZERO_BELOW = 1e-8;

export function rewardMetrics(role: string, rewards: readonly number[]): Metrics {
  return spreadWithStd(`reward/${role}`, rewards);
}

/** The mean reward of the greedy attempts, over the trajectories that they are baselines of. */
export function greedyMetrics(role: string, baselines: readonly number[] | undefined): Metrics {
  return baselines ? { [`reward/${role}/greedy_mean`]: mean(baselines) } : {};
}

/** Includes the share of advantages that are 0. */
export function roleAdvantageMetrics(role: string, values: readonly number[]): Metrics {
  if (values.length === 0) return {};
  const zeros = values.filter((value) => Math.abs(value) < ZERO_BELOW).length;
  return {
    ...spreadWithStd(`advantage/${role}`, values),
    [`advantage/${role}/fraction_zero`]: zeros / values.length,
  };
}

/** A trajectory or step that is compared with others of its group. */
interface Compared {
  readonly reward: number;
  readonly group: string;
}

/** How hard the groups are: only groups with unequal rewards give a gradient. */
export function difficulty(role: string, units: readonly Compared[]): Metrics {
  const byGroup = groupBy(units, (unit) => unit.group);
  const compared = Array.from(byGroup.values(), (group) => group.map(({ reward }) => reward)).filter(
    (values) => values.length >= 2,
  );
  if (compared.length === 0) return {};
  const means = compared.map(mean);
  const deviations = compared.map(populationDeviation);
  const total = compared.length;
  const informative = deviations.filter((deviation) => deviation >= ZERO_BELOW).length;
  const uniform = means.filter((_, i) => deviations[i]! < ZERO_BELOW);
  const name = `batch/${role}`;
  const metrics: Metrics = {
    [`${name}/total`]: total,
    [`${name}/informative`]: informative,
    [`${name}/fractions/effective`]: informative / total,
    [`${name}/fractions/too_easy`]: uniform.filter((value) => value >= 1).length / total,
    [`${name}/fractions/too_hard`]: uniform.filter((value) => value <= 0).length / total,
  };
  for (const p of [10, 50, 90]) {
    metrics[`${name}/group_reward_mean/p${p}`] = percentile(means, p);
    metrics[`${name}/group_reward_std/p${p}`] = percentile(deviations, p);
  }
  return metrics;
}
