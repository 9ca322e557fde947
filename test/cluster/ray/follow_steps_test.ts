/** Following a job's log connection by connection, on a clock of the test's own: pauses, patience, what counts as the end. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { JobDetails, JobStatus, LogLine, RayOptions, TailRequest } from "../../../src/cluster/ray/contract.ts";
import { Follower } from "../../../src/cluster/ray/follow.ts";
import { RayHttp } from "../../../src/cluster/ray/request.ts";
import { RemoteError } from "../../../src/leaves/errors.ts";

beforeEach(() => void vi.useFakeTimers({ now: 0 }));
afterEach(() => void vi.useRealTimers());

/** How long Ray is silent at the end of a log, at least, ms. */
const SILENCE = 1_900;
const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** What one connection sends, each text after a wait, and how it ends. */
interface Connection {
  readonly sends?: readonly (readonly [afterMs: number, text: string])[];
  readonly closesAfterMs?: number;
  readonly code?: number;
  readonly reason?: string;
}
type Answer<T> = T | Error;

interface Script {
  /** The last of each list is repeated. */
  readonly connections: readonly Connection[];
  readonly details?: readonly Answer<JobStatus>[];
  readonly logs?: readonly Answer<string>[];
  readonly options?: Partial<RayOptions>;
  readonly listener?: (line: LogLine) => void;
}

const jobOf = (status: JobStatus): JobDetails => ({
  ...{ submission_id: "sum-1", entrypoint: "ls", status, message: "", error_type: undefined, metadata: {} },
  ...{ start_time: undefined, end_time: undefined, driver_exit_code: undefined },
});

/** A connection that sends the text and then closes as Ray does at the end of a log. */
const whole = (text: string): Connection => ({ sends: [[0, text]], closesAfterMs: SILENCE });
const broken = (text = "", reason = "reset"): Connection => ({
  ...(text && { sends: [[0, text] as const] }),
  ...{ code: 1006, reason },
});
const away = new RemoteError("away", { retryable: true });

function start(script: Script, signal?: AbortSignal) {
  const { connections, details = ["SUCCEEDED"], logs = [], options = {} } = script;
  const lines: string[] = [];
  const notices: string[] = [];
  /** When each connection was opened, ms from the start. */
  const opened: number[] = [];
  const began = Date.now();
  const requests: { url: string; headers: TailRequest["headers"] }[] = [];
  const tail: RayOptions["tail"] = async (url, { headers, onText, signal: stop }) => {
    const { sends = [], closesAfterMs = 0, code = 1000, reason = "" } = next(connections, opened.length);
    opened.push(Date.now() - began);
    requests.push({ url, headers });
    for (const [afterMs, text] of sends) {
      if (afterMs > 0) await wait(afterMs);
      onText(text);
    }
    if (closesAfterMs > 0 && !stop.aborted) await wait(closesAfterMs);
    return { code, reason };
  };
  const all = { address: "http://head:8265", token: "secret", request: () => Promise.reject(away), tail, ...options };
  let asked = 0;
  let fetched = 0;
  const reply = <T>(answer: Answer<T>) => (answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer));
  const follower = new Follower({
    id: "sum-1",
    http: new RayHttp(all),
    options: { notify: (message) => void notices.push(message), ...all },
    listener: script.listener ?? (({ text }) => void lines.push(text)),
    read: {
      details: async () => {
        const answer = next(details, asked++);
        return answer instanceof Error ? reply<JobDetails>(answer) : jobOf(answer);
      },
      logs: () => reply(next(logs, fetched++)),
    },
  });
  let failure: RemoteError | undefined;
  const ended = follower.run(signal).then(
    ({ status }) => status as string,
    (error: RemoteError) => {
      failure = error;
      return error.message;
    },
  );
  return { failure: () => failure, ended, lines, notices, opened, requests, fetched: () => fetched };
}

function next<T>(list: readonly T[], at: number): T {
  return list[Math.min(at, list.length - 1)]!;
}

/** Runs the script to its end. */
async function follow(script: Script) {
  const { ended, fetched, failure, ...seen } = start(script);
  await vi.runAllTimersAsync();
  return { ...seen, ended: await ended, fetched: fetched(), failure: failure() };
}

describe("a connection", () => {
  test("asks for the log of the job with the headers of the cluster, encrypted where the dashboard is", async () => {
    const { requests } = await follow({ connections: [whole("a\n")] });
    expect(requests).toEqual([
      {
        url: "ws://head:8265/api/jobs/sum-1/logs/tail",
        headers: { "user-agent": "grpu", authorization: "Bearer secret" },
      },
    ]);
    const options = { address: "https://ray.example.org/http" };
    const secure = await follow({ connections: [whole("a\n")], options });
    expect(secure.requests[0]!.url).toBe("wss://ray.example.org/http/api/jobs/sum-1/logs/tail");
  });

  test.each<[what: string, connection: Connection, isEnd: boolean]>([
    ["properly after a silence", { sends: [[0, "a\n"]], closesAfterMs: SILENCE }, true],
    ["properly, but sooner", { sends: [[0, "a\n"]], closesAfterMs: SILENCE - 1 }, false],
    ["after a silence, but broken", { sends: [[0, "a\n"]], closesAfterMs: SILENCE, code: 1006 }, false],
    [
      "properly after a silence that the latest text broke",
      {
        sends: [
          [0, "a\n"],
          [SILENCE, "b\n"],
        ],
      },
      false,
    ],
    ["properly without any text", { closesAfterMs: 10 * SILENCE }, false],
  ])("that closes %s ends the log: %#", async (_, connection, isEnd) => {
    const { ended, opened } = await follow({ connections: [connection, whole("a\nb\n")] });
    expect(ended).toBe("SUCCEEDED");
    expect(opened).toHaveLength(isEnd ? 1 : 2);
  });

  test("after another skips what was delivered, wherever the pieces begin and end", async () => {
    const log = "one\ntwo\nthree\n";
    for (let cut = 0; cut <= log.length; cut++)
      for (const size of [1, 3, 4, log.length]) {
        const pieces = log.match(new RegExp(`[^]{1,${size}}`, "g"))!.map((text) => [0, text] as const);
        const again = { sends: pieces, closesAfterMs: SILENCE };
        const { lines } = await follow({ connections: [broken(log.slice(0, cut)), again] });
        expect(lines).toEqual(["one", "two", "three"]);
      }
  });

  test("that ends in the middle of a line leaves it open; the end of the job closes it", async () => {
    const { lines } = await follow({
      connections: [whole("one\ntw"), whole("one\ntwo")],
      details: ["RUNNING", "FAILED"],
    });
    expect(lines).toEqual(["one", "two"]);
  });

  test("is closed by an error of the listener, and nothing more is taken from it", async () => {
    const taken: string[] = [];
    const listener = ({ text }: LogLine) => {
      taken.push(text);
      throw new Error("the page is full");
    };
    const sends = [
      [0, "one\n"],
      [5, "two\n"],
    ] as const;
    const { ended, opened } = await follow({ connections: [{ sends }], listener });
    expect([ended, taken, opened]).toEqual(["the page is full", ["one"], [0]]);
  });
});

describe("the next connection", () => {
  test("waits half a second while the job runs and the log goes on", async () => {
    const details = ["RUNNING", "RUNNING", "SUCCEEDED"] as const;
    const { opened } = await follow({ connections: [whole("a\n"), broken("a\nb\n"), whole("a\nb\n")], details });
    expect(opened).toEqual([0, SILENCE + 500, SILENCE + 1_000]);
  });

  test("waits longer each time while the cluster is away, at most ten seconds, and shorter once it answers", async () => {
    const details = [away, away, away, away, away, away, "RUNNING", away, "RUNNING", "SUCCEEDED"] as const;
    const silent = Array.from({ length: 6 }, () => broken());
    const connections = [...silent, broken("a\n"), broken(), broken("a\nb\n"), whole("a\nb\n")];
    const { opened, notices } = await follow({ connections, details });
    const pauses = opened.slice(1).map((at, i) => at - opened[i]!);
    expect(pauses).toEqual([1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 500, 1_000, 500]);
    const lost = "lost the connection to http://head:8265: reset; trying again";
    expect(notices).toEqual([lost, lost]);
  });

  test("tells why the last one broke, without the token, also where nobody gives a reason", async () => {
    const details = [away, "RUNNING", away, "SUCCEEDED"] as const;
    const connections = [broken("", "bad Bearer secret"), broken(), broken("", ""), whole("a\n")];
    const { notices } = await follow({ connections, details });
    expect(notices).toEqual([
      "lost the connection to http://head:8265: bad Bearer ***; trying again",
      "lost the connection to http://head:8265: the connection broke; trying again",
    ]);
  });

  test("is not opened after a signal, whose reason ends it, also during a pause", async () => {
    const stop = new AbortController();
    const { ended, opened } = start({ connections: [broken()], details: [away] }, stop.signal);
    await vi.advanceTimersByTimeAsync(900);
    stop.abort(new Error("enough"));
    expect(await ended).toBe("enough");
    expect(opened).toEqual([0]);
    expect(vi.getTimerCount()).toBe(0);
  });
});

test("a signal closes the connection, and so does an error of the listener where there is a signal", async () => {
  const closing = (connection: Promise<unknown>, stop: AbortSignal) =>
    new Promise<{ code: number; reason: string }>((resolve) => {
      stop.addEventListener("abort", () => resolve({ code: 1006, reason: "closed" }));
      void connection;
    });
  for (const fails of [false, true]) {
    const stop = new AbortController();
    const tail: RayOptions["tail"] = async (_, { onText, signal }) =>
      closing(
        wait(10).then(() => onText("a\n")),
        signal,
      );
    const listener = () => {
      if (fails) throw new Error("the page is full");
      stop.abort(new Error("enough"));
    };
    const { ended } = start({ connections: [whole("")], options: { tail }, listener }, stop.signal);
    await vi.advanceTimersByTimeAsync(10);
    expect(await ended).toBe(fails ? "the page is full" : "enough");
  }
});

describe("a cluster that does not answer", () => {
  test("is given up after the patience of the settings, counted from its last answer", async () => {
    // Tried at 0, 1 and 3 s.
    const patient = async (patienceMs: number) =>
      (await follow({ connections: [broken()], details: [away], options: { patienceMs } })).opened.length;
    expect([await patient(3_000), await patient(3_001)]).toEqual([3, 4]);
    const text = {
      sends: [
        [0, ""],
        [20_000, "a\n"],
      ] as const,
      code: 1006,
      reason: "reset",
    };
    const { ended, opened } = await follow({
      connections: [text, broken()],
      details: [away],
      options: { patienceMs: 3_000 },
    });
    expect(ended).toContain(
      "Cannot follow the job sum-1: the Ray cluster at http://head:8265 does not answer (for 3 s: reset).",
    );
    expect(opened).toEqual([0, 21_000, 23_000]);
  });

  test("is given up after two minutes by default", async () => {
    const { ended, opened } = await follow({ connections: [broken()], details: [away] });
    expect(opened.at(-1)! - opened[0]!).toBeGreaterThanOrEqual(120_000);
    expect(opened.at(-2)! - opened[0]!).toBeLessThan(120_000);
    expect(ended).toMatch(/does not answer \(for 12\d s: reset\)/);
  });

  test.each<[what: string, details: readonly Answer<JobStatus>[], first: Connection, says: string]>([
    ["a refusal", [new RemoteError("no token", { status: 401, retryable: false })], broken(), "no token"],
    ["a defect", [new TypeError("a defect")], broken(), "a defect"],
    ["an unknown job", [new RemoteError("no such job", { status: 404, retryable: false })], broken(), "no such job"],
    [
      "a job that it knew",
      ["RUNNING", new RemoteError("no such job", { status: 404, retryable: false })],
      broken(),
      "Cannot follow the job sum-1: the Ray cluster does not know it any more (http://head:8265).",
    ],
    [
      "a job whose log it had",
      [new RemoteError("no such job", { status: 404, retryable: false })],
      broken("a\n"),
      "does not know it any more",
    ],
  ])("is not what %s is", async (_, details, first, says) => {
    const { ended, notices, failure } = await follow({ connections: [first], details });
    expect(ended).toContain(says);
    expect(failure).not.toMatchObject({ retryable: true });
    if (says.includes("any more")) expect(failure).toMatchObject({ status: 404, retryable: false });
    expect(notices).toEqual([]);
  });
});

describe("a log that connections cannot read", () => {
  const stuck: Connection = { sends: [[0, "a\n"]] };

  test("is fetched as a whole after two of them without anything new", async () => {
    const { lines, fetched, opened, notices } = await follow({ connections: [stuck], logs: ["a\nb\nc"] });
    expect(lines).toEqual(["a", "b", "c"]);
    // The first brings a line; each of the two others doubles the pause.
    expect([fetched, opened]).toEqual([1, [0, 500, 1_500]]);
    expect(notices).toEqual([]);
  });

  test("is fetched again while the job runs", async () => {
    const details = ["RUNNING", "RUNNING", "RUNNING", "SUCCEEDED"] as const;
    const { lines, fetched } = await follow({ connections: [stuck], details, logs: ["a\nb", "a\nb\nc\n"] });
    expect([lines, fetched]).toEqual([["a", "b", "c"], 2]);
  });

  test("is tried anew by connections once they bring something", async () => {
    const connections = [stuck, stuck, broken("a\nb\n"), stuck, whole("a\nb\nc\n")];
    const { lines, fetched, opened } = await follow({ connections });
    expect([lines, fetched]).toEqual([["a", "b", "c"], 0]);
    expect(opened).toEqual([0, 500, 1_500, 2_000, 3_000]);
  });

  test("does not count connections after which the cluster does not answer", async () => {
    const details = ["RUNNING", away, away, "RUNNING", "SUCCEEDED"] as const;
    const { fetched, lines } = await follow({ connections: [stuck, stuck, stuck, stuck, whole("a\n")], details });
    expect([fetched, lines]).toEqual([0, ["a"]]);
  });

  test("lacks lines where the whole is refused too, which is told once", async () => {
    const refused = new RemoteError("invalid byte", { status: 500, retryable: true });
    const details = ["RUNNING", "RUNNING", "RUNNING", "RUNNING", "FAILED"] as const;
    const { ended, lines, notices, fetched } = await follow({ connections: [stuck], details, logs: [refused] });
    expect([ended, lines, fetched]).toEqual(["FAILED", ["a"], 3]);
    expect(notices).toEqual(["the log of sum-1 cannot be read to its end, lines are missing: invalid byte"]);
  });

  test("and a cluster that is away are followed where nobody takes notices", async () => {
    const refused = new RemoteError("invalid byte", { status: 500, retryable: true });
    const script = { connections: [stuck], logs: [refused], options: { notify: undefined } };
    expect((await follow({ ...script, details: [away, "SUCCEEDED"] })).ended).toBe("SUCCEEDED");
  });

  test("waits where the cluster does not answer, and ends with another error", async () => {
    const { lines, fetched } = await follow({ connections: [stuck], logs: [away, "a\nb\n"] });
    expect([lines, fetched]).toEqual([["a", "b"], 2]);
    const refused = new RemoteError("no token", { status: 401, retryable: false });
    expect((await follow({ connections: [stuck], logs: [refused] })).ended).toBe("no token");
    expect((await follow({ connections: [stuck], logs: [new TypeError("a defect")] })).ended).toBe("a defect");
  });
});
