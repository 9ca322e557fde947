/** Attempts over real sockets: a run's own gateway, one that runs already, and agents that fail. */
import { spawn } from "node:child_process";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { json } from "node:stream/consumers";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterEach, describe, expect, onTestFinished, test } from "vitest";
import { startGateway } from "../../../../src/serve/gateway/mod.ts";
import type { Step } from "../../../../src/train/data/types.ts";
import { type AttemptContext, runAttempt } from "../../../../src/train/loop/rollout/attempt.ts";
import { DrawQueue } from "../../../../src/train/loop/rollout/draw_queue.ts";
import { loopSettings } from "../../../../src/train/loop/settings.ts";
import { ExternalGateway } from "../../../../src/train/run/gateway/external_gateway.ts";
import type { GatewaySettings } from "../../../../src/train/run/gateway/gateway_settings.ts";
import { openRecording } from "../../../../src/train/run/gateway/recorded_rollout.ts";
import { RunGateway } from "../../../../src/train/run/gateway/run_gateway.ts";
import { streamFetch } from "../../../../src/train/run/net/http.ts";
import { openServedGateway } from "../../../../src/train/run/serve/served_gateway.ts";
import type { AgentRequest } from "../../../../src/train/task/remote/contract.ts";
import { remoteAgent } from "../../../../src/train/task/remote/rollout.ts";
import { attemptOf } from "../../../../src/train/trace/attempts.ts";
import { openTraceStore } from "../../../../src/train/trace/mod.ts";
import { freePort } from "../../../fixtures/agent_process.ts";
import { CHATML, chatTokenizer } from "../../../fixtures/chat.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { scriptedBackend } from "../../../fixtures/scripted.ts";
import { makeTrace } from "../../trace/make_trace.ts";

const root = temporaryFolder("run-gateway");
const TASK = { id: "t", instruction: "the", metadata: { answer: "and" } };
const SETTINGS: GatewaySettings = {
  agents: [],
  mode: "subprocess",
  host: "127.0.0.1",
  port: 0,
  adminToken: "secret-of-the-trainer",
  tunnel: undefined,
  store: undefined,
  retention: undefined,
  keys: { name: "role", group: null },
};

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

type Answer = (run: AgentRequest, response: ServerResponse, request: IncomingMessage) => unknown;

/** An agent's server; its address. */
async function serve(answer: Answer): Promise<string> {
  const server = createServer(async (request, response) => {
    const run = request.method === "POST" ? ((await json(request)) as AgentRequest) : undefined;
    await answer(run!, response, request);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(async () => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/run`;
}

function ask(run: AgentRequest, more: object = {}) {
  const client = new OpenAI({ baseURL: run.base_url, apiKey: run.api_key, maxRetries: 0 });
  const messages = [{ role: "user" as const, content: "the" }];
  return client.chat.completions.create({ model: run.model, messages, ...more });
}

async function attempt(gateway: RunGateway | ExternalGateway, url: string, more: Partial<AttemptContext> = {}) {
  await gateway.open(() => {});
  closing.push(() => gateway.close());
  const backend = scriptedBackend(chatTokenizer(CHATML), () => "and<|im_end|>");
  const signal = more.signal ?? new AbortController().signal;
  const rollout = remoteAgent({
    urls: [url],
    sessions: gateway,
    fetch: (address, init = {}) => streamFetch(String(address), init),
    name: "sums",
    keys: SETTINGS.keys,
    agent: { agent_args: {}, max_steps: 4 },
    isJudgedLater: false,
  });
  const settings = loopSettings({ workflow: { raise_on_error: false, retry_limit: 1 } });
  const context: AttemptContext = { rollout, step: 1, isValidation: false, signal, backend, settings, ...more };
  const environment = { draws: new DrawQueue(backend, signal), rank: 0, context };
  return runAttempt({ task: TASK, task_index: 0, rollout_index: 0 }, environment);
}

describe("the run's own gateway", () => {
  test("an agent's calls are steps; the header names its role; the key ends with the attempt", async () => {
    let run: AgentRequest | undefined;
    const url = await serve(async (asked, response) => {
      run = asked;
      await ask(asked);
      const client = new OpenAI({ baseURL: asked.base_url, apiKey: asked.api_key });
      await client.completions.create({ model: asked.model, prompt: "the" }, { headers: { "x-trajectory": "judge" } });
      response.end(JSON.stringify({ reward: 1, trajectory_rewards: { judge: 0.5 } }));
    });
    const { trajectories } = await attempt(new RunGateway(SETTINGS), url);
    expect(trajectories.map(({ name, reward, steps }) => [name, reward, steps.length])).toEqual([
      ["sums", 1, 1],
      ["judge", 0.5, 1],
    ]);
    const late = await ask(run!).catch((error) => error);
    expect([401, 410]).toContain(late.status);
    const other = await ask({ ...run!, api_key: SETTINGS.adminToken }).catch((error) => error);
    expect([401, 403, 410]).toContain(other.status);
  });

  test("a callback after 202 ends the attempt", async () => {
    const url = await serve(async (run, response) => {
      response.writeHead(202).end();
      await ask(run);
      const headers = { authorization: `Bearer ${run.api_key}`, "content-type": "application/json" };
      const wrong = await fetch(run.callback_url, {
        method: "POST",
        headers: { ...headers, authorization: "Bearer x" },
      });
      expect(wrong.status).toBe(401);
      await fetch(run.callback_url, { method: "POST", headers, body: '{"reward": 0.25}' });
    });
    expect(await attempt(new RunGateway(SETTINGS), url)).toMatchObject({ trajectories: [{ reward: 0.25 }] });
  });
});

/** The name by which containers reach the machine they run on. */
const HOST_NAME = "host.docker.internal";

/** The status of a request to this machine by another name, which no resolver needs to know. */
function statusAs(host: string, it: { port: number; path: string; key?: string; body?: object }): Promise<number> {
  const { port, path, key, body } = it;
  const type = { "content-type": "application/json" };
  const headers = { host: `${host}:${port}`, ...(body && type), ...(key && { authorization: `Bearer ${key}` }) };
  return new Promise((resolve, reject) => {
    const sent = request({ port, path, headers, method: body ? "POST" : "GET" }, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
    sent.on("error", reject);
    sent.end(body && JSON.stringify(body));
  });
}

describe("agents that know the machine by another name", () => {
  test("call the run's gateway by that of rllm.gateway.tunnel, and by no other", async () => {
    const port = await freePort();
    const statuses: number[] = [];
    const url = await serve(async (run, response) => {
      const { hostname, pathname } = new URL(run.base_url);
      expect(hostname).toBe(HOST_NAME);
      const body = { model: run.model, messages: [{ role: "user", content: "the" }] };
      const call = { port, path: `${pathname}/chat/completions`, key: run.api_key, body };
      for (const host of [HOST_NAME, "elsewhere.example"]) statuses.push(await statusAs(host, call));
      statuses.push(await statusAs(HOST_NAME, { ...call, key: "none" }));
      response.end("1");
    });
    const gateway = new RunGateway({ ...SETTINGS, host: "0.0.0.0", port, tunnel: `http://${HOST_NAME}:${port}` });
    const { trajectories } = await attempt(gateway, url);
    expect(statuses).toEqual([200, 403, 401]);
    expect(trajectories.map(({ steps }) => steps.length)).toEqual([1]);
  });

  test("call a gateway of its own by that of --allow-host", async () => {
    const port = await freePort();
    const auth = { apiKeys: ["key-of-agents"], adminToken: SETTINGS.adminToken };
    const options = { host: "0.0.0.0", port, auth, workers: ["http://127.0.0.1:1/v1"], allowedHosts: [HOST_NAME] };
    const gateway = await openServedGateway(options);
    closing.push(() => gateway.close());
    const health = (host: string) => statusAs(host, { port, path: "/health" });
    expect([await health(HOST_NAME), await health("elsewhere.example")]).toEqual([200, 403]);
  });
});

describe("a store that is limited", () => {
  const retention = { max_traces: 1 };
  test.each<[string, (store: string) => Promise<{ close(): Promise<void> }>]>([
    [
      "the run's gateway",
      async (store) => {
        const gateway = new RunGateway({ ...SETTINGS, store, retention });
        await gateway.open(() => {});
        return gateway;
      },
    ],
    ["agents in the run", async (store) => (await openRecording({ ...SETTINGS, store, retention }, () => {}))!],
    ["grpu serve gateway", (store) => openServedGateway({ store, retention, workers: ["http://127.0.0.1:1/v1"] })],
  ])("by %s loses its oldest sessions", async (_, open) => {
    const store = join(root, `${crypto.randomUUID()}.db`);
    const filled = await openTraceStore(store, { now: () => 1000 });
    for (const session_id of ["a", "b"]) {
      await filled.putTrace(makeTrace({ trace_id: session_id, session_id }));
      const ended_at = session_id === "a" ? 1001 : 1002;
      await filled.putSession({ session_id, metadata: {}, created_at: 1000, outcome: { reward: 1, ended_at } });
    }
    await filled.close();
    await (await open(store)).close();
    const kept = await openTraceStore(store);
    expect((await kept.sessions({})).map(({ session_id }) => session_id)).toEqual(["b"]);
    await kept.close();
  });
});

describe("agents that fail", () => {
  test.each<[string, Answer, RegExp]>([
    ["a connection that is reset", (_, response) => response.destroy(), /ECONNRESET/],
    [
      "an answer that breaks off",
      (_, response) => {
        response.writeHead(200, { "content-length": "100" });
        response.write('{"reward"');
        setTimeout(() => response.destroy(), 20);
      },
      /aborted|terminated|ECONNRESET|premature/i,
    ],
    ["a server error", (_, response) => response.writeHead(503).end("busy"), /status 503: busy/],
    ["ten megabytes", (_, response) => response.end(Buffer.alloc(10 * 2 ** 20, 49)), /larger than 1048576 bytes/],
    [
      "a redirect",
      (_, response) => response.writeHead(302, { location: "http://127.0.0.1:1/" }).end(),
      /it redirects to http:\/\/127\.0\.0\.1:1\//,
    ],
  ])("%s is an error of the attempt that names agent and session", async (_, answer, message) => {
    const url = await serve(async (run, response, request) => {
      await ask(run);
      await answer(run, response, request);
    });
    const { trajectories, metadata } = await attempt(new RunGateway(SETTINGS), url);
    expect(trajectories).toEqual([]);
    expect(metadata.error).toMatch(message);
    expect(metadata.error).toContain(url);
    expect(metadata.error).toMatch(/session t:0:0-/);
  });

  test("a process that is killed in mid-episode", async () => {
    const port = await freePort();
    const code = `require("http").createServer(() => console.log("asked")).listen(${port}, "127.0.0.1", () => console.log("up"))`;
    const child = spawn(process.execPath, ["-e", code], { stdio: ["ignore", "pipe", "inherit"] });
    onTestFinished(() => void child.kill());
    await new Promise((resolve) => child.stdout.once("data", resolve));
    child.stdout.once("data", () => child.kill("SIGKILL"));
    const { metadata } = await attempt(new RunGateway(SETTINGS), `http://127.0.0.1:${port}/run`);
    expect(metadata.error).toMatch(/Cannot ask the agent .*ECONNRESET/);
  });

  test("a run that stops aborts the request", async () => {
    const stopper = new AbortController();
    let isAborted: Promise<unknown> = Promise.resolve();
    const url = await serve((_, response) => {
      isAborted = new Promise((resolve) => response.once("close", resolve));
      stopper.abort(new Error("stopped"));
    });
    await expect(attempt(new RunGateway(SETTINGS), url, { signal: stopper.signal })).rejects.toThrow("stopped");
    await isAborted;
  });
});

describe("a gateway that runs already", () => {
  async function external(apiKeys: readonly string[] = [], adminToken: string | undefined = SETTINGS.adminToken) {
    const store = await openTraceStore("memory");
    const gateway = await startGateway({ store, auth: { adminToken: adminToken || undefined, apiKeys } });
    closing.push(() => gateway.close());
    const port = Number(new URL(gateway.url).port);
    return { gateway, store, settings: { ...SETTINGS, mode: "external" as const, port } };
  }

  test("calls the run as its worker, records, and is left without a worker", async () => {
    const { gateway, store, settings } = await external();
    const url = await serve(async (run, response) => {
      expect(run.base_url.startsWith(gateway.url)).toBe(true);
      const reply = await ask(run);
      expect(reply.choices[0]!.message.content).toBe("and");
      await ask(run, { metadata: { role: "judge" } });
      response.end('{"reward": 1}');
    });
    const own = new ExternalGateway(settings);
    const { trajectories } = await attempt(own, url);
    expect(trajectories.map(({ name, steps }) => [name, steps.length])).toEqual([
      ["sums", 1],
      ["judge", 1],
    ]);
    expect(gateway.service.weightVersion).toBe(5);
    const [session] = await store.sessions({});
    expect(session).toMatchObject({ outcome: { reward: 1 } });
    const traces = await store.traces({ session_id: session!.session_id });
    const steps = trajectories.flatMap((each) => each.steps);
    expect(traces.map((each) => each.completion_token_ids)).toEqual(steps.map((step) => step.response_ids));
    expect(traces.map((each) => each.logprobs)).toEqual(steps.map((step) => step.logprobs));
    expect(gateway.service.workers.size).toBe(1);
    await own.close();
    expect(gateway.service.workers.size).toBe(0);
  });

  test.each([
    ["without keys", []],
    ["with agents' keys", ["sk-agents"]],
  ])("a callback reaches the run through it %s", async (_, apiKeys) => {
    const { settings } = await external(apiKeys);
    const url = await serve(async (run, response) => {
      response.writeHead(202).end();
      await ask(run);
      const headers = { authorization: `Bearer ${run.api_key}`, "content-type": "application/json" };
      await fetch(run.callback_url, { method: "POST", headers, body: '{"reward": 0.5}' });
    });
    expect(await attempt(new ExternalGateway(settings), url)).toMatchObject({ trajectories: [{ reward: 0.5 }] });
  });

  test.each([
    [{ reward: 0.5, metadata: { seen: 3 } }, { metadata: { seen: 3 } }],
    [{ reward: 0.5, is_correct: null, metrics: null, signals: null }, { trajectories: [{ reward: 0.5 }] }],
    [{ reward: "high" }, { metadata: { error: expect.stringMatching(/reward: .*expected number/) } }],
    [{ reward: 0.5, rewrad: 1 }, { metadata: { error: expect.stringMatching(/rewrad: there is no such field/) } }],
  ])("a callback's fields all reach the run: %o", async (report, expected) => {
    const { settings } = await external();
    const url = await serve(async (run, response) => {
      response.writeHead(202).end();
      await ask(run);
      const headers = { authorization: `Bearer ${run.api_key}`, "content-type": "application/json" };
      await fetch(run.callback_url, { method: "POST", headers, body: JSON.stringify(report) });
    });
    expect(await attempt(new ExternalGateway(settings, { pollMs: 20 }), url)).toMatchObject(expected);
  });

  test("every API reaches the run through it, and both record the tokens that are trained", async () => {
    const { store, settings } = await external();
    const url = await serve(async (run, response) => {
      const at = run.base_url.replace(/\/v1$/, "");
      const anthropic = new Anthropic({ baseURL: at, authToken: run.api_key, apiKey: null, maxRetries: 0 });
      const openai = new OpenAI({ baseURL: run.base_url, apiKey: run.api_key, maxRetries: 0 });
      const messages = [{ role: "user" as const, content: "the" }];
      const stream = anthropic.messages.stream({ model: run.model, max_tokens: 8, messages });
      const { content } = await stream.finalMessage();
      expect(content).toMatchObject([{ type: "text", text: "and" }]);
      const { id, output_text } = await openai.responses.create({ model: run.model, input: "the" });
      expect(output_text).toBe("and");
      await openai.responses.create({ model: run.model, input: "on", previous_response_id: id });
      response.end('{"reward": 1}');
    });
    const { trajectories, metadata } = await attempt(new ExternalGateway(settings), url);
    expect(metadata.error).toBeUndefined();
    const steps = trajectories.flatMap((each) => each.steps);
    expect(steps).toHaveLength(3);
    const [session] = await store.sessions({});
    const traces = await store.traces({ session_id: session!.session_id });
    expect(traces.map((each) => each.completion_token_ids)).toEqual(steps.map((step) => step.response_ids));
    expect(traces.map((each) => each.prompt_token_ids)).toEqual(steps.map((step) => step.prompt_ids));
    expect(traces.at(-1)!.prompt_origin).toBe("continued");
  });

  test("its session names what the run trained on, call by call, so that another run can train on the same", async () => {
    const { store, settings } = await external();
    const url = await serve(async (run, response) => {
      const openai = new OpenAI({ baseURL: run.base_url, apiKey: run.api_key, maxRetries: 0 });
      const asked = { model: run.model, messages: [{ role: "user" as const, content: "the" }] };
      const stream = await openai.chat.completions.create({ ...asked, stream: true });
      for await (const chunk of stream) expect(chunk.choices[0]).not.toHaveProperty("trace_id");
      await ask(run, { metadata: { role: "judge" } });
      const { choices } = await openai.chat.completions.create({ ...asked, n: 2 });
      expect(choices).toHaveLength(2);
      expect(choices[0]).not.toHaveProperty("trace_id");
      response.end('{"reward": 1, "trajectory_rewards": {"judge": 0.25}}');
    });
    const { trajectories, metadata } = await attempt(new ExternalGateway(settings), url);
    expect(metadata.error).toBeUndefined();
    const [session] = await store.sessions({});
    expect(session!.outcome!.trajectories).toMatchObject([
      { name: "sums", label: "sums", reward: 1, calls: [{}, {}, {}] },
      { name: "judge", label: "judge", reward: 0.25, calls: [{}] },
    ]);
    const traces = await store.traces({ session_id: session!.session_id });
    expect(traces).toHaveLength(4);
    const recorded = attemptOf(session!, { traces, keys: { group: null, name: "role" } });
    const trained = (each: { name: string; reward: number | null; steps: readonly Step[] }) => ({
      name: each.name,
      reward: each.reward,
      steps: each.steps.map(({ prompt_ids, response_ids, logprobs }) => ({ prompt_ids, response_ids, logprobs })),
    });
    expect(recorded.trajectories.map(trained)).toEqual(trajectories.map(trained));
  });

  test.each([
    [2, 3, undefined],
    [99, 10, /POST \/sessions\/s\/reward failed \(status 503: starting/],
  ])("an outcome that it refuses %i times is posted %i times", async (refusals, posts, message) => {
    let count = 0;
    const { asked, settings } = await scripted((question, response) => {
      if (question !== "POST /sessions/s/reward" || count++ >= refusals) return false;
      response.writeHead(503).end("starting");
      return true;
    });
    const own = new ExternalGateway(settings, { pollMs: 1 });
    await own.open(() => {});
    closing.push(() => own.close());
    const { end } = await own.openSession({ session_id: "s", engine: {} as never, metadata: {} });
    const told = () => asked.filter((question) => question.endsWith("/reward")).length;
    if (message) await expect(end({ reward: 1 })).rejects.toThrow(message);
    else await end({ reward: 1 });
    expect(told()).toBe(posts);
    // What was told is not told again; what was not is tried again.
    count = 100;
    await end({ reward: 1 });
    expect(told()).toBe(message ? posts + 1 : posts);
  });

  test("a gateway of this machine without an admin token takes the run's outcome", async () => {
    const { store, settings } = await external([], "");
    const url = await serve(async (run, response) => {
      await ask(run);
      response.end('{"reward": 1}');
    });
    const { trajectories, metadata } = await attempt(new ExternalGateway(settings), url);
    expect(metadata.error).toBeUndefined();
    expect(trajectories).toMatchObject([{ reward: 1 }]);
    expect(await store.sessions({})).toMatchObject([{ outcome: { reward: 1 } }]);
  });

  test("two runs on one gateway get the calls of their own sessions", async () => {
    const { gateway, store, settings } = await external();
    const url = await serve(async (run, response) => {
      // Spread over the workers, were they not told apart.
      for (let i = 0; i < 3; i++) await ask(run);
      response.end('{"reward": 1}');
    });
    const runs = [new ExternalGateway(settings), new ExternalGateway(settings)];
    await runs[0]!.open(() => {});
    closing.push(() => runs[0]!.close());
    const { trajectories, metadata } = await attempt(runs[1]!, url);
    expect(metadata.error).toBeUndefined();
    expect(trajectories[0]!.steps).toHaveLength(3);
    expect(gateway.service.workers.size).toBe(2);
    const [session] = await store.sessions({});
    const traces = await store.traces({ session_id: session!.session_id });
    // The name that the agent used, and the version of its own run's weights.
    expect(new Set(traces.map(({ model }) => model))).toEqual(new Set(["scripted-model"]));
    expect(new Set(traces.map(({ weight_version }) => weight_version))).toEqual(new Set([5]));
  });

  test("one that was started again gets the run back, and calls of its sessions never go to another worker", async () => {
    const first = await external();
    const { settings } = first;
    const own = new ExternalGateway(settings);
    const url = await serve(async (run, response) => {
      await ask(run);
      response.end('{"reward": 1}');
    });
    await attempt(own, url);
    await first.gateway.close();
    const auth = { adminToken: SETTINGS.adminToken };
    const again = await startGateway({ store: await openTraceStore("memory"), auth, port: settings.port });
    closing.push(() => again.close());
    const strangers: AgentRequest[] = [];
    const stranger = await serve((asked, response) => {
      if (asked) strangers.push(asked);
      response.end("{}");
    });
    again.service.workers.add({ url: new URL(stranger).origin });
    const sampling_params = { rllm_metadata: { session_id: "early" }, model: "run-early" };
    await again.service.sessions.create({ session_id: "early", sampling_params });
    const early = { base_url: `${again.url}/sessions/early/v1`, api_key: "none", model: "m" } as AgentRequest;
    await expect(ask(early)).rejects.toMatchObject({ status: 503, code: "no_worker" });

    const open = (session_id: string) =>
      own.openSession({ session_id, engine: {} as never, metadata: { weight_version: 7 } });
    const sessions = await Promise.all(["a", "b"].map(open));
    expect(again.service.workers.list().map(({ model_name }) => model_name)).toEqual([
      null,
      expect.stringMatching(/^run-/),
    ]);
    expect(again.service.weightVersion).toBe(7);
    for (const { end } of sessions) await end({ reward: null });
    expect(strangers).toEqual([]);
    await own.close();
    expect(again.service.workers.size).toBe(1);
  });

  test("the run's own trace store records as well", async () => {
    const { settings } = await external();
    const url = await serve(async (run, response) => {
      await ask(run);
      response.end('{"reward": 1}');
    });
    const store = join(root, `${crypto.randomUUID()}.db`);
    const own = new ExternalGateway({ ...settings, store });
    await attempt(own, url);
    await own.close();
    const kept = await openTraceStore(store);
    const [session] = await kept.sessions({});
    expect(session).toMatchObject({ outcome: { reward: 1 }, trace_count: 1 });
    await kept.close();
  });

  /** A gateway that registers workers, and answers other routes as told. */
  async function scripted(answers: (asked: string, response: ServerResponse) => boolean) {
    const asked: string[] = [];
    const server = createServer((request, response) => {
      const question = `${request.method} ${request.url}`;
      asked.push(question);
      request.resume();
      if (answers(question, response)) return;
      response.end(JSON.stringify({ worker_id: "w" }));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(async () => {
      server.closeAllConnections();
      server.close();
    });
    const { port } = server.address() as AddressInfo;
    return { asked, settings: { ...SETTINGS, mode: "external" as const, port } };
  }

  test.each([
    ["does not reload", "POST /admin/reload", /reload failed \(status 500/],
    ["does not flush", "POST /admin/flush", undefined],
  ])("a gateway that %s is left without a worker", async (_, failing, message) => {
    const { asked, settings } = await scripted((question, response) => {
      if (question === failing) response.writeHead(500).end("broken");
      return question === failing;
    });
    const lines: string[] = [];
    const own = new ExternalGateway(settings);
    const opening = own.open((line) => void lines.push(line));
    if (message) await expect(opening).rejects.toThrow(message);
    else await opening;
    await own.close();
    expect(asked.at(-1)).toBe("DELETE /admin/workers/w");
    if (!message) expect(lines.join()).toMatch(/warning: the gateway may not have stored .*flush failed/);
  });

  test("a gateway that never answers is an error that says so", async () => {
    const { settings } = await scripted((question) => question.startsWith("POST /admin/workers"));
    const opening = new ExternalGateway(settings, { answerMs: 50 }).open(() => {});
    await expect(opening).rejects.toThrow(/POST \/admin\/workers failed \(no answer within 0\.05 s\)/);
  });

  test.each([
    ["a wrong token", async () => ({ ...(await external()).settings, adminToken: "wrong" }), /status 401/],
    ["no gateway", async () => ({ ...SETTINGS, port: await freePort() }), /ECONNREFUSED/],
  ])("%s is an error that names the settings", async (_, settings, message) => {
    const opening = new ExternalGateway(await settings()).open(() => {});
    await expect(opening).rejects.toThrow(message);
    await expect(opening).rejects.toThrow(/correct rllm\.sdk\.proxy\.host, port and admin_token/);
  });
});
