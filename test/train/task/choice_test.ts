/** What a configuration's names choose, and what a user's code may return. */
import { describe, expect, test } from "vitest";
import type { Step, Task } from "../../../src/train/data/types.ts";
import { chooseRollout, type RolloutSettings } from "../../../src/train/task/choose.ts";
import "../../../src/train/task/environments.ts";
import * as registered from "../../../src/train/task/registered.ts";
import { lastNumber } from "../../../src/train/task/rewards.ts";
import {
  answer,
  type Environment,
  type Evaluation,
  evaluationOf,
  isResult,
  type Policy,
  type PromptExample,
  promptOf,
  type RolloutResult,
  replyText,
  singleTurn,
} from "../../../src/train/task/rollout.ts";
import { checkArgs, countArg } from "../../../src/train/task/workflow.ts";
import { multiTurn } from "../../../src/train/task/workflows.ts";
import { aStep } from "../../fixtures/episodes.ts";

const TASK: Task = { id: "t", instruction: "1+1=", metadata: { answer: "2" } };
const CHAT: Task = { ...TASK, messages: [{ role: "user", content: "1+1=" }] };

/** A policy that replies by a list, and notes what it was asked. */
function policyOf(replies: readonly string[], more: { finish_reason?: string; max_tokens?: number } = {}) {
  const asked: unknown[] = [];
  const left = [...replies];
  const made = (name: string): Policy => {
    const steps: Step[] = [];
    const reply = (content: string) => {
      const step = aStep({ model_response: `raw ${content}`, response_ids: [1, 2], done: false });
      steps.push(step);
      return { ...step, finish_reason: more.finish_reason ?? "stop" };
    };
    return {
      params: { max_tokens: more.max_tokens ?? 10 },
      steps,
      agent: made,
      complete: async (prompt: unknown) => {
        asked.push([name, prompt]);
        const content = left.shift() ?? "";
        return { ...reply(content), model_response: content };
      },
      chat: async (messages: readonly { content: string }[], options: unknown) => {
        asked.push([name, messages.map(({ content }) => content), options]);
        const message = { role: "assistant", content: left.shift() ?? "" };
        return { ...reply(message.content), message, chat_completions: [...messages, message] };
      },
      annotate: (notes: object) => void Object.assign(steps.at(-1)!, notes),
      trajectory: (reward = 0) => ({ name, steps, reward }),
    } as unknown as Policy;
  };
  return { policy: made(""), asked };
}

describe("one call of the model", () => {
  test("asks the conversation of a task that has one, else its text; a chat's text is without its reasoning", async () => {
    const { policy, asked } = policyOf(["a", "b"]);
    expect(replyText(await answer(TASK, policy))).toBe("a");
    expect(replyText(await answer(CHAT, policy))).toBe("b");
    expect(asked).toEqual([
      ["", "1+1="],
      ["", ["1+1="], undefined],
    ]);
    expect([promptOf(TASK), promptOf(CHAT)]).toEqual(["1+1=", CHAT.messages]);
    expect(replyText(aStep({ model_response: "x", chat_completions: [] }))).toBe("x");
  });

  test.each<[judgement: number | Evaluation, reward: number, is_correct: boolean]>([
    [1, 1, true],
    [0, 0, false],
    [{ reward: 0.5, is_correct: false }, 0.5, false],
    [{ reward: 0, is_correct: true }, 0, true],
  ])("singleTurn() judged %j", async (judgement, reward, is_correct) => {
    const { policy } = policyOf(["two"]);
    const heard: unknown[] = [];
    const rollout = singleTurn("solver", (...it) => {
      heard.push(it);
      return judgement;
    });
    const result = (await rollout(TASK, policy)) as RolloutResult;
    expect(heard).toEqual([["two", TASK]]);
    expect(result.is_correct).toBe(is_correct);
    expect(result.trajectories).toMatchObject([{ name: "solver", reward, steps: [{ reward, done: true }] }]);
  });

  test("singleTurn() keeps metrics and signals", async () => {
    const judgement = { reward: 1, metrics: { m: 2 }, signals: { s: 3 } };
    const result = await singleTurn("solver", async () => judgement)(TASK, policyOf(["x"]).policy);
    expect(result).toMatchObject({ metrics: { m: 2 }, trajectories: [{ signals: { s: 3 } }] });
  });
});

describe("what a user's code returns", () => {
  test.each([
    [0, { reward: 0 }],
    [Number.NaN, { reward: Number.NaN }],
    [
      { reward: 2, is_correct: true },
      { reward: 2, is_correct: true },
    ],
  ])("the judgement %j", (judgement, evaluation) => {
    expect(evaluationOf(judgement)).toEqual(evaluation);
  });

  test.each([[undefined], [null], ["1"], [{}], [{ reward: "1" }], [true]])(
    "the judgement %j is refused",
    (judgement) => {
      expect(() => evaluationOf(judgement as never)).toThrow(
        `Cannot use a judgement: it must be a number, or an object with a number named reward (${JSON.stringify(judgement)}).`,
      );
      expect(() => evaluationOf(judgement as never)).toThrow(expect.objectContaining({ kind: "code" }) as Error);
    },
  );

  test("a long value is shown in part", () => {
    expect(() => evaluationOf({ text: "x".repeat(500) } as never)).toThrow(/\(.{200}\)\. Correct/);
  });

  test.each<[outcome: unknown, is: boolean]>([
    [{ trajectories: [] }, true],
    [{ trajectories: [{ steps: [] }] }, true],
    [{ reward: 1 }, false],
    [1, false],
    [undefined, false],
    [null, false],
  ])("%j is a result: %j", (outcome, is) => {
    expect(isResult(outcome as never)).toBe(is);
  });

  test.each([
    [{ trajectories: null }, '{"trajectories":null}'],
    [{ trajectories: [{ steps: [] }, { steps: 3 }] }, '{"steps":3}'],
    [{ trajectories: [null] }, "null"],
  ])("%j is refused", (outcome, shown) => {
    expect(() => isResult(outcome as never)).toThrow(
      `Cannot use the rollout's trajectories: each needs a list of steps (${shown}).`,
    );
  });
});

describe("arguments", () => {
  test("that nothing reads are refused, with those that are read", () => {
    const check = (args: object, known: string[]) =>
      checkArgs(args as Record<string, unknown>, { names: known, path: "task.args", owner: "the game" });
    expect(() => check({ a: 1 }, ["a", "b"])).not.toThrow();
    expect(() => check({ a: 1, c: 2 }, ["a", "b"])).toThrow(
      "Cannot use the argument c: the game does not read it. It has a, b (task.args.c).",
    );
    expect(() => check({ c: 2 }, [])).toThrow("the game does not read it. It has none (task.args.c).");
  });

  test("that are counts", () => {
    expect(countArg({}, "n", 3)).toBe(3);
    expect(countArg({ n: null }, "n", 3)).toBe(3);
    expect(countArg({ n: 1 }, "n", 3)).toBe(1);
    for (const n of [0, -1, 1.5, "2", true])
      expect(() => countArg({ n }, "n", 3)).toThrow(
        `Cannot use n: it must be a whole number of at least 1 (${JSON.stringify(n)}).`,
      );
  });
});

describe("multiTurn()", () => {
  const script = (dones: boolean[], opening: unknown = "begin") => ({
    reset: () => opening as string,
    step: (action: string) => ({
      observation: `saw ${action}`,
      reward: 1,
      done: dones.shift() ?? false,
      metadata: { m: 1 },
    }),
  });
  const play = async (game: ReturnType<typeof script>, more: object = {}, replies = ["a", "b", "c"], policy = {}) => {
    const { policy: made, asked } = policyOf(replies, policy);
    const rollout = multiTurn({ name: "player", game: () => game, maxSteps: 3, ...more });
    return { result: (await rollout(TASK, made)) as RolloutResult, asked };
  };

  test("asks with everything said so far, as the agent of its name", async () => {
    const { result, asked } = await play(script([false, true]));
    expect(asked).toEqual([
      ["player", ["begin"], {}],
      ["player", ["begin", "a", "saw a"], {}],
    ]);
    expect(result).toMatchObject({ termination_reason: "env_done", metrics: { num_turns: 2 } });
    expect(result.trajectories[0]).toMatchObject({
      name: "player",
      steps: [
        { action: "a", observation: "saw a", reward: 1, done: false, metadata: { m: 1 } },
        { action: "b", observation: "saw b", done: true },
      ],
    });
  });

  test("starts from a conversation, which stays as it is", async () => {
    const opening = [
      { role: "system", content: "s" },
      { role: "user", content: "u" },
    ];
    const { asked } = await play(script([false, true], opening));
    expect(asked[1]).toEqual(["player", ["s", "u", "a", "saw a"], {}]);
    expect(opening).toHaveLength(2);
  });

  test("replies share the tokens where they are cumulative, down to the last one", async () => {
    const limits = async (max_tokens: number) => {
      const { asked, result } = await play(script([]), { cumulative: true }, ["a", "b", "c"], { max_tokens });
      const params = asked.map(
        (each) => ((each as unknown[])[2] as { params: { max_tokens: number } }).params.max_tokens,
      );
      return [params, result.termination_reason];
    };
    expect(await limits(4)).toEqual([[4, 2], "max_response_length_exceeded"]);
    expect(await limits(5)).toEqual([[5, 3, 1], "max_response_length_exceeded"]);
    expect(await limits(7)).toEqual([[7, 5, 3], "max_turns_exceeded"]);
    expect((await play(script([]), {}, ["a", "b", "c"], { max_tokens: 2 })).result.termination_reason).toBe(
      "max_turns_exceeded",
    );
  });

  test("a truncated reply ends it even where the game is over", async () => {
    const { result } = await play(script([true]), {}, ["a"], { finish_reason: "length" });
    expect(result.termination_reason).toBe("max_response_length_exceeded");
  });
});

const NOTHING = { agent_cls: null, agent_args: {}, env_cls: null, env_args: {}, args: {} };
const plain: Environment = { name: "plain", describe: "" };

function settings(more: {
  environment?: Environment;
  reward?: RolloutSettings["reward"];
  args?: RolloutSettings["args"];
  isJudgedLater?: boolean;
  agent?: object;
  env?: object;
  workflow?: object;
}): RolloutSettings {
  return {
    environment: more.environment ?? plain,
    reward: more.reward ?? (() => 1),
    isJudgedLater: more.isJudgedLater ?? false,
    args: more.args ?? {},
    agent: { name: "math_agent", max_steps: 2, agent_args: {}, ...more.agent },
    env: { name: "custom", env_args: {}, ...more.env },
    workflow: { use_workflow: false, name: "single_turn_workflow", ...NOTHING, ...more.workflow },
  };
}

describe("the chosen rollout", () => {
  const game = (name: string): Environment => ({
    name,
    describe: "",
    play: (_, args) => ({
      reset: () => JSON.stringify(args),
      step: () => ({ observation: "", reward: 0, done: true }),
    }),
  });
  registered.registerEnvironment(game("choice_game"));
  registered.registerAgent("choice_agent", (_, policy, args) => {
    void policy.complete(JSON.stringify(args));
    return 1;
  });
  const run = async (it: RolloutSettings) => {
    const { policy, asked } = policyOf(["x", "y", "z"]);
    const chosen = chooseRollout(it);
    const outcome = await chosen.rollout(TASK, policy);
    return { ...chosen, outcome, asked };
  };

  test("one call, as the environment's agent, that the reward judges with the task's arguments", async () => {
    const heard: unknown[] = [];
    const reward = (...it: unknown[]) => {
      heard.push(it);
      return 0.5;
    };
    const { outcome, asksPrompt } = await run(settings({ reward, args: { k: 1 } }));
    expect(outcome).toMatchObject({ trajectories: [{ name: "plain", reward: 0.5 }] });
    expect(heard).toEqual([["x", TASK, { k: 1 }]]);
    expect(asksPrompt).toBe(true);
  });

  test("one call without a reward, where an evaluator judges later", async () => {
    const { outcome, asked, asksPrompt } = await run(
      settings({
        isJudgedLater: true,
        reward: () => {
          throw new Error("judged");
        },
      }),
    );
    expect([outcome, asked, asksPrompt]).toEqual([undefined, [["plain", "1+1="]], true]);
  });

  test("the environment's own rollout, with reward and arguments, also where an evaluator judges later", async () => {
    const environment: Environment = {
      ...plain,
      rollout: (reward, args) => async (task) => Number(await reward(String(args.k), task)),
    };
    for (const isJudgedLater of [false, true]) {
      const own = settings({ environment, isJudgedLater, args: { k: 7 }, reward: (response) => Number(response) });
      const { outcome, asksPrompt } = await run(own);
      expect([outcome, asksPrompt]).toEqual([7, false]);
    }
  });

  test("the named agent, with its arguments, under its name", async () => {
    const { outcome, asked, asksPrompt } = await run(
      settings({ agent: { name: "choice_agent", agent_args: { a: 1 } } }),
    );
    expect([outcome, asked, asksPrompt]).toEqual([1, [["choice_agent", '{"a":1}']], false]);
  });

  test("the game of the environment or of the named one, with both arguments", async () => {
    const own = await run(settings({ environment: game("mine"), args: { a: 1, b: 1 }, env: { env_args: { b: 2 } } }));
    expect(own.asked).toEqual([["mine", ['{"a":1,"b":2}'], {}]]);
    expect(own.asksPrompt).toBe(false);
    const named = await run(settings({ env: { name: "choice_game", env_args: { b: 2 } } }));
    expect(named.asked).toEqual([["choice_game", ['{"b":2}'], {}]]);
    expect(() => chooseRollout(settings({ env: { name: "no_game" } }))).toThrow(/"no_game".*\(rllm\.env\.name\)\.$/);
  });

  test("a workflow, with the arguments of all places, the last ones first", async () => {
    const workflow = { use_workflow: true, name: "multi_turn_workflow", env_cls: "choice_game", env_args: { c: 3 } };
    const { asked, asksPrompt } = await run(
      settings({ args: { a: 1, c: 1 }, env: { env_args: { b: 2, c: 2 } }, workflow }),
    );
    expect(asked).toEqual([["plain", ['{"a":1,"c":3,"b":2}'], {}]]);
    expect(asksPrompt).toBe(false);
    const through = { ...workflow, env_cls: null };
    expect((await run(settings({ env: { name: "choice_game" }, workflow: through }))).asked).toEqual([
      ["plain", ['{"c":3}'], {}],
    ]);
    expect(() => chooseRollout(settings({ workflow: { ...workflow, env_cls: "no_game" } }))).toThrow(
      /"no_game".*workflow_args\.env_cls\)\.$/,
    );
    const single = chooseRollout(settings({ workflow: { use_workflow: true } }));
    expect(single.asksPrompt).toBe(true);
  });

  test("a workflow plays no game of an environment without one", async () => {
    const workflow = { use_workflow: true, name: "multi_turn_workflow" };
    await expect(run(settings({ workflow }))).rejects.toThrow(
      "Cannot play in turns: the environment plain has no game. Give it play(task, args) (rllm.env.name).",
    );
  });

  test("a workflow's agent is the named one of the workflow, else of the run", async () => {
    registered.registerWorkflow({
      name: "choice_workflow",
      describe: "",
      rollout: ({ agent, maxSteps }) => {
        expect(maxSteps).toBe(2);
        return agent();
      },
      examples: (task, { args }) => [{ prompt: task.id, response: JSON.stringify(args) }],
    });
    const workflow = { use_workflow: true, name: "choice_workflow", agent_args: { b: 2 }, args: { z: 1 } };
    const agent = { name: "choice_agent", agent_args: { a: 1, b: 1 } };
    expect((await run(settings({ agent, workflow }))).asked).toEqual([["", '{"a":1,"b":2}']]);
    const named = { ...workflow, agent_cls: "choice_agent" };
    const { asked, examples } = await run(settings({ workflow: named }));
    expect(asked).toEqual([["", '{"b":2}']]);
    expect(examples(TASK)).toEqual([{ prompt: "t", response: '{"z":1}' }]);
    expect(() => chooseRollout(settings({ workflow }))).toThrow(/"math_agent".*workflow_args\.agent_cls\)\.$/);
  });

  test("a default name counts as a choice once a module registers it", async () => {
    registered.registerEnvironment(game("custom"));
    registered.registerAgent("math_agent", () => 42);
    expect((await run(settings({}))).outcome).toBe(42);
  });

  test.each([
    [{ agent_cls: "a" }, "agent_cls"],
    [{ env_cls: "a" }, "env_cls"],
    [{ agent_args: { x: 1 } }, "agent_args.x"],
    [{ env_args: { x: 1 } }, "env_args.x"],
    [{ args: { max_steps: 1 } }, "max_steps"],
  ])("%j without a workflow is refused", (workflow, name) => {
    expect(() => chooseRollout(settings({ workflow: { name: "multi_turn_workflow" } }))).toThrow(
      /^Cannot use rllm\.workflow\.name: no workflow is used\. .*\(rllm\.workflow\.name\)\.$/,
    );
    const path = `rllm.workflow.workflow_args.${name}`;
    expect(() => chooseRollout(settings({ workflow }))).toThrow(
      `Cannot use ${path}: no workflow is used. Set rllm.workflow.use_workflow=true (${path}).`,
    );
  });
});

describe("worked answers", () => {
  const environment: Environment = {
    ...plain,
    examples: (_, args) =>
      ["2", "3"].map((response) => ({ prompt: "1+1=", response: `${response}${args.suffix ?? ""}` })),
  };

  test("are the environment's, with the task's arguments", () => {
    const examples = chooseRollout(settings({ environment, args: { suffix: "!" } })).examples(TASK);
    expect(examples.map((each) => (each as PromptExample).response)).toEqual(["2!", "3!"]);
    expect(chooseRollout(settings({})).examples(TASK)).toEqual([]);
  });

  test("of the solver and judge teach the form of a verdict, each number once", () => {
    const workflow = {
      use_workflow: true,
      name: "solver_judge_workflow",
      args: { n_solutions: 3, judge_prompt: "{problem}|{solutions}|{1}|{3}|{4}|{other}" },
    };
    const examples = (task: Task) => chooseRollout(settings({ environment, workflow })).examples(task).slice(2);
    const prompts = ["1. 2\n2. 3\n3. 2|2|2", "1. 3\n2. 2\n3. 3|3|3", "1. 2\n2. 3\n3. 2|2|2"].map(
      (filled) => `1+1=|${filled}|{4}|{other}`,
    );
    expect(examples(TASK)).toEqual(prompts.map((prompt, i) => ({ prompt, response: String(i + 1) })));
    expect(examples(CHAT)[0]).toEqual({ prompt: [{ role: "user", content: prompts[0] }], response: "1" });
    const none = chooseRollout(settings({ workflow })).examples(TASK);
    expect(none).toEqual([]);
  });

  test("the judge's prompt must be a text", () => {
    const workflow = { use_workflow: true, name: "solver_judge_workflow", args: { judge_prompt: 7 } };
    expect(() => chooseRollout(settings({ workflow }))).toThrow(
      "Cannot use judge_prompt: it must be a text. Give it a string (rllm.workflow.workflow_args.judge_prompt).",
    );
  });

  test("of guess_digit repeat, differ among themselves, and end in the digit where three turns were heeded", () => {
    const { examples } = registered.environments.find("guess_digit");
    const task = { id: "g", instruction: "?", metadata: { answer: "9" } };
    const made = (examples?.(task, {}) ?? []) as PromptExample[];
    expect(made).toEqual(examples?.(task, {}));
    const shown = made.map(({ prompt, response }) =>
      [...(prompt as readonly { content: string }[]).map(({ content }) => content), response].join(""),
    );
    expect(new Set(shown).size).toBeGreaterThan(20);
    for (const [i, game] of shown.entries()) {
      if (i % 4 > 0) continue;
      // Every guess of these games lies between the bounds that it was told.
      let [low, high] = [0, 15];
      for (const [, guess, told] of `${game.slice(1)} `.matchAll(/(.)(.)/g)) {
        const at = Number.parseInt(guess!, 16);
        expect(at).toBeGreaterThanOrEqual(low);
        expect(at).toBeLessThanOrEqual(high);
        if (told === ">") low = at + 1;
        if (told === "<") high = at - 1;
      }
    }
    expect(shown.filter((_, i) => i % 4 > 0).some((game) => /^\?[0-4]>[0-4]/.test(game))).toBe(true);
    const turns = shown.map((game) => (game.length - 2) / 2);
    expect([Math.min(...turns), Math.max(...turns)]).toEqual([0, 3]);
  });

  test("a row's conversation may come without tools", () => {
    const { examples } = registered.environments.find("single_turn");
    const conversation = [{ role: "user", content: "a" }];
    const task = { ...TASK, metadata: { conversation, tools: "none" } };
    expect(examples?.(task, {})).toEqual([{ messages: conversation, tools: undefined }]);
  });
});

test("the built-in environments with data of their own read no arguments", () => {
  const args = ["arithmetic", "guess_digit", "single_turn"].map((name) => registered.environments.find(name).args);
  expect(args).toEqual([[], [], undefined]);
});

test("registered names are found under their settings", async () => {
  registered.registerReward("choice_reward", () => 3);
  registered.registerEvaluator("choice_evaluator", () => 4);
  registered.registerDataset("choice_rows", [{ prompt: "a" }]);
  expect(registered.rewards.find("choice_reward")("", TASK, {})).toBe(3);
  expect(registered.evaluators.find("choice_evaluator")(TASK, {} as never, {})).toBe(4);
  expect(registered.datasets.find("choice_rows")).toEqual([{ prompt: "a" }]);
  expect(registered.rewards.has("exact_match")).toBe(true);
  expect(registered.rewards.find("last_number")).toBe(lastNumber);
  for (const [table, setting] of [
    [registered.rewards, "task.reward"],
    [registered.evaluators, "task.evaluator"],
    [registered.datasets, "data.train_files"],
    [registered.agents, "rllm.agent.name"],
    [registered.workflows, "rllm.workflow.name"],
    [registered.environments, "task.name"],
  ] as const)
    expect(() => table.find("nothing_of_that_name")).toThrow(new RegExp(`\\(${setting.replaceAll(".", "\\.")}\\)\\.$`));
});

test.each([
  ["a 1,000b", "1000", 1],
  ["2 and -2", "#### -2", 1],
  ["1.5.", "#### 1.50", 1],
  ["7", "#### 6 #### 7", 1],
  ["", "none", 0],
])("lastNumber(%j) against %j is %i", (response, wanted, reward) => {
  expect(lastNumber(response, { ...TASK, metadata: { answer: wanted } })).toBe(reward);
});
