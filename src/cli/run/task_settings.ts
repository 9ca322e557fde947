/** The settings of a task: how it is rolled out and what judges it. */
import { setting } from "../../config/schema.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";
import type { RolloutSettings } from "../../task/choose.ts";
import { evaluators, rewards } from "../../task/registered.ts";
import type { Environment, Evaluate, Evaluator, RewardFunction } from "../../task/rollout.ts";
import { checkArgs } from "../../task/workflow.ts";
import type { Judge } from "./judge_calls.ts";
import type { Judges } from "./judges.ts";

export function rolloutSettings(config: Tree, { environment, judges, remote }: Judged): RolloutSettings {
  const reward = setting(config, "task.reward");
  const args = setting(config, "task.args");
  const isJudged = setting(config, "task.evaluator") !== null || setting(config, "reward_model.enable");
  // A reward or an evaluator of the user's own may read what the environment does not.
  if (environment.args && reward === null && !isJudged)
    checkArgs(args, {
      known: environment.args,
      path: "task.args",
      owner: `the environment ${environment.name}`,
    });
  return {
    environment,
    args,
    remote,
    // A reward that is named judges the reply; the evaluator then adds to it.
    isJudgedLater: isJudged && reward === null,
    reward: rewardOf(reward, { environment, judges }),
    isRewardNamed: reward !== null,
    agent: {
      name: setting(config, "rllm.agent.name"),
      max_steps: setting(config, "rllm.agent.max_steps"),
      agent_args: setting(config, "rllm.agent.agent_args"),
    },
    env: { name: setting(config, "rllm.env.name"), env_args: setting(config, "rllm.env.env_args") },
    workflow: readWorkflow(config),
  };
}

/** Settings of `workflow_args` that the loop reads. */
const LOOP_ARGS = ["timeout", "gamma", "reward_bonus_coeff"];

function readWorkflow(config: Tree): RolloutSettings["workflow"] {
  const inner = {
    agent_cls: setting(config, "rllm.workflow.workflow_args.agent_cls"),
    agent_args: setting(config, "rllm.workflow.workflow_args.agent_args"),
    env_cls: setting(config, "rllm.workflow.workflow_args.env_cls"),
    env_args: setting(config, "rllm.workflow.workflow_args.env_args"),
  };
  const all = Object.entries(getAt(config, "rllm.workflow.workflow_args") as Tree);
  const args = Object.fromEntries(all.filter(([name]) => !(name in inner) && !LOOP_ARGS.includes(name)));
  return {
    use_workflow: setting(config, "rllm.workflow.use_workflow"),
    name: setting(config, "rllm.workflow.name"),
    ...inner,
    args,
  };
}

interface Judged {
  readonly environment: Environment;
  readonly judges: Judges | undefined;
  readonly remote?: RolloutSettings["remote"];
}

/** The reward of that name, or the environment's own. */
function rewardOf(name: string | null, { environment, judges }: Judged): RewardFunction | undefined {
  const reward = name === null ? environment.reward : rewards.find(name);
  if (!judges || !reward) return reward;
  const judge = name === null ? { kind: "environment", name: environment.name } : { kind: "reward", name };
  const wrapped = judges.wrap<RewardFunction>(judge as Judge, (_response, task) => task);
  return Object.assign(wrapped, { needsAnswer: reward.needsAnswer });
}

export function readEvaluator(config: Tree, judges: Judges | undefined): Evaluate | undefined {
  const name = setting(config, "task.evaluator");
  if (name === null) return undefined;
  const [own, args] = [evaluators.find(name), setting(config, "task.args")];
  const evaluator = judges?.wrap<Evaluator>({ kind: "evaluator", name }, (task) => task) ?? own;
  return (task, episode) => evaluator(task, episode, args);
}
