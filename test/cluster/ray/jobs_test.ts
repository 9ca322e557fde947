/** The client of Ray's Jobs API against a stand-in of the dashboard. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { rayAddress } from "../../../src/cluster/ray/address.ts";
import type { JobSpec, RayOptions } from "../../../src/cluster/ray/contract.ts";
import { RayJobs } from "../../../src/cluster/ray/jobs.ts";
import { httpFetch } from "../../../src/train/run/net/http.ts";
import { readWebSocket } from "../../../src/train/run/net/websocket.ts";
import { FakeDashboard } from "./fake_dashboard.ts";

const TOKEN = "secret-token-of-the-cluster";
const SPEC: JobSpec = {
  submission_id: "sum-1",
  entrypoint: "python main.py",
  files: new Map([["main.py", new TextEncoder().encode("print(1)\n")]]),
  env: { API_TOKEN: "per-run-secret", STEPS: "3" },
  metadata: { run: "sum" },
};

let ray: FakeDashboard;
beforeAll(async () => {
  ray = await new FakeDashboard().listen();
});
afterAll(() => ray.close());
beforeEach(() => {
  ray.jobs.clear();
  ray.packages.clear();
  ray.requests.length = 0;
  ray.answer = () => undefined;
  ray.token = undefined;
});

const client = (options: Partial<RayOptions> = {}) =>
  new RayJobs({ address: `${ray.address}/`, clock: ray.clock, request: httpFetch, tail: readWebSocket, ...options });

const messageOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "it worked",
    (error: Error) => error.message,
  );

describe("rayAddress()", () => {
  test.each([
    ["http://head:8265/", "http://head:8265"],
    ["https://ray.example.org/cluster//", "https://ray.example.org/cluster"],
    ["http://[::1]:8265", "http://[::1]:8265"],
  ])("%s", (given, expected) => {
    expect(rayAddress(given)).toBe(expected);
  });

  test.each([
    ["ray://head:10001", "ray:// is the address of Ray's Python client", "http://head:8265"],
    ["head:6379", "it does not begin with http:// or https://", "http://head:8265"],
    ["auto", "only a process on the cluster finds it", "http://HOST:8265"],
    ["http://", "it is no URL", "http://HOST:8265"],
    ["http://head:8265/?x=1", "a query or a fragment", "Leave that out"],
    ["http://me:hunter22@head:8265", "it holds a password", "header"],
  ])("refuses %s", (given, why, advice) => {
    const refuse = () => rayAddress(given);
    expect(refuse).toThrow(/^Cannot use the Ray address: /);
    expect(refuse).toThrow(why);
    expect(refuse).toThrow(advice);
    expect(refuse).not.toThrow("hunter22");
  });
});

describe("submit()", () => {
  test("uploads the files once and names them as the working directory", async () => {
    const resources = { num_cpus: 1, memory: 2 ** 30, num_gpus: undefined };
    const pip = ["numpy==2.4"];
    expect(await client().submit({ ...SPEC, resources, pip, py_executable: "uv run" })).toEqual({
      submission_id: "sum-1",
      isNew: true,
    });
    const [name] = [...ray.packages.keys()];
    expect(JSON.parse(String(ray.requests.at(-1)!.body))).toEqual({
      submission_id: "sum-1",
      entrypoint: "python main.py",
      metadata: { run: "sum" },
      entrypoint_num_cpus: 1,
      entrypoint_memory: 2 ** 30,
      runtime_env: { working_dir: `gcs://${name}`, env_vars: SPEC.env, pip, py_executable: "uv run" },
    });
    await client().submit({ ...SPEC, submission_id: "sum-2" });
    expect(ray.requests.filter(({ method }) => method === "PUT")).toHaveLength(1);
    expect(ray.jobs.size).toBe(2);
  });

  test("again is harmless, also when the reply to the first was lost", async () => {
    let isLost = true;
    ray.answer = ({ method, path }) => {
      if (method !== "POST" || path !== "/api/jobs/" || !isLost) return undefined;
      isLost = false;
      ray.addJob("sum-1", { entrypoint: SPEC.entrypoint, metadata: { ...SPEC.metadata } });
      return "hang up";
    };
    expect(await client().submit(SPEC)).toEqual({ submission_id: "sum-1", isNew: false });
    expect(await client().submit(SPEC)).toEqual({ submission_id: "sum-1", isNew: false });
    expect(ray.jobs.size).toBe(1);
  });

  test("refuses the id of another job", async () => {
    ray.addJob("sum-1", { entrypoint: "sleep 1000" });
    expect(await messageOf(client().submit(SPEC))).toBe(
      "Cannot submit the job sum-1: the cluster has another job of this id (sleep 1000). Choose another id, or delete that job.",
    );
    ray.addJob("sum-1", { entrypoint: SPEC.entrypoint, metadata: { run: "other" } });
    expect(await messageOf(client().submit(SPEC))).toContain("another job of this id");
  });

  test("refuses an id that would change the request", async () => {
    for (const id of ["", "..", "a/b", "a b", "a?x"])
      expect(await messageOf(client().submit({ ...SPEC, submission_id: id }))).toContain("as the id of a Ray job");
    expect(ray.requests).toEqual([]);
  });

  test("of a job without files uploads nothing", async () => {
    await client().submit({ ...SPEC, files: new Map() });
    expect(ray.requests.map(({ method, path }) => `${method} ${path}`)).toEqual(["POST /api/jobs/"]);
    expect(JSON.parse(String(ray.requests[0]!.body)).runtime_env).toEqual({ env_vars: SPEC.env });
  });

  test("shows the last line of a traceback", async () => {
    ray.answer = ({ method }) =>
      method === "POST"
        ? [400, "Traceback (most recent call last):\n  File x\nTypeError: env_vars must be str."]
        : undefined;
    expect(await messageOf(client().submit(SPEC))).toContain(
      "Cannot submit the job sum-1: it answered 400: TypeError: env_vars must be str (",
    );
  });

  test("is not what a browser sends, and carries the headers of the settings", async () => {
    await client({ headers: { "x-proxy": "yes" } }).submit(SPEC);
    for (const { headers } of ray.requests) {
      expect(headers).toMatchObject({ "user-agent": "grpu", "x-proxy": "yes" });
      expect(Object.keys(headers).filter((name) => /^(origin|referer|sec-)/.test(name))).toEqual([]);
    }
    expect(await messageOf(client({ headers: { origin: "http://x" } }).submit(SPEC))).toContain(
      "the Ray cluster takes the request for a browser's",
    );
  });
});

test("a failure of the server may pass, a refusal does not; an empty answer is named", async () => {
  ray.answer = ({ method }) => (method === "POST" ? [500, "Traceback\nRuntimeError: no agent"] : undefined);
  await expect(client().submit(SPEC)).rejects.toMatchObject({
    status: 500,
    retryable: true,
    message: expect.stringContaining("it answered 500: RuntimeError: no agent ("),
  });
  ray.answer = () => [418, " \n"];
  await expect(client().list()).rejects.toMatchObject({
    status: 418,
    retryable: false,
    message: expect.stringMatching(/it answered 418: nothing \(.*Check that this is the dashboard of a Ray cluster/),
  });
});

describe("the token", () => {
  test("is sent with every request; 401 and 403 say what to do and never show it", async () => {
    ray.token = TOKEN;
    await client({ token: TOKEN }).submit(SPEC);
    expect(await messageOf(client().list())).toBe(
      `Cannot list the jobs: the Ray cluster asks for a token (${ray.address}). Set RAY_AUTH_TOKEN to the cluster's token.`,
    );
    expect(await messageOf(client({ token: "wrong-token" }).list())).toBe(
      `Cannot list the jobs: the Ray cluster refuses the token (${ray.address}). Set RAY_AUTH_TOKEN to the token with which the cluster was started.`,
    );
  });

  test("is masked where the server repeats it, and so are values of the job's environment", async () => {
    ray.answer = ({ headers }) => [400, `bad header ${headers.authorization}`];
    expect(await messageOf(client({ token: TOKEN }).list())).toContain("bad header Bearer ***");
    ray.answer = () => undefined;
    const env_vars = { API_TOKEN: "per-run-secret", STEPS: "30000000", KEY: "12345678", MONKEY: "a" };
    const message = "no {'API_TOKEN': 'per-run-secret'} after 30000000, 12345678";
    ray.addJob("sum-1", { message, runtime_env: { env_vars } });
    const details = await client().details("sum-1");
    expect(details.message).toBe("no {'API_TOKEN': '***'} after 30000000, ***");
    expect(JSON.stringify(details)).not.toContain("per-run-secret");
  });
});

describe("jobs that run", () => {
  test("are listed, the latest first, with drivers that have no id", async () => {
    ray.answer = () => [
      200,
      JSON.stringify([
        { type: "DRIVER", job_id: "01", submission_id: null, status: "RUNNING", entrypoint: "", start_time: 1 },
        {
          type: "SUBMISSION",
          submission_id: "b",
          status: "SUCCEEDED",
          entrypoint: "ls",
          start_time: 9,
          metadata: null,
        },
      ]),
    ];
    expect((await client().list()).map(({ submission_id, status }) => [submission_id, status])).toEqual([
      ["b", "SUCCEEDED"],
      ["", "RUNNING"],
    ]);
  });

  test("are stopped; one that waits for resources stays", async () => {
    ray.addJob("runs");
    ray.addJob("waits", { status: "PENDING" });
    expect((await client().stop("runs")).status).toBe("STOPPED");
    expect((await client().stop("waits", { waitMs: 10 })).status).toBe("PENDING");
  });

  test("are deleted only after their end", async () => {
    ray.addJob("runs");
    ray.addJob("ended", { status: "FAILED" });
    await client().delete("ended");
    expect([...ray.jobs.keys()]).toEqual(["runs"]);
    expect(await messageOf(client().delete("runs"))).toBe(
      "Cannot delete the job runs: it has not ended (RUNNING). Stop it first: grpu jobs stop runs.",
    );
  });

  test("have details without escapes, and an unknown one has a message", async () => {
    ray.addJob("sum-1", {
      status: "FAILED",
      message: "\x1b[36mray::f()\x1b[39m",
      driver_exit_code: 137,
      error_type: "X",
    });
    expect(await client().details("sum-1")).toMatchObject({
      status: "FAILED",
      message: "ray::f()",
      driver_exit_code: 137,
      error_type: "X",
      start_time: 1,
      end_time: undefined,
    });
    expect(await messageOf(client().details("nobody"))).toBe(
      `Cannot show the job nobody: the Ray cluster does not know such a job (${ray.address}). See grpu jobs list for those that it knows.`,
    );
  });
});

describe("what answers is", () => {
  test("no Ray dashboard", async () => {
    ray.answer = () => [404, "nothing here"];
    expect(await messageOf(client().list())).toContain("there is no Ray dashboard at this address");
    ray.answer = () => [200, "<html>"];
    expect(await messageOf(client().list())).toContain("it answered 200: no JSON");
    ray.answer = () => [200, "{}"];
    expect(await messageOf(client().details("x"))).toContain("does not describe a Ray job");
  });

  test("busy for a moment, which is tried again", async () => {
    let refused = 0;
    ray.answer = () => (refused++ < 1 ? [503, "starting"] : undefined);
    expect(await client().version()).toBe("2.60.0");
    expect(refused).toBe(2);
  });

  test("nobody: the message names the address and what to check", async () => {
    const gone = await new FakeDashboard().listen();
    await gone.close();
    const message = await messageOf(client({ address: gone.address }).list());
    expect(message).toContain(
      `Cannot list the jobs: the Ray cluster at ${gone.address} does not answer (connect ECONNREFUSED`,
    );
    expect(message).toContain("--dashboard-host");
  }, 20_000);
});
