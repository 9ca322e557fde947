/** Every estimator by name. A built-in one is its value in estimators/ and its name here; configurations, converters and docs/estimators.md follow. */
import { createRegistry } from "../../../leaves/registry.ts";
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

/** Built-in estimators in the order in which names are listed; the first four are the guide's. */
const BUILT_IN: readonly Estimator[] = [
  ...[grpo, reinforce, reinforcePlusPlusBaseline, rloo, prpo],
  ...[grpoVectorized, grpoPassk, rlooVectorized, reinforcePlusPlus, remax, opo, gpg, gdpo, gae],
  ...[optimalTokenBaseline, tirOptimalTokenBaseline, rllmGrpo, rllmReinforcePlusPlusBaseline, trlGrpo],
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

/** The estimators of this package. */
export function builtInEstimators(): readonly Estimator[] {
  return BUILT_IN;
}

/** The estimators that verl has, by its names. */
export function verlEstimatorNames(): readonly string[] {
  return BUILT_IN.flatMap(({ elsewhere }) => elsewhere?.verl ?? []);
}

/** The estimators that verl and Trinity-RFT both have: their names there, and whether an algorithm type of Trinity's takes them. */
export function estimatorsOfVerlAndTrinity(): readonly (readonly [verl: string, trinity: string, hasType: boolean])[] {
  return BUILT_IN.flatMap(({ elsewhere: { verl, trinity } = {} }) =>
    verl && trinity ? [[verl, trinity.name, trinity.hasType] as const] : [],
  );
}
