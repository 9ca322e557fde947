/** Every loss by name: verl's, Tinker's, TRL's, and those that users add. */
import { createRegistry } from "../../registry.ts";
import type { LossDefinition } from "./definition.ts";
import { TINKER_LOSSES } from "./tinker.ts";
import { TRL_LOSSES } from "./trl.ts";
import { VERL_LOSSES } from "./verl.ts";

const BUILT_IN: readonly LossDefinition[] = [...VERL_LOSSES, ...TINKER_LOSSES, ...TRL_LOSSES];

const registry = createRegistry<LossDefinition>("loss", {
  setting: "loss",
  builtIn: BUILT_IN.map((loss) => [loss.name, loss]),
  isUnique: true,
});

/** Names of every loss, the user's included. */
export function lossNames(): readonly string[] {
  return registry.names();
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
