/** Every loss by name: verl's, Tinker's, TRL's, and those that users add. A built-in loss is its file in losses/ and its name here. */
import { createRegistry } from "../../../leaves/registry.ts";
import type { AggregationMode } from "./aggregation.ts";
import type { LossDefinition } from "./definition.ts";
import { cispo } from "./losses/cispo.ts";
import { clipCov } from "./losses/clip_cov.ts";
import { crossEntropy, tinkerCrossEntropy } from "./losses/cross_entropy.ts";
import { dppoKl, dppoTv } from "./losses/dppo.ts";
import { dro, tinkerDro } from "./losses/dro.ts";
import { geoMean } from "./losses/geo_mean.ts";
import { gpg, reinforce } from "./losses/gpg.ts";
import { gspo } from "./losses/gspo.ts";
import { importanceSampling, tinkerImportanceSampling } from "./losses/importance_sampling.ts";
import { klCov } from "./losses/kl_cov.ts";
import { sapo } from "./losses/sapo.ts";
import { tinkerCispo } from "./losses/tinker_cispo.ts";
import { tinkerGspo } from "./losses/tinker_gspo.ts";
import { ppo, tinkerPpo } from "./losses/tinker_ppo.ts";
import { trlCispo } from "./losses/trl_cispo.ts";
import { trlBnpo, trlDapo, trlDrGrpo, trlGrpo, trlLuspo, trlRloo } from "./losses/trl_clipped.ts";
import { trlSapo } from "./losses/trl_sapo.ts";
import { trlVespo } from "./losses/trl_vespo.ts";
import { vanilla } from "./losses/vanilla.ts";

/** Built-in losses in the order in which names are listed. */
const BUILT_IN: readonly LossDefinition[] = [
  ...[vanilla, gspo, sapo, gpg, reinforce, clipCov, klCov, geoMean, cispo, dppoTv, dppoKl, dro],
  ...[tinkerCrossEntropy, crossEntropy, tinkerImportanceSampling, importanceSampling, tinkerPpo, ppo],
  ...[tinkerCispo, tinkerDro, tinkerGspo],
  ...[trlGrpo, trlBnpo, trlDrGrpo, trlDapo, trlLuspo, trlCispo, trlSapo, trlVespo, trlRloo],
];

const registry = createRegistry<LossDefinition>("loss", {
  setting: "loss",
  builtIn: BUILT_IN.map((loss) => [loss.name, loss]),
  isUnique: true,
});

/** Names of every loss, the user's included. */
export function lossNames(): readonly string[] {
  return registry.names();
}

/** The losses of this package, in the order of {@link lossNames}. */
export function builtInLosses(): readonly LossDefinition[] {
  return BUILT_IN;
}

/** The losses that verl has, by its names; those that a version knows where one is given. */
export function verlLossNames(version?: string): readonly string[] {
  return BUILT_IN.flatMap(({ elsewhere }) => {
    const { name, since = "0" } = elsewhere?.verl ?? {};
    return name !== undefined && (version === undefined || isAtLeast(version, since)) ? [name] : [];
  });
}

/** Versions by their numbers: 0.10 is above 0.9. */
function isAtLeast(version: string, least: string): boolean {
  const [have, need] = [version, least].map((text) => text.split(".").map(Number));
  const at = need!.findIndex((number, i) => number !== (have![i] ?? 0));
  return at < 0 || (have![at] ?? 0) > need![at]!;
}

/** The losses that verl and Trinity-RFT both have: their names there. */
export function lossesOfVerlAndTrinity(): readonly (readonly [verl: string, trinity: string])[] {
  return BUILT_IN.flatMap(({ elsewhere: { verl, trinity } = {} }) =>
    verl && trinity ? [[verl.name, trinity] as const] : [],
  );
}

/** The `loss_agg_mode` that a loss brings itself; undefined for one that takes any, or that is not registered. */
export function ownAggregation(name: string): AggregationMode | undefined {
  return registry.get(name)?.loss_agg_mode;
}

/** Names of the losses that users add. */
export function customLossNames(): readonly string[] {
  const builtIn = new Set(BUILT_IN.map(({ name }) => name));
  return lossNames().filter((name) => !builtIn.has(name));
}

/**
 * The loss of that name.
 * @throws {ConfigError} for a name that is not registered
 */
export function findLoss(name: string): LossDefinition {
  return registry.find(name);
}

/**
 * Adds a loss under its name.
 * @throws {ConfigError} when the name is taken
 */
export function registerLoss(loss: LossDefinition): void {
  registry.register(loss.name, loss);
}
