/** Rewards of replies that a cluster sampled: those of a local run on the same completions. */
import { readFileSync } from "node:fs";
import { afterEach, describe, expect, test } from "vitest";
import type { RewardResult } from "../../../src/cluster/rewards/protocol.ts";
import type { Service } from "../../../src/cluster/rewards/service.ts";
import { byteTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { tasksFromJsonl } from "../../../src/train/data/rows.ts";
import type { Episode, Task } from "../../../src/train/data/types.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";
import { generate } from "../../../src/train/loop/stages/generate.ts";
import { exactMatch } from "../../../src/train/task/rewards.ts";
import { type Evaluate, type Reward, type Rollout, singleTurn } from "../../../src/train/task/rollout.ts";
import { CHATML, chatTokenizer, THINKING } from "../../fixtures/chat.ts";
import { ask, drawBackend, drawWith, post, type TestService, testService } from "../../fixtures/cluster.ts";

const FILE = "examples/arithmetic/arithmetic_train.jsonl";
const TASKS = tasksFromJsonl(readFileSync(FILE, "utf8"), { file: FILE }).slice(0, 125);

const services: Service[] = [];
afterEach(async () => {
  for (const service of services.splice(0)) await service.close();
});

async function open(options: TestService): Promise<Service> {
  const service = await testService({ isSingleTurn: true, tokenizer: byteTokenizer(), ...options });
  services.push(service);
  return service;
}

let ids = 0;

/** An item as verl's workers send it. */
function item(index: number, solution: string, split = "train") {
  return {
    data_source: "arithmetic",
    solution,
    ground_truth: "",
    extra_info: { split, grpu_task: index, num_turns: 2 },
  };
}

async function judge(service: Service, items: readonly unknown[], id = `call-${ids++}`): Promise<RewardResult[]> {
  return (await post<{ results: RewardResult[] }>(`${service.url}/rewards`, { id, items })).results;
}

/** Right for one reply in three; throws, hangs beyond its time, and is no number for others: by the reply's first digit. */
const unsteady: Reward = async (response, task) => {
  const first = response.charCodeAt(0) % 10;
  if (first === 7) throw new RangeError(`the reply ${response} cannot be read`);
  if (first === 8) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    throw new Error(`Cannot judge the task ${task.id}: the reward did not return within task.judge_timeout=0.005 s`);
  }
  const reward = response.length % 3 === 0 ? 1 : exactMatch(response, task) + response.length / 8;
  return { reward, is_correct: reward > 0.6, metrics: { length: response.length }, signals: { first } };
};

/** The episodes of a local run, eight for each task. */
async function localRun(rollout: Rollout, { evaluate }: { evaluate?: Evaluate } = {}): Promise<Episode[]> {
  const tokenizer = byteTokenizer();
  let draws = 0;
  const draw = drawWith(tokenizer, () => `${(draws++ * 7919) % 2003}`);
  const settings = loopSettings({
    rollout: { n: 8 },
    workflow: { raise_on_error: false, retry_limit: 1 },
    data: { max_prompt_length: 100 },
  });
  const { value } = await generate(TASKS, {
    ...{ settings, rollout, evaluate, step: 1, totalSteps: 1, epoch: 0, isValidation: false, loggers: [] },
    backend: drawBackend(tokenizer, draw),
    signal: new AbortController().signal,
    estimate: () => ({ level: "row" as const, values: new Float32Array() }),
  });
  return value;
}

/** What the service answers for an episode of the local run. */
function expected(episode: Episode): RewardResult {
  const { trajectories, is_correct, metrics, metadata } = episode;
  if (trajectories.length === 0)
    return { error: expect.stringContaining(String(metadata.error).replace(/^\w+: /, "")) };
  return { score: trajectories[0]!.reward!, is_correct, metrics };
}

/** The completions of a local run, which a cluster would have sampled. */
async function judgedAgain(
  episodes: readonly Episode[],
  { service, replies }: { service: Service; replies: string[] },
) {
  const items = episodes.map(({ task_index }, i) => item(task_index, replies[i]!));
  const results: RewardResult[] = [];
  for (let from = 0; from < items.length; from += 100)
    results.push(...(await judge(service, items.slice(from, from + 100))));
  return results;
}

describe("1,000 rollouts of the arithmetic task have the numbers of a local run", () => {
  test("judged by a reward that throws and takes too long at times", async () => {
    const replies: string[] = [];
    let calls = 0;
    const noted: Reward = (response, task) => {
      replies[calls++] = response;
      return unsteady(response, task);
    };
    const episodes = await localRun(singleTurn("arithmetic", noted));
    expect(calls).toBe(1000);
    const service = await open({
      tasks: { train: TASKS, val: [] },
      rollout: singleTurn("arithmetic", unsteady),
      settings: { workflow: { retry_limit: 1, raise_on_error: false } },
    });
    const results = await judgedAgain(episodes, { service, replies });
    expect(results).toEqual(episodes.map(expected));
    const failed = episodes.filter(({ trajectories }) => trajectories.length === 0).length;
    expect(failed).toBeGreaterThan(50);
    expect(new Set(results.map((each) => ("score" in each ? each.score : "error"))).size).toBeGreaterThan(3);
    const stats = service.stats();
    expect(stats.judgements).toEqual({ total: 1000, failed, waiting: 0 });
    expect(stats.failures.map(({ first }) => first.message.slice(0, 9)).sort()).toEqual(["Cannot ju", "the reply"]);
    expect(stats.failures.reduce((sum, { count }) => sum + count, 0)).toBe(failed);
  });

  test("judged by an evaluator, which reads the texts and tokens of the episode", async () => {
    const rollout: Rollout = async (task, policy) => void (await policy.agent("arithmetic").complete(task.instruction));
    const replies: string[] = [];
    const evaluate: Evaluate = ({ instruction }, { trajectories: [first] }) => {
      const [step] = first!.steps;
      replies.push(step!.model_response);
      const { prompt_ids, response_ids } = step!;
      return { reward: (instruction.length * prompt_ids.length) / response_ids.length, signals: { s: 1 } };
    };
    const episodes = await localRun(rollout, { evaluate });
    const given = [...replies];
    const service = await open({ tasks: { train: TASKS, val: [] }, rollout, evaluate });
    const results = await judgedAgain(episodes, { service, replies: given });
    expect(results).toEqual(episodes.map(expected));
    expect(new Set(results.map((each) => JSON.stringify(each))).size).toBeGreaterThan(3);
  });
});

describe("a reply to a conversation is read as a sampled one", () => {
  const task: Task = { id: "c", instruction: "?", messages: [{ role: "user", content: "?" }], metadata: {} };
  const length: Reward = (response) => response.length;
  test.each([
    [CHATML, "<think>so</think>12", 2],
    [THINKING, "no thoughts", 11],
    [`${THINKING}<think>\n`, "thoughts to the end", 0],
  ])("%#", async (template, solution, score) => {
    const tokenizer = chatTokenizer(template);
    const service = await open({ tasks: { train: [task], val: [] }, rollout: singleTurn("c", length), tokenizer });
    expect(await judge(service, [item(0, solution)])).toEqual([{ score, is_correct: score > 0, metrics: {} }]);
    const backend = drawBackend(
      tokenizer,
      drawWith(tokenizer, () => solution),
    );
    const { value } = await generate([task], {
      ...{ rollout: singleTurn("c", length), step: 1, totalSteps: 1, epoch: 0, isValidation: false, loggers: [] },
      settings: loopSettings({ rollout: { n: 1 } }),
      backend,
      signal: new AbortController().signal,
      estimate: () => ({ level: "row" as const, values: new Float32Array() }),
    });
    expect(value[0]!.trajectories[0]!.reward).toBe(score);
  });

  test("without a chat template it is an error", async () => {
    const service = await open({ tasks: { train: [task], val: [] }, rollout: singleTurn("c", length) });
    expect(await judge(service, [item(0, "x")])).toEqual([{ error: expect.stringMatching(/chat template/) }]);
  });
});

describe("components of a reward", () => {
  const GDPO = { algorithm: { adv_estimator: "gdpo", gdpo_reward_keys: ["form", "length"] } };
  const reward: Reward = (response) => ({
    reward: 1,
    components: { length: response.length, ...(response !== "bare" && { form: 0.5 }), other: 3 },
  });
  const rollout = singleTurn("sums", reward);

  test("travel where gdpo reads them, those that it names alone; a missing one is an error", async () => {
    const service = await open({ tasks: { train: TASKS, val: [] }, rollout, settings: GDPO });
    const [good, bare] = await judge(service, [item(0, "three"), item(0, "bare")]);
    expect(good).toEqual({ score: 1, is_correct: true, metrics: {}, components: { form: 0.5, length: 5 } });
    expect(bare).toEqual({
      error: expect.stringMatching(/its reward has no finite component "form" \(it has length, other\)/),
    });
  });

  test("do not travel for other estimators", async () => {
    const service = await open({ tasks: { train: TASKS, val: [] }, rollout });
    expect(await judge(service, [item(0, "bare")])).toEqual([{ score: 1, is_correct: true, metrics: {} }]);
  });
});

describe("what cannot be judged is an error and counted, never a 0", () => {
  const cases: [name: string, rollout: Rollout, given: object, message: RegExp][] = [
    [
      "a reward that is not finite",
      singleTurn("r", () => Number.NaN),
      {},
      /its reward must be a finite number \(NaN\)/,
    ],
    ["an infinite one", singleTurn("r", () => Number.POSITIVE_INFINITY), {}, /finite number \(Infinity\)/],
    ["one too large for float32", singleTurn("r", () => 1e39), {}, /finite number \(1e\+39\)/],
    ["a text", singleTurn("r", () => "1" as unknown as number), {}, /with a number named reward \("1"\)/],
    ["nothing", async (_, policy) => void (await policy.complete("x")), {}, /returned nothing and no evaluator/],
    ["no call", () => undefined, {}, /returned nothing and no evaluator/],
    ["a judgement without a call", () => 1, {}, /ended with env_done before its reward was known/],
    [
      "a second call",
      async (_, policy) => {
        await policy.complete("x");
        await policy.complete("y");
        return 1;
      },
      {},
      /the rollout calls the model again/,
    ],
    [
      "a call of the API",
      async (_, policy) => void (await policy.client.chat.completions.create({ messages: [], model: "x" })),
      {},
      /./,
    ],
    [
      "an attempt's time limit",
      singleTurn("r", () => new Promise<number>(() => {})),
      { workflow_args: { timeout: 0.02 } },
      /ended with timeout before its reward was known.*workflow_args\.timeout/,
    ],
  ];
  test.each(cases)("%s", async (_, rollout, workflow, message) => {
    const service = await open({ rollout, settings: { workflow: { retry_limit: 1, ...workflow } } });
    const failures: string[] = [];
    service.onFailure(({ kind, where }) => failures.push(`${kind} ${where}`));
    expect(await judge(service, [item(0, "and")])).toEqual([{ error: expect.stringMatching(message) }]);
    expect(service.stats().judgements).toEqual({ total: 1, failed: 1, waiting: 0 });
    expect(failures).toEqual(["judgement t"]);
  });

  test("an item without a task of ours fails alone", async () => {
    const service = await open({ rollout: singleTurn("r", () => 2) });
    const strangers = [item(5, "x"), item(0, "x", "test"), item(0, "x", "val"), { ...item(0, "x"), extra_info: {} }];
    const results = await judge(service, [...strangers, item(0, "x")]);
    expect(results).toEqual([
      { error: expect.stringMatching(/Cannot find the task 5 of train: the run has 1/) },
      { error: expect.stringMatching(/extra_info must name it .*\{"split":"test","grpu_task":0\}/) },
      { error: expect.stringMatching(/Cannot find the task 0 of val: the run has 0/) },
      { error: expect.stringMatching(/extra_info must name it/) },
      { score: 2, is_correct: true, metrics: {} },
    ]);
  });
});

test("a judgement that fails is tried again, up to workflow.retry_limit times; the tries are counted", async () => {
  let calls = 0;
  const flaky: Reward = () => {
    if (++calls % 3 !== 0) throw new Error(`unreachable ${calls}`);
    return 1;
  };
  const warnings: string[] = [];
  const service = await open({ rollout: singleTurn("r", flaky), warn: (line) => warnings.push(line) });
  expect(await judge(service, [item(0, "x")])).toMatchObject([{ score: 1 }]);
  expect(service.stats()).toMatchObject({ failed_tries: 2, judgements: { total: 1, failed: 0 }, failures: [] });
  expect(warnings).toHaveLength(1);
  expect(warnings[0]).toMatch(/The rollout t:0 \(try 1 of 3\) failed: Error: unreachable 1\n +at /);
});

describe("a request that is sent again", () => {
  test("shares the judgement that is pending, and the stored one", async () => {
    let [calls, release] = [0, () => {}];
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const slow: Reward = async () => {
      calls++;
      await held;
      return calls;
    };
    const service = await open({ rollout: singleTurn("r", slow) });
    const asked = [judge(service, [item(0, "x")], "same"), judge(service, [item(0, "x")], "same")];
    while (calls === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    release();
    const [first, second] = await Promise.all(asked);
    const third = await judge(service, [item(0, "x")], "same");
    expect([first, second, third]).toEqual([first, first, first]);
    expect(calls).toBe(1);
    expect(service.stats()).toMatchObject({ repeats: 2, judgements: { total: 1 } });
    const other = await ask(`${service.url}/rewards`, { body: { id: "same", items: [item(0, "y")] } });
    expect([other.status, await other.text()]).toEqual([409, expect.stringMatching(/another request was sent under/)]);
  });

  test("is judged again when its answer was dropped: for its age, for the size of all", async () => {
    let calls = 0;
    const counted = singleTurn("r", () => ++calls);
    const small = await open({ rollout: counted, limits: { answerBytes: 500 } });
    for (const id of ["a", "b", "b", "a"]) await judge(small, [item(0, "x")], id);
    expect(calls).toBe(3);
    expect(small.stats().answer_bytes).toBeLessThan(500);
    const brief = await open({ rollout: counted, timeouts: { answers: 0.1 } });
    await judge(brief, [item(0, "x")], "a");
    await expect.poll(() => brief.stats().answer_bytes, { timeout: 10_000 }).toBe(0);
    await judge(brief, [item(0, "x")], "a");
    expect(calls).toBe(5);
  });
});

test("episodes that were judged are passed on, those that failed are not", async () => {
  const seen: unknown[] = [];
  const rollout = singleTurn("r", (response) => Number(response));
  const service = await open({
    rollout,
    tasks: { train: [], val: TASKS },
    onEpisode: ({ id, trajectories: [first] }, { step, isValidation }) =>
      void seen.push([id, first!.steps[0]!.model_response, first!.reward, step, isValidation]),
  });
  await judge(service, [item(3, "0.5", "val"), item(4, "x", "val")]);
  expect(seen).toEqual([[`${TASKS[3]!.id}:0`, "0.5", 0.5, 0, true]]);
});

test("no more judgements run at once than workflow.n_parallel_tasks", async () => {
  let [running, most] = [0, 0];
  const slow: Reward = async () => {
    most = Math.max(most, ++running);
    await new Promise((resolve) => setTimeout(resolve, 2));
    running--;
    return 1;
  };
  const service = await open({ rollout: singleTurn("r", slow), settings: { workflow: { n_parallel_tasks: 3 } } });
  const items = Array.from({ length: 10 }, () => item(0, "x"));
  await Promise.all([judge(service, items), judge(service, items)]);
  expect(most).toBe(3);
});

test("a run of agents refuses replies by themselves", async () => {
  const service = await open({ rollout: () => 1, isSingleTurn: false });
  const response = await ask(`${service.url}/rewards`, { body: { id: "a", items: [item(0, "x")] } });
  expect([response.status, await response.text()]).toEqual([422, expect.stringMatching(/POST \/rollouts/)]);
});
