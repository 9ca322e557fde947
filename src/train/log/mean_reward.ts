/** Metric of a trainer on a cluster, under verl's name. */
const VERL = "critic/rewards/mean";

/** Mean over the roles' mean rewards in a step's metrics; undefined where no role has one. */
export function meanReward(metrics: Readonly<Record<string, number>>): number | undefined {
  const means = Object.entries(metrics).filter(([name]) => /^reward\/.*\/mean$/.test(name));
  if (means.length === 0) return metrics[VERL];
  return means.reduce((sum, [, value]) => sum + value, 0) / means.length;
}
