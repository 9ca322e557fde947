/** Following a job's log over broken connections, against a stand-in of the dashboard for each test. */
import { afterAll, describe, expect, test } from "vitest";
import type { WebSocket } from "ws";
import type { LogLine, RayOptions } from "../../../src/cluster/ray/contract.ts";
import { RayJobs } from "../../../src/cluster/ray/jobs.ts";
import { httpFetch } from "../../../src/train/run/net/http.ts";
import { readWebSocket } from "../../../src/train/run/net/websocket.ts";
import { END_SILENCE_MS, FakeDashboard, type FakeJob, messages, received } from "./fake_dashboard.ts";

const started: FakeDashboard[] = [];
afterAll(() => Promise.all(started.map((ray) => ray.close().catch(() => {}))));

async function setUp(job: Partial<FakeJob>, options: Partial<RayOptions> = {}) {
  const ray = await new FakeDashboard().listen();
  started.push(ray);
  const made = ray.addJob("sum-1", job);
  const notices: string[] = [];
  const notify = (message: string) => void notices.push(message);
  const { address, clock } = ray;
  const jobs = new RayJobs({ address, clock, request: httpFetch, tail: readWebSocket, notify, ...options });
  const lines: string[] = [];
  const listener = ({ text }: LogLine) => void lines.push(text);
  return {
    ray,
    job: made,
    jobs,
    notices,
    lines,
    listener,
    clock,
    follow: (signal?: AbortSignal) => jobs.follow("sum-1", listener, signal),
  };
}

const numbered = (count: number) => Array.from({ length: count }, (_, i) => `line ${i}`);
const logOf = (lines: readonly string[]) => lines.map((line) => `${line}\n`).join("");

/** Sends the log from its start, as far as `end`, and breaks off. */
async function sendUpTo(socket: WebSocket, log: string, end: number): Promise<void> {
  for (const text of messages(log.slice(0, end))) socket.send(text);
  await received(socket);
  socket.terminate();
}

/** Until a follower has these many lines, without waiting for longer than that takes. */
const reached = (lines: readonly string[], count: number) =>
  expect.poll(() => lines.length, { interval: 5, timeout: 20_000 }).toBe(count);

describe("follow()", () => {
  test("gives the lines of a job that ends meanwhile, and its details", async () => {
    const { job, lines, follow } = await setUp({ log: "one\ntw" });
    setTimeout(() => Object.assign(job, { log: "one\ntwo\nlast", status: "FAILED", driver_exit_code: 3 }), 30);
    expect(await follow()).toMatchObject({ status: "FAILED", driver_exit_code: 3 });
    expect(lines).toEqual(["one", "two", "last"]);
  });

  test("skips what was delivered when a connection breaks in the middle of a line", async () => {
    const all = numbered(300);
    const { ray, job, lines, follow } = await setUp({ log: logOf(all), status: "SUCCEEDED" });
    const whole = ray.tail;
    const cuts = [0, 1, 1234, 1234, 1240, 2000];
    ray.tail = (socket, _, connection) => {
      const cut = cuts[connection - 1];
      return cut === undefined ? whole(socket, job, connection) : sendUpTo(socket, job.log, cut);
    };
    await follow();
    expect(lines).toEqual(all);
    expect(ray.connections).toBe(cuts.length + 1);
  });

  test("waits for a dashboard that starts again", async () => {
    const all = numbered(50);
    const { ray, clock, job, lines, notices, follow } = await setUp({ log: logOf(all.slice(0, 25)) });
    const following = follow();
    await reached(lines, 25);
    const closed = ray.close();
    Object.assign(job, { log: logOf(all), status: "SUCCEEDED" });
    clock.during = async (ms) => {
      await closed;
      if (ms === 4_000) await ray.listen();
    };
    expect((await following).status).toBe("SUCCEEDED");
    expect(lines).toEqual(all);
    expect(notices).toEqual([expect.stringMatching(/^lost the connection to http:.*; trying again$/)]);
    expect(clock.slept.slice(0, 3)).toEqual([1_000, 2_000, 4_000]);
  });

  test("ends with an error when the cluster stays away", async () => {
    const { ray, clock, lines, follow } = await setUp({ log: "one\n" }, { patienceMs: 1_500 });
    const following = follow().catch((error: Error) => error.message);
    await reached(lines, 1);
    const left = clock.now();
    const closed = ray.close();
    clock.during = () => closed;
    expect(await following).toMatch(
      new RegExp(
        `^Cannot follow the job sum-1: the Ray cluster at ${ray.address} does not answer \\(for \\d+ s: .*\\)\\. Check`,
      ),
    );
    expect(clock.now() - left).toBe(3_000);
  });

  test("ends with an error when the head was started again and has forgotten the job", async () => {
    const { ray, clock, follow, lines } = await setUp({ log: "one\n" });
    const following = follow().catch((error: Error) => error.message);
    await reached(lines, 1);
    const restarted = ray.close().then(() => ray.listen());
    ray.jobs.clear();
    clock.during = () => restarted;
    expect(await following).toContain("Cannot follow the job sum-1: the Ray cluster does not know it any more");
    expect(lines).toEqual(["one"]);
  });

  test("refuses an unknown job and a wrong token at once", async () => {
    const { ray, jobs, listener } = await setUp({});
    await expect(jobs.follow("nobody", listener)).rejects.toThrow("the Ray cluster does not know such a job");
    ray.token = "secret-token";
    await expect(jobs.follow("sum-1", listener)).rejects.toThrow("the Ray cluster asks for a token");
  });

  test("does not take a connection that closes properly, but too soon, for the end", async () => {
    const all = numbered(100);
    const { ray, job, lines, follow } = await setUp({ log: logOf(all), status: "SUCCEEDED" });
    const whole = ray.tail;
    ray.tail = async (socket, _, connection) => {
      if (connection > 2) return whole(socket, job, connection);
      if (connection === 2) for (const text of messages(logOf(all.slice(0, 40)))) socket.send(text);
      // The first is silent for as long as at a log's end, without having sent anything.
      await ray.silence(socket, connection === 1 ? END_SILENCE_MS : 20);
      socket.close(1000);
    };
    await follow();
    expect(lines).toEqual(all);
  });

  test("fetches the whole log when connections end again and again at the same place", async () => {
    const log = logOf(["before", "x".repeat(5_000_000), "after"]);
    const { ray, clock, job, lines, notices, follow } = await setUp({ log });
    ray.tail = async (socket) => {
      socket.send("before\n");
      socket.close(1000);
    };
    clock.during = () => {
      if (lines.length === 3) Object.assign(job, { log: `${log}at the end\n`, status: "SUCCEEDED" });
    };
    expect((await follow()).status).toBe("SUCCEEDED");
    expect(lines.map((line) => line.slice(0, 10))).toEqual(["before", "xxxxxxxxxx", "after", "at the end"]);
    expect(notices).toEqual([]);
  });

  test("says which lines are missing when the cluster cannot read the log", async () => {
    const { ray, lines, notices, follow } = await setUp({ log: "before\n", status: "FAILED" });
    ray.tail = async (socket) => {
      socket.send("before\n");
      socket.close(1000);
    };
    ray.answer = ({ path }) => (path.endsWith("/logs") ? [500, "UnicodeDecodeError: invalid byte"] : undefined);
    expect((await follow()).status).toBe("FAILED");
    expect(lines).toEqual(["before"]);
    expect(notices).toEqual([
      expect.stringMatching(/^the log of sum-1 cannot be read to its end, lines are missing: .*invalid byte/),
    ]);
  });

  test("ends for a job that failed before it had a log", async () => {
    const { ray, lines, follow } = await setUp({ status: "FAILED", message: "no such package" });
    ray.tail = async (socket) => socket.close(1000);
    expect((await follow()).message).toBe("no such package");
    expect(lines).toEqual([]);
  });

  test("stops at the signal, also while it waits for the cluster", async () => {
    const { ray, clock, follow } = await setUp({});
    const stop = new AbortController();
    const following = follow(stop.signal);
    await expect.poll(() => ray.connections, { interval: 5 }).toBe(1);
    stop.abort(new Error("enough"));
    await expect(following).rejects.toThrow("enough");
    await ray.close();
    const again = new AbortController();
    clock.during = () => again.abort(new Error("enough again"));
    await expect(follow(again.signal)).rejects.toThrow("enough again");
  });

  test("an error of the listener ends it", async () => {
    const { jobs } = await setUp({ log: "one\n" });
    const listener = () => {
      throw new Error("the page is full");
    };
    await expect(jobs.follow("sum-1", listener)).rejects.toThrow("the page is full");
  });
});

test("100,000 lines arrive once and in order while connections break", {
  timeout: 60_000,
}, async () => {
  const count = 100_000;
  const log = logOf(Array.from({ length: count }, (_, i) => `line ${i} ${"x".repeat(80)}`));
  const { ray, job, jobs } = await setUp({ log, status: "SUCCEEDED" });
  const whole = ray.tail;
  ray.tail = (socket, _, connection) =>
    connection < 4 ? sendUpTo(socket, log, connection * 2_000_000) : whole(socket, job, connection);
  let next = 0;
  await jobs.follow("sum-1", ({ text }) => {
    if (!text.startsWith(`line ${next} x`)) throw new Error(`got ${text}, expected line ${next}`);
    next++;
  });
  expect(next).toBe(count);
  expect(ray.connections).toBe(4);
});
