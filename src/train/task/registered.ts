/**
 * Environments, rewards, evaluators, agents, workflows and data sets by name, so that a configuration can choose them.
 * A module given by `--import` registers its own:
 *
 *     import { registerDataset, registerReward } from "grpu";
 *     registerReward("short", (response) => (response.length < 40 ? 1 : 0));
 *     registerDataset("greetings", [{ prompt: "Say hello." }]);
 */

import { createRegistry } from "../../leaves/registry.ts";
import type { Dataset } from "../data/dataset.ts";
import type { EqualAnswers } from "../data/types.ts";
import type { Environment, Evaluator, RewardFunction } from "./rollout.ts";
import type { AgentFunction, Workflow } from "./workflow.ts";

export const environments = createRegistry<Environment>("environment", { setting: "task.name" });
export const rewards = createRegistry<RewardFunction>("reward", { setting: "task.reward" });
/** Equality of the answers of a reward, under its name. */
export const equalities = createRegistry<EqualAnswers>("equality of answers", { setting: "task.reward" });
export const evaluators = createRegistry<Evaluator>("evaluator", { setting: "task.evaluator" });
export const agents = createRegistry<AgentFunction>("agent", { setting: "rllm.agent.name" });
export const workflows = createRegistry<Workflow>("workflow", { setting: "rllm.workflow.name" });
/** A name that is not in this table may be that of a file. */
export const datasets = createRegistry<Dataset>("data set", { setting: "data.train_files" });

/** Makes an environment known as `task.name`. The last registration of a name counts. */
export function registerEnvironment(environment: Environment): void {
  environments.register(environment.name, environment);
}

/**
 * Makes a reward known as `task.reward`. The last registration of a name counts.
 * @param options.equal whether two answers that it returns are one, for majorities. Default: their texts are equal.
 */
export function registerReward(name: string, reward: RewardFunction, options: { equal?: EqualAnswers } = {}): void {
  rewards.register(name, reward);
  equalities.register(name, options.equal ?? ((a, b) => a === b));
}

/** Makes an evaluator known as `task.evaluator`. The last registration of a name counts. */
export function registerEvaluator(name: string, evaluator: Evaluator): void {
  evaluators.register(name, evaluator);
}

/** Makes a rollout known as `rllm.agent.name`. The last registration of a name counts. */
export function registerAgent(name: string, agent: AgentFunction): void {
  agents.register(name, agent);
}

/** Makes a workflow known as `rllm.workflow.name`. The last registration of a name counts. */
export function registerWorkflow(workflow: Workflow): void {
  workflows.register(workflow.name, workflow);
}

/** Makes a data set known to `data.train_files` and `data.val_files`. The last registration of a name counts. */
export function registerDataset(name: string, dataset: Dataset): void {
  datasets.register(name, dataset);
}
