/** The settings of a task: how it is rolled out and what judges it. */

import { ConfigError } from "../../../leaves/errors.ts";
import { setting } from "../../config/schema.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";
import { componentKeys } from "../../loop/roles.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import type { RolloutSettings } from "../../task/choose.ts";
import { evaluators, rewards } from "../../task/registered.ts";
import {
  type Environment,
  type Evaluate,
  type Evaluator,
  evaluationOf,
  type RewardFunction,
  signalsOf,
} from "../../task/rollout.ts";
import { checkArgs } from "../../task/workflow.ts";
import type { RegisteredJudge } from "./judge_calls.ts";
import type { Judges } from "./judges.ts";

export function rolloutSettings(config: Tree, { environment, judges, remote }: Judged): RolloutSettings {
  const reward = setting(config, "task.reward");
  const args = setting(config, "task.args");
  const isJudged = setting(config, "task.evaluator") !== null || setting(config, "reward_model.enable");
  // A reward or an evaluator of the user's own may read what the environment does not.
  if (environment.args && reward === null && !isJudged)
    checkArgs(args, {
      names: environment.args,
      path: "task.args",
      owner: `the environment ${environment.name}`,
    });
  return {
    environment,
    args,
    remote,
    // A reward that is named judges the reply; the evaluator then adds to it.
    isJudgedLater: isJudged && reward === null,
    reward: withComponents(rewardOf(reward, { environment, judges }), config),
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
  const entries = Object.entries(getAt(config, "rllm.workflow.workflow_args") as Tree);
  const args = Object.fromEntries(entries.filter(([name]) => !(name in inner) && !LOOP_ARGS.includes(name)));
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
  const wrapped = judges.wrap<RewardFunction>(judge as RegisteredJudge, (_response, task) => task);
  return Object.assign(wrapped, { needsAnswer: reward.needsAnswer });
}

/** The reward, which then must return every component that an estimator reads. An evaluator may add to a judgement. */
function withComponents(reward: RewardFunction | undefined, config: Tree): RewardFunction | undefined {
  const { algorithm, trainer } = settingsFromConfig(config);
  const keys = componentKeys(algorithm);
  if (!reward || keys.length === 0 || trainer.val_only || setting(config, "task.evaluator") !== null) return reward;
  const name = setting(config, "task.reward") ?? `of the environment ${setting(config, "task.name")}`;
  const checked: RewardFunction = async (response, task, args) => {
    const judgement = evaluationOf(await reward(response, task, args));
    const components = signalsOf(judgement) ?? {};
    const missing = keys.find((key) => !Object.hasOwn(components, key));
    if (missing === undefined) return judgement;
    throw new ConfigError(
      `Cannot train on the reward ${name}: gdpo reads the component "${missing}" of it (it has ${Object.keys(components).join(", ") || "none"}). Return {reward, components: {${missing}: NUMBER}}, or correct algorithm.gdpo_reward_keys.`,
      { kind: "code", path: "algorithm.gdpo_reward_keys" },
    );
  };
  return Object.assign(checked, { needsAnswer: reward.needsAnswer });
}

export function readEvaluator(config: Tree, judges: Judges | undefined): Evaluate | undefined {
  const name = setting(config, "task.evaluator");
  if (name === null) return undefined;
  const [registered, args] = [evaluators.find(name), setting(config, "task.args")];
  const evaluator = judges?.wrap<Evaluator>({ kind: "evaluator", name }, (task) => task) ?? registered;
  return (task, episode) => evaluator(task, episode, args);
}
