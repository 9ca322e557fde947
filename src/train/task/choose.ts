/** The rollout that a configuration chooses. */

import { ConfigError } from "../../leaves/errors.ts";
import type { NeedsAnswer } from "../data/answer.ts";
import type { Task } from "../data/types.ts";
import { agents, environments, workflows } from "./registered.ts";
import { type RemoteAgentOptions, remoteAgent } from "./remote/rollout.ts";
import {
  type Args,
  answer,
  type Environment,
  type Example,
  type Reward,
  type RewardFunction,
  type Rollout,
  singleTurn,
} from "./rollout.ts";
import { checkArgs, type WorkflowOptions } from "./workflow.ts";
import { multiTurn } from "./workflows.ts";

/** The settings of the choice, under the names of the configuration. */
export interface RolloutSettings {
  readonly environment: Environment;
  /** `task.reward`, or the environment's own. */
  readonly reward?: RewardFunction | undefined;
  /** `task.reward` names it. */
  readonly isRewardNamed?: boolean;
  /** An evaluator gives the reward, so a single call needs no reward function. */
  readonly isJudgedLater: boolean;
  /** `task.args`. */
  readonly args: Args;
  readonly agent: { readonly name: string; readonly max_steps: number; readonly agent_args: Args };
  readonly env: { readonly name: string; readonly env_args: Args };
  readonly workflow: {
    readonly use_workflow: boolean;
    readonly name: string;
    readonly agent_cls: string | null;
    readonly agent_args: Args;
    readonly env_cls: string | null;
    readonly env_args: Args;
    /** The rest of `workflow_args`. */
    readonly args: Args;
  };
  /** The agents of `task.agent`, those in other processes that make every attempt. */
  readonly remote?: Pick<RemoteAgentOptions, "urls" | "sessions" | "fetch" | "keys"> | undefined;
}

export interface ChosenRollout {
  readonly rollout: Rollout;
  /** Every rollout starts with its task's prompt, so a prompt that is too long can never train. */
  readonly asksPrompt: boolean;
  readonly examples: (task: Task) => readonly Example[];
  /** Judges of its attempts, as far as they are known before the first. */
  readonly judges: readonly NeedsAnswer[];
  /** {@link Workflow.hasRoles} */
  readonly hasRoles?: boolean;
}

/** rLLM's default names of agent and environment; here they mean none. */
const NO_AGENT = "math_agent";
const NO_ENVIRONMENT = "custom";

/**
 * The agents in other processes; else the named workflow with `use_workflow`; else the named agent; else the game of the
 * named environment; else that of the task's environment: its rollout, its game, or one call that the reward judges.
 * @throws {ConfigError} for an unknown name, and for arguments that nothing reads
 */
export function chooseRollout(settings: RolloutSettings): ChosenRollout {
  const { environment, args, workflow, remote } = settings;
  const examplesOf = (task: Task) => environment.examples?.(task, args) ?? [];
  if (remote)
    return {
      rollout: withRemote(settings, remote),
      asksPrompt: false,
      examples: examplesOf,
      judges: judgesOf(settings),
    };
  if (!workflow.use_workflow) {
    checkUnused(settings);
    return { ...withoutWorkflow(settings), examples: examplesOf };
  }
  const chosen = workflows.find(workflow.name);
  const judges: NeedsAnswer[] = [];
  const options = workflowOptions(settings, judges);
  const path = "rllm.workflow.workflow_args";
  if (chosen.args) checkArgs(workflow.args, { names: chosen.args, path, owner: chosen.name });
  return {
    rollout: chosen.rollout(options),
    asksPrompt: chosen.name === "single_turn_workflow",
    hasRoles: chosen.hasRoles === true,
    examples: (task) => [...examplesOf(task), ...(chosen.examples?.(task, options) ?? [])],
    judges,
  };
}

/** Agents may report rewards of their own: only a reward that was chosen for them says what rows need. */
function judgesOf({ reward, isRewardNamed, isJudgedLater }: RolloutSettings): readonly NeedsAnswer[] {
  return reward && isRewardNamed && !isJudgedLater ? [reward] : [];
}

/** The reward judges what the agent leaves without one. */
function withRemote(settings: RolloutSettings, remote: NonNullable<RolloutSettings["remote"]>): Rollout {
  const { environment, agent, env, args, isJudgedLater } = settings;
  checkUnused(settings);
  checkArgs(env.env_args, {
    names: [],
    path: "rllm.env.env_args",
    owner: "the agent of task.agent plays its own game and",
  });
  const judge = settings.reward;
  const reward: Reward | undefined = judge && ((response, task) => judge(response, task, args));
  return remoteAgent({
    ...remote,
    name: environment.name,
    agent,
    isJudgedLater,
    reward: isJudgedLater ? undefined : reward,
  });
}

function withoutWorkflow(settings: RolloutSettings): Omit<ChosenRollout, "examples"> {
  const { environment, agent, env, args, isJudgedLater } = settings;
  if (isChosen(agent.name, NO_AGENT, agents.has)) {
    const run = agents.find(agent.name);
    return {
      rollout: (task, policy) => run(task, policy.agent(agent.name), agent.agent_args),
      asksPrompt: false,
      judges: [],
    };
  }
  checkArgs(agent.agent_args, {
    names: [],
    path: "rllm.agent.agent_args",
    owner: "the run names no agent and",
  });
  const playing = isChosen(env.name, NO_ENVIRONMENT, environments.has)
    ? environments.find(env.name, "rllm.env.name")
    : environment;
  if (playing.play) {
    const game = gameOf(playing, { ...args, ...env.env_args });
    const rollout = multiTurn({ name: playing.name, game, maxSteps: agent.max_steps });
    return { rollout, asksPrompt: false, judges: [playing] };
  }
  checkArgs(env.env_args, {
    names: [],
    path: "rllm.env.env_args",
    owner: `the environment ${playing.name} plays no game and`,
  });
  if (isJudgedLater && !environment.rollout)
    return {
      rollout: async (task, policy) => void (await answer(task, policy.agent(environment.name))),
      asksPrompt: true,
      judges: [],
    };
  const reward = rewardOf(settings);
  const ownRollout = environment.rollout?.(reward, args);
  const judges = [environment, settings.reward!];
  return { rollout: ownRollout ?? singleTurn(environment.name, reward), asksPrompt: ownRollout === undefined, judges };
}

/** True for any name but the default, and for the default when a module registers it. */
function isChosen(name: string, none: string, isKnown: (name: string) => boolean): boolean {
  return name !== none || isKnown(name);
}

/** @param judges takes what the workflow asks for */
function workflowOptions(settings: RolloutSettings, judges: NeedsAnswer[]): WorkflowOptions {
  const { environment, agent, env, workflow, args } = settings;
  const env_name = workflow.env_cls ?? (isChosen(env.name, NO_ENVIRONMENT, environments.has) ? env.name : null);
  const playing = env_name === null ? environment : environments.find(env_name, "rllm.workflow.workflow_args.env_cls");
  if (playing.play) judges.push(playing);
  return {
    environment,
    reward: () => {
      const reward = rewardOf(settings);
      judges.push(settings.reward!);
      return reward;
    },
    game: gameOf(playing, { ...args, ...env.env_args, ...workflow.env_args }),
    agent: () => agentOf(workflow.agent_cls ?? agent.name, { ...agent.agent_args, ...workflow.agent_args }),
    maxSteps: agent.max_steps,
    args: workflow.args,
  };
}

function agentOf(name: string, args: Args): Rollout {
  const run = agents.find(name, "rllm.workflow.workflow_args.agent_cls");
  return (task, policy) => run(task, policy, args);
}

function gameOf(environment: Environment, args: Args): WorkflowOptions["game"] {
  return (task) => {
    if (environment.play) return environment.play(task, args);
    throw new ConfigError(
      `Cannot play in turns: the environment ${environment.name} has no game. Give it play(task, args).`,
      {
        path: "rllm.env.name",
      },
    );
  };
}

function rewardOf({ environment, reward, args }: RolloutSettings): Reward {
  if (reward) return (response, task) => reward(response, task, args);
  throw new ConfigError(
    `Cannot judge the task ${environment.name}: it has no reward. Set task.reward or task.evaluator, or register your own in a module given by --import.`,
    { path: "task.reward" },
  );
}

/** Refuses settings that only a workflow reads. */
function checkUnused({ workflow }: RolloutSettings): void {
  const { agent_cls, env_cls, agent_args, env_args, args, name } = workflow;
  const workflowArgs = { ...(agent_cls && { agent_cls }), ...(env_cls && { env_cls }), ...args };
  const inner = [
    ...Object.keys(agent_args).map((key) => `agent_args.${key}`),
    ...Object.keys(env_args).map((key) => `env_args.${key}`),
  ];
  const [first] = [...Object.keys(workflowArgs), ...inner];
  const path = first === undefined ? "rllm.workflow.name" : `rllm.workflow.workflow_args.${first}`;
  if (first === undefined && name === "single_turn_workflow") return;
  throw new ConfigError(`Cannot use ${path}: no workflow is used. Set rllm.workflow.use_workflow=true.`, {
    path,
  });
}
