/**
 * Names for environments, rewards, evaluators, agents, workflows and data sets, so that a configuration can say which.
 * A module given by `--import` registers its own:
 *
 *     import { registerDataset, registerReward } from "grpu";
 *     registerReward("short", (response) => (response.length < 40 ? 1 : 0));
 *     registerDataset("greetings", [{ prompt: "Say hello." }]);
 */
import type { Dataset } from "../data/dataset.ts";
import { ConfigError } from "../errors.ts";
import type { Environment, Evaluator, RewardFunction } from "./rollout.ts";
import type { AgentFunction, Workflow } from "./workflow.ts";

interface Registry {
  readonly environments: Map<string, Environment>;
  readonly rewards: Map<string, RewardFunction>;
  readonly evaluators: Map<string, Evaluator>;
  readonly agents: Map<string, AgentFunction>;
  readonly workflows: Map<string, Workflow>;
  readonly datasets: Map<string, Dataset>;
}

// On the global object, so that a user's module reaches the same tables even when it loads a second copy of grpu.
const KEY = Symbol.for("grpu.task.registry");
const shared = globalThis as unknown as Record<symbol, Registry | undefined>;
shared[KEY] ??= {
  environments: new Map(),
  rewards: new Map(),
  evaluators: new Map(),
  agents: new Map(),
  workflows: new Map(),
  datasets: new Map(),
};
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

/** Makes an evaluator known as `task.evaluator`. The last registration of a name counts. */
export function registerEvaluator(name: string, evaluator: Evaluator): void {
  registry.evaluators.set(name, evaluator);
}

/** Makes a rollout known as `rllm.agent.name`. The last registration of a name counts. */
export function registerAgent(name: string, agent: AgentFunction): void {
  registry.agents.set(name, agent);
}

/** Makes a workflow known as `rllm.workflow.name`. The last registration of a name counts. */
export function registerWorkflow(workflow: Workflow): void {
  registry.workflows.set(workflow.name, workflow);
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function environmentByName(name: string, path = "task.name"): Environment {
  return lookUp(registry.environments, { name, kind: "environment", path });
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function rewardByName(name: string): RewardFunction {
  return lookUp(registry.rewards, { name, kind: "reward", path: "task.reward" });
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function evaluatorByName(name: string): Evaluator {
  return lookUp(registry.evaluators, { name, kind: "evaluator", path: "task.evaluator" });
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function agentByName(name: string, path = "rllm.agent.name"): AgentFunction {
  return lookUp(registry.agents, { name, kind: "agent", path });
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function workflowByName(name: string): Workflow {
  return lookUp(registry.workflows, { name, kind: "workflow", path: "rllm.workflow.name" });
}

export function isAgent(name: string): boolean {
  return registry.agents.has(name);
}

export function isEnvironment(name: string): boolean {
  return registry.environments.has(name);
}

export function environmentNames(): string[] {
  return [...registry.environments.keys()];
}

export function rewardNames(): string[] {
  return [...registry.rewards.keys()];
}

export function evaluatorNames(): string[] {
  return [...registry.evaluators.keys()];
}

function lookUp<V>(table: ReadonlyMap<string, V>, it: { name: string; kind: string; path: string }): V {
  const found = table.get(it.name);
  if (found) return found;
  const known = [...table.keys()].join(", ") || "none";
  throw new ConfigError(
    `Cannot use the ${it.kind} as nothing registered that name: ${it.name}. Known: ${known}. Register your own in a module given by --import.`,
    { path: it.path },
  );
}
