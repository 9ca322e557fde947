/** The probe's own steps over a client of the test's: its job, how long it waits, what it leaves behind, what it reads. */
import { afterEach, describe, expect, test, vi } from "vitest";
import type { JobDetails, JobSpec, JobStatus, LineListener } from "../../../src/cluster/ray/contract.ts";
import type { RayJobs, StopOptions } from "../../../src/cluster/ray/jobs.ts";
import {
  checkReachable,
  type NodeAnswer,
  type ProbeOptions,
  probe,
  unreachableMessage,
} from "../../../src/cluster/ray/probe.ts";

afterEach(() => void vi.restoreAllMocks());

const URL_OF_SERVICE = "http://10.0.0.9:4000";
const options = (more: Partial<ProbeOptions> = {}): ProbeOptions => ({
  ...{ url: URL_OF_SERVICE, token: "per-run-token", run: "run-1", script: "print()" },
  ...more,
});
const jobOf = (status: JobStatus, message = ""): JobDetails => ({
  ...{ submission_id: "probe", entrypoint: "", status, message, error_type: undefined, metadata: {} },
  ...{ start_time: undefined, end_time: undefined, driver_exit_code: undefined },
});

type Following = (listener: LineListener, signal: AbortSignal) => Promise<JobDetails>;

/** A client that follows as the test says, and the calls that it gets. */
function client(follow: Following) {
  const calls: string[] = [];
  let spec: JobSpec | undefined;
  const jobs = {
    submit: async (given: JobSpec) => {
      spec = given;
      calls.push("submit");
    },
    follow: (id: string, listener: LineListener, signal: AbortSignal) => {
      expect(id).toBe(spec!.submission_id);
      return follow(listener, signal);
    },
    stop: async (id: string, { waitMs, signal }: StopOptions) => {
      expect([id, signal]).toEqual([spec!.submission_id, expect.any(AbortSignal)]);
      calls.push(`stop, wait ${waitMs}`);
    },
    delete: async (id: string) => {
      expect(id).toBe(spec!.submission_id);
      calls.push("delete");
    },
  };
  return { jobs: jobs as unknown as RayJobs, stubs: jobs, calls, spec: () => spec! };
}

/** Prints the lines, and waits until the connection is closed, as a client does. */
const prints =
  (...texts: string[]): Following =>
  (listener, signal) =>
    new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      for (const text of texts) listener({ text });
    });
const answered = (...nodes: object[]) => prints("starting", `GRPU_PROBE ${JSON.stringify(nodes)}`);
const healthy = (of: object = {}) => JSON.stringify({ service: "grpu", run: "run-1", ...of });

const messageOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "it worked",
    (error: Error) => error.message,
  );

describe("the job", () => {
  test("runs the script with the address, the token and the names of the packages, and is removed", async () => {
    const { jobs, calls, spec } = client(answered({ node: "a", status: 200, body: healthy() }));
    const more = { packages: ["verl", "vllm"], py_executable: "uv run" };
    expect(await probe(jobs, options(more))).toEqual([{ node: "a", kind: "ok", status: 200 }]);
    const { submission_id, files, ...rest } = spec();
    expect(submission_id).toMatch(/^grpu-probe-[\w-]{36}$/);
    expect([...files].map(([name, bytes]) => [name, new TextDecoder().decode(bytes)])).toEqual([
      ["grpu_probe.py", "print()"],
    ]);
    expect(rest).toEqual({
      ...{ entrypoint: "python grpu_probe.py", metadata: { run: "run-1" }, py_executable: "uv run" },
      env: { GRPU_SERVICE_URL: URL_OF_SERVICE, GRPU_SERVICE_TOKEN: "per-run-token", GRPU_PACKAGES: "verl vllm" },
    });
    expect(calls).toEqual(["submit", "stop, wait 5000", "delete"]);
  });

  test("asks for no packages unless some are named", async () => {
    for (const packages of [undefined, []]) {
      const { jobs, spec } = client(answered());
      await probe(jobs, options({ packages }));
      expect(Object.keys(spec().env)).toEqual(["GRPU_SERVICE_URL", "GRPU_SERVICE_TOKEN"]);
    }
  });

  test("is stopped and kept with its log where it fails", async () => {
    const { jobs, calls } = client(async () => jobOf("FAILED", "boom."));
    expect(await messageOf(probe(jobs, options()))).toBe(
      "Cannot check whether the cluster reaches the service: cannot finish the job probe: boom. grpu jobs logs probe prints its whole log. Check that the cluster's Python has Ray.",
    );
    expect(calls).toEqual(["submit", "stop, wait 0"]);
  });

  test("that ends without a line is told", async () => {
    const { jobs } = client(async () => jobOf("SUCCEEDED"));
    const failed = probe(jobs, options());
    await expect(failed).rejects.toMatchObject({ retryable: false });
    expect(await messageOf(failed)).toContain("reaches the service: its job printed nothing. Check that");
  });

  test("that cannot be removed gives its answers all the same", async () => {
    const { jobs, stubs } = client(answered({ node: "a", status: 200, body: healthy() }));
    stubs.stop = () => Promise.reject(new Error("away"));
    expect(await probe(jobs, options())).toHaveLength(1);
  });

  test("that was submitted in vain is not removed", async () => {
    const { jobs, stubs, calls } = client(answered());
    stubs.submit = () => Promise.reject(new Error("refused"));
    expect([await messageOf(probe(jobs, options())), calls]).toEqual(["refused", []]);
  });
});

describe("waiting for the job", () => {
  test("has a limit of three minutes, and others for the removal", async () => {
    const limits: number[] = [];
    vi.spyOn(AbortSignal, "timeout").mockImplementation((ms) => {
      limits.push(ms);
      return new AbortController().signal;
    });
    await probe(client(answered()).jobs, options());
    await probe(client(answered()).jobs, options({ timeoutMs: 70 }));
    expect(limits).toEqual([180_000, 10_000, 5_000, 70, 10_000, 5_000]);
  });

  test("ends at the limit with what else to look at", async () => {
    const { jobs, calls } = client(prints("starting"));
    expect(await messageOf(probe(jobs, options({ timeoutMs: 20 })))).toMatch(
      /did not run its job grpu-probe-\S+ within 0.02 s\. See grpu jobs list for what else runs there\.$/,
    );
    expect(calls).toEqual(["submit", "stop, wait 0"]);
  });

  test("ends with the reason of the caller's signal, and with an error of the client's", async () => {
    const stop = new AbortController();
    const { jobs } = client(prints("starting"));
    const probing = messageOf(probe(jobs, options({ signal: stop.signal })));
    await Promise.resolve();
    stop.abort(new Error("enough"));
    expect(await probing).toBe("enough");
    expect(await messageOf(probe(client(() => Promise.reject(new Error("no token"))).jobs, options()))).toBe(
      "no token",
    );
  });

  test("reads a line that begins with the mark alone", async () => {
    const { jobs } = client(prints(' GRPU_PROBE [{"node":"a"}]', "the GRPU_PROBE []", 'GRPU_PROBE [{"node":"b"}]'));
    expect(await probe(jobs, options())).toEqual([{ node: "b", kind: "other" }]);
  });
});

test.each<[printed: object, answer: Partial<NodeAnswer>]>([
  [
    { kind: "tls", error: "bad" },
    { kind: "tls", error: "bad" },
  ],
  [{ error: "bad" }, { kind: "other", error: "bad" }],
  [
    { status: 200, body: healthy({ service: "other" }) },
    { kind: "other_service", status: 200 },
  ],
  [
    { status: 200, body: healthy({ run: "run-2" }) },
    { kind: "other_service", status: 200 },
  ],
  [
    { status: 200, body: "null" },
    { kind: "other_service", status: 200 },
  ],
  [{ status: 200 }, { kind: "other_service", status: 200 }],
  [
    { status: 503, kind: "other" },
    { kind: "status", status: 503 },
  ],
  ...[{ status: 200, body: healthy() }, { status: 401 }, { kind: "name" }].map(
    (printed): [object, Partial<NodeAnswer>] => [
      { ...printed, versions: { verl: "0.9.1", vllm: null } },
      { versions: { verl: "0.9.1", vllm: null } },
    ],
  ),
])("a node that prints %j is read", async (printed, answer) => {
  const { jobs } = client(answered({ node: "a", ...printed }));
  const [read] = await probe(jobs, options());
  expect(read).toMatchObject({ node: "a", ...answer });
  if (!("versions" in answer)) expect(read).not.toHaveProperty("versions");
});

test.each([{ status: 200, body: healthy() }, { status: 401 }, { kind: "name" }])(
  "%j comes with its GPUs",
  async (printed) => {
    const { jobs } = client(answered({ node: "a", ...printed, cpus: 0, gpus: 0 }, { node: "b", ...printed }));
    const [a, b] = await probe(jobs, options());
    expect(a).toMatchObject({ node: "a", cpus: 0, gpus: 0 });
    expect(b).not.toHaveProperty("cpus");
    expect(b).not.toHaveProperty("gpus");
  },
);

test("checkReachable() gives the answers, and refuses where a node does not reach the service", async () => {
  const body = healthy();
  const good = client(answered({ node: "a", status: 200, body }, { node: "b", status: 200, body }));
  expect((await checkReachable(good.jobs, options())).map(({ node }) => node)).toEqual(["a", "b"]);
  const bad = checkReachable(client(answered({ node: "a", kind: "refused" })).jobs, options());
  await expect(bad).rejects.toMatchObject({ retryable: false, message: expect.stringContaining("is refused.") });
});

const LOOPBACK =
  "A loopback address means each node itself: listen on an address that the cluster reaches (service.host: 0.0.0.0) and give it as service.url.";
const TOKEN =
  "Its token is not this run's: another run's service listens there, or a proxy leaves out the Authorization header.";

describe("what to change", () => {
  test.each<[kind: NodeAnswer["kind"], says: string]>([
    ["refused", "the connection is refused. Listen beyond loopback (service.host: 0.0.0.0), and check the port"],
    ["timeout", "there is no answer within 10 s. Let the cluster's nodes through the firewall"],
    ["name", "the name cannot be resolved. Set service.url to a name or a numeric address"],
    ["tls", "the certificate is not accepted. Use a certificate that the nodes trust"],
    ["other_service", "something else than this run's service answers. Check the port of service.url."],
    ["task", "no task could run there. Check the node; the cluster's dashboard shows its state."],
    ["other", "the request fails. Check the network between the cluster and this machine, and service.url."],
  ])("where the answer is %s", (kind, says) => {
    const at = `Cannot reach the service at ${URL_OF_SERVICE} from`;
    expect(unreachableMessage([{ node: "a", kind }], URL_OF_SERVICE)).toContain(`${at} the cluster's node a: ${says}`);
    const two = unreachableMessage(
      [
        { node: "b", kind: "ok" },
        { node: "a", kind },
      ],
      URL_OF_SERVICE,
    );
    expect(two).toContain(`${at} node a of the 2 of the cluster: ${says}`);
  });

  test("names the first node that fails and counts the others", () => {
    const nodes = ["a", "b", "c", "d"].map((node) => ({ node, kind: node === "a" ? "ok" : "tls" }) as const);
    expect(unreachableMessage(nodes, URL_OF_SERVICE)).toContain("from node b and 2 more of the 4 of the cluster: ");
  });

  test("is nothing where every node answers, and to start a node where there is none", () => {
    expect(unreachableMessage([{ node: "a", kind: "ok" }], URL_OF_SERVICE)).toBeUndefined();
    expect(unreachableMessage([], URL_OF_SERVICE)).toBe(
      `Cannot reach the service at ${URL_OF_SERVICE}: the cluster has no node that runs. Start one.`,
    );
  });

  test.each([
    [401, TOKEN],
    [403, TOKEN],
    [400, LOOPBACK],
    [404, LOOPBACK],
  ])("where the answer is the status %i of a loopback address", (status, advice) => {
    const said = unreachableMessage([{ node: "a", kind: "status", status }], "http://127.0.0.1:4000")!;
    expect(said).toContain(`: it answers ${status}. ${advice}`);
  });

  test.each<[url: string, isLoopback: boolean]>([
    ["http://127.0.0.1:4000", true],
    ["https://127.10.200.255/", true],
    ["http://127.0.0.1", true],
    ["HTTP://LOCALHOST", true],
    ["https://localhost/x", true],
    ["http://localhost:1", true],
    ["http://[::1]:4000", true],
    ["http://127.0.0.1.example.org", false],
    ["http://localhost.example.org", false],
    ["http://my-localhost", false],
    ["http://head/?at=http://localhost:1", false],
    ["http://1270.0.0.1", false],
  ])("at %s, which is loopback: %s", (url, isLoopback) => {
    const said = (kind: NodeAnswer["kind"]) => unreachableMessage([{ node: "a", kind, error: "b.d." }], url);
    expect(said("refused")!.includes(LOOPBACK)).toBe(isLoopback);
    expect(said("refused")).toContain("is refused (b.d). ");
    expect(said("task")).toContain("Check the node;");
  });
});
