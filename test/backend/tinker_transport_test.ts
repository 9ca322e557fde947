/** What the client does when the service or the way to it fails: nothing is lost, nothing is asked for without end. */
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { TinkerSession } from "../../src/backend/tinker/session.ts";
import { type Clock, Transport, type TransportOptions } from "../../src/backend/tinker/transport.ts";
import { RemoteError } from "../../src/errors.ts";

/** A clock that runs on at once, and remembers how long it was slept on. */
function quickClock(): Clock & { readonly slept: number[] } {
  let now = 0;
  const slept: number[] = [];
  return {
    slept,
    now: () => now,
    async sleep(ms, signal) {
      signal?.throwIfAborted();
      slept.push(ms);
      now += ms;
    },
  };
}

type Step = Response | Error | (() => Response);

interface Seen {
  readonly url: string;
  readonly headers: Headers;
  readonly body: string;
}

/** A service that answers as the list says, the last entry for ever. */
function service(steps: readonly Step[], options: Partial<TransportOptions> = {}) {
  const seen: Seen[] = [];
  const clock = quickClock();
  const notices: string[] = [];
  const transport = new Transport({
    baseUrl: "http://service",
    apiKey: "tml-secret",
    clock,
    notify: (message) => void notices.push(message),
    fetch: async (url, init) => {
      const step = steps[Math.min(seen.length, steps.length - 1)]!;
      seen.push({ url, headers: new Headers(init.headers), body: String(init.body ?? "") });
      if (step instanceof Error) throw step;
      return typeof step === "function" ? step() : step.clone();
    },
    ...options,
  });
  return { transport, seen, clock, notices };
}

const ok = (body: object = {}) => Response.json(body);
const status = (code: number, detail = "", headers: Record<string, string> = {}) =>
  new Response(detail && JSON.stringify({ detail }), { status: code, headers });

describe("a request", () => {
  test.each([
    ["a lost connection", new TypeError("fetch failed"), 3],
    ["408", status(408, "slow"), 3],
    ["409", status(409, "conflict"), 3],
    ["429", status(429, "too many"), 3],
    ["500", status(500, "broken"), 3],
    ["an empty 400, which is a proxy's", status(400), 3],
    ["400 with a wish for another try", status(400, "again", { "x-should-retry": "true" }), 3],
    ["400", status(400, "wrong"), 1],
    ["401", status(401, "key"), 1],
    ["404", status(404, "none"), 1],
    ["422", status(422, "shape"), 1],
    ["500 with a wish for none", status(500, "never", { "x-should-retry": "false" }), 1],
  ])("that meets %s is sent again, or not", async (_, failure, times) => {
    const { transport, seen } = service([failure, failure, ok({ fine: 1 })]);
    const call = transport.call("/path", { body: {} });
    if (times === 3) expect((await call).json).toEqual({ fine: 1 });
    else await expect(call).rejects.toThrow(RemoteError);
    expect(seen).toHaveLength(times);
    expect(new Set(seen.map(({ headers }) => headers.get("x-idempotency-key"))).size).toBe(1);
    expect(seen[0]!.headers.get("x-api-key")).toBe("tml-secret");
  });

  test("waits as long as the service asks, else longer each time", async () => {
    const asked = service([
      status(429, "", { "retry-after-ms": "70" }),
      status(503, "", { "retry-after": "3" }),
      ok(),
    ]);
    await asked.transport.call("/path");
    expect(asked.clock.slept).toEqual([70, 3000]);
    const own = service([...Array(6).fill(status(500)), ok()]);
    await own.transport.call("/path");
    own.clock.slept.forEach((ms, i) => {
      const most = Math.min(500 * 2 ** i, 10_000);
      expect(ms).toBeGreaterThanOrEqual(0.75 * most);
      expect(ms).toBeLessThanOrEqual(most);
    });
  });

  test("gives a service that never recovers up, and says after how long and why", async () => {
    const { transport, clock, notices } = service([status(503, "down for repair")], { patienceMs: 30_000 });
    await expect(transport.call("/path")).rejects.toThrow(/503: down for repair.*tried for \d+ s/);
    expect(clock.now()).toBeLessThanOrEqual(30_000);
    expect(notices).toEqual([
      expect.stringContaining("http://service fails, and is asked again: down for repair"),
    ]);
  });

  test("waits an hour for a paused account, and says so once a minute", async () => {
    const { transport, notices, clock } = service([status(402, "pay first")]);
    await expect(transport.call("/path")).rejects.toThrow("402: pay first");
    expect(new Set(notices)).toEqual(new Set([expect.stringContaining("pay first")]));
    expect(notices.length).toBeLessThanOrEqual(61);
    expect(clock.now()).toBeGreaterThan(59 * 60_000);
  });

  test("that hundreds make tells what they meet once", async () => {
    const stopped: Clock = { now: () => 0, sleep: async () => {} };
    const { transport, notices } = service([...Array(300).fill(status(402, "pay first")), ok()], {
      clock: stopped,
    });
    await Promise.all(Array.from({ length: 200 }, () => transport.call("/path")));
    expect(notices).toHaveLength(1);
  });

  test("is not given up for a service that has too much to do for half an hour, and says why it takes so long", async () => {
    const busy = Array(180).fill(status(429, "queue full", { "retry-after": "10" }));
    const { transport, notices, clock } = service([...busy, ok({ fine: 1 })]);
    expect((await transport.call("/path")).json).toEqual({ fine: 1 });
    expect(clock.now()).toBe(30 * 60_000);
    expect(notices[0]).toContain("queue full");
  });

  test("that is paced waits when another of its kind was refused; others do not", async () => {
    const { transport, clock } = service([status(429, "busy", { "retry-after-ms": "20" }), ok()]);
    await transport.call("/sample", { isPaced: true });
    expect(clock.now()).toBe(1000);
    const second = service([status(429, "busy", { "retry-after-ms": "20" }), ok()]);
    const [, other] = [
      second.transport.call("/sample", { isPaced: true }),
      await second.transport.call("/train"),
    ];
    expect(other.status).toBe(200);
    expect(second.clock.now()).toBeLessThan(1000);
    await second.transport.call("/sample", { isPaced: true });
    expect(second.clock.now()).toBeGreaterThanOrEqual(1000);
  });

  test("is not tried for long once somebody waits for the end", async () => {
    const hurry = new AbortController();
    let calls = 0;
    const down = () => {
      if (++calls === 5) hurry.abort();
      return status(503, "down");
    };
    const { transport, clock } = service([down], { hurry: hurry.signal });
    await expect(transport.call("/x")).rejects.toThrow(/503: down/);
    expect(calls).toBeGreaterThanOrEqual(5);
    expect(clock.now()).toBeLessThan(20_000);
    const paused = service([status(402, "pay first")], { hurry: hurry.signal });
    await expect(paused.transport.call("/x")).rejects.toThrow(/402/);
    expect(paused.clock.now()).toBeLessThanOrEqual(10_000);
    const passing = service([status(503), ok({ fine: 1 })], { hurry: hurry.signal });
    expect((await passing.transport.call("/x")).json).toEqual({ fine: 1 });
  });

  test("has its whole patience with failures after a pause of the account", async () => {
    const { transport } = service([
      ...Array(100).fill(status(402, "pay first")),
      status(502, "starting"),
      status(502, "starting"),
      ok({ fine: 1 }),
    ]);
    expect((await transport.call("/path")).json).toEqual({ fine: 1 });
  });

  test("that meets pauses and failures by turns ends", async () => {
    let calls = 0;
    const { transport, clock } = service([() => (calls++ % 2 ? status(402) : status(500))]);
    await expect(transport.call("/path")).rejects.toThrow(RemoteError);
    expect(clock.now()).toBeLessThan(70 * 60_000);
  });

  test("ends when it takes too long, and when its signal aborts", async () => {
    const hung: TransportOptions["fetch"] = (_, { signal }) =>
      new Promise((_resolve, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
    const { transport } = service([ok()], { fetch: hung, patienceMs: 1000 });
    await expect(transport.call("/path", { timeoutMs: 5 })).rejects.toThrow("did not answer in time");
    const reason = new Error("stopped");
    await expect(transport.call("/path", { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  test("never tells the key", async () => {
    const { transport } = service([status(401, "wrong key")]);
    await expect(transport.call("/path")).rejects.not.toThrow(/tml-secret/);
    await expect(transport.call("/path")).rejects.toThrow(/http:\/\/service\/path.*401: wrong key/);
  });
});

const OPENING = [ok({ fwdbwd_max_chunk_len: 7 }), ok({ session_id: "s", warning_message: "soon closed" })];

async function openSession(steps: readonly Step[]) {
  const it = service([...OPENING, ...steps]);
  const session = await TinkerSession.open(it.transport, { sdkVersion: "0.25.0" });
  session.close();
  return { ...it, session };
}

describe("a result", () => {
  const pending = () => Response.json({ type: "try_again", queue_state: "active" }, { status: 408 });

  test("is asked for until it is there, without a hot loop", async () => {
    const { session, seen, clock } = await openSession([
      pending,
      pending,
      pending,
      ok({ path: "tinker://a" }),
    ]);
    expect((await session.result("r", { type: "SaveWeights" })).json).toEqual({ path: "tinker://a" });
    expect(clock.slept).toEqual([100, 100, 100]);
    const polls = seen.slice(OPENING.length);
    expect(polls.map(({ headers }) => headers.get("x-tinker-request-iteration"))).toEqual([
      "0",
      "1",
      "2",
      "3",
    ]);
    expect(JSON.parse(polls[0]!.body)).toEqual({ request_id: "r", allow_metadata_only: false });
  });

  test("may be a failure, which is told and not asked for again", async () => {
    const { session, seen } = await openSession([ok({ error: "token 9 is out of range", category: "user" })]);
    const failed = session.result("r", { type: "ForwardBackward" });
    await expect(failed).rejects.toThrow(
      "could not finish ForwardBackward: token 9 is out of range (user error)",
    );
    expect(seen).toHaveLength(3);
  });

  test("of a paused queue is waited for as long as it takes, and the reason told", async () => {
    const paused = () =>
      Response.json(
        { type: "try_again", queue_state: "paused_capacity", queue_state_reason: "full" },
        { status: 408 },
      );
    const { session, notices } = await openSession([...Array(40_000).fill(paused), ok({ metrics: {} })]);
    await session.result("r", { type: "OptimStep" });
    expect(notices[1]).toContain("paused_capacity");
    expect(notices[1]).toContain("full");
    // 4000 s: one a minute, and the service's own word at the start.
    expect(notices.length).toBeLessThanOrEqual(1 + 67);
  });

  test("that never comes is given up", async () => {
    const { session, notices } = await openSession([pending]);
    await expect(session.result("r", { type: "OptimStep" })).rejects.toThrow(
      "not finished OptimStep in 60 minutes",
    );
    expect(notices[1]).toBe("the service is still at work on OptimStep");
    expect(notices.length).toBeLessThanOrEqual(1 + 56);
  });

  test.each([
    ["gone", status(410, "dropped"), "no longer has the result"],
    ["in JSON where bytes are read", ok({ loss_fn_outputs: [] }), "JSON"],
    ["unknown to the service", status(404, "no such request"), "404: no such request"],
    ["refused as often as is forgiven", status(400, "bad"), "bad"],
  ])("may be %s", async (_, answer, message) => {
    const { session } = await openSession([answer]);
    await expect(session.result("r", { type: "Sample" })).rejects.toThrow(message);
  });
});

describe("a session", () => {
  test("tells who it is and passes the service's word on", async () => {
    const { seen, notices, session } = await openSession([ok()]);
    expect(seen.map(({ url }) => url)).toEqual([
      "http://service/api/v1/client/config",
      "http://service/api/v1/create_session",
    ]);
    expect(JSON.parse(seen[1]!.body)).toMatchObject({ sdk_version: "0.25.0", type: "create_session" });
    expect(notices).toEqual(["soon closed"]);
    expect(session.flags).toMatchObject({ fwdbwd_max_chunk_len: 7, fwdbwd_max_chunk_bytes_count: 5_000_000 });
  });

  test("names what an answer lacks", async () => {
    const { session } = await openSession([ok({ other: 1 })]);
    const shape = z.object({ sampling_session_id: z.string() });
    await expect(session.ask("/x", { body: {}, shape })).rejects.toThrow(/\/x at sampling_session_id/);
  });
});
