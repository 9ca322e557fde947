/** The client while the service or the network fails: no request is lost, and no retry goes on without end. */
import { describe, expect, test, vi } from "vitest";
import { z } from "zod";
import type { Clock } from "../../../src/leaves/clock.ts";
import { RemoteError } from "../../../src/leaves/errors.ts";
import { TinkerSession } from "../../../src/train/backend/tinker/session.ts";
import { Transport, type TransportOptions } from "../../../src/train/backend/tinker/transport.ts";
import { type QuickClock, quickClock } from "../../fixtures/clock.ts";

type Step = Response | Error | ((clock: QuickClock) => Response);

interface Seen {
  readonly url: string;
  readonly headers: Headers;
  readonly body: string;
}

/** Requests after which a service is gone for good, because nothing else would end a client without a pause. */
const MOST_REQUESTS = 100_000;

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
      if (seen.length > MOST_REQUESTS) return status(404, `asked ${MOST_REQUESTS} times`);
      if (step instanceof Error) throw step;
      return typeof step === "function" ? step(clock) : step.clone();
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

  test("pauses as long as the service asks, otherwise longer each time", async () => {
    const asked = service([status(429, "", { "retry-after-ms": "70" }), status(503, "", { "retry-after": "3" }), ok()]);
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

  test("fails for a service that never recovers, with the time and the reason", async () => {
    const { transport, clock, notices } = service([status(503, "down for repair")], { patienceMs: 30_000 });
    await expect(transport.call("/path")).rejects.toThrow(/503: down for repair.*Tried for \d+ s/);
    expect(clock.now()).toBeLessThanOrEqual(30_000);
    // The next pause of at most 10 s would have been too long.
    expect(clock.now()).toBeGreaterThan(20_000);
    expect(notices).toEqual([expect.stringContaining("http://service fails; trying again: down for repair")]);
  });

  test("waits an hour for a paused account and reports it once a minute", async () => {
    const { transport, notices, clock } = service([status(402, "pay first")]);
    await expect(transport.call("/path")).rejects.toThrow("402: pay first");
    expect(new Set(notices)).toEqual(new Set([expect.stringContaining("pay first")]));
    expect(notices.length).toBeLessThanOrEqual(61);
    expect(clock.now()).toBeGreaterThan(59 * 60_000);
  });

  test("of hundreds at once reports a failure once", async () => {
    const stopped: Clock = { now: () => 0, sleep: async () => {} };
    const { transport, notices } = service([...Array(300).fill(status(402, "pay first")), ok()], {
      clock: stopped,
    });
    await Promise.all(Array.from({ length: 200 }, () => transport.call("/path")));
    expect(notices).toHaveLength(1);
  });

  test("waits half an hour for a busy service and reports the reason", async () => {
    const busy = Array(180).fill(status(429, "queue full", { "retry-after": "10" }));
    const { transport, notices, clock } = service([...busy, ok({ fine: 1 })]);
    expect((await transport.call("/path")).json).toEqual({ fine: 1 });
    expect(clock.now()).toBe(30 * 60_000);
    expect(notices[0]).toContain("queue full");
  });

  test("that is paced waits when another paced one got 429; others do not", async () => {
    const { transport, clock } = service([status(429, "busy", { "retry-after-ms": "20" }), ok()]);
    await transport.call("/sample", { isPaced: true });
    expect(clock.now()).toBe(1000);
    let now = 0;
    const sleepers: (() => void)[] = [];
    const held: Clock = {
      now: () => now,
      sleep(ms) {
        const until = now + ms;
        return new Promise((resolve) => {
          sleepers.push(() => {
            now = Math.max(now, until);
            resolve();
          });
        });
      },
    };
    const second = service([status(429, "busy", { "retry-after-ms": "20" }), ok()], { clock: held });
    const times: number[] = [];
    const sample = () => second.transport.call("/sample", { isPaced: true }).then(() => void times.push(now));
    const first = sample();
    await vi.waitFor(() => expect(sleepers).toHaveLength(1));
    const next = sample();
    // Answered although no sleeper has been woken.
    expect((await second.transport.call("/train")).status).toBe(200);
    expect([now, times]).toEqual([0, []]);
    while (times.length < 2) {
      for (const wake of sleepers.splice(0)) wake();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await Promise.all([first, next]);
    expect(times).toEqual([1000, 1000]);
  });

  test.each([
    ["of a paced call that failed otherwise", { isPaced: true }, status(503, "down", { "retry-after-ms": "20" }), 20],
    ["of a paced call that waits for an account", { isPaced: true }, status(402, "pay", {}), 5000],
    ["of a call that is not paced", {}, status(429, "busy", { "retry-after-ms": "20" }), 20],
    ["of a paced call, asked for longer", { isPaced: true }, status(429, "busy", { "retry-after": "7" }), 7000],
  ])("the pause %s is no longer than its own", async (_, call, failure, ms) => {
    const { transport, clock } = service([failure, ok()]);
    await transport.call("/path", call);
    expect(clock.now()).toBe(ms);
    // Nothing is left for other paced calls to wait for.
    await transport.call("/path", { isPaced: true });
    expect(clock.now()).toBe(ms);
  });

  test("stops its retries soon after shutdown has begun", async () => {
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

  test("reports a failure after 10 s, and a busy service after a minute", async () => {
    const failing = service([status(503, "down")], { patienceMs: 60_000 });
    const times: number[] = [];
    const options = { patienceMs: 60_000, notify: () => void times.push(clock.now()) };
    const { transport, clock } = service([status(503, "down", { "retry-after": "5" })], options);
    await expect(transport.call("/path")).rejects.toThrow("503: down. Tried for 60 s.");
    expect(times).toEqual([15_000]);
    await expect(failing.transport.call("/path")).rejects.toThrow(RemoteError);
    expect(failing.notices).toEqual(["the service at http://service fails; trying again: down"]);
    const busy = service([status(429, "full", { "retry-after": "30" })], { pausePatienceMs: 90_000 });
    await expect(busy.transport.call("/path")).rejects.toThrow("429: full. Tried for 90 s.");
    expect(busy.notices).toEqual([]);
    const longer = service([status(429, "full", { "retry-after": "30" })], { pausePatienceMs: 120_000 });
    await expect(longer.transport.call("/path")).rejects.toThrow("Tried for 120 s");
    expect(longer.notices).toEqual(["the service is busy; trying again: full"]);
  });

  test("that is refused is not reported as tried", async () => {
    const { transport } = service([status(401, "wrong key.")]);
    await expect(transport.call("/path")).rejects.toThrow(
      /^Cannot call http:\/\/service\/path: it answered 401: wrong key\.$/,
    );
  });

  test("has its full patience with failures after a pause of the account", async () => {
    const { transport } = service([
      ...Array(100).fill(status(402, "pay first")),
      status(502, "starting"),
      status(502, "starting"),
      ok({ fine: 1 }),
    ]);
    expect((await transport.call("/path")).json).toEqual({ fine: 1 });
  });

  test("that alternates between pauses and failures ends", async () => {
    let calls = 0;
    const { transport, clock } = service([() => (calls++ % 2 ? status(402) : status(500))]);
    await expect(transport.call("/path")).rejects.toThrow(RemoteError);
    expect(clock.now()).toBeLessThan(70 * 60_000);
  });

  test("ends at its timeout, and when its signal aborts", async () => {
    const hung: TransportOptions["fetch"] = (_, { signal }) =>
      new Promise((_resolve, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
    const { transport } = service([ok()], { fetch: hung, patienceMs: 1000 });
    await expect(transport.call("/path", { timeoutMs: 5 })).rejects.toThrow("did not answer in time");
    const reason = new Error("stopped");
    await expect(transport.call("/path", { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  test("with a signal ends at its timeout too, and while it is under way when that aborts", async () => {
    const hung: TransportOptions["fetch"] = (_, { signal }) =>
      new Promise((_resolve, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
    const stop = new AbortController();
    const { transport } = service([ok()], { fetch: hung, patienceMs: 1 });
    const { signal } = stop;
    await expect(transport.call("/path", { timeoutMs: 5, signal })).rejects.toThrow("did not answer in time");
    const reason = new Error("stopped");
    setTimeout(() => stop.abort(reason), 5);
    await expect(transport.call("/path", { signal })).rejects.toBe(reason);
  });

  test.each([
    ["no wish", {}, undefined],
    ["milliseconds before seconds", { "retry-after-ms": "70", "retry-after": "3" }, 70],
    ["the longest that is honoured", { "retry-after": "60" }, 60_000],
    ["too long", { "retry-after": "61" }, undefined],
    ["nothing at all", { "retry-after-ms": "0" }, undefined],
    ["a date", { "retry-after": "Wed, 21 Oct 2026 07:28:00 GMT" }, undefined],
  ])("waits as asked for: %s", async (_, headers, ms) => {
    const { transport, clock } = service([status(503, "down", headers), ok()]);
    await transport.call("/path");
    if (ms !== undefined) expect(clock.slept).toEqual([ms]);
    else expect(clock.slept[0]).toSatisfy((slept: number) => slept >= 375 && slept <= 500);
  });

  test("is written as JSON or as bytes, a GET without both; the reply as JSON where it says so", async () => {
    const seen: RequestInit[] = [];
    const replies = [
      Response.json({ a: 1 }),
      new Response('{"a": 1}', { headers: { "content-type": "text/plain" } }),
      new Response("{", { headers: { "content-type": "application/json" } }),
      new Response(null, { status: 418 }),
    ];
    const transport = new Transport({
      baseUrl: "http://service",
      apiKey: "k",
      fetch: async (_, init) => {
        seen.push(init);
        return replies[seen.length - 1]!;
      },
    });
    const json = await transport.call("/a", { body: { x: 1 }, headers: { "X-Own": "o" } });
    const text = await transport.call("/a", { body: Uint8Array.of(7) });
    const damaged = await transport.call("/a", { method: "GET" });
    const answer = await transport.call("/a", { answers: [418] });
    expect([json.json, text.json, damaged.json, answer.json]).toEqual([{ a: 1 }, undefined, undefined, undefined]);
    expect([json, text, damaged, answer].map(({ status }) => status)).toEqual([200, 200, 200, 418]);
    expect(new TextDecoder().decode(text.bytes)).toBe('{"a": 1}');
    const headers = seen.map((init) => init.headers as Record<string, string>);
    expect(headers[0]).toEqual({
      "X-API-Key": "k",
      "Content-Type": "application/json",
      "X-Idempotency-Key": expect.stringMatching(/^[0-9a-f-]{36}$/),
      "X-Own": "o",
    });
    expect(headers[1]!["Content-Type"]).toBe("application/x-protobuf");
    expect(headers[2]).toEqual({ "X-API-Key": "k" });
    expect(seen.map(({ method, body }) => [method, body])).toEqual([
      ["POST", '{"x":1}'],
      ["POST", Uint8Array.of(7)],
      ["GET", undefined],
      ["POST", undefined],
    ]);
  });

  test.each([
    ["its detail", new Response('{"detail": "wrong"}', { status: 400 }), "wrong"],
    ["a detail that is an object", new Response('{"detail": {"a": 1}}', { status: 400 }), '{"a":1}'],
    ["its text", new Response("plain", { status: 404 }), "plain"],
    ["its status text", new Response("", { status: 404, statusText: "Not Found" }), "Not Found"],
    ["nothing", new Response("", { status: 404 }), "no reason given"],
    ["500 characters of a long text", new Response("x".repeat(900), { status: 404 }), "x".repeat(500)],
  ])("that is refused is told with %s", async (_, reply, told) => {
    const { transport } = service([reply]);
    const message = `Cannot call http://service/path: it answered ${reply.status}: ${told}.`;
    await expect(transport.call("/path")).rejects.toMatchObject({ message, status: reply.status, retryable: false });
  });

  test("that reaches nobody is told with the cause", async () => {
    const unreachable = new TypeError("fetch failed", { cause: new Error("ECONNREFUSED") });
    const { transport } = service([unreachable], { patienceMs: 0 });
    await expect(transport.call("/path")).rejects.toMatchObject({
      message: "Cannot call http://service/path: it cannot be reached: ECONNREFUSED. Tried for 0 s.",
      status: undefined,
      retryable: true,
    });
    const plain = service([new Error("away")], { patienceMs: 0 });
    await expect(plain.transport.call("/path")).rejects.toThrow("it cannot be reached: away.");
  });

  test("never shows the key", async () => {
    const { transport } = service([status(401, "wrong key")]);
    await expect(transport.call("/path")).rejects.not.toThrow(/tml-secret/);
    await expect(transport.call("/path")).rejects.toThrow(/http:\/\/service\/path.*401: wrong key/);
  });
});

const HELD_MS = 20_000;
const OPENING = [ok({ fwdbwd_max_chunk_len: 7 }), ok({ session_id: "s", warning_message: "soon closed" })];

async function openSession(steps: readonly Step[]) {
  const it = service([...OPENING, ...steps]);
  const session = await TinkerSession.open(it.transport, { sdkVersion: "0.25.0" });
  session.close();
  return { ...it, session };
}

describe("a result", () => {
  const pending = () => Response.json({ type: "try_again", queue_state: "active" }, { status: 408 });
  /** As a service answers that holds the request open before. */
  const held = (answer: () => Response) => (clock: QuickClock) => {
    clock.pass(HELD_MS);
    return answer();
  };

  test("is polled until it exists, without a hot loop", async () => {
    const { session, seen, clock } = await openSession([pending, pending, pending, ok({ path: "tinker://a" })]);
    expect((await session.result("r", { type: "SaveWeights" })).json).toEqual({ path: "tinker://a" });
    expect(clock.slept).toEqual([100, 100, 100]);
    const polls = seen.slice(OPENING.length);
    expect(polls.map(({ headers }) => headers.get("x-tinker-request-iteration"))).toEqual(["0", "1", "2", "3"]);
    expect(JSON.parse(polls[0]!.body)).toEqual({ request_id: "r", allow_metadata_only: false });
  });

  test("is requested as protobuf where it is binary", async () => {
    const { session, seen } = await openSession([ok({ path: "a" }), new Response(Uint8Array.of(1))]);
    await session.result("r", { type: "SaveWeights" });
    await session.result("r", { type: "Sample" });
    const accepted = seen.slice(OPENING.length).map(({ headers }) => headers.get("accept"));
    expect(accepted).toEqual([null, "application/x-protobuf"]);
  });

  test("may be a failure, which is reported and not retried", async () => {
    const { session, seen } = await openSession([ok({ error: "token 9 is out of range", category: "user" })]);
    const failed = session.result("r", { type: "ForwardBackward" });
    await expect(failed).rejects.toThrow(
      "Cannot finish ForwardBackward on the service: token 9 is out of range (user error)",
    );
    expect(seen).toHaveLength(3);
  });

  test("of a paused queue is waited for without limit, and the reason is reported", async () => {
    const paused = () =>
      Response.json({ type: "try_again", queue_state: "paused_capacity", queue_state_reason: "full" }, { status: 408 });
    const { session, notices, clock } = await openSession([...Array(200).fill(held(paused)), ok({ metrics: {} })]);
    await session.result("r", { type: "OptimStep" });
    expect(clock.now()).toBe(200 * HELD_MS);
    expect(notices[1]).toContain("paused_capacity");
    expect(notices[1]).toContain("full");
    // 4000 s: one a minute, and the service's own word at the start.
    expect(notices.length).toBeLessThanOrEqual(1 + 67);
  });

  test("that never arrives fails after the patience", async () => {
    const { session, notices } = await openSession([held(pending)]);
    await expect(session.result("r", { type: "OptimStep" })).rejects.toThrow(
      "result of OptimStep: the service has not finished it in 60 minutes",
    );
    expect(notices[1]).toBe("the service is still working on OptimStep");
    expect(notices.length).toBeLessThanOrEqual(1 + 56);
  });

  test.each([
    ["gone", status(410, "dropped"), "the service no longer has it"],
    ["JSON instead of protobuf", ok({ loss_fn_outputs: [] }), "JSON"],
    ["unknown to the service", status(404, "no such request"), "404: no such request"],
    ["refused three times", status(400, "bad"), "bad"],
  ])("may be %s", async (_, answer, message) => {
    const { session } = await openSession([answer]);
    await expect(session.result("r", { type: "Sample" })).rejects.toThrow(message);
  });
});

describe("a session", () => {
  test("sends its version and shows the service's messages", async () => {
    const { seen, notices, session } = await openSession([ok()]);
    expect(seen.map(({ url }) => url)).toEqual([
      "http://service/api/v1/client/config",
      "http://service/api/v1/create_session",
    ]);
    expect(JSON.parse(seen[1]!.body)).toMatchObject({ sdk_version: "0.25.0", type: "create_session" });
    expect(notices).toEqual(["soon closed"]);
    expect(session.flags).toMatchObject({ fwdbwd_max_chunk_len: 7, fwdbwd_max_chunk_bytes_count: 5_000_000 });
  });

  test("names the field that a reply lacks", async () => {
    const { session } = await openSession([ok({ other: 1 })]);
    const shape = z.object({ sampling_session_id: z.string() });
    await expect(session.ask("/x", { body: {}, shape })).rejects.toThrow(/\/x at sampling_session_id/);
  });
});
