/** Every estimator by name: the built-in ones, and those that users add. */
import { createRegistry } from "../../registry.ts";
import type { Estimator, EstimatorSettings } from "./definition.ts";
import { gae } from "./estimators/gae.ts";
import { gdpo } from "./estimators/gdpo.ts";
import { gpg } from "./estimators/gpg.ts";
import { grpo, grpoVectorized, rllmGrpo, trlGrpo } from "./estimators/grpo.ts";
import { grpoPassk } from "./estimators/grpo_passk.ts";
import { opo } from "./estimators/opo.ts";
import { optimalTokenBaseline, tirOptimalTokenBaseline } from "./estimators/optimal_token_baseline.ts";
import { prpo } from "./estimators/prpo.ts";
import { reinforce } from "./estimators/reinforce.ts";
import {
  reinforcePlusPlus,
  reinforcePlusPlusBaseline,
  rllmReinforcePlusPlusBaseline,
} from "./estimators/reinforce_plus_plus.ts";
import { remax } from "./estimators/remax.ts";
import { rloo, rlooVectorized } from "./estimators/rloo.ts";

/** In the order in which names are listed. */
const BUILT_IN: readonly Estimator[] = [
  ...[grpo, grpoVectorized, rllmGrpo, trlGrpo, grpoPassk],
  ...[rloo, rlooVectorized, reinforce, opo, gpg],
  ...[reinforcePlusPlusBaseline, rllmReinforcePlusPlusBaseline, prpo, gdpo],
  ...[gae, reinforcePlusPlus, remax, optimalTokenBaseline, tirOptimalTokenBaseline],
];

const registry = createRegistry<Estimator>("estimator", {
  setting: "adv_estimator",
  builtIn: BUILT_IN.map((estimator) => [estimator.name, estimator]),
  isUnique: true,
});

/**
 * Adds an estimator under its name.
 * @throws {ConfigError} when the name is taken
 */
export function registerEstimator<S extends EstimatorSettings>(estimator: Estimator<S>): void {
  registry.register(estimator.name, estimator as unknown as Estimator);
}

/**
 * The estimator of that name.
 * @throws {ConfigError} for a name that is not registered
 */
export function findEstimator(name: string): Estimator {
  return registry.find(name);
}

/** Names of all estimators, built-in and registered. */
export function estimatorNames(): readonly string[] {
  return registry.names();
}
