/** The built-in workflows, as plain functions: write your own in the same way. */
import type { ChatMessage } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Task, TerminationReason } from "../data/types.ts";
import { registerWorkflow } from "./registered.ts";
import {
  answer,
  type Evaluation,
  evaluationOf,
  type Game,
  type Policy,
  promptOf,
  type Reward,
  type Rollout,
  type RolloutResult,
  replyText,
  signalsOf,
  singleTurn,
} from "./rollout.ts";
import { countArg, type WorkflowOptions } from "./workflow.ts";

/** How {@link multiTurn} plays a game. */
export interface MultiTurnOptions {
  /** Name of the trajectory. */
  readonly name: string;
  readonly game: (task: Task) => Game;
  readonly maxSteps: number;
  /** All turns share the run's `max_tokens`. Default false. */
  readonly cumulative?: boolean;
}

/**
 * Plays a game in turns: the observation is the user's message, the reply is the action. Each step has the reward of its
 * action, the trajectory their sum. Ends with the game, after `maxSteps`, or with a truncated reply.
 */
export function multiTurn({ name, game, maxSteps, cumulative = false }: MultiTurnOptions): Rollout {
  return async (task, policy) => {
    const player = policy.agent(name);
    const played = game(task);
    const messages = conversation(await played.reset());
    let left = policy.params.max_tokens;
    for (let turn = 0; turn < maxSteps; turn++) {
      const reply = await player.chat(messages, cumulative ? { params: { max_tokens: left } } : {});
      const action = reply.message.content;
      const { done, ...came } = await played.step(action);
      player.annotate({ action, done, ...came });
      left -= reply.response_ids.length;
      if (reply.finish_reason === "length") return ended(player, "max_response_length_exceeded");
      if (done) return ended(player, "env_done");
      if (cumulative && left < 1) return ended(player, "max_response_length_exceeded");
      messages.push(reply.message, { role: "user", content: came.observation });
    }
    return ended(player, "max_turns_exceeded");
  };
}

function conversation(opening: string | readonly ChatMessage[]): ChatMessage[] {
  return typeof opening === "string" ? [{ role: "user", content: opening }] : [...opening];
}

function ended(player: Policy, termination_reason: TerminationReason): RolloutResult {
  const metrics = { num_turns: player.steps.length };
  return { trajectories: [player.trajectory()], termination_reason, metrics };
}

/** How {@link solverJudge} lets solvers answer and a judge choose. */
export interface SolverJudgeOptions {
  readonly reward: Reward;
  /** Number of solutions that the judge chooses from. */
  readonly solutions: number;
  /** The judge's prompt, with `{problem}`, `{solutions}` (numbered lines), `{1}`, `{2}`, ... for their texts. */
  readonly judgePrompt: string;
}

/**
 * Solvers answer the task in parallel, then a judge answers with the number of the solution that it considers right. Each
 * solver gets the reward of its solution, the judge that of its choice (0 for none). Solver and judge are two roles, which
 * `rllm.algorithm.traj_group_adv_estimator_map` can give different estimators.
 */
export function solverJudge({ reward, solutions, judgePrompt }: SolverJudgeOptions): Rollout {
  return async (task, policy) => {
    const solvers = Array.from({ length: solutions }, () => policy.agent("solver"));
    const texts = await Promise.all(solvers.map(async (solver) => replyText(await answer(task, solver))));
    const judgements = await Promise.all(texts.map(async (text) => evaluationOf(await reward(text, task))));

    const judge = policy.agent("judge");
    const verdict = await answer(asking(task, filled(judgePrompt, { task, texts })), judge);
    const choice = Number(replyText(verdict).match(/\d+/g)?.at(-1));
    const judged = judgements[choice - 1] ?? nothing(judgements);
    const rewardAndSignals = (evaluation: Evaluation) =>
      [evaluation.reward, { signals: signalsOf(evaluation) }] as const;
    return {
      trajectories: [
        ...solvers.map((solver, i) => solver.trajectory(...rewardAndSignals(judgements[i]!))),
        judge.trajectory(...rewardAndSignals(judged)),
      ],
      is_correct: judged.reward > 0,
      metrics: {
        solver_acc: judgements.filter(({ reward }) => reward > 0).length / solutions,
        judge_acc: Number(judged.reward > 0),
      },
    };
  };
}

/** Returns the judgement where a judge names no solution: 0, in each component too. */
function nothing([first]: readonly Evaluation[]): Evaluation {
  const names = Object.keys(first?.components ?? {});
  return { reward: 0, ...(names.length > 0 && { components: Object.fromEntries(names.map((name) => [name, 0])) }) };
}

/** The task with another prompt, a text or a conversation as before. */
function asking(task: Task, prompt: string): Task {
  return {
    ...task,
    instruction: prompt,
    ...(task.messages && { messages: [{ role: "user", content: prompt }] }),
  };
}

function filled(template: string, { task, texts }: { task: Task; texts: readonly string[] }): string {
  const solutions = texts.map((text, i) => `${i + 1}. ${text.trim()}`).join("\n");
  const values: Record<string, string> = { problem: task.instruction, solutions };
  return template.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? texts[Number(name) - 1]?.trim() ?? whole);
}

const JUDGE_PROMPT =
  "Below are a problem and proposed solutions. Answer with the number of the solution that is right, and nothing else.\n\n" +
  "Problem: {problem}\n\n{solutions}";

function judgeOptions({ reward, args }: WorkflowOptions): SolverJudgeOptions {
  const { judge_prompt = JUDGE_PROMPT } = args;
  if (typeof judge_prompt !== "string") {
    throw new ConfigError("Cannot use judge_prompt: it must be a text. Give it a string.", {
      path: "rllm.workflow.workflow_args.judge_prompt",
    });
  }
  return { reward: reward(), solutions: countArg(args, "n_solutions", 2), judgePrompt: judge_prompt };
}

registerWorkflow({
  name: "single_turn_workflow",
  describe: "one prompt, one response, judged by the reward",
  args: [],
  rollout: ({ environment, reward }) => singleTurn(environment.name, reward()),
});

const turns = ({ environment, game, maxSteps, args }: WorkflowOptions) => ({
  name: environment.name,
  game,
  maxSteps: countArg(args, "max_steps", maxSteps),
});

registerWorkflow({
  name: "multi_turn_workflow",
  describe: "the environment's game, turn by turn; each reply may have max_tokens",
  args: ["max_steps"],
  rollout: (options) => multiTurn(turns(options)),
});

registerWorkflow({
  name: "cumulative_workflow",
  describe: "the environment's game, turn by turn; all replies together may have max_tokens",
  args: ["max_steps"],
  rollout: (options) => multiTurn({ ...turns(options), cumulative: true }),
});

registerWorkflow({
  name: "solver_judge_workflow",
  describe: "n_solutions solvers answer, a judge picks one; each role has its own reward",
  args: ["n_solutions", "judge_prompt"],
  rollout: (options) => solverJudge(judgeOptions(options)),
  hasRoles: true,
  // Teaches the judge the form of an answer, not the choice.
  examples(task, options) {
    const { solutions, judgePrompt } = judgeOptions(options);
    const answers = (options.environment.examples?.(task, {}) ?? []).filter((each) => "response" in each);
    if (answers.length === 0) return [];
    return Array.from({ length: solutions }, (_, choice) => {
      const texts = Array.from({ length: solutions }, (_, i) => answers[(i + choice) % answers.length]!.response);
      const prompt = promptOf(asking(task, filled(judgePrompt, { task, texts })));
      return { prompt, response: String(choice + 1) };
    });
  },
});
