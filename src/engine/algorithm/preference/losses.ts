/** Every preference loss by name: TRL's, and those that users add. A built-in loss is its file in losses/ and its name here. */
import { createRegistry } from "../../../leaves/registry.ts";
import type { PreferenceLoss } from "./definition.ts";
import { hinge } from "./losses/hinge.ts";
import { ipo } from "./losses/ipo.ts";
import { kto } from "./losses/kto.ts";
import { orpo } from "./losses/orpo.ts";
import { robust } from "./losses/robust.ts";
import { sigmoid } from "./losses/sigmoid.ts";
import { simpo } from "./losses/simpo.ts";

/** The losses in the order in which names are listed. */
const BUILT_IN: readonly PreferenceLoss[] = [sigmoid, robust, hinge, ipo, simpo, orpo, kto];

const registry = createRegistry<PreferenceLoss>("preference loss", {
  setting: "loss_type",
  builtIn: BUILT_IN.map((loss) => [loss.name, loss]),
  isUnique: true,
});

/** The preference losses' names, TRL's `loss_type`; the user's included. */
export function preferenceLossNames(): readonly string[] {
  return registry.names();
}

/** The preference losses of this package, in the order of {@link preferenceLossNames}. */
export function builtInPreferenceLosses(): readonly PreferenceLoss[] {
  return BUILT_IN;
}

/**
 * The preference loss of that name.
 * @throws {ConfigError} for a name that there is not
 */
export function findPreferenceLoss(name: string): PreferenceLoss {
  return registry.find(name);
}

/**
 * Adds a preference loss under its name.
 * @throws {ConfigError} when the name is taken
 */
export function registerPreferenceLoss(loss: PreferenceLoss): void {
  registry.register(loss.name, loss);
}
