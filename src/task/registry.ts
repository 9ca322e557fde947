/**
 * Names for environments, rewards and data sets, so that a configuration can say which. A module given by `--import`
 * registers its own:
 *
 *     import { registerDataset, registerReward } from "grpu";
 *     registerReward("short", (response) => (response.length < 40 ? 1 : 0));
 *     registerDataset("greetings", [{ prompt: "Say hello." }]);
 */
import type { Dataset } from "../data/dataset.ts";
import { ConfigError } from "../errors.ts";
import type { Environment, RewardFunction } from "./rollout.ts";

interface Registry {
  readonly environments: Map<string, Environment>;
  readonly rewards: Map<string, RewardFunction>;
  readonly datasets: Map<string, Dataset>;
}

// On the global object, so that a user's module reaches the same tables even when it loads a second copy of grpu.
const KEY = Symbol.for("grpu.task.registry");
const shared = globalThis as unknown as Record<symbol, Registry | undefined>;
shared[KEY] ??= { environments: new Map(), rewards: new Map(), datasets: new Map() };
const registry: Registry = shared[KEY];

/** Makes an environment known as `task.name`. The last registration of a name counts. */
export function registerEnvironment(environment: Environment): void {
  registry.environments.set(environment.name, environment);
}

/** Makes a reward known as `task.reward`. The last registration of a name counts. */
export function registerReward(name: string, reward: RewardFunction): void {
  registry.rewards.set(name, reward);
}

/** Makes a data set known to `data.train_files` and `data.val_files`. The last registration of a name counts. */
export function registerDataset(name: string, dataset: Dataset): void {
  registry.datasets.set(name, dataset);
}

/** Undefined for a name that nothing registered: it may be a file's. */
export function datasetByName(name: string): Dataset | undefined {
  return registry.datasets.get(name);
}

export function datasetNames(): string[] {
  return [...registry.datasets.keys()];
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function environmentByName(name: string): Environment {
  return lookUp(registry.environments, { name, kind: "environment", path: "task.name" });
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function rewardByName(name: string): RewardFunction {
  return lookUp(registry.rewards, { name, kind: "reward", path: "task.reward" });
}

export function environmentNames(): string[] {
  return [...registry.environments.keys()];
}

export function rewardNames(): string[] {
  return [...registry.rewards.keys()];
}

function lookUp<V>(table: ReadonlyMap<string, V>, it: { name: string; kind: string; path: string }): V {
  const found = table.get(it.name);
  if (found) return found;
  const known = [...table.keys()].join(", ");
  throw new ConfigError(
    `Cannot use the ${it.kind} as nothing registered that name: ${it.name}. Known: ${known}. Register your own in a module given by --import.`,
    { path: it.path },
  );
}
