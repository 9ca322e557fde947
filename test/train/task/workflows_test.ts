import { describe, expect, test } from "vitest";
import type { ChatMessage } from "../../../src/engine/contract/text.ts";
import type { Task } from "../../../src/train/data/types.ts";
import "../../../src/train/task/environments.ts";
import { chooseRollout, type RolloutSettings } from "../../../src/train/task/choose.ts";
import {
  environments,
  registerAgent,
  registerEnvironment,
  registerWorkflow,
} from "../../../src/train/task/registered.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import type { Environment, Game, PromptExample, RolloutResult } from "../../../src/train/task/rollout.ts";
import { multiTurn, solverJudge } from "../../../src/train/task/workflows.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";
import { type Script, scriptedPolicy } from "../../fixtures/scripted.ts";

const END = "<|im_end|>";
const TASK: Task = {
  id: "t",
  instruction: "1+1=",
  messages: [{ role: "user", content: "1+1=" }],
  metadata: { answer: "2" },
};

const setup = (script: Script, params = {}) => scriptedPolicy({ tokenizer: chatTokenizer(CHATML), script, params });

/** Counts up to `last`; each right number is worth 1. */
function counting(last: number): Game {
  let at = 0;
  return {
    reset: () => "count",
    step(action) {
      at++;
      return { observation: `after ${at}`, reward: Number(action === String(at)), done: at === last };
    },
  };
}

const turnsSoFar: Script = (prompt) => `${prompt.split("assistant\n").length - 1}${END}`;

describe("multiTurn()", () => {
  test.each([
    [3, 5, "env_done", 3],
    [9, 2, "max_turns_exceeded", 2],
  ])("a game of %d turns within %d ends in %s", async (last, maxSteps, reason, steps) => {
    const { policy } = setup(turnsSoFar);
    const rollout = multiTurn({ name: "counter", game: () => counting(last), maxSteps });
    const result = (await rollout(TASK, policy)) as RolloutResult;
    expect(result).toMatchObject({ termination_reason: reason, metrics: { num_turns: steps } });
    const [trajectory] = result.trajectories;
    expect(trajectory).toMatchObject({ name: "counter", reward: steps });
    expect(trajectory!.steps[1]).toMatchObject({ action: "2", observation: "after 2", reward: 1 });
    expect(trajectory!.steps.at(-1)?.done).toBe(reason === "env_done");
    const [a, b] = trajectory!.steps;
    const whole = [...a!.prompt_ids, ...a!.response_ids];
    expect(b!.prompt_ids.slice(0, whole.length)).toEqual(whole);
  });

  test("a truncated reply ends the game after its last action", async () => {
    const { policy } = setup(() => `12345${END}`, { max_tokens: 3 });
    const result = (await multiTurn({ name: "c", game: () => counting(5), maxSteps: 5 })(
      TASK,
      policy,
    )) as RolloutResult;
    expect(result).toMatchObject({
      termination_reason: "max_response_length_exceeded",
      metrics: { num_turns: 1 },
    });
    expect(result.trajectories[0]!.steps[0]!.observation).toBe("after 1");
  });

  test("cumulative turns share max_tokens", async () => {
    const { policy, backend } = setup(() => `ab${END}`, { max_tokens: 7 });
    const rollout = multiTurn({ name: "c", game: () => counting(9), maxSteps: 9, cumulative: true });
    const result = (await rollout(TASK, policy)) as RolloutResult;
    expect(backend.requests.map(({ params }) => params.max_tokens)).toEqual([7, 4, 1]);
    expect(result.termination_reason).toBe("max_response_length_exceeded");
  });
});

describe("solverJudge()", () => {
  const script =
    (answers: string[], verdict: string): Script =>
    (prompt) =>
      `${prompt.includes("pick") ? verdict : (answers.shift() ?? "")}${END}`;
  const run = async (answers: string[], verdict: string) => {
    const { policy, backend } = setup(script([...answers], verdict));
    const rollout = solverJudge({
      reward: exactMatch,
      solutions: answers.length,
      judgePrompt: "pick {problem} {1}|{2}\n{solutions}",
    });
    const result = (await rollout(TASK, policy)) as RolloutResult;
    const asked = backend.tokenizer?.decode(backend.requests.at(-1)?.prompt_ids ?? []) ?? "";
    return { result, asked, rewards: result.trajectories.map(({ name, reward }) => [name, reward]) };
  };

  test("rewards each role separately", async () => {
    const { result, asked, rewards } = await run(["3", "2"], "2");
    expect(asked).toContain("pick 1+1= 3|2\n1. 3\n2. 2");
    expect(rewards).toEqual([
      ["solver", 0],
      ["solver", 1],
      ["judge", 1],
    ]);
    expect(result).toMatchObject({ is_correct: true, metrics: { solver_acc: 0.5, judge_acc: 1 } });
  });

  test.each([
    ["1", 0],
    ["the second: 2", 1],
    ["7", 0],
    ["none", 0],
  ])("the verdict %j is worth %d", async (verdict, reward) => {
    expect((await run(["3", "2"], verdict)).rewards.at(-1)).toEqual(["judge", reward]);
  });

  test.each([
    ["2", { right: 1, digits: 2 }],
    ["none", { right: 0, digits: 0 }],
  ])("each role has the components of its solution: %s", async (verdict, expected) => {
    const { policy } = setup(script(["3", "22"], verdict));
    const rollout = solverJudge({
      reward: ({ length }) => ({ reward: length - 1, components: { right: length - 1, digits: length } }),
      solutions: 2,
      judgePrompt: "pick {1}|{2}",
    });
    const { trajectories } = (await rollout(TASK, policy)) as RolloutResult;
    expect(trajectories.map(({ signals }) => signals)).toEqual([
      { right: 0, digits: 1 },
      { right: 1, digits: 2 },
      expected,
    ]);
  });
});

const NOTHING = { agent_cls: null, agent_args: {}, env_cls: null, env_args: {}, args: {} };

function settings(more: {
  environment?: Environment;
  agent?: Partial<RolloutSettings["agent"]>;
  env?: Partial<RolloutSettings["env"]>;
  workflow?: Partial<RolloutSettings["workflow"]>;
  args?: RolloutSettings["args"];
  isJudgedLater?: boolean;
}): RolloutSettings {
  const environment = more.environment ?? environments.find("arithmetic");
  return {
    environment,
    reward: environment.reward,
    isJudgedLater: more.isJudgedLater ?? false,
    args: more.args ?? {},
    agent: { name: "math_agent", max_steps: 20, agent_args: {}, ...more.agent },
    env: { name: "custom", env_args: {}, ...more.env },
    workflow: { use_workflow: false, name: "single_turn_workflow", ...NOTHING, ...more.workflow },
  };
}

describe("chooseRollout()", () => {
  registerEnvironment({
    name: "counted",
    describe: "",
    play: (_, { last }) => counting(Number(last)),
  });
  registerAgent("mine", (_, __, { worth }) => Number(worth));
  registerWorkflow({
    name: "mine_workflow",
    describe: "",
    rollout: ({ agent, args }) => {
      const inner = agent();
      return async (task, policy) => Number(await inner(task, policy)) * Number(args.factor);
    },
  });
  const play = async (it: RolloutSettings) => {
    const { policy } = setup(turnsSoFar);
    return chooseRollout(it).rollout(TASK, policy);
  };

  test("chooses the environment's rollout by default", async () => {
    expect(await play(settings({}))).toMatchObject({ trajectories: [{ name: "arithmetic", reward: 0 }] });
  });
  test("an agent by name, with its arguments", async () => {
    expect(await play(settings({ agent: { name: "mine", agent_args: { worth: 3 } } }))).toBe(3);
  });
  test("a game by name, with task.args and env_args, within max_steps", async () => {
    const game = settings({ env: { name: "counted", env_args: { last: 3 } }, args: { last: 9 } });
    expect(await play(game)).toMatchObject({ termination_reason: "env_done", metrics: { num_turns: 3 } });
    const short = settings({ env: { name: "counted", env_args: { last: 3 } }, agent: { max_steps: 2 } });
    expect(await play(short)).toMatchObject({ termination_reason: "max_turns_exceeded" });
  });
  test("workflows by name, with their agent and environment", async () => {
    const mine = {
      use_workflow: true,
      name: "mine_workflow",
      agent_cls: "mine",
      agent_args: { worth: 2 },
      args: { factor: 5 },
    };
    expect(await play(settings({ workflow: mine }))).toBe(10);
    const turns = {
      use_workflow: true,
      name: "multi_turn_workflow",
      env_cls: "counted",
      env_args: { last: 2 },
      args: { max_steps: 1 },
    };
    expect(await play(settings({ workflow: turns }))).toMatchObject({
      termination_reason: "max_turns_exceeded",
    });
    const judged = { use_workflow: true, name: "solver_judge_workflow", args: { n_solutions: 3 } };
    expect(await play(settings({ workflow: judged }))).toMatchObject({ trajectories: { length: 4 } });
  });
  test("an evaluator replaces a missing reward", async () => {
    const environment = environments.find("single_turn");
    expect(await play(settings({ environment, isJudgedLater: true }))).toBeUndefined();
    expect(() => chooseRollout(settings({ environment }))).toThrow(/Set task\.reward or task\.evaluator/);
  });

  const refused: [string, Parameters<typeof settings>[0], RegExp][] = [
    ["an unknown agent", { agent: { name: "nobody" } }, /the agent "nobody": nothing registers that name/],
    [
      "an unknown workflow",
      { workflow: { use_workflow: true, name: "x" } },
      /the workflow "x": nothing registers that name\. Known: single_turn_workflow/,
    ],
    [
      "a workflow that is not used",
      { workflow: { name: "mine_workflow" } },
      /no workflow is used\. Set rllm\.workflow\.use_workflow=true/,
    ],
    [
      "arguments without a workflow",
      { workflow: { args: { factor: 1 } } },
      /workflow_args\.factor: no workflow is used/,
    ],
    [
      "arguments that it does not read",
      { workflow: { use_workflow: true, args: { factor: 1 } } },
      /factor: single_turn_workflow does not read it/,
    ],
    ["arguments of no agent", { agent: { agent_args: { a: 1 } } }, /argument a: the run names no agent/],
    ["arguments of no game", { env: { env_args: { a: 1 } } }, /argument a: the environment arithmetic plays no game/],
    [
      "no whole number",
      { workflow: { use_workflow: true, name: "solver_judge_workflow", args: { n_solutions: 0.5 } } },
      /n_solutions: it must be a whole number/,
    ],
  ];
  test.each(refused)("%s is refused", (_, given, message) => {
    expect(() => chooseRollout(settings(given))).toThrow(message);
  });
});

test("arithmetic warms up with the worked answers of its rows, or with the single answer of other rows", () => {
  const { examples } = environments.find("arithmetic");
  const responses = (metadata: Record<string, unknown>) =>
    examples?.({ ...TASK, metadata }, {}).map((each) => (each as PromptExample).response);
  expect(responses({ answer: "42", worked: ["41", "41", "42"] })).toEqual(["41", "41", "42"]);
  expect(responses({ answer: 42 })).toEqual(["42"]);
  expect(responses({})).toEqual([]);
});

test("single_turn warms up with the conversation of a row that has one, and names a row whose messages are wrong", () => {
  const { examples } = environments.find("single_turn");
  const messages = [
    { role: "user", content: [{ type: "text", text: "2+2?" }] },
    { role: "assistant", content: "4" },
  ];
  const tools = [{ type: "function" }];
  expect(examples?.({ ...TASK, metadata: { answer: "4", conversation: messages, tools } }, {})).toEqual([
    { messages: [{ role: "user", content: "2+2?" }, messages[1]], tools },
  ]);
  expect(() => examples?.({ ...TASK, metadata: { conversation: [{ content: "4" }] } }, {})).toThrow(
    new RegExp(`conversation of the task ${TASK.id}: Cannot read message 0`),
  );
});

describe("guess_digit", () => {
  const environment = environments.find("guess_digit");
  const task = (answer: string): Task => ({ id: answer, instruction: "?", metadata: { answer } });

  test("observes the direction of the digit", async () => {
    const game = environment.play?.(task("7"), {}) as Game;
    expect(await game.reset()).toBe("?");
    expect(await game.step("f")).toEqual({ observation: "<", reward: 0, done: false });
    expect(await game.step("0")).toEqual({ observation: ">", reward: 0, done: false });
    expect(await game.step("")).toEqual({ observation: "?", reward: 0, done: false });
    expect(await game.step("7")).toEqual({ observation: "=", reward: 1, done: true });
  });

  test("has correct observations in its worked games, one in four of which uses them", () => {
    for (const answer of "07f") {
      const examples = (environment.examples?.(task(answer), {}) ?? []) as PromptExample[];
      expect(examples).toHaveLength(32);
      for (const { prompt } of examples) {
        (prompt as ChatMessage[]).forEach((message, i, all) => {
          if (message.role !== "assistant") return;
          expect(all[i + 1]!.content).toBe(message.content < answer ? ">" : "<");
        });
      }
    }
  });
});
