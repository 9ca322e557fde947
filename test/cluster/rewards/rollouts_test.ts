/** Rollouts whose model calls a cluster samples: the rows are those that the local loop packs for the same draws. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import type { ClusterTrajectory, RolloutReply } from "../../../src/cluster/rewards/protocol.ts";
import type { Service } from "../../../src/cluster/rewards/service.ts";
import type { Tokenizer } from "../../../src/engine/contract/text.ts";
import type { Task } from "../../../src/train/data/types.ts";
import type { StageContext } from "../../../src/train/loop/contract.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../../src/train/loop/settings.ts";
import { packBatch } from "../../../src/train/loop/stages/batch.ts";
import { generate } from "../../../src/train/loop/stages/generate.ts";
import { transform } from "../../../src/train/loop/stages/transform.ts";
import { RunGateway } from "../../../src/train/run/gateway/run_gateway.ts";
import "../../../src/train/task/environments.ts";
import { environments } from "../../../src/train/task/registered.ts";
import { remoteAgent } from "../../../src/train/task/remote/rollout.ts";
import type { Rollout } from "../../../src/train/task/rollout.ts";
import { multiTurn, solverJudge } from "../../../src/train/task/workflows.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";
import {
  ask,
  type Draw,
  drawBackend,
  drawWith,
  firstRequest,
  type Generator,
  post,
  rowsFrom,
  runWorker,
  TASK,
  type TestService,
  testService,
} from "../../fixtures/cluster.ts";

/** Of the test tokenizer. */
const END = chatTokenizer(CHATML).eosTokenIds[0]!;

const services: Service[] = [];
afterEach(async () => {
  for (const service of services.splice(0)) await service.close();
});

async function open(options: TestService): Promise<Service> {
  const service = await testService({ tokenizer: chatTokenizer(CHATML), ...options });
  services.push(service);
  return service;
}

interface Compared {
  readonly rollout: Rollout;
  readonly tasks?: readonly Task[];
  readonly generator: Generator;
  readonly tokenizer?: Tokenizer;
  readonly settings?: Partly<LoopSettings>;
}

/** What training takes from a row; log-probs as the loop packs them, in 32 bits. */
type Trained = Pick<ClusterTrajectory, "name" | "reward"> & {
  readonly tokens: readonly number[];
  readonly mask: readonly number[];
  readonly logprobs: readonly number[];
};

/** The rows of a local step with the draws: stages 1 to 4 of the loop. */
async function localRows({ rollout, tasks = [TASK], tokenizer, settings }: Compared, draw: Draw): Promise<Trained[]> {
  const context: StageContext = {
    backend: drawBackend(tokenizer ?? chatTokenizer(CHATML), draw),
    settings: loopSettings({ ...settings, rollout: { n: 1, ...settings?.rollout } }),
    ...{ rollout, step: 1, totalSteps: 1, epoch: 0, isValidation: false, loggers: [] },
    signal: new AbortController().signal,
    estimate: () => ({ level: "row" as const, values: new Float32Array() }),
  };
  const { value: groups } = transform((await generate(tasks, context)).value, context);
  const rows = packBatch(groups, context).value;
  return Array.from(rows.trajectoryOfRow, (trajectory, row) => {
    const [from, to] = [rows.offsets[row], rows.offsets[row + 1]];
    return {
      name: rows.trajectories[trajectory]!.name,
      reward: rows.trajectories[trajectory]!.reward,
      tokens: [...rows.tokens.subarray(from, to)],
      mask: [...rows.mask.subarray(from, to)],
      logprobs: [...rows.rolloutLogprobs.subarray(from, to)],
    };
  });
}

function trainedOf(row: ClusterTrajectory): Trained {
  const { name, reward, prompt_ids, response_ids, response_mask, response_logprobs } = row;
  const zeros = prompt_ids.map(() => 0);
  return {
    ...{ name, reward },
    tokens: [...prompt_ids, ...response_ids],
    mask: [...zeros, ...response_mask],
    logprobs: [...zeros, ...response_logprobs!].map(Math.fround),
  };
}

/** The rows of the same rollouts through the service, and those of the local loop. */
async function both(compared: Compared, worker: { isRepeating?: boolean } = {}) {
  const { rollout, tasks = [TASK], tokenizer = chatTokenizer(CHATML), generator, settings } = compared;
  const draw = drawWith(tokenizer, generator);
  const service = await open({ rollout, tokenizer, tasks: { train: tasks, val: [] }, ...(settings && { settings }) });
  const replies: RolloutReply[] = [];
  const onReply = (reply: RolloutReply) => void replies.push(reply);
  const rows: ClusterTrajectory[] = [];
  for (const index of tasks.keys())
    rows.push(
      ...(await rowsFrom({ url: service.url, draw, onReply, first: { task: { split: "train", index } }, ...worker })),
    );
  return { rows, trained: rows.map(trainedOf), local: await localRows(compared, draw), replies, service };
}

const DIGITS = "0123456789abcdef";

/** Guesses the middle of what the observations leave, with a few wrong turns. */
const guesser: Generator = (prompt) => {
  let [low, high] = [0, 15];
  for (const [, guess, hint] of prompt.matchAll(/([0-9a-f])<\|im_end\|>\n<\|im_start\|>user\n([<>])/g)) {
    if (hint === "<") high = DIGITS.indexOf(guess!) - 1;
    else low = DIGITS.indexOf(guess!) + 1;
  }
  return `${DIGITS[(low + high) >> 1]}<|im_end|>`;
};

const PLAY = environments.find("guess_digit").play!;
const GAMES: Task[] = [..."05f"].map((answer) => ({ id: answer, instruction: "?", metadata: { answer } }));
const game = multiTurn({ name: "guesser", game: (task) => PLAY(task, {}), maxSteps: 4 });

describe("rows are those of the local loop for the same draws", () => {
  test("of a game of turns (examples/multi_turn): one row, exact tokens, masks and log-probs", async () => {
    const { rows, trained, local } = await both({ rollout: game, tasks: GAMES, generator: guesser });
    expect(trained).toEqual(local);
    expect(
      rows.map(({ reward, num_turns, is_correct, metrics }) => ({ reward, num_turns, is_correct, metrics })),
    ).toEqual([
      { reward: 1, num_turns: 4, is_correct: true, metrics: { num_turns: 4 } },
      { reward: 1, num_turns: 3, is_correct: true, metrics: { num_turns: 3 } },
      { reward: 0, num_turns: 4, is_correct: false, metrics: { num_turns: 4 } },
    ]);
    for (const { response_mask } of rows) {
      expect(response_mask[0]).toBe(1);
      expect(response_mask).toContain(0);
    }
  });

  test("of a tool agent whose calls keep their sampled tokens", async () => {
    const tools = [{ type: "function", function: { name: "add", parameters: {} } }];
    const rollout: Rollout = async (_, policy) => {
      const first = await policy.chat([{ role: "user", content: "1+2" }], { tools });
      const [call] = first.message.tool_calls!;
      const { a, b } = JSON.parse(String(call!.function.arguments));
      const messages = [
        { role: "user", content: "1+2" },
        first.message,
        { role: "tool", tool_call_id: call!.id!, content: String(a + b) },
      ];
      const second = await policy.chat(messages, { tools });
      return second.message.content.includes("3") ? 1 : 0;
    };
    const generator: Generator = (prompt) =>
      prompt.includes("tool\n3")
        ? "it is 3<|im_end|>"
        : `so<tool_call>\n{"name":"add",  "arguments": {"a": 1,"b":2}}\n</tool_call><|im_end|>`;
    const { rows, trained, local } = await both({ rollout, generator });
    expect(trained).toEqual(local);
    expect(rows).toMatchObject([{ reward: 1, num_turns: 2 }]);
  });

  test("of an edited history, which starts a further row with the same reward", async () => {
    const rollout: Rollout = async (_, policy) => {
      const reply = await policy.complete("the and");
      await policy.complete([...reply.prompt_ids, ...reply.response_ids, 65]);
      await policy.complete("another");
      return 0.25;
    };
    const { rows, trained, local } = await both({ rollout, generator: (prompt) => `${prompt.length} on<|im_end|>` });
    expect(trained).toEqual(local);
    expect(rows.map(({ reward, num_turns }) => [reward, num_turns])).toEqual([
      [0.25, 2],
      [0.25, 1],
    ]);
  });

  test("of solvers in parallel and a judge: the parallel calls come together", async () => {
    const rollout = solverJudge({ reward: (text) => text.length, solutions: 3, judgePrompt: "{1} {2} {3}?" });
    const generator: Generator = (prompt) => (prompt.endsWith("?") ? "2<|im_end|>" : "and the<|im_end|>");
    const { trained, local, replies } = await both({ rollout, generator });
    expect(trained).toEqual(local);
    expect(trained.map(({ name }) => name)).toEqual(["solver", "solver", "solver", "judge"]);
    expect(replies.map((reply) => (reply.action === "generate" ? reply.calls.length : reply.action))).toEqual([
      3,
      1,
      "done",
    ]);
  });

  test("of unnamed trajectories, rewards of steps, shaping, and replies that were cut", async () => {
    const rollout: Rollout = async (_, policy) => {
      const steps = [await policy.complete("a"), await policy.complete("b")];
      return { trajectories: [{ steps: steps.map((step, i) => ({ ...step, reward: i + 1 })) }] };
    };
    const settings = {
      rollout: { train: { max_tokens: 3 } },
      workflow: { workflow_args: { gamma: 0.5 } },
      mask_truncated_samples: true,
    };
    const { trained, local } = await both({ rollout, generator: () => "and the and", settings });
    expect(trained).toEqual(local);
    expect(trained.map(({ name, reward, mask }) => [name, reward, mask.includes(1)])).toEqual([
      ["default_traj_name_0", 2, false],
      ["default_traj_name_0", 2, false],
    ]);
  });

  test("of several roles, of which one was cut off", async () => {
    const rollout: Rollout = async (_, policy) => {
      const [long, short] = [policy.agent("long"), policy.agent("short")];
      await long.complete("a");
      await short.complete("b");
      return { trajectories: [long.trajectory(1), short.trajectory(2)] };
    };
    const settings = { rollout: { train: { max_tokens: 4 } }, mask_truncated_samples: true };
    const generator: Generator = (prompt) => (prompt === "a" ? "and the and" : "and<|im_end|>");
    const { trained, local } = await both({ rollout, generator, settings });
    expect(trained).toEqual(local);
    expect(trained.map(({ name, mask }) => [name, mask.includes(1)])).toEqual([
      ["long", false],
      ["short", true],
    ]);
  });
});

describe("the cluster's requests", () => {
  const single: Rollout = async (_, policy) => {
    const { response_ids, logprobs } = await policy.complete("the");
    return { reward: response_ids.length, metrics: { read: Number(logprobs.every(Number.isFinite)) } };
  };
  const draw = drawWith(chatTokenizer(CHATML), () => "and<|im_end|>");

  test("a repeated request neither samples nor judges twice", async () => {
    let judged = 0;
    const rollout: Rollout = async (task, policy) => {
      const result = await game(task, policy);
      judged++;
      return result;
    };
    const { trained, local, service } = await both(
      { rollout, tasks: GAMES, generator: guesser },
      { isRepeating: true },
    );
    expect(trained).toEqual(local);
    expect(judged).toBe(2 * GAMES.length);
    const { repeats, rollouts, calls } = service.stats();
    expect([rollouts.started, rollouts.done, calls]).toEqual([3, 3, 11]);
    expect(repeats).toBe(14);
  });

  test("the sampling parameters of the cluster go with each call, and are the policy's", async () => {
    const seen: object[] = [];
    const rollout: Rollout = async (_, policy) => {
      seen.push(policy.params);
      await policy.complete("the", { max_tokens: 7 });
      return 1;
    };
    const service = await open({ rollout, settings: { rollout: { train: { max_tokens: 50, temperature: 0.5 } } } });
    const sampling_params = { temperature: 0.9, top_p: 0.8, top_k: 20, repetition_penalty: 1.1, logprobs: true };
    const first = firstRequest({ sampling_params, max_response_length: 40 });
    const reply = await post<RolloutReply>(`${service.url}/rollouts`, first);
    const stop_token_ids = chatTokenizer(CHATML).eosTokenIds;
    expect(reply).toMatchObject({
      action: "generate",
      calls: [{ call: 0, sampling_params: { ...sampling_params, max_tokens: 7, stop_token_ids } }],
    });
    expect(seen).toEqual([{ temperature: 0.9, top_p: 0.8, top_k: 20, max_tokens: 40, stop_token_ids }]);
  });

  test("tokens without log-probs train without them; an agent sees no numbers", async () => {
    const service = await open({ rollout: single });
    const rows = await rowsFrom({ url: service.url, draw, hasLogprobs: false });
    expect(rows).toMatchObject([{ response_logprobs: null, metrics: { read: 0 }, reward: 2 }]);
    expect(await rowsFrom({ url: service.url, draw })).toMatchObject([{ metrics: { read: 1 } }]);
  });

  test("a response beyond max_response_length is cut, and counted", async () => {
    const service = await open({ rollout: game, tasks: { train: GAMES, val: [] } });
    const worker = { url: service.url, draw: drawWith(chatTokenizer(CHATML), guesser) };
    const [whole] = await rowsFrom(worker);
    const [row] = await rowsFrom({ ...worker, first: { max_response_length: 9 } });
    expect(row!.response_ids).toEqual(whole!.response_ids.slice(0, 9));
    expect([row!.response_mask.length, row!.response_logprobs!.length]).toEqual([9, 9]);
    expect(service.stats().cut_tokens).toBe(whole!.response_ids.length - 9);
  });

  test("validation is marked, the step is the version of the weights", async () => {
    const seen: unknown[] = [];
    const rollout: Rollout = async (_, policy) => {
      const { weight_version } = await policy.complete("the");
      seen.push(policy.isValidation, policy.place, weight_version);
      return 1;
    };
    const places: object[] = [];
    const onEpisode: TestService["onEpisode"] = ({ task_index }, at) => void places.push({ task_index, ...at });
    const service = await open({ rollout, tasks: { train: [], val: [TASK, TASK] }, onEpisode });
    const first = { task: { split: "val", index: 1 }, rollout_index: 3, step: 12, validate: true };
    await rowsFrom({ url: service.url, draw, first });
    const place = { step: 12, task_index: 1, rollout_index: 3, trial: 0, weight_version: 12 };
    expect(seen).toEqual([true, place, 12]);
    expect(places).toEqual([{ task_index: 1, step: 12, isValidation: true }]);
    await rowsFrom({ url: service.url, draw, first: { ...first, step: -1 } });
    expect(seen.slice(3)).toEqual([true, { ...place, step: 0, weight_version: 0 }, 0]);
  });

  test("while an agent works elsewhere, the answer is to wait", async () => {
    let release = () => {};
    const rollout: Rollout = async (_, policy) => {
      await new Promise<void>((resolve) => {
        release = resolve;
      });
      return (await policy.complete("the")).response_ids.length;
    };
    const service = await open({ rollout, timeouts: { hold: 0.05 } });
    let waits = 0;
    const onReply = ({ action }: RolloutReply) => {
      if (action === "wait" && ++waits === 3) release();
    };
    expect(await rowsFrom({ url: service.url, draw, onReply })).toMatchObject([{ reward: 2 }]);
    expect(waits).toBeGreaterThanOrEqual(3);
  });

  test("parallel calls may be answered one by one", async () => {
    const rollout: Rollout = async (_, policy) => {
      const [a, b] = await Promise.all([policy.agent("a").complete("x"), policy.agent("b").complete("y")]);
      return a.response_ids[0]! + b.response_ids[0]!;
    };
    const service = await open({ rollout, timeouts: { hold: 0.02 } });
    const url = `${service.url}/rollouts`;
    const first = firstRequest();
    const { calls } = await post<{ calls: { call: number }[] }>(url, first);
    expect(calls.map(({ call }) => call)).toEqual([0, 1]);
    const result = (call: number) => [{ call, token_ids: [65 + call], log_probs: [-1], stop_reason: null }];
    expect(await post(url, { id: first.id, seq: 1, results: result(1) })).toEqual({ action: "wait" });
    const done = await post(url, { id: first.id, seq: 2, results: result(0) });
    expect(done).toMatchObject({ action: "done", trajectories: [{ name: "a", reward: 131 }, { name: "b" }] });
  });

  test("components go with each row where gdpo reads them; a missing one is an error", async () => {
    const settings = {
      algorithm: { adv_estimator: "gdpo", gdpo_reward_keys: ["a", "b"] },
      workflow: { retry_limit: 1 },
    };
    const open_ = (components: Record<string, number>) =>
      open({ rollout: async (_, policy) => ({ reward: (await policy.complete("x")).reward, components }), settings });
    const { url } = await open_({ a: 1, b: 2, c: 3 });
    expect((await rowsFrom({ url, draw })).map(({ components }) => components)).toEqual([{ a: 1, b: 2 }]);
    const other = await open_({ a: 1 });
    await expect(rowsFrom({ url: other.url, draw })).rejects.toThrow(/no finite component "b" \(it has a\)/);
  });

  test.each<[takes: string | undefined, rewards: number[], says: string | undefined]>([
    [undefined, [1, 2], undefined],
    ["one", [1], undefined],
    ["same_reward", [1, 1], undefined],
    ["one", [1, 1], "2 trajectories (rewards: a0 1, a1 1): the cluster's trainer takes one trajectory of a rollout."],
    ["same_reward", [1, 2], "2 trajectories (rewards: a0 1, a1 2): the cluster's trainer takes one reward for all"],
  ])("a trainer that takes %s gets rollouts with the rewards %j: %s", async (takes, rewards, says) => {
    const rollout: Rollout = async (_, policy) => {
      const players = rewards.map((_, i) => policy.agent(`a${i}`));
      for (const player of players) await player.complete("x");
      return { trajectories: players.map((player, i) => player.trajectory(rewards[i])) };
    };
    const service = await open({ rollout, settings: { workflow: { retry_limit: 1 } } });
    const result = rowsFrom({ url: service.url, draw, first: { takes } });
    if (says === undefined) expect((await result).map(({ reward }) => reward)).toEqual(rewards);
    else await expect(result).rejects.toThrow(says);
    // A rollout that the trainer would refuse counts as failed, so that a run of them is stopped.
    expect(service.stats().rollouts.failed).toBe(says === undefined ? 0 : 1);
  });

  test("calls of agents that are a moment apart come together", async () => {
    const rollout: Rollout = async (_, policy) => {
      const later = new Promise((resolve) => setTimeout(resolve, 1)).then(() => policy.agent("b").complete("y"));
      const replies = await Promise.all([policy.agent("a").complete("x"), later]);
      return replies.length;
    };
    const service = await open({ rollout });
    const sizes: number[] = [];
    const onReply = (reply: RolloutReply) => void (reply.action === "generate" && sizes.push(reply.calls.length));
    await rowsFrom({ url: service.url, draw, onReply });
    expect(sizes).toEqual([2]);
  });

  test("one request at a time: the next one before the answer is refused", async () => {
    let release = () => {};
    const rollout: Rollout = async (_, policy) => {
      await new Promise<void>((resolve) => {
        release = resolve;
      });
      return policy.complete("x").then(() => 1);
    };
    const service = await open({ rollout });
    const url = `${service.url}/rollouts`;
    const first = firstRequest();
    const pending = post(url, first);
    await expect.poll(() => service.stats().rollouts.open, { timeout: 10_000 }).toBe(1);
    const early = await ask(url, { body: { id: first.id, seq: 1 } });
    expect([early.status, await early.text()]).toEqual([
      409,
      expect.stringMatching(/the next one is 1, after the answer/),
    ]);
    release();
    expect(await pending).toMatchObject({ action: "generate" });
  });

  test("a result for a call that was not handed out yet is refused", async () => {
    let asked = () => {};
    const rollout: Rollout = async (_, policy) => {
      const first = policy.agent("a").complete("x");
      await new Promise<void>((resolve) => {
        asked = resolve;
      });
      await policy.agent("b").complete("y");
      return (await first).response_ids.length;
    };
    const service = await open({ rollout });
    const url = `${service.url}/rollouts`;
    const first = firstRequest();
    await post(url, first);
    asked();
    await new Promise((resolve) => setTimeout(resolve, 20));
    const result = (call: number) => ({ call, token_ids: [65], log_probs: [-1], stop_reason: null });
    const early = await ask(url, { body: { id: first.id, seq: 1, results: [result(0), result(1)] } });
    expect([early.status, await early.text()]).toEqual([422, expect.stringMatching(/no open call 1/)]);
    const next = await post(url, { id: first.id, seq: 1, results: [result(0)] });
    expect(next).toMatchObject({ action: "generate", calls: [{ call: 1 }] });
    expect(await post(url, { id: first.id, seq: 2, results: [result(1)] })).toMatchObject({ action: "done" });
  });

  test.each([
    ["an end token", [65, END], "completed", "stop"],
    ["the most tokens", [65, 66, 67], "completed", "length"],
    ["an end token as the last of the most", [65, 66, END], "completed", "stop"],
    ["fewer, stopped by the cluster's own rule", [65], "completed", "stop"],
    ["fewer, because the cluster had no room", [65], "length", "length"],
    ["no reason", [65, 66, 67], null, "length"],
  ])("why a reply ended: %s", async (_, token_ids, stop_reason, expected) => {
    let reason = "";
    const rollout: Rollout = async (_, policy) => {
      reason = (await policy.complete("x")).finish_reason;
      return 1;
    };
    const service = await open({ rollout, settings: { rollout: { train: { max_tokens: 3 } } } });
    const log_probs = token_ids.map(() => -1);
    await rowsFrom({ url: service.url, draw: () => ({ token_ids, log_probs, stop_reason: stop_reason! }) });
    expect(reason).toBe(expected);
  });

  test("a reply without a token is no row; without any, there is nothing to train on", async () => {
    const rollout: Rollout = async (_, policy) => {
      const [a] = await Promise.all([policy.agent("a").complete("x"), policy.agent("b").complete("y")]);
      return a.response_ids.length;
    };
    const service = await open({ rollout });
    const drawn = (token_ids: number[]) => ({
      token_ids,
      log_probs: token_ids.map(() => -1),
      stop_reason: "completed",
    });
    const y = chatTokenizer(CHATML).encode("y")[0];
    const some = { url: service.url, draw: ([first]: readonly number[]) => drawn(first === y ? [] : [65]) };
    expect(await rowsFrom(some)).toMatchObject([{ name: "a", response_ids: [65] }]);
    const none = await runWorker({ url: service.url, draw: () => drawn([]) });
    expect(none).toMatchObject({ action: "error", message: expect.stringMatching(/without a token to train on/) });
    expect(service.stats().rollouts).toMatchObject({ done: 1, empty: 1 });
  });

  test("an agent in another process plays through the run's gateway, unchanged", async () => {
    const gateway = new RunGateway({
      ...{ agents: ["x"], mode: "subprocess", host: "127.0.0.1", port: 0, adminToken: "admin-token-of-a-test" },
      ...{ tunnel: undefined, store: undefined, retention: undefined, keys: { name: "role", group: null } },
    });
    await gateway.open(() => {});
    const agent = createServer(async (request, response) => {
      let text = "";
      for await (const chunk of request) text += chunk;
      const run = JSON.parse(text);
      const headers = { authorization: `Bearer ${run.api_key}`, "content-type": "application/json" };
      const say = async (messages: object[]) => {
        const body = JSON.stringify({ model: run.model, messages });
        const answer = await fetch(`${run.base_url}/chat/completions`, { method: "POST", headers, body });
        return ((await answer.json()) as { choices: { message: object }[] }).choices[0]!.message;
      };
      const opening = [{ role: "user", content: "the" }];
      await say([...opening, await say(opening), { role: "user", content: "on" }]);
      response.end(JSON.stringify({ reward: 0.5 }));
    });
    await new Promise<void>((resolve) => agent.listen(0, "127.0.0.1", resolve));
    const rollout = remoteAgent({
      urls: [`http://127.0.0.1:${(agent.address() as AddressInfo).port}/run`],
      sessions: gateway,
      fetch: (url, init) => fetch(url as string, init),
      name: "remote",
      keys: { name: "role", group: null },
      agent: { agent_args: {}, max_steps: 4 },
      isJudgedLater: false,
    });
    try {
      const { rows, trained, local } = await both({ rollout, generator: (prompt) => `and ${prompt.length}<|im_end|>` });
      expect(trained).toEqual(local);
      expect(rows).toMatchObject([{ name: "remote", reward: 0.5, num_turns: 2 }]);
    } finally {
      agent.closeAllConnections();
      agent.close();
      await gateway.close();
    }
  });
});

describe("rollouts that end badly", () => {
  const draw = drawWith(chatTokenizer(CHATML), () => "and<|im_end|>");
  const one = { workflow: { retry_limit: 1 } };

  test.each<[string, Rollout, RegExp]>([
    [
      "an agent that throws",
      async (_, policy) => {
        await policy.complete("x");
        throw new RangeError("no such tool");
      },
      /^no such tool$/,
    ],
    [
      "a reward that is not finite",
      async (_, policy) => policy.complete("x").then(() => Number.NaN),
      /finite number \(NaN\)/,
    ],
    ["nothing that judges", async (_, policy) => void (await policy.complete("x")), /no evaluator judges it/],
    [
      "tokens that do not match",
      async (_, policy) => {
        const step = await policy.complete("x");
        return { trajectories: [{ steps: [{ ...step, logprobs: [] }], reward: 1 }] };
      },
      /each response token needs a log-prob: 2 tokens, 0/,
    ],
    ["a call without a prompt", async (_, policy) => policy.complete([]).then(() => 1), /has no prompt/],
  ])("%s", async (_, rollout, message) => {
    const service = await open({ rollout, settings: one });
    const failures: string[] = [];
    service.onFailure(({ kind, where, message: text }) => failures.push(`${kind} ${where} ${message.test(text)}`));
    const ended = await runWorker({ url: service.url, draw });
    expect(ended).toEqual({ action: "error", message: expect.stringMatching(message), termination_reason: "error" });
    expect(service.stats().rollouts).toMatchObject({ open: 0, started: 1, failed: 1, done: 0 });
    expect(failures).toEqual(["rollout t:0 true"]);
  });

  test("a failed try is repeated with new calls", async () => {
    let tries = 0;
    const rollout: Rollout = async (_, policy) => {
      await policy.complete("x");
      if (++tries < 3) throw new Error("flaky");
      return tries;
    };
    const service = await open({ rollout });
    expect(await rowsFrom({ url: service.url, draw })).toMatchObject([{ reward: 3, num_turns: 1 }]);
    expect(service.stats()).toMatchObject({ failed_tries: 2, calls: 3, rollouts: { done: 1, failed: 0 } });
  });

  test("a prompt that is too long ends without a token", async () => {
    const service = await open({ rollout: async (_, policy) => policy.complete("x".repeat(30)).then(() => 1) });
    const ended = await runWorker({ url: service.url, draw, first: { max_prompt_length: 20 } });
    expect(ended).toMatchObject({ action: "error", termination_reason: "max_prompt_length_exceeded" });
    expect(service.stats().rollouts).toMatchObject({ empty: 1, failed: 0 });
  });

  test("an attempt beyond its time limit keeps the calls before, and tells its client when it asks", async () => {
    const rollout: Rollout = async (_, policy) => {
      await policy.complete("x");
      policy.annotate({ reward: 0.5 });
      await policy.complete("y");
      return 1;
    };
    const service = await open({ rollout, settings: { workflow: { workflow_args: { timeout: 2 } } } });
    const url = `${service.url}/rollouts`;
    const first = firstRequest();
    await post(url, first);
    const result = (call: number) => [{ call, token_ids: [65], log_probs: [-1], stop_reason: null }];
    await post(url, { id: first.id, seq: 1, results: result(0) });
    await expect.poll(() => service.stats().rollouts.done, { timeout: 10_000 }).toBe(1);
    const done = await post(url, { id: first.id, seq: 2, results: result(1) });
    expect(done).toMatchObject({ action: "done", trajectories: [{ reward: 0.5, response_ids: [65], num_turns: 1 }] });
    expect(service.stats().rollouts.open).toBe(0);
  });

  test("a generation that the cluster aborts fails the try", async () => {
    const service = await open({ rollout: async (_, policy) => policy.complete("x").then(() => 1), settings: one });
    const ended = await runWorker({
      url: service.url,
      draw: (ids, most) => ({ ...draw(ids, most), stop_reason: "aborted" }),
    });
    expect(ended).toMatchObject({
      action: "error",
      message: expect.stringMatching(/aborted the model call 0 after 2 tokens/),
    });
  });

  test("DELETE gives a rollout up: its agent is aborted, and is not tried again", async () => {
    const aborted: unknown[] = [];
    let tries = 0;
    const rollout: Rollout = async (_, policy) => {
      tries++;
      policy.signal.addEventListener("abort", () => aborted.push(policy.signal.reason.message));
      await policy.complete("x").catch((error: Error) => aborted.push(`call: ${error.message}`));
      return 1;
    };
    const service = await open({ rollout });
    const first = firstRequest();
    await post(`${service.url}/rollouts`, first);
    const remove = async () => (await ask(`${service.url}/rollouts/${first.id}`, { method: "DELETE" })).json();
    expect(await remove()).toEqual({ given_up: true });
    expect(await remove()).toEqual({ given_up: false });
    const why = "The rollout was given up: its client ended it.";
    expect(aborted).toEqual([why, `call: ${why}`]);
    expect(tries).toBe(1);
    expect(service.stats().rollouts).toMatchObject({ open: 0, given_up: 1, failed: 0 });
    const late = await ask(`${service.url}/rollouts`, { body: { id: first.id, seq: 1, results: [] } });
    expect([late.status, await late.text()]).toEqual([410, expect.stringMatching(/does not know it/)]);
  });

  test("calls that an agent awaits one after the other leave no unhandled error behind", async () => {
    const rollout: Rollout = async (_, policy) => {
      const [a, b] = [policy.complete("x"), policy.agent("b").chat([{ role: "user", content: "y" }])];
      return (await a).response_ids.length + (await b).response_ids.length;
    };
    const unhandled: unknown[] = [];
    const listener = (reason: unknown) => void unhandled.push(reason);
    process.on("unhandledRejection", listener);
    const service = await open({ rollout });
    const first = firstRequest();
    expect(await post(`${service.url}/rollouts`, first)).toMatchObject({ calls: [{ call: 0 }, { call: 1 }] });
    await ask(`${service.url}/rollouts/${first.id}`, { method: "DELETE" });
    await new Promise((resolve) => setTimeout(resolve, 50));
    process.off("unhandledRejection", listener);
    expect(unhandled).toEqual([]);
  });

  test("metrics that JSON does not have", async () => {
    const metrics = { none: Number.NaN, endless: Number.POSITIVE_INFINITY };
    const service = await open({ rollout: (_, policy) => policy.complete("x").then(() => ({ reward: 1, metrics })) });
    const [row] = await rowsFrom({ url: service.url, draw });
    expect(row!.metrics).toEqual({ none: null, endless: null });
  });

  test("a rollout whose client has gone is given up after a time without requests", async () => {
    const rollout: Rollout = async (_, policy) => policy.complete("x").then(() => 1);
    const service = await open({ rollout, timeouts: { silence: 0.1, search: 0.02 } });
    await post(`${service.url}/rollouts`, firstRequest());
    await expect.poll(() => service.stats().rollouts.silent, { timeout: 10_000 }).toBe(1);
    expect(service.stats()).toMatchObject({ rollouts: { open: 0 }, failures: [{ count: 1 }] });
    expect(service.stats().failures[0]!.first.message).toMatch(/no request came for 0\.1 s/);
  });

  test("a client that waits for an answer is not gone", async () => {
    let release = () => {};
    const rollout: Rollout = async (_, policy) => {
      await new Promise<void>((resolve) => {
        release = resolve;
      });
      return policy.complete("x").then(() => 1);
    };
    const service = await open({ rollout, timeouts: { silence: 0.1, search: 0.02 } });
    const reply = post<RolloutReply>(`${service.url}/rollouts`, firstRequest());
    await new Promise((resolve) => setTimeout(resolve, 300));
    release();
    expect(await reply).toMatchObject({ action: "generate" });
  });
});
