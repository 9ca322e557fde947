/** The service's socket: who may ask, how much, in which order, and what happens when it closes. */
import { afterEach, describe, expect, test } from "vitest";
import type { Service } from "../../../src/cluster/rewards/service.ts";
import { type Rollout, singleTurn } from "../../../src/train/task/rollout.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";
import {
  type Asked,
  ask,
  drawWith,
  firstRequest,
  post,
  rowsFrom,
  TASK,
  type TestService,
  testService,
} from "../../fixtures/cluster.ts";

const services: Service[] = [];
afterEach(async () => {
  for (const service of services.splice(0)) await service.close();
});

async function open(options: Partial<TestService> = {}): Promise<Service> {
  const service = await testService({ rollout: one, tokenizer: chatTokenizer(CHATML), ...options });
  services.push(service);
  return service;
}

const one: Rollout = async (_, policy) => policy.complete("x").then(() => 1);
const judged = singleTurn("r", () => 1);
const item = { data_source: "d", solution: "x", ground_truth: "", extra_info: { split: "train", grpu_task: 0 } };

async function answer(response: Response): Promise<[number, string]> {
  return [response.status, await response.text()];
}

describe("without the token", () => {
  const ROUTES: [path: string, more: Asked][] = [
    ["/health", {}],
    ["/metrics", {}],
    ["/", {}],
    ["/rewards", { body: { id: "a", items: [item] } }],
    ["/rollouts", { body: firstRequest() }],
    ["/rollouts/a", { method: "DELETE" }],
    ["/none", {}],
  ];
  test.each(ROUTES)("%s tells nothing", async (path, more) => {
    const service = await open({ rollout: judged, isSingleTurn: true });
    for (const token of [null, "", "wrong", "a-token-of-a-test-ru", "a-token-of-a-test-runs"]) {
      const [status, text] = await answer(await ask(`${service.url}${path}`, { ...more, token }));
      expect([status, JSON.parse(text)]).toEqual([
        401,
        {
          detail:
            "Cannot answer: the API key is missing or wrong. Send the run's token as Authorization: Bearer TOKEN.",
        },
      ]);
    }
    const { judgements, rollouts } = service.stats();
    expect([judgements.total, rollouts.started]).toEqual([0, 0]);
  });

  test.each([["short"], ["fifteen-letters"]])("a service with the token %s does not start", async (token) => {
    await expect(testService({ rollout: one, token })).rejects.toThrow(/at least 16 characters \(\d+\)/);
  });
});

test("/health names the run and the protocol, under any name of the machine", async () => {
  const service = await open({ run: "my-run" });
  const response = await ask(`${service.url}/health`);
  expect(await response.json()).toEqual({ service: "grpu", run: "my-run", protocol: 1 });
  const { hostname } = new URL(service.url);
  expect(hostname).toBe("127.0.0.1");
});

test("/metrics tells what was done, in Prometheus' format", async () => {
  const service = await open({ rollout: judged, isSingleTurn: true });
  const draw = drawWith(chatTokenizer(CHATML), () => "and<|im_end|>");
  await post(`${service.url}/rewards`, { id: "a", items: [item, { ...item, extra_info: {} }] });
  await rowsFrom({ url: service.url, draw });
  await ask(`${service.url}/none`);
  const response = await ask(`${service.url}/metrics`);
  const lines = (await response.text()).split("\n");
  expect(response.headers.get("content-type")).toMatch(/^text\/plain/);
  for (const line of [
    "grpu_service_judgements_total 2",
    "grpu_service_judgements_failed_total 1",
    "grpu_service_judgement_seconds_count 2",
    "grpu_service_rollouts_open 0",
    "grpu_service_rollouts_started_total 1",
    'grpu_service_rollouts_ended_total{end="done"} 1',
    'grpu_service_rollouts_ended_total{end="failed"} 0',
    "grpu_service_calls_total 1",
    "grpu_service_tokens_total 2",
    'grpu_service_refusals_total{status="404"} 1',
  ])
    expect(lines).toContain(line);
});

describe("requests that are refused", () => {
  const first = firstRequest();
  const result = { call: 0, token_ids: [1], log_probs: [-1], stop_reason: "completed" };
  const cases: [name: string, path: string, body: unknown, status: number, message: RegExp][] = [
    ["no JSON", "/rewards", "{", 400, /it is not JSON/],
    ["a list", "/rewards", [], 400, /not a JSON object/],
    ["no id", "/rewards", { items: [] }, 422, /Cannot read id: .* \(undefined\)/],
    ["a long id", "/rewards", { id: "x".repeat(201), items: [] }, 422, /1 to 200 characters/],
    ["items of another kind", "/rewards", { id: "a", items: {} }, 422, /Cannot read items: it must be a list/],
    ["an item that is a text", "/rewards", { id: "a", items: ["x"] }, 422, /items\[0\]: it must be an object/],
    ["no solution", "/rewards", { id: "a", items: [{ ...item, solution: 3 }] }, 422, /items\[0\]\.solution.*\(3\)/],
    ["no extra_info", "/rewards", { id: "a", items: [{ ...item, extra_info: null }] }, 422, /items\[0\]\.extra_info/],
    ["no number", "/rollouts", { ...first, seq: -1 }, 422, /Cannot read seq/],
    ["no task", "/rollouts", { ...first, task: { split: "test", index: 0 } }, 422, /Cannot read task/],
    ["a task that there is not", "/rollouts", { ...first, task: { split: "train", index: 3 } }, 422, /run has 1/],
    [
      "a step of another kind",
      "/rollouts",
      { ...first, step: "1" },
      422,
      /Cannot read step: .* -1 where it is not known/,
    ],
    ["parameters of another kind", "/rollouts", { ...first, sampling_params: 1 }, 422, /sampling_params/],
    ["an unknown rollout", "/rollouts", { id: "stranger", seq: 4, results: [result] }, 410, /started again since/],
    ["another route", "/reward", {}, 404, /no route POST \/reward/],
  ];
  test.each(cases)("%s", async (_, path, body, status, message) => {
    const service = await open({ rollout: judged, isSingleTurn: true });
    expect(await answer(await ask(`${service.url}${path}`, { body }))).toEqual([
      status,
      expect.stringMatching(message),
    ]);
    expect(service.stats().rollouts.started).toBe(0);
  });

  const wrong: [name: string, request: object, status: number, message: RegExp][] = [
    ["results that are no list", { seq: 1, results: 3 }, 422, /Cannot read results/],
    ["a call that was not handed out", { seq: 1, results: [{ ...result, call: 1 }] }, 422, /no open call 1/],
    ["a call twice", { seq: 1, results: [result, result] }, 422, /a call is named twice/],
    ["tokens that are none", { seq: 1, results: [{ ...result, token_ids: [1.5] }] }, 422, /results\[0\]\.token_ids/],
    ["a negative token", { seq: 1, results: [{ ...result, token_ids: [-1] }] }, 422, /token ids/],
    [
      "log-probs of another number",
      { seq: 1, results: [{ ...result, log_probs: [] }] },
      422,
      /one number per token: 1/,
    ],
    ["log-probs that are none", { seq: 1, results: [{ ...result, log_probs: ["x"] }] }, 422, /finite numbers/],
    ["a number too far", { seq: 2, results: [result] }, 409, /the next one is 1/],
    ["the first again with another body", { ...first, step: 9 }, 409, /another request was sent under the same id/],
  ];
  test.each(wrong)("%s; the rollout then goes on", async (_, request, status, message) => {
    const service = await open();
    const url = `${service.url}/rollouts`;
    await post(url, first);
    const refused = await ask(url, { body: { id: first.id, ...request } });
    expect(await answer(refused)).toEqual([status, expect.stringMatching(message)]);
    const done = await post(url, { id: first.id, seq: 1, results: [result] });
    expect(done).toMatchObject({ action: "done", trajectories: [{ response_ids: [1], reward: 1 }] });
    const late = await ask(url, { body: { id: first.id, seq: 2, results: [] } });
    expect(late.status).toBe(410);
  });

  test("a request that the client has left behind", async () => {
    const rollout: Rollout = async (_, policy) => {
      await policy.complete("x");
      return policy.complete("y").then(() => 1);
    };
    const service = await open({ rollout });
    const url = `${service.url}/rollouts`;
    await post(url, first);
    await post(url, { id: first.id, seq: 1, results: [result] });
    expect(await answer(await ask(url, { body: first }))).toEqual([409, expect.stringMatching(/runs already/)]);
    expect(service.stats().rollouts).toMatchObject({ open: 1, started: 1 });
  });

  test("a body beyond the limit", async () => {
    const service = await open({ rollout: judged, isSingleTurn: true, limits: { bodyBytes: 2000 } });
    const body = { id: "a", items: [{ ...item, solution: "x".repeat(3000) }] };
    expect(await answer(await ask(`${service.url}/rewards`, { body }))).toEqual([
      413,
      expect.stringMatching(/2000 bytes/),
    ]);
    expect(service.stats().judgements.total).toBe(0);
  });

  test("bodies beyond the memory for all are a matter of time: 503", async () => {
    const limits = { bodyBytes: 5000, allBodyBytes: 3000 };
    const service = await open({ rollout: judged, isSingleTurn: true, limits });
    const body = { id: "a", items: [{ ...item, solution: "x".repeat(4000) }] };
    const response = await ask(`${service.url}/rewards`, { body });
    expect([response.status, response.headers.get("retry-after")]).toEqual([503, "1"]);
  });
});

test("rollouts that wait for their agents hold no memory for bodies", async () => {
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const rollout: Rollout = async (_, policy) => {
    await released;
    return policy.complete("x").then(() => 1);
  };
  const service = await open({ rollout, limits: { bodyBytes: 5000, allBodyBytes: 6000 } });
  const held: Promise<unknown>[] = [];
  for (const i of [1, 2, 3, 4]) {
    held.push(post(`${service.url}/rollouts`, firstRequest()));
    await expect.poll(() => service.stats().rollouts.open, { timeout: 10_000 }).toBe(i);
  }
  release();
  expect(await Promise.all(held)).toEqual(held.map(() => expect.objectContaining({ action: "generate" })));
});

describe("above the limits: 503 with Retry-After, and it works later", () => {
  test("of rollouts", async () => {
    const service = await open({ limits: { rollouts: 1 } });
    const url = `${service.url}/rollouts`;
    const [first, second] = [firstRequest(), firstRequest()];
    await post(url, first);
    const busy = await ask(url, { body: second });
    expect([busy.status, busy.headers.get("retry-after")]).toEqual([503, "5"]);
    await ask(`${url}/${first.id}`, { method: "DELETE" });
    expect(await post(url, second)).toMatchObject({ action: "generate" });
  });

  test("of judgements; a request that is larger than the limit is taken alone", async () => {
    let release = () => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const rollout = singleTurn("r", () => held.then(() => 1));
    const service = await open({ rollout, isSingleTurn: true, limits: { judgements: 2 } });
    const url = `${service.url}/rewards`;
    const large = post<{ results: object[] }>(url, { id: "a", items: [item, item, item] });
    await expect.poll(() => service.stats().judgements.waiting, { timeout: 10_000 }).toBe(3);
    const busy = await ask(url, { body: { id: "b", items: [item] } });
    expect([busy.status, busy.headers.get("retry-after")]).toEqual([503, "2"]);
    release();
    expect((await large).results).toHaveLength(3);
    expect(await post(url, { id: "b", items: [item] })).toMatchObject({ results: [{ score: 1 }] });
  });
});

test("another service on the port says which rollouts it does not know", async () => {
  const service = await open();
  const url = `${service.url}/rollouts`;
  const first = firstRequest();
  await post(url, first);
  const port = Number(new URL(service.url).port);
  await service.close();
  await open({ port });
  const result = { call: 0, token_ids: [1], log_probs: [-1], stop_reason: null };
  const [status, text] = await answer(await ask(url, { body: { id: first.id, seq: 1, results: [result] } }));
  expect([status, JSON.parse(text).detail]).toEqual([
    410,
    `Cannot continue the rollout ${first.id}: this service does not know it. It has ended, or the service was started again since. Start the rollout again under another id.`,
  ]);
});

describe("closing", () => {
  test("ends held requests and open rollouts, refuses new ones, and frees the port", async () => {
    const rollout: Rollout = async (_, policy) => {
      await new Promise((resolve) => policy.signal.addEventListener("abort", resolve));
      return 1;
    };
    const service = await open({ rollout, tasks: { train: [TASK], val: [] } });
    const held = post<{ action: string; message: string }>(`${service.url}/rollouts`, firstRequest());
    await expect.poll(() => service.stats().rollouts.open, { timeout: 10_000 }).toBe(1);
    await service.close();
    expect(await held).toMatchObject({ action: "error", message: expect.stringMatching(/the service is closing/) });
    expect(service.stats().rollouts).toMatchObject({ open: 0, given_up: 1 });
    await expect(ask(`${service.url}/health`)).rejects.toThrow();
  });

  test("lets judgements finish within the grace, and ends them after it", async () => {
    let release = (_: number) => {};
    const slow = singleTurn("r", () => new Promise<number>((resolve) => (release = resolve)));
    const patient = await open({ rollout: slow, isSingleTurn: true });
    const request = { id: "a", items: [item] };
    const finished = post(`${patient.url}/rewards`, request);
    await expect.poll(() => patient.stats().judgements.waiting, { timeout: 10_000 }).toBe(1);
    const closed = patient.close({ graceMs: 20_000 });
    expect((await ask(`${patient.url}/rewards`, { body: { id: "b", items: [item] } })).status).toBe(503);
    release(1);
    await closed;
    expect(await finished).toMatchObject({ results: [{ score: 1 }] });
    const hasty = await open({ rollout: slow, isSingleTurn: true });
    const ended = post(`${hasty.url}/rewards`, request);
    await expect.poll(() => hasty.stats().judgements.waiting, { timeout: 10_000 }).toBe(1);
    await hasty.close({ graceMs: 50 });
    expect(await ended).toMatchObject({ results: [{ error: expect.stringMatching(/the service is closing/) }] });
  });
});
