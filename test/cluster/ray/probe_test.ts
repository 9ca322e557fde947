/** What the probe makes of the nodes' answers; test/interop runs its script on a real cluster. */
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { RayJobs } from "../../../src/cluster/ray/jobs.ts";
import {
  checkReachable,
  type NodeAnswer,
  type ProbeOptions,
  probe,
  unreachableMessage,
} from "../../../src/cluster/ray/probe.ts";
import { httpFetch } from "../../../src/train/run/net/http.ts";
import { readWebSocket } from "../../../src/train/run/net/websocket.ts";
import { FakeDashboard } from "./fake_dashboard.ts";

const URL_OF_SERVICE = "http://10.0.0.9:4000";
const HEALTHY = JSON.stringify({ service: "grpu", run: "run-1", protocol: 1 });

let ray: FakeDashboard;
let jobs: RayJobs;
beforeAll(async () => {
  ray = await new FakeDashboard().listen();
  jobs = new RayJobs({ address: ray.address, clock: ray.clock, request: httpFetch, tail: readWebSocket });
});
afterAll(() => ray.close());
beforeEach(() => {
  ray.jobs.clear();
  ray.requests.length = 0;
});

/** Lets the job run as far as this when it is submitted. */
function lets(log: string, status = "RUNNING") {
  ray.onSubmit = (job) => void Object.assign(job, { log, status });
}

const options = (more: Partial<ProbeOptions> = {}): ProbeOptions => ({
  url: URL_OF_SERVICE,
  token: "per-run-token",
  run: "run-1",
  script: "print()",
  ...more,
});

test("gives an answer per node and removes its job", async () => {
  const printed = [
    { node: "10.0.0.1", status: 200, body: HEALTHY },
    { node: "10.0.0.2", status: 200, body: HEALTHY.replace("run-1", "run-2") },
    { node: "10.0.0.3", status: 200, body: "<html>" },
    { node: "10.0.0.4", status: 401, body: "" },
    { node: "10.0.0.5", kind: "timeout", error: "timed out" },
  ];
  lets(`starting\nGRPU_PROBE ${JSON.stringify(printed)}\n`);
  expect(await probe(jobs, options())).toEqual([
    { node: "10.0.0.1", kind: "ok", status: 200 },
    { node: "10.0.0.2", kind: "other_service", status: 200 },
    { node: "10.0.0.3", kind: "other_service", status: 200 },
    { node: "10.0.0.4", kind: "status", status: 401 },
    { node: "10.0.0.5", kind: "timeout", error: "timed out" },
  ]);
  const submitted = JSON.parse(
    String(ray.requests.find(({ method, path }) => method === "POST" && path === "/api/jobs/")!.body),
  );
  expect(submitted).toMatchObject({
    entrypoint: "python grpu_probe.py",
    runtime_env: { env_vars: { GRPU_SERVICE_URL: URL_OF_SERVICE, GRPU_SERVICE_TOKEN: "per-run-token" } },
  });
  expect(ray.jobs.size).toBe(0);
});

test("a job that fails leaves its log, and the message has the cause", async () => {
  lets("Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'ray'\n", "FAILED");
  await expect(probe(jobs, options())).rejects.toThrow(
    /^Cannot check whether the cluster reaches the service: cannot finish the job grpu-probe-\S+: the driver raised ModuleNotFoundError: No module named 'ray'\. grpu jobs logs/,
  );
  expect(ray.jobs.size).toBe(1);
}, 20_000);

test("a job that does not start in time ends the probe", async () => {
  lets("", "PENDING");
  await expect(probe(jobs, options({ timeoutMs: 300 }))).rejects.toThrow(
    /did not run its job grpu-probe-\S+ within 0.3 s\. See grpu jobs list/,
  );
});

test("a signal ends it with its reason", async () => {
  lets("", "PENDING");
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("enough")), 300);
  await expect(probe(jobs, options({ signal: stop.signal }))).rejects.toThrow("enough");
});

test("checkReachable() throws what to change", async () => {
  lets(
    `GRPU_PROBE ${JSON.stringify([{ node: "10.0.0.1", kind: "refused", error: "[Errno 111] Connection refused" }])}\n`,
  );
  await expect(checkReachable(jobs, options())).rejects.toThrow(
    "Cannot reach the service at http://10.0.0.9:4000 from the cluster's node 10.0.0.1: the connection is refused ([Errno 111] Connection refused). Listen beyond loopback (service.host: 0.0.0.0)",
  );
  lets(`GRPU_PROBE ${JSON.stringify([{ node: "10.0.0.1", status: 200, body: HEALTHY }])}\n`);
  ray.jobs.clear();
  await checkReachable(jobs, options());
});

const OK: NodeAnswer = { node: "10.0.0.1", kind: "ok" };
const cases: [answers: NodeAnswer[], url: string, said: string | undefined][] = [
  [[OK, OK], URL_OF_SERVICE, undefined],
  [[], URL_OF_SERVICE, "the cluster has no node that runs"],
  [
    [OK, { node: "10.0.0.2", kind: "timeout" }, { node: "10.0.0.3", kind: "refused" }],
    URL_OF_SERVICE,
    "from node 10.0.0.2 and 1 more of the 3 of the cluster: there is no answer within 10 s. Let the cluster's nodes through the firewall",
  ],
  [[{ node: "a", kind: "refused" }], "http://127.0.0.1:4000", "A loopback address means each node itself"],
  [[{ node: "a", kind: "other_service" }], "http://localhost:4000", "A loopback address means each node itself"],
  [[{ node: "a", kind: "refused" }], "http://127.example.org", "Listen beyond loopback"],
  [
    [{ node: "a", kind: "status", status: 401 }],
    "http://127.0.0.1:4000",
    "it answers 401. Its token is not this run's",
  ],
  [
    [{ node: "a", kind: "status", status: 502 }],
    URL_OF_SERVICE,
    "it answers 502. Check the port of service.url, and proxies",
  ],
  [[{ node: "a", kind: "name" }], URL_OF_SERVICE, "the name cannot be resolved. Set service.url"],
  [
    [{ node: "a", kind: "task", error: "GetTimeoutError: x." }],
    URL_OF_SERVICE,
    "no task could run there (GetTimeoutError: x). Check the node",
  ],
];

test.each(cases)("unreachableMessage() of %j at %s", (answers, url, said) => {
  const message = unreachableMessage(answers, url);
  if (said === undefined) expect(message).toBeUndefined();
  else expect(message).toContain(said);
});
