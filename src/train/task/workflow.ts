/** Workflows: rollouts with arguments that a configuration chooses and sets. */

import { ConfigError } from "../../leaves/errors.ts";
import type { Task } from "../data/types.ts";
import type { Args, Environment, Example, Game, Outcome, Policy, Reward, Rollout } from "./rollout.ts";

/** A rollout with arguments: `rllm.agent.agent_args`. */
export type AgentFunction = (task: Task, policy: Policy, args: Args) => Outcome | Promise<Outcome>;

/** The parts that a workflow may use. */
export interface WorkflowOptions {
  readonly environment: Environment;
  /** The reward of the task. @throws {ConfigError} when it has none */
  readonly reward: () => Reward;
  /** The game of a task. @throws {ConfigError} when the environment has none */
  readonly game: (task: Task) => Game;
  /** The agent of `agent_cls` or `rllm.agent.name`. @throws {ConfigError} when neither names one */
  readonly agent: () => Rollout;
  /** `rllm.agent.max_steps`. */
  readonly maxSteps: number;
  /** `rllm.workflow.workflow_args` without the loop's settings. */
  readonly args: Args;
}

/** A named way to attempt tasks, chosen by `rllm.workflow.name`. */
export interface Workflow {
  readonly name: string;
  readonly describe: string;
  /** Names of its arguments. Absent: any. */
  readonly args?: readonly string[];
  rollout(options: WorkflowOptions): Rollout;
  /** Each rollout has several trajectories with rewards of their own, which trainers on a cluster do not take. Default false. */
  readonly hasRoles?: boolean;
  /** Further worked answers for the supervised warm-up, in addition to those of the environment. */
  examples?(task: Task, options: WorkflowOptions): readonly Example[];
}

/** @throws {ConfigError} for an argument that is not in `names` */
export function checkArgs(
  args: Args,
  { names, path, owner }: { names: readonly string[]; path: string; owner: string },
) {
  const other = Object.keys(args).find((name) => !names.includes(name));
  if (other === undefined) return;
  const has = names.length > 0 ? `It has ${names.join(", ")}.` : "It has none.";
  throw new ConfigError(`Cannot use the argument ${other}: ${owner} does not read it. ${has}`, {
    path: `${path}.${other}`,
  });
}

/** An argument that must be a whole number of at least 1. @throws {ConfigError} for any other value */
export function countArg(args: Args, name: string, otherwise: number): number {
  const value = args[name] ?? otherwise;
  if (Number.isInteger(value) && Number(value) >= 1) return Number(value);
  throw new ConfigError(`Cannot use ${name}: it must be a whole number of at least 1 (${JSON.stringify(value)}).`);
}
