/** Every estimator by name: the built-in ones, and those that users add. */
import { ConfigError } from "../../errors.ts";
import type { Estimator, EstimatorSettings } from "./definition.ts";
import { TOKEN_ESTIMATORS } from "./estimators/gae.ts";
import { ROW_ESTIMATORS } from "./estimators/grpo.ts";

export type { AdvantageBatch, Estimate, Estimator, EstimatorSettings } from "./definition.ts";

const registry = new Map<string, Estimator>(
  [...ROW_ESTIMATORS, ...TOKEN_ESTIMATORS].map((estimator) => [estimator.name, estimator]),
);

/**
 * Adds an estimator under its name.
 * @throws ConfigError when the name is taken.
 */
export function registerEstimator<S extends EstimatorSettings>(estimator: Estimator<S>): void {
  if (registry.has(estimator.name))
    throw new ConfigError(`Cannot register the estimator ${estimator.name}: the name is taken.`, {
      path: "adv_estimator",
    });
  registry.set(estimator.name, estimator as unknown as Estimator);
}

/** @throws ConfigError for a name that is not registered. */
export function findEstimator(name: string): Estimator {
  const estimator = registry.get(name);
  if (estimator) return estimator;
  throw new ConfigError(
    `Cannot estimate advantages as ${JSON.stringify(name)}: known are ${estimatorNames().join(", ")}.`,
    { path: "adv_estimator" },
  );
}

export function estimatorNames(): readonly string[] {
  return [...registry.keys()];
}
