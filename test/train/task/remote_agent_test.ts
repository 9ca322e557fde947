/** Attempts by agents in other processes: the protocol, rewards, roles, ends and faults. */
import { describe, expect, onTestFinished, test, vi } from "vitest";
import type { Task } from "../../../src/train/data/types.ts";
import { type AttemptContext, runAttempt } from "../../../src/train/loop/rollout/attempt.ts";
import { DrawQueue } from "../../../src/train/loop/rollout/draw_queue.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../../src/train/loop/settings.ts";
import { type RemoteAgentOptions, remoteAgent } from "../../../src/train/task/remote/rollout.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";
import { type AgentCall, agentServer, type TestSession, TestSessions } from "../../fixtures/remote.ts";
import { type Script, scriptedBackend } from "../../fixtures/scripted.ts";

const TASK: Task = { id: "sum 1/2", instruction: "the", metadata: { answer: "and" } };
const URLS = ["http://agent.test/run"];
const AGENT = { agent_args: { style: "short" }, max_steps: 4 };
const KEYS = { name: "role", group: "part" };

interface Setup extends Partial<Pick<RemoteAgentOptions, "urls" | "reward" | "isJudgedLater" | "keys" | "times">> {
  readonly task?: Task;
  readonly agent: (call: AgentCall) => Promise<Response> | Response;
  readonly evaluate?: AttemptContext["evaluate"];
  readonly settings?: Partly<LoopSettings>;
  readonly script?: Script;
  readonly signal?: AbortSignal;
  /** Answers the questions whether the agent is still there. */
  readonly look?: (url: string, signal: AbortSignal, session: TestSession) => Response | Promise<Response>;
}

const unending = () => new AbortController().signal;

function start({ agent, look, task = TASK, evaluate, settings, script, signal = unending(), ...options }: Setup) {
  const sessions = new TestSessions();
  const server = agentServer(sessions, agent);
  const { calls } = server;
  const fetch: typeof server.fetch = async (url, init) =>
    look && init?.method === "GET" ? look(String(url), init.signal!, sessions.only) : server.fetch(url, init);
  const backend = scriptedBackend(chatTokenizer(CHATML), script ?? (() => "and<|im_end|>"));
  const own = {
    urls: URLS,
    sessions,
    fetch,
    name: "sums",
    keys: KEYS,
    agent: AGENT,
    isJudgedLater: evaluate !== undefined,
  };
  const rollout = remoteAgent({ ...own, ...options });
  const context: AttemptContext = {
    rollout,
    ...(evaluate && { evaluate }),
    step: 3,
    isValidation: false,
    signal,
    backend,
    settings: loopSettings({ workflow: { raise_on_error: false, retry_limit: 1 }, ...settings }),
  };
  const run = () =>
    runAttempt({ task, task_index: 0, rollout_index: 2 }, { draws: new DrawQueue(backend, signal), rank: 0, context });
  return { run, sessions, calls, backend };
}

const reporting = (report: unknown, calls = 1) => {
  return async ({ ask }: AgentCall) => {
    for (let i = 0; i < calls; i++) await ask("the");
    return Response.json(report);
  };
};

/** In an outcome: the one call of a session that nobody judged. */
const SUMS_WITHOUT_REWARD = {
  name: "sums",
  label: "sums",
  reward: 0,
  calls: [{ trace_id: expect.any(String), reward: 0 }],
};

describe("one attempt", () => {
  test("the agent gets the task and a session; its calls are the steps, its reward that of the trajectory", async () => {
    const asked: AgentCall[] = [];
    const { run, sessions, calls } = start({
      async agent(call) {
        asked.push(call);
        expect(await call.ask("the")).toBe("and");
        return Response.json({ reward: 0.5, metrics: { turns: 1 }, signals: { s: 2 }, metadata: { note: "x" } });
      },
    });
    const episode = await run();
    expect(calls).toEqual([{ method: "POST", url: URLS[0] }]);
    expect(asked[0]!.headers.get("content-type")).toBe("application/json");
    const { session_id, ...request } = asked[0]!.request;
    expect(session_id).toMatch(/^sum_1_2:2:0-[0-9a-f]{8}-0$/);
    expect(request).toEqual({
      task: TASK,
      base_url: `http://gateway.test/sessions/${session_id}/v1`,
      api_key: `key-of-${session_id}`,
      callback_url: `http://gateway.test/sessions/${session_id}/reward`,
      model: "scripted-model",
      is_validation: false,
      rollout_index: 2,
      weight_version: 5,
      ...AGENT,
    });
    expect(episode).toMatchObject({
      is_correct: true,
      termination_reason: "env_done",
      metrics: { turns: 1 },
      metadata: { note: "x" },
      trajectories: [{ name: "sums", reward: 0.5, signals: { s: 2 }, steps: [{ model_response: "and" }] }],
    });
    expect(sessions.only.metadata).toMatchObject({ task_id: "sum 1/2", step: 3, rollout_index: 2, trial: 0 });
    const [step] = episode.trajectories[0]!.steps;
    expect(sessions.only.ends).toEqual([
      {
        ...{ reward: 0.5, is_correct: true, termination_reason: "env_done" },
        ...{ metrics: { turns: 1 }, signals: { s: 2 } },
        trajectories: [
          { name: "sums", label: "sums", reward: 0.5, signals: { s: 2 }, calls: [{ trace_id: step!.id, reward: 0 }] },
        ],
      },
    ]);
  });

  test("the tokens and seeds are those of an agent in the process", async () => {
    const remote = start({ agent: reporting(1, 3) });
    await remote.run();
    const backend = scriptedBackend(chatTokenizer(CHATML), () => "and<|im_end|>");
    const signal = new AbortController().signal;
    const inProcess: AttemptContext = {
      rollout: async (_, policy) => {
        const agent = policy.agent("sums");
        for (let i = 0; i < 3; i++) await agent.chat([{ role: "user", content: "the" }]);
        return 1;
      },
      step: 3,
      isValidation: false,
      signal,
      backend,
      settings: loopSettings({}),
    };
    const attempt = { task: TASK, task_index: 0, rollout_index: 2 };
    await runAttempt(attempt, { draws: new DrawQueue(backend, signal), rank: 0, context: inProcess });
    const known = (requests: readonly { seed?: number; prompt_ids: readonly number[] }[]) =>
      requests.map(({ seed, prompt_ids }) => ({ seed, prompt_ids }));
    expect(known(remote.backend.requests)).toEqual(known(backend.requests));
    expect(remote.backend.requests).toHaveLength(3);
  });

  test("a session's id is short and of plain characters, whatever the task's", async () => {
    const { run, sessions } = start({ agent: reporting(1), task: { ...TASK, id: `a //b${"c".repeat(99)}` } });
    await run();
    expect([...sessions.open.keys()][0]).toMatch(new RegExp(`^a_b${"c".repeat(61)}:2:0-[0-9a-f]{8}-0$`));
  });

  test.each([
    [KEYS, { role: "sums" }],
    [{ name: null, group: null }, { trajectory_name: "sums" }],
  ])("with the keys %j, the session's metadata names the trajectory of plain calls", async (keys, named) => {
    const { run, sessions } = start({ agent: reporting(1), keys });
    await run();
    expect(sessions.only.metadata).toMatchObject(named);
  });

  test("addresses take turns", async () => {
    const urls = ["http://a.test/run", "http://b.test/run"];
    const { run, calls } = start({ urls, agent: reporting(1) });
    for (let i = 0; i < 3; i++) await run();
    expect(calls.map(({ url }) => url)).toEqual([urls[0], urls[1], urls[0]]);
  });
});

describe("rewards", () => {
  test.each([
    ["a number alone", 0.25, 0.25, true],
    ["zero is a reward, and not correct", { reward: 0 }, 0, false],
    ["the agent decides what is correct", { reward: 0, is_correct: true }, 0, true],
  ])("%s", async (_, report, reward, is_correct) => {
    const { run } = start({ agent: reporting(report), reward: () => 7 });
    expect(await run()).toMatchObject({ is_correct, trajectories: [{ reward }] });
  });

  test.each([
    ["an empty answer", () => new Response(null, { status: 204 })],
    ["null", () => Response.json(null)],
    ["a report without a reward", () => Response.json({ metrics: { turns: 2 }, reward: null })],
  ])("%s is judged by the reward function, which gets the last reply", async (_, answer) => {
    const { run, sessions } = start({
      agent: async ({ ask }) => {
        await ask("the");
        return answer();
      },
      reward: (response, task) => ({ reward: Number(response === task.metadata.answer), metrics: { judged: 1 } }),
    });
    expect(await run()).toMatchObject({ is_correct: true, metrics: { judged: 1 }, trajectories: [{ reward: 1 }] });
    expect(sessions.only.ends[0]).toMatchObject({ reward: 1 });
  });

  test("the judge rewards the trajectories that the agent leaves without one; the agent's signals win", async () => {
    const { run } = start({
      async agent({ ask }) {
        await ask("the", { role: "judge" });
        await ask("the");
        return Response.json({ trajectory_rewards: { judge: 1 }, signals: { length: 1 } });
      },
      reward: () => ({ reward: 0.5, signals: { length: 2, form: 3 } }),
    });
    const { trajectories } = await run();
    expect(trajectories.map(({ name, reward, signals }) => [name, reward, signals])).toEqual([
      ["judge", 1, { length: 1, form: 3 }],
      ["sums", 0.5, { length: 1, form: 3 }],
    ]);
  });

  test("components that the agent or the judge gives are kept with the signals; the agent's count before the judge's", async () => {
    const judge = () => ({ reward: 0.5, signals: { form: 3 }, components: { right: 0, form: 1 } });
    const { run } = start({ agent: reporting({ components: { right: 1 } }), reward: judge });
    expect((await run()).trajectories).toMatchObject([{ reward: 0.5, signals: { right: 1, form: 1 } }]);
    const own = start({ agent: reporting({ reward: 1, signals: { a: 1 }, components: { b: 2 } }) });
    expect((await own.run()).trajectories).toMatchObject([{ reward: 1, signals: { a: 1, b: 2 } }]);
  });

  test.each([
    [
      "rewards of all trajectories need no judge; their sum says what is correct",
      { trajectory_rewards: { sums: 1 } },
      1,
    ],
    ["the whole reward says what is correct before theirs", { reward: 0.5, trajectory_rewards: { sums: -1 } }, -1],
  ])("%s", async (_, report, reward) => {
    const { run } = start({ agent: reporting(report) });
    expect(await run()).toMatchObject({ is_correct: true, trajectories: [{ reward }] });
  });

  test("the agent says how the episode ended", async () => {
    const { run, sessions } = start({ agent: reporting({ reward: 0, termination_reason: "max_turns_exceeded" }) });
    expect(await run()).toMatchObject({ termination_reason: "max_turns_exceeded" });
    expect(sessions.only.ends).toMatchObject([{ termination_reason: "max_turns_exceeded" }]);
  });

  test("an evaluator judges what has no reward", async () => {
    const { run, sessions } = start({
      agent: reporting({}),
      evaluate: (_, episode) => episode.trajectories[0]!.steps.length / 4,
    });
    expect(await run()).toMatchObject({ trajectories: [{ reward: 0.25 }] });
    expect(sessions.only.ends).toMatchObject([{ reward: 0.25, is_correct: true }]);
  });

  test("a session that nobody judges is an error that names it", async () => {
    const { run, sessions } = start({ agent: reporting({}) });
    const { metadata } = await run();
    expect(metadata.error).toMatch(/Cannot judge the session sum_1_2:2:0-\S+: the agent http:\/\/agent.test\/run/);
    expect(sessions.only.ends).toEqual([{ reward: null, termination_reason: "error" }]);
  });
});

describe("trajectories", () => {
  const solvers = async ({ ask }: AgentCall) => {
    await ask("the", { role: "solver", part: 0 });
    await ask("the", { role: "solver", part: 1 });
    await ask("the", { role: "judge" });
    await ask("cat", { role: "solver", part: 0 });
  };

  test("metadata names them; rewards go by name, or by name and group", async () => {
    const { run, sessions } = start({
      async agent(call) {
        await solvers(call);
        return Response.json({ reward: 9, trajectory_rewards: { "solver/0": 1, solver: 0.5, judge: 0.25 } });
      },
    });
    const { trajectories } = await run();
    expect(trajectories.map(({ name, reward, steps }) => [name, reward, steps.length])).toEqual([
      ["solver", 1, 2],
      ["solver", 0.5, 1],
      ["judge", 0.25, 1],
    ]);
    expect(sessions.only.ends).toMatchObject([
      { reward: null, trajectory_rewards: { "solver/0": 1, "solver/1": 0.5, judge: 0.25 } },
    ]);
  });

  test("the session's outcome names them as their calls do", async () => {
    const { run, sessions } = start({
      async agent({ ask }) {
        for (const part of ["right", "left", "right"]) await ask("the", { role: "solver", part });
        return Response.json({ trajectory_rewards: { "solver/left": 1, "solver/right": 0.5 } });
      },
    });
    await run();
    expect(sessions.only.ends[0]!.trajectory_rewards).toEqual({ "solver/right": 0.5, "solver/left": 1 });
  });

  test("calls that name none are those of the task's name, and take the whole reward", async () => {
    const { run } = start({
      async agent(call) {
        await call.ask("the", { trajectory_name: "judge" });
        await call.ask("the");
        return Response.json({ reward: 0.5, trajectory_rewards: { judge: 1 } });
      },
    });
    const { trajectories } = await run();
    expect(trajectories.map(({ name, reward }) => [name, reward])).toEqual([
      ["judge", 1],
      ["sums", 0.5],
    ]);
  });

  test("a reward of a trajectory without calls is an error", async () => {
    const { run } = start({
      async agent(call) {
        await solvers(call);
        return Response.json({ reward: 1, trajectory_rewards: { jugde: 1 } });
      },
    });
    expect((await run()).metadata.error).toMatch(
      /reward of the trajectory jugde from the agent http:\/\/agent.test\/run for the session sum_1_2:2:0-.*There are solver\/0, solver, solver\/1, judge\./,
    );
  });

  test("a trajectory may have the name of an object's method", async () => {
    const { run } = start({
      async agent({ ask }) {
        await ask("the", { role: "constructor" });
        return Response.json({ reward: 0.5, trajectory_rewards: {} });
      },
    });
    expect((await run()).trajectories).toMatchObject([{ name: "constructor", reward: 0.5 }]);
  });

  test("a name that looks like another one's group is refused, because a reward could be that of either", async () => {
    const statuses: string[] = [];
    const { run } = start({
      async agent({ ask }) {
        await ask("the", { role: "solver", part: 0 });
        statuses.push(await ask("the", { role: "solver/0" }));
        statuses.push(await ask("the", { role: "solver", part: "0" }));
        return Response.json({ trajectory_rewards: { "solver/0": 1 } });
      },
    });
    expect((await run()).trajectories).toMatchObject([{ name: "solver", reward: 1, steps: [{}, {}] }]);
    expect(statuses).toEqual(["400", "and"]);
  });

  test("a name that is no text is refused", async () => {
    const { run } = start({
      async agent({ ask }) {
        expect(await ask("the", { role: ["solver"] })).toBe("400");
        await ask("the");
        return Response.json(1);
      },
    });
    expect((await run()).trajectories).toHaveLength(1);
  });
});

test("a task that contains itself is not sent", async () => {
  const metadata: Record<string, unknown> = {};
  metadata.again = metadata;
  const { run, calls } = start({ task: { ...TASK, metadata }, agent: reporting(1) });
  const { error } = (await run()).metadata;
  expect(error).toMatch(/Cannot send the task sum 1\/2 to the agent http:\/\/agent\.test\/run: /);
  expect(error).toMatch(/JSON cannot hold it \(Converting circular structure to JSON\)/);
  expect(calls).toEqual([]);
});

describe("answers that are none", () => {
  test.each<[string, () => Response, RegExp]>([
    ["an error status", () => new Response("boom", { status: 500 }), /status 500: boom/],
    ["a page", () => new Response("<html>"), /it is not JSON \(<html>\)/],
    ["a text as a reward", () => Response.json({ reward: "1" }), /reward: .*number/],
    ["a misspelt field", () => Response.json({ rewrad: 1 }), /rewrad: there is no such field/],
    ["a list", () => Response.json([1]), /expected object/],
    ["ten megabytes", () => new Response("1".repeat(10 * 2 ** 20)), /it is larger than 1048576 bytes/],
    [
      "a redirect to elsewhere",
      () => new Response(null, { status: 307, headers: { location: "http://169.254.169.254/x" } }),
      /it redirects to http:\/\/169\.254\.169\.254\/x/,
    ],
    [
      "a cancel address of another server",
      () => new Response(null, { status: 202, headers: { location: "http://other.test/x" } }),
      /its Location is of another origin \(http:\/\/other.test\/x\)/,
    ],
  ])("%s", async (_, answer, message) => {
    const { run, calls, sessions } = start({
      async agent({ ask }) {
        await ask("the");
        return answer();
      },
    });
    const episode = await run();
    expect(episode.trajectories).toEqual([]);
    expect(episode.metadata.error).toMatch(message);
    expect(episode.metadata.error).toMatch(/^ConfigError: Cannot use the answer of the agent/);
    expect(episode.metadata.error).toMatch(/the agent http:\/\/agent\.test\/run to the session sum_1_2:2:0-/);
    expect(calls).toHaveLength(1);
    expect(sessions.only.ends[0]).toEqual({ reward: null, termination_reason: "error" });
  });

  test("an answer without a call to the model", async () => {
    const { run } = start({ agent: () => Response.json(1) });
    expect((await run()).metadata.error).toMatch(
      /came from the agent http:\/\/agent.test\/run for the session sum_1_2:2:0-\S+: it answered without a call to the model/,
    );
  });

  test.each<[string, unknown, number]>([
    ["no report", { rewrad: 1 }, 1],
    ["no call", 1, 0],
    ["a reward of nothing", { trajectory_rewards: { none: 1 } }, 1],
    ["no judge", {}, 1],
  ])("are the fault of the user's code: %s", async (_, report, calls) => {
    const { run } = start({ agent: reporting(report, calls), settings: { workflow: { raise_on_error: true } } });
    await expect(run()).rejects.toMatchObject({ cause: { name: "ConfigError", kind: "code" } });
  });

  const refused = Object.assign(new Error("connect refused"), { code: "ECONNREFUSED" });

  test.each<[string, unknown, RegExp]>([
    [
      "a cause with a code",
      new TypeError("fetch failed", { cause: refused }),
      /: ECONNREFUSED: connect refused\. Start/,
    ],
    ["a cause alone", new TypeError("fetch failed", { cause: new Error("gone") }), /-0: gone\. Start/],
    ["an error alone", new Error("socket hang up"), /-0: socket hang up\. Start/],
    ["a text", "reset", /-0: reset\. Start/],
  ])("an agent that cannot be reached, for %s", async (_, error, message) => {
    const agent = () => {
      throw error;
    };
    const told = String((await start({ agent }).run()).metadata.error);
    expect(told).toMatch(/Cannot ask the agent http:\/\/agent.test\/run for the session \S+: /);
    expect(told).toMatch(message);
    const raising = start({ agent, settings: { workflow: { raise_on_error: true, retry_limit: 1 } } });
    await expect(raising.run()).rejects.toMatchObject({ cause: { name: "ConfigError", kind: "code", cause: error } });
  });
});

describe("callbacks", () => {
  const accepted = (location?: string) =>
    new Response(null, { status: 202, ...(location && { headers: { location } }) });

  test("an agent that answers 202 reports later", async () => {
    const { run, calls } = start({
      agent({ session, ask }) {
        void ask("the").then(() => session.report({ reward: 0.75 }));
        return accepted("/runs/7");
      },
    });
    expect(await run()).toMatchObject({ trajectories: [{ reward: 0.75 }] });
    // A run that ended needs no cancellation.
    expect(calls.map(({ method }) => method)).toEqual(["POST"]);
  });

  test("a callback before the answer counts, and the request is given up", async () => {
    let isGivenUp = false;
    const { run } = start({
      async agent({ session, ask, signal }) {
        signal.addEventListener("abort", () => {
          isGivenUp = true;
        });
        await ask("the");
        session.report({ reward: 1 });
        return new Promise(() => {});
      },
    });
    expect(await run()).toMatchObject({ trajectories: [{ reward: 1 }] });
    expect(isGivenUp).toBe(true);
  });

  test("a callback that is no report is an error", async () => {
    const { run } = start({
      async agent({ session, ask }) {
        await ask("the");
        session.report({ score: 1 });
        return accepted();
      },
    });
    expect((await run()).metadata.error).toMatch(/score: there is no such field/);
  });

  test("an agent that never reports runs out of time; its run is cancelled, what it asked counts", async () => {
    const { run, calls, sessions } = start({
      settings: { workflow: { workflow_args: { timeout: 0.2 } } },
      async agent({ ask }) {
        await ask("the");
        return accepted("/runs/7");
      },
    });
    expect(await run()).toMatchObject({ termination_reason: "timeout", trajectories: [{ reward: 0, steps: [{}] }] });
    expect(calls).toEqual([
      { method: "POST", url: URLS[0] },
      { method: "DELETE", url: "http://agent.test/runs/7" },
    ]);
    // As trained on: with reward 0.
    expect(sessions.only.ends).toEqual([
      { reward: 0, is_correct: false, termination_reason: "timeout", trajectories: [SUMS_WITHOUT_REWARD] },
    ]);
  });

  test("an agent that breaks its callback is cancelled too", async () => {
    const { run, calls } = start({
      async agent({ session, ask }) {
        await ask("the");
        setTimeout(() => session.report({ score: 1 }), 10);
        return accepted("/runs/7");
      },
    });
    expect((await run()).metadata.error).toMatch(/score: there is no such field/);
    expect(calls.at(-1)).toEqual({ method: "DELETE", url: "http://agent.test/runs/7" });
  });

  test.each([
    ["without a cancel address there is nothing to cancel", undefined, ["POST"]],
    ["a cancel address that fails changes nothing", "/fails", ["POST", "DELETE"]],
    ["what a cancel address answers is not read", "/streams", ["POST", "DELETE", "given up"]],
  ])("%s", async (_, location, methods) => {
    const { run, calls } = start({
      settings: { workflow: { workflow_args: { timeout: 0.05 } } },
      agent: () => accepted(location),
    });
    expect(await run()).toMatchObject({ termination_reason: "timeout", trajectories: [] });
    await expect.poll(() => calls.map(({ method }) => method)).toEqual(methods);
  });
});

describe("an agent that answered 202 is looked for", () => {
  const times = { everyMs: 5, answerMs: 20, most: 3 };
  const refused = () => {
    throw Object.assign(new Error("connect refused"), { code: "ECONNREFUSED" });
  };

  /** An agent whose server answers questions one after the other by `answers`, the last one again and again. */
  async function waiting(
    answers: readonly ((signal: AbortSignal) => Response | Promise<Response>)[],
    { location, reports = answers.length }: { location?: string; reports?: number } = {},
  ) {
    const asked: string[] = [];
    const { run, calls } = start({
      times,
      settings: { workflow: { raise_on_error: false, retry_limit: 1, workflow_args: { timeout: 5 } } },
      async agent({ ask }) {
        await ask("the");
        return new Response(null, { status: 202, ...(location && { headers: { location } }) });
      },
      look: (url, signal, session) => {
        asked.push(url);
        if (asked.length > reports) session.report({ reward: 1 });
        return answers[Math.min(asked.length, answers.length) - 1]!(signal);
      },
    });
    const episode = await run();
    return { episode, asked, calls };
  }

  test("three refused connections in a row fail the attempt", async () => {
    const { episode, asked } = await waiting([refused], { reports: 9 });
    expect(episode.metadata.error).toMatch(
      /Cannot wait for the agent http:\/\/agent\.test\/run, which answered 202 to the session \S+: it is gone, http:\/\/agent\.test\/run cannot be reached, 3 times in a row \(connect refused\)/,
    );
    expect(asked).toEqual(Array(3).fill(URLS[0]));
  });

  test("one that is started again in between may report", async () => {
    const back = () => new Response("no such page", { status: 404 });
    const { episode, asked } = await waiting([refused, refused, back, refused, refused, back]);
    expect(episode).toMatchObject({ trajectories: [{ reward: 1 }] });
    expect(asked.length).toBeGreaterThan(6);
  });

  test("at its Location, which says with 410 that the work is lost, and with nothing else", async () => {
    const lost = await waiting([() => new Response(null, { status: 410 })], { location: "/runs/7", reports: 9 });
    expect(lost.episode.metadata.error).toMatch(/it is gone, http:\/\/agent\.test\/runs\/7 answers 410\./);
    expect(lost.asked).toEqual(["http://agent.test/runs/7"]);
    expect(lost.calls.at(-1)).toEqual({ method: "DELETE", url: "http://agent.test/runs/7" });
    for (const status of [200, 404, 405, 500, 501]) {
      const { episode } = await waiting([() => new Response(null, { status })], { location: "/runs/7" });
      expect(episode, String(status)).toMatchObject({ trajectories: [{ reward: 1 }] });
    }
    const elsewhere = await waiting([() => new Response(null, { status: 410 })]);
    expect(elsewhere.episode).toMatchObject({ trajectories: [{ reward: 1 }] });
  });

  test("a server that is too busy to answer counts as alive", async () => {
    const busy = (signal: AbortSignal) =>
      new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const { episode, asked } = await waiting([busy], { reports: 4 });
    expect(episode).toMatchObject({ trajectories: [{ reward: 1 }] });
    expect(asked).toHaveLength(5);
  });
});

describe("ends", () => {
  test("a stopped run gives up the request and closes the session at once", async () => {
    const stopper = new AbortController();
    let late = "";
    const { run, sessions } = start({
      signal: stopper.signal,
      async agent({ ask }) {
        await ask("the");
        stopper.abort(new Error("stopped"));
        late = await ask("the");
        return Response.json(1);
      },
    });
    await expect(run()).rejects.toThrow("stopped");
    expect(sessions.only.ends[0]).toEqual({ reward: null, termination_reason: "error" });
    await expect.poll(() => late).toBe("410");
  });

  test("a run that stops while the session is opened asks no agent, and ends the session", async () => {
    const stopper = new AbortController();
    const { run, sessions, calls } = start({ signal: stopper.signal, agent: reporting(1) });
    let open = () => {};
    sessions.faults.opening = () =>
      new Promise((resolve) => {
        open = resolve;
      });
    const running = run();
    stopper.abort(new Error("stopped"));
    await expect(running).rejects.toThrow("stopped");
    open();
    await expect.poll(() => sessions.only.ends).toEqual([{ reward: null, termination_reason: "error" }]);
    expect(calls).toEqual([]);
  });

  test("a store that fails at the end does not hide why the attempt failed", async () => {
    const { run, sessions } = start({ agent: () => Response.json({ rewrad: 1 }) });
    sessions.faults.ending = () => Promise.reject(new Error("disk full"));
    expect((await run()).metadata.error).toMatch(/rewrad: there is no such field/);
  });

  test("an outcome that cannot be stored fails the attempt", async () => {
    const { run, sessions } = start({ agent: reporting(1) });
    sessions.faults.ending = () => Promise.reject(new Error("disk full"));
    expect((await run()).metadata.error).toMatch(/disk full/);
  });

  test("a call that is running when the report comes is refused, and not trained on", async () => {
    let second: Promise<string> | undefined;
    let judging = () => {};
    const { run } = start({
      async agent({ ask }) {
        await ask("the");
        second = ask("cat");
        return Response.json({});
      },
      // The call ends while the reward function works.
      reward: async () => {
        await second;
        judging();
        return 1;
      },
    });
    const judged = new Promise<void>((resolve) => {
      judging = resolve;
    });
    const { trajectories } = await run();
    await judged;
    expect(await second).toBe("410");
    expect(trajectories.map(({ steps }) => steps.length)).toEqual([1]);
  });

  test("a run that stops between two tries does not wait for the next", async () => {
    const stopper = new AbortController();
    const { run, sessions } = start({
      signal: stopper.signal,
      settings: { workflow: { retry_limit: 3 } },
      agent() {
        setTimeout(() => stopper.abort(new Error("stopped")), 20);
        throw new Error("socket hang up");
      },
    });
    const started = performance.now();
    await expect(run()).rejects.toThrow("stopped");
    expect(performance.now() - started).toBeLessThan(240);
    expect(sessions.open.size).toBe(1);
  });

  test("calls after the answer are refused and not recorded", async () => {
    let call: AgentCall | undefined;
    const { run, backend } = start({
      async agent(it) {
        call = it;
        await it.ask("the");
        return Response.json(1);
      },
    });
    const episode = await run();
    expect(await call!.ask("the")).toBe("410");
    expect(episode.trajectories[0]!.steps).toHaveLength(1);
    expect(backend.requests).toHaveLength(1);
  });

  test("a failed attempt is made again in a session of its own: its steps do not count twice", async () => {
    let tries = 0;
    const { run, sessions } = start({
      settings: { workflow: { retry_limit: 3 } },
      async agent({ ask }) {
        await ask("the");
        if (++tries < 3) throw Object.assign(new Error("socket hang up"), { code: "ECONNRESET" });
        return Response.json(1);
      },
    });
    const { trajectories } = await run();
    expect(trajectories.map(({ steps }) => steps.length)).toEqual([1]);
    const ids = [...sessions.open.keys()].map((id) => id.replace(/-[0-9a-f]{8}/, ""));
    expect(ids).toEqual(["sum_1_2:2:0-0", "sum_1_2:2:1-1", "sum_1_2:2:2-2"]);
    expect([...sessions.open.values()].map(({ ends }) => ends[0]!.reward)).toEqual([null, null, 1]);
  });

  test("each further try waits twice as long, up to five seconds", async () => {
    const waits: unknown[] = [];
    const { setTimeout: real } = globalThis;
    const timer = vi.spyOn(globalThis, "setTimeout").mockImplementation(((run: () => void, ms: number) => {
      if (ms < 250 || ms > 5000) return real(run, ms);
      waits.push(ms);
      return real(run, 0);
    }) as typeof setTimeout);
    onTestFinished(() => timer.mockRestore());
    const { run, calls } = start({
      settings: { workflow: { retry_limit: 8, raise_on_error: false } },
      agent() {
        throw new Error("socket hang up");
      },
    });
    await run();
    expect(calls).toHaveLength(8);
    expect(waits).toEqual([250, 500, 1000, 2000, 4000, 5000, 5000]);
  });

  test("a prompt that is too long ends the attempt as in the process", async () => {
    const { run, sessions } = start({
      settings: { data: { max_prompt_length: 40 } },
      async agent({ ask }) {
        await ask("the");
        const status = await ask("the ".repeat(40));
        return new Response(`the model answered ${status}`, { status: 500 });
      },
    });
    expect(await run()).toMatchObject({
      termination_reason: "max_prompt_length_exceeded",
      trajectories: [{ steps: [{ model_response: "and" }] }],
    });
    const termination_reason = "max_prompt_length_exceeded";
    expect(sessions.only.ends).toEqual([
      { reward: 0, is_correct: false, termination_reason, trajectories: [SUMS_WITHOUT_REWARD] },
    ]);
  });
});
