/** The training client and its session, by the requests that they send. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { TinkerSession } from "../../../src/train/backend/tinker/session.ts";
import { TrainingClient } from "../../../src/train/backend/tinker/training_client.ts";
import { Transport } from "../../../src/train/backend/tinker/transport.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

interface Sent {
  readonly path: string;
  readonly body: unknown;
  readonly headers: Headers;
}

/** A session on a service that answers every request, by path. */
async function open(replies: Readonly<Record<string, () => Response | Promise<Response>>> = {}) {
  const sent: Sent[] = [];
  const usual: typeof replies = {
    "client/config": () => Response.json({}),
    create_session: () => Response.json({ session_id: "s" }),
    session_heartbeat: () => Response.json({}),
    retrieve_future: () => Response.json({ path: "tinker://saved", sampling_session_id: "sampler" }),
  };
  const transport = new Transport({
    baseUrl: "http://service",
    apiKey: "tml-key",
    clock: { now: () => 0, sleep: async () => {} },
    fetch: async (url, init) => {
      const path = url.split("/api/v1/")[1]!;
      sent.push({ path, body: JSON.parse(String(init.body ?? "null")), headers: new Headers(init.headers) });
      const reply = replies[path] ?? usual[path] ?? (() => Response.json({ request_id: `r-${path}` }));
      return reply();
    },
  });
  const session = await TinkerSession.open(transport, { sdkVersion: "1", wire: "json" });
  sent.length = 0;
  return { session, client: new TrainingClient(session, "m"), sent };
}

const ADAM = { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };

describe("a request of the training client", () => {
  const calls: readonly [string, string, object, unknown, (client: TrainingClient) => Promise<unknown>][] = [
    [
      "save_weights",
      "SaveWeights",
      { path: "a", overwrite: true },
      "tinker://saved",
      async (client) => (await client.saveWeights("a"))(),
    ],
    [
      "save_weights_for_sampler",
      "SaveWeightsForSampler",
      { path: "a-1" },
      "tinker://saved",
      async (client) => (await client.saveSamplerWeights("a"))(),
    ],
    [
      "save_weights_for_sampler",
      "SaveWeightsForSampler",
      { sampling_session_seq_id: 0 },
      "sampler",
      async (client) => (await client.openSampler())(),
    ],
    [
      "save_weights_for_sampler",
      "SaveWeightsForSampler",
      { sampling_session_seq_id: 0, kind: "inflight" },
      "sampler",
      async (client) => (await client.openSampler("inflight"))(),
    ],
    [
      "load_weights",
      "LoadWeights",
      { path: "tinker://a", optimizer: true },
      undefined,
      (client) => client.loadWeights("tinker://a"),
    ],
    ["optim_step", "OptimStep", { adam_params: ADAM }, {}, async (client) => (await client.optimStep(ADAM))()],
  ];

  test.each(calls)("%s as %s: %o", async (type, result, body, expected, call) => {
    const { client, session, sent } = await open();
    expect(await call(client)).toEqual(expected);
    expect(sent.map(({ path }) => path)).toEqual([type, "retrieve_future"]);
    expect(sent[0]!.body).toEqual({ model_id: "m", seq_id: 1, ...body, type });
    expect(sent[1]!.body).toMatchObject({ request_id: `r-${type}` });
    expect(sent[1]!.headers.get("x-tinker-request-type")).toBe(result);
    session.close();
  });

  test.each([
    [true, "forward", "Forward"],
    [false, "forward_backward", "ForwardBackward"],
  ])("a pass, forward only %j, is sent as %s and its result collected as %s", async (forwardOnly, path, type) => {
    const output = { loss_fn_outputs: [{ logprobs: { data: [-1, -0.5] } }], metrics: { "loss:sum": 2 } };
    const { client, session, sent } = await open({ retrieve_future: () => Response.json(output) });
    const rows = { tokens: Uint32Array.of(4, 5, 6), offsets: Uint32Array.of(0, 3) };
    const loss = { lossFn: "cross_entropy", config: {}, inputs: {}, forwardOnly };
    const collect = await client.pass(rows, loss);
    expect(sent).toMatchObject([{ path, body: { model_id: "m", seq_id: 1 } }]);
    expect(await collect()).toEqual({ logprobs: Float32Array.of(0, -1, -0.5), metrics: { "loss:sum": 2 } });
    expect(sent[1]!.headers.get("x-tinker-request-type")).toBe(type);
    session.close();
  });

  test("has the next number, also after one that was refused", async () => {
    let refuses = true;
    const { client, session, sent } = await open({
      save_weights: () => {
        if (!refuses) return Response.json({ request_id: "r" });
        refuses = false;
        return new Response("wrong", { status: 422 });
      },
    });
    await expect(client.saveWeights("a")).rejects.toThrow("422");
    await Promise.all([client.saveWeights("b"), client.openSampler(), client.saveSamplerWeights("c")]);
    session.close();
    expect(sent.map(({ body }) => body)).toMatchObject([{ seq_id: 1 }, { seq_id: 2 }, { seq_id: 3 }, { seq_id: 4 }]);
  });

  test("a base model's sampler has a number of its own", async () => {
    const { client, session, sent } = await open({
      create_sampling_session: () => Response.json({ sampling_session_id: "base-sampler" }),
    });
    await client.openSampler();
    expect(await client.openBaseSampler("base")).toBe("base-sampler");
    expect(sent.at(-1)!.body).toEqual({
      session_id: "s",
      sampling_session_seq_id: 1,
      base_model: "base",
      type: "create_sampling_session",
    });
    session.close();
  });

  test("for a run's last checkpoint names the setting when there is none", async () => {
    const reply = { last_checkpoint: { tinker_path: "tinker://last" } };
    const replies = [reply, {}, { last_checkpoint: null }].map((each) => () => Response.json(each));
    const { client, session, sent } = await open({ "training_runs/a%2Fb": () => replies.shift()!() });
    expect(await client.lastCheckpoint("a/b")).toBe("tinker://last");
    expect(sent).toMatchObject([{ path: "training_runs/a%2Fb", body: null }]);
    for (let i = 0; i < 2; i++)
      await expect(client.lastCheckpoint("a/b")).rejects.toMatchObject({
        message: expect.stringContaining(
          "Cannot resume from the training run a/b: it has no checkpoint (training.resume_from_tinker_id).",
        ),
        path: "training.resume_from_tinker_id",
      });
    session.close();
  });
});

describe("the heartbeat of a session", () => {
  const beats = (sent: readonly Sent[]) => sent.filter(({ path }) => path === "session_heartbeat");

  test("is sent every ten seconds until the session is closed", async () => {
    const { session, sent } = await open();
    await vi.advanceTimersByTimeAsync(9_999);
    expect(beats(sent)).toHaveLength(0);
    await vi.advanceTimersByTimeAsync(20_001);
    expect(beats(sent).map(({ body }) => body)).toEqual(Array(3).fill({ session_id: "s", type: "session_heartbeat" }));
    session.close();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(beats(sent)).toHaveLength(3);
  });

  test("waits for the one before it, and goes on after one that fails", async () => {
    const answers: ((reply: Response) => void)[] = [];
    const held = () => new Promise<Response>((resolve) => answers.push(resolve));
    const { session, sent } = await open({ session_heartbeat: held });
    await vi.advanceTimersByTimeAsync(25_000);
    expect(beats(sent)).toHaveLength(1);
    answers[0]!(new Response("ended", { status: 404 }));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(beats(sent)).toHaveLength(2);
    session.close();
  });
});
