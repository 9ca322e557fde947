/** Workflows: rollouts that are made from arguments, so that a configuration can choose and set one. */
import type { Task } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import type { Args, Environment, Example, Game, Outcome, Policy, Reward, Rollout } from "./rollout.ts";

/** A rollout with arguments: `rllm.agent.agent_args`. */
export type AgentFunction = (task: Task, policy: Policy, args: Args) => Outcome | Promise<Outcome>;

/** What a workflow is made from. */
export interface WorkflowOptions {
  readonly environment: Environment;
  /** The reward of the task. @throws {ConfigError} where it has none. */
  readonly reward: () => Reward;
  /** The game of a task. @throws {ConfigError} where the environment has none. */
  readonly game: (task: Task) => Game;
  /** The agent that `agent_cls` or `rllm.agent.name` names. @throws {ConfigError} where neither does. */
  readonly agent: () => Rollout;
  /** `rllm.agent.max_steps`. */
  readonly maxSteps: number;
  /** `rllm.workflow.workflow_args`, without the settings that the loop reads. */
  readonly args: Args;
}

export interface Workflow {
  readonly name: string;
  readonly describe: string;
  /** Names of the arguments that it reads; absent: any. */
  readonly args?: readonly string[];
  rollout(options: WorkflowOptions): Rollout;
  /** Worked answers of its own for the supervised warm-up, beside those of the environment. */
  examples?(task: Task, options: WorkflowOptions): readonly Example[];
}

/** @throws {ConfigError} naming an argument that is not in `known`. */
export function checkArgs(
  args: Args,
  { known, path, owner }: { known: readonly string[]; path: string; owner: string },
) {
  const other = Object.keys(args).find((name) => !known.includes(name));
  if (other === undefined) return;
  const has = known.length > 0 ? `It has ${known.join(", ")}.` : "It has none.";
  throw new ConfigError(`Cannot use the argument ${other} as ${owner} does not read it. ${has}`, {
    path: `${path}.${other}`,
  });
}

/** A whole number of at least 1 among the arguments. @throws {ConfigError} for any other value. */
export function countArg(args: Args, name: string, otherwise: number): number {
  const value = args[name] ?? otherwise;
  if (Number.isInteger(value) && Number(value) >= 1) return Number(value);
  throw new ConfigError(
    `Cannot use ${name} as it must be a whole number of at least 1: ${JSON.stringify(value)}`,
  );
}
