/** Which calls the client of the Jobs API makes, in which order and how long, without a cluster. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { isTerminal, readDetails } from "../../../src/cluster/ray/details.ts";
import { RayJobs } from "../../../src/cluster/ray/jobs.ts";

const NOW = 1_000_000_000;
beforeEach(() => void vi.useFakeTimers({ now: NOW }));
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

type Answer = readonly [status: number, body: unknown];

/** A client whose calls get these answers in turn, the last again and again. */
function client(...answers: readonly Answer[]) {
  const calls: { at: number; call: string; body: unknown }[] = [];
  const limits: number[] = [];
  vi.spyOn(AbortSignal, "timeout").mockImplementation((ms) => {
    limits.push(ms);
    return new AbortController().signal;
  });
  const request = async (url: string, { method, body, signal }: RequestInit) => {
    signal?.throwIfAborted();
    const [status, reply] = answers[Math.min(calls.length, answers.length - 1)]!;
    const sent = typeof body === "string" ? JSON.parse(body) : body;
    calls.push({ at: Date.now() - NOW, call: `${method} ${new URL(url).pathname}`, body: sent });
    return new Response(typeof reply === "string" ? reply : JSON.stringify(reply), { status });
  };
  const jobs = new RayJobs({ address: "http://head", request, tail: () => Promise.reject() });
  return { jobs, calls, limits, names: () => calls.map(({ call }) => call) };
}

/** What the work gives, on the test's clock; the message of an error. */
async function result<T>(work: Promise<T>): Promise<T | string> {
  const settled = work.catch((error: Error) => error.message);
  await vi.runAllTimersAsync();
  return settled;
}

const RUNNING = { status: "RUNNING" };
const ENDED = { status: "FAILED", end_time: NOW - 1_000 };
const SPEC = {
  submission_id: "sum-1",
  entrypoint: "ls",
  files: new Map([["a.txt", new Uint8Array(1)]]),
  env: {},
  metadata: { run: "sum" },
};

describe("every call", () => {
  const calls: [act: string, call: (jobs: RayJobs, signal?: AbortSignal) => Promise<unknown>][] = [
    ["read the version of Ray", (jobs, signal) => jobs.version(signal)],
    ["submit the job sum-1", (jobs, signal) => jobs.submit(SPEC, signal)],
    ["submit the job sum-1", (jobs, signal) => jobs.submit({ ...SPEC, files: new Map() }, signal)],
    ["show the job sum-1", (jobs, signal) => jobs.details("sum-1", signal)],
    ["list the jobs", (jobs, signal) => jobs.list(signal)],
    ["stop the job sum-1", (jobs, signal) => jobs.stop("sum-1", { signal })],
    ["show the job sum-1", (jobs, signal) => jobs.delete("sum-1", signal)],
    ["read the log of the job sum-1", (jobs, signal) => jobs.logs("sum-1", signal)],
  ];
  test.each(calls)("to %s ends at its signal, and is named in errors", async (act, call) => {
    const stop = AbortSignal.abort(new Error("enough"));
    expect(await result(call(client([200, {}]).jobs, stop))).toBe("enough");
    expect(await result(call(client([418, "tea"]).jobs))).toBe(
      `Cannot ${act}: it answered 418: tea (http://head). Check that this is the dashboard of a Ray cluster of version 2.9 or newer.`,
    );
  });

  test("goes to the address without a slash at its end", () => {
    expect(client().jobs.address).toBe("http://head");
  });

  test("to upload, and to delete, is named too", async () => {
    const upload = client([404, ""], [418, "tea"]);
    expect(await result(upload.jobs.submit(SPEC))).toContain("Cannot submit the job sum-1: it answered 418");
    for (const answers of [
      [[418, "tea"]],
      [
        [200, "{}"],
        [418, "tea"],
      ],
    ] as const) {
      const gone = client([200, { ...ENDED, end_time: Date.now() }], ...answers);
      expect(await result(gone.jobs.delete("sum-1"))).toContain("Cannot delete the job sum-1: it answered 418");
    }
  });
});

describe("submit()", () => {
  test("sends what the job has, and nothing for what it has not", async () => {
    const { jobs, calls } = client([200, {}]);
    await jobs.submit({ ...SPEC, files: new Map() });
    const least = { submission_id: "sum-1", entrypoint: "ls", metadata: { run: "sum" }, runtime_env: { env_vars: {} } };
    expect(calls.map(({ call, body }) => [call, body])).toEqual([["POST /api/jobs/", least]]);
    const resources = { num_cpus: 2, num_gpus: undefined, memory: 5 };
    await jobs.submit({ ...SPEC, env: { A: "1" }, pip: ["x==1"], py_executable: "uv run", resources });
    expect(calls.at(-1)!.body).toEqual({
      ...least,
      ...{ entrypoint_num_cpus: 2, entrypoint_memory: 5 },
      runtime_env: {
        ...{ env_vars: { A: "1" }, pip: ["x==1"], py_executable: "uv run" },
        working_dir: expect.stringMatching(/^gcs:\/\/_ray_pkg_[0-9a-f]{64}\.zip$/),
      },
    });
  });

  test("that fails otherwise gives the server's words", async () => {
    const { jobs, names } = client([200, ""], [500, "RuntimeError: no agent"]);
    expect(await result(jobs.submit(SPEC))).toContain("Cannot submit the job sum-1: it answered 500: RuntimeError");
    expect(names()).toHaveLength(2);
  });

  const starting: Answer = [500, "No available agent to submit job, please try again later."];
  test("waits for a cluster that is starting, up to a minute", async () => {
    const spec = { ...SPEC, files: new Map() };
    const { jobs, calls } = client(starting, starting, [200, {}]);
    expect(await result(jobs.submit(spec))).toEqual({ submission_id: "sum-1", isNew: true });
    expect(calls.map(({ at }) => at)).toEqual([0, 2_000, 4_000]);
    const never = client(starting);
    expect(await result(never.jobs.submit(spec))).toContain("it answered 500: No available agent");
    expect(never.names()).toHaveLength(31);
  });

  test("looks for the package, uploads it and starts the job, each with its own limit of time", async () => {
    const { jobs, calls, limits } = client([404, ""], [200, ""], [200, {}]);
    expect(await result(jobs.submit(SPEC))).toEqual({ submission_id: "sum-1", isNew: true });
    expect(calls.map(({ call }) => call.replace(/_ray_pkg_.*/, "PACKAGE"))).toEqual([
      ...["GET /api/packages/gcs/PACKAGE", "PUT /api/packages/gcs/PACKAGE", "POST /api/jobs/"],
    ]);
    expect(limits).toEqual([30_000, 15 * 60_000, 2 * 60_000]);
    expect(calls[1]!.body).toBeInstanceOf(Uint8Array);
  });

  const exists: Answer = [500, "ValueError: sum-1 already exists."];
  test.each<[what: string, there: object, isSame: boolean]>([
    ["the same", { entrypoint: "ls", metadata: { run: "sum" } }, true],
    ["another command", { entrypoint: "pwd", metadata: { run: "sum" } }, false],
    ["another value", { entrypoint: "ls", metadata: { run: "max" } }, false],
    ["less metadata", { entrypoint: "ls", metadata: {} }, false],
    ["more metadata", { entrypoint: "ls", metadata: { run: "sum", a: "b" } }, false],
  ])("of an id that the cluster has with %s", async (_, there, isSame) => {
    const { jobs, names } = client([200, ""], exists, [200, { ...RUNNING, ...there }]);
    const submitted = await result(jobs.submit(SPEC));
    if (isSame) expect(submitted).toEqual({ submission_id: "sum-1", isNew: false });
    else expect(submitted).toContain("Cannot submit the job sum-1: the cluster has another job of this id (");
    expect(names().slice(1)).toEqual(["POST /api/jobs/", "GET /api/jobs/sum-1"]);
  });
});

describe("stop()", () => {
  test("looks every half second until the job has ended", async () => {
    const { jobs, calls } = client([200, {}], [200, RUNNING], [200, RUNNING], [200, { status: "STOPPED" }]);
    expect(await result(jobs.stop("sum-1"))).toMatchObject({ status: "STOPPED" });
    expect(calls.map(({ at, call }) => `${at} ${call}`)).toEqual([
      ...[
        "0 POST /api/jobs/sum-1/stop",
        "0 GET /api/jobs/sum-1",
        "500 GET /api/jobs/sum-1",
        "1000 GET /api/jobs/sum-1",
      ],
    ]);
  });

  test("gives the job as it is after 15 seconds, or as long as it is asked to wait", async () => {
    for (const [options, lastAt] of [
      [undefined, 15_000],
      [{ waitMs: 1_000 }, 1_000],
      [{ waitMs: 0 }, 0],
    ] as const) {
      const { jobs, calls } = client([200, {}], [200, RUNNING]);
      const began = Date.now() - NOW;
      expect(await result(jobs.stop("sum-1", options))).toMatchObject(RUNNING);
      expect(calls.at(-1)!.at - began).toBe(lastAt);
    }
  });

  test("ends at a signal, also while it waits", async () => {
    const stop = new AbortController();
    const { jobs, calls } = client([200, {}], [200, RUNNING]);
    setTimeout(() => stop.abort(new Error("enough")), 700);
    expect(await result(jobs.stop("sum-1", { signal: stop.signal }))).toBe("enough");
    expect(calls.at(-1)!.at).toBe(500);
  });
});

describe("delete()", () => {
  test("of a job that has just ended repeats it, because Ray may enter the job again", async () => {
    for (const last of [
      [200, ""],
      [404, "Job does not exist"],
      [500, "Traceback"],
    ] as const) {
      const { jobs, calls } = client([200, ENDED], [200, "{}"], last);
      const began = Date.now() - NOW;
      expect(await result(jobs.delete("sum-1"))).toBeUndefined();
      expect(calls.map(({ at, call }) => `${at - began} ${call}`)).toEqual([
        ...["0 GET /api/jobs/sum-1", "0 DELETE /api/jobs/sum-1", "1500 DELETE /api/jobs/sum-1"],
      ]);
    }
  });

  test("of a job that ended a minute ago is done at once", async () => {
    for (const [agoMs, count] of [
      [60_000, 3],
      [60_001, 2],
      [undefined, 2],
    ] as const) {
      const end_time = agoMs === undefined ? undefined : Date.now() - agoMs;
      const { jobs, names } = client([200, { ...ENDED, end_time }], [200, "{}"]);
      await result(jobs.delete("sum-1"));
      expect(names()).toHaveLength(count);
    }
  });

  test("of a job that runs deletes nothing", async () => {
    const { jobs, names } = client([200, RUNNING]);
    expect(await result(jobs.delete("sum-1"))).toContain("it has not ended (RUNNING)");
    expect(names()).toEqual(["GET /api/jobs/sum-1"]);
  });
});

describe("what the cluster tells", () => {
  test("of its jobs is sorted by their start, those without one last; another value lists none", async () => {
    const started = [3, undefined, 9, 5].map((start_time) => ({ ...RUNNING, start_time }));
    const { jobs } = client([200, started], [200, {}]);
    const listed = await jobs.list();
    expect(listed.map(({ start_time }) => start_time)).toEqual([9, 5, 3, undefined]);
    expect(await jobs.list()).toEqual([]);
  });

  test("of a log and a version is text, also where it tells none", async () => {
    const { jobs, names } = client([200, { logs: "a\n" }], [200, {}], [200, { ray_version: "2.60.0" }], [200, {}]);
    expect([await jobs.logs("sum-1"), await jobs.logs("sum-1")]).toEqual(["a\n", ""]);
    expect([await jobs.version(), await jobs.version()]).toEqual(["2.60.0", "unknown"]);
    expect(names().slice(1, 3)).toEqual(["GET /api/jobs/sum-1/logs", "GET /api/version"]);
  });

  test("is refused where it is no JSON", async () => {
    expect(await result(client([200, "<html>"]).jobs.version())).toContain("it answered 200: no JSON");
  });

  test("of a log that no connection brings is fetched as a whole", async () => {
    const request = async (url: string) =>
      Response.json(url.endsWith("/logs") ? { logs: "one\ntwo" } : { status: "SUCCEEDED" });
    const jobs = new RayJobs({ address: "http://head", request, tail: async () => ({ code: 1000, reason: "" }) });
    const lines: string[] = [];
    expect(await result(jobs.follow("sum-1", ({ text }) => void lines.push(text)))).toMatchObject({
      status: "SUCCEEDED",
    });
    expect(lines).toEqual(["one", "two"]);
  });

  test("of a job that is followed is asked once each time, for 15 seconds at most", async () => {
    const { jobs, limits, names } = client([503, "starting"]);
    const stop = new AbortController();
    const tail = vi.fn(async () => ({ code: 1006, reason: "" }));
    const request = async () => new Response("starting", { status: 503 });
    const follower = new RayJobs({ address: "http://head", tail, request });
    // The follower's own pauses: one second after the first failure, two after the second.
    setTimeout(() => stop.abort(new Error("enough")), 2_500);
    expect(await result(follower.follow("sum-1", () => {}, stop.signal))).toBe("enough");
    expect([tail.mock.calls.length, limits]).toEqual([2, [15_000, 15_000]]);
    expect(() => jobs.follow("a/b", () => {})).toThrow('Cannot use "a/b" as the id of a Ray job');
    expect(names()).toEqual([]);
  });
});

describe("details of a job", () => {
  test.each(["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"] as const)("with the status %s", (status) => {
    expect(readDetails({ status }, "show the job")).toEqual({
      ...{ submission_id: "", entrypoint: "", status, message: "", error_type: undefined, metadata: {} },
      ...{ start_time: undefined, end_time: undefined, driver_exit_code: undefined },
    });
    expect(isTerminal({ status })).toBe(!["PENDING", "RUNNING"].includes(status));
  });

  test.each([null, undefined, 3, {}, { status: 3 }, { status: "GONE" }])("are not in %j", (value) => {
    const message = expect.stringMatching(
      /^Cannot show the job a: the answer does not describe a Ray job \(status .*\)\. Check that the address/,
    );
    let thrown: unknown;
    try {
      readDetails(value, "show the job a");
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toMatchObject({ message, retryable: false });
  });

  test("are kept as they are where their type is right, and left out where it is not", () => {
    const right = {
      ...{ submission_id: "a", entrypoint: "ls", status: "FAILED", message: "m", error_type: "E" },
      ...{ start_time: 1, end_time: 2, metadata: { a: "b" }, driver_exit_code: 0 },
    };
    expect(readDetails({ ...right, runtime_env: { working_dir: "x" } }, "")).toEqual(right);
    const wrong = {
      status: "FAILED",
      error_type: "",
      start_time: "1",
      end_time: null,
      submission_id: 3,
      metadata: null,
    };
    expect(readDetails(wrong, "")).toMatchObject({
      ...{ error_type: undefined, start_time: undefined, end_time: undefined, submission_id: "", metadata: {} },
    });
  });

  test("hide every secret of the environment in texts, each time, and nothing else", () => {
    const env_vars = {
      ...{ MY_TOKEN: "11111111", api_key: "22222222", A_SECRET_B: "33333333", PASSWORDS: "44444444" },
      ...{ CREDENTIALS: "55555555", STEPS: "66666666", SHORT_KEY: "7777777", NO_KEY: null },
    };
    const message = "11111111 22222222 33333333 44444444 55555555 66666666 7777777 11111111";
    const { message: shown, entrypoint } = readDetails(
      { status: "FAILED", message, entrypoint: "run 22222222", runtime_env: { env_vars } },
      "",
    );
    expect(shown).toBe("*** *** *** *** *** 66666666 7777777 ***");
    expect(entrypoint).toBe("run ***");
  });
});
