/** The rewards by name that GDPO normalises: components of a judgement, which a trajectory keeps among its signals. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { spreadWithStd } from "../../../leaves/statistics.ts";
import type { AdvantageOptions, ProcessedRows } from "../contract.ts";
import { algorithmOf, componentKeys } from "../roles.ts";
import type { LoopSettings } from "../settings.ts";
import type { Unit } from "./advantage_spread.ts";

/** Returns the signals that every unit's trajectory has; undefined where there are none. */
export function componentsOf(
  units: readonly Unit[],
  { trajectories }: Pick<ProcessedRows, "trajectories">,
): AdvantageOptions["components"] {
  const signals = units.map(({ trajectory }) => trajectories[trajectory]!.signals ?? {});
  const names = Object.keys(signals[0] ?? {}).filter((name) => signals.every((each) => Object.hasOwn(each, name)));
  if (names.length === 0) return undefined;
  return Object.fromEntries(names.map((name) => [name, Float32Array.from(signals, (each) => each[name]!)]));
}

/** @throws {ConfigError} for a trajectory without a component that `gdpo_reward_keys` names */
export function checkComponents(
  units: readonly Unit[],
  { trajectories }: Pick<ProcessedRows, "trajectories">,
  settings: AdvantageOptions["settings"],
): void {
  const keys = (settings?.gdpo_reward_keys ?? []) as readonly string[];
  for (const { trajectory } of units) pickComponents(trajectories[trajectory]!, keys);
}

/**
 * The named components of a trajectory.
 * @throws {ConfigError} for one that is missing or not finite in 32 bits
 */
export function pickComponents(
  { uid, name, signals }: Pick<ProcessedRows["trajectories"][number], "uid" | "name" | "signals">,
  keys: readonly string[],
): Readonly<Record<string, number>> {
  const missing = keys.find((key) => !Number.isFinite(Math.fround(signals?.[key] ?? Number.NaN)));
  if (missing === undefined) return Object.fromEntries(keys.map((key) => [key, signals![key]!]));
  const has = signals?.[missing] ?? `it has ${Object.keys(signals ?? {}).join(", ") || "none"}`;
  throw new ConfigError(
    `Cannot estimate gdpo with the trajectory ${uid} (${name}): its reward has no finite component "${missing}" (${has}). Let the reward, the evaluator or the agent return {reward, components: {${missing}: NUMBER}}, or correct algorithm.gdpo_reward_keys.`,
    { kind: "code", path: "algorithm.gdpo_reward_keys" },
  );
}

/** verl's metrics of each component, over the trajectories of all roles that read it. */
export function componentMetrics(
  { trajectories, groups, groupOfTrajectory }: ProcessedRows,
  { algorithm }: Pick<LoopSettings, "algorithm">,
): Metrics {
  const metrics: Metrics = {};
  for (const key of componentKeys(algorithm)) {
    const values = trajectories.flatMap(({ signals }, trajectory) => {
      const { estimator } = algorithmOf(groups[groupOfTrajectory[trajectory]!]!.group_role, algorithm);
      return estimator === "gdpo" && signals?.[key] !== undefined ? [signals[key]] : [];
    });
    Object.assign(metrics, spreadWithStd(`gdpo/${key}`, values));
  }
  return metrics;
}
