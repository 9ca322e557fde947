/** The client of Ray's Jobs API, `grpu launch local` and `grpu jobs` on a real Ray with token authentication. */
import { type ChildProcess, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CauseFinder } from "../../src/cluster/ray/cause.ts";
import type { JobSpec } from "../../src/cluster/ray/contract.ts";
import { jobFailureText } from "../../src/cluster/ray/failure.ts";
import { MOST_OF_A_LINE } from "../../src/cluster/ray/lines.ts";
import { type NodeAnswer, probe, unreachableMessage } from "../../src/cluster/ray/probe.ts";
import { httpFetch } from "../../src/train/run/net/http.ts";
import { hasRay, python, type RayCluster, startRay, treeOf } from "./ray_cluster.ts";

const PROBE = readFileSync(new URL("../../config/ray/grpu_probe.py", import.meta.url), "utf8");

describe.skipIf(!hasRay)("on a real Ray", () => {
  let ray: RayCluster;
  beforeAll(async () => {
    ray = await startRay();
  });
  afterAll(async () => {
    ray?.child.kill("SIGINT");
    await ray?.ended;
  });

  /** Submits and follows to the end. */
  async function run(spec: JobSpec) {
    const jobs = ray.jobs();
    const notices: string[] = [];
    const lines: string[] = [];
    const finder = new CauseFinder();
    const following = ray.jobs({ notify: (message) => notices.push(message) });
    await jobs.submit(spec);
    const details = await following.follow(spec.submission_id, (line) => {
      lines.push(line.text);
      finder.take(line);
    });
    return { details, lines, notices, cause: finder.cause(), failure: jobFailureText(details, finder.cause()) };
  }

  test("a job runs once, whoever submits it again; every process that follows it gets each line once", async () => {
    const program = "import time\nfor i in range(40):\n    print('tick', i, flush=True)\n    time.sleep(0.2)\n";
    const spec = python(program, { env: { GREETING: "hello" }, metadata: { run: "ticks" } });
    const ticks = Array.from({ length: 40 }, (_, i) => `tick ${i}`);
    const jobs = ray.jobs();
    expect((await jobs.submit(spec)).isNew).toBe(true);
    expect((await jobs.submit(spec)).isNew).toBe(false);
    await expect(jobs.submit({ ...spec, entrypoint: "ls" })).rejects.toThrow("another job of this id (python main.py)");

    const gone = ray.cli(["logs", spec.submission_id, "--follow"]);
    await output(gone, (text) => text.includes("tick 5"));
    gone.kill("SIGKILL");
    const again = ray.cli(["logs", spec.submission_id, "--follow"]);
    const printed = output(again);
    const lines: string[] = [];
    const details = await jobs.follow(spec.submission_id, ({ text }) => void lines.push(text));
    expect(details).toMatchObject({ status: "SUCCEEDED", driver_exit_code: 0, metadata: { run: "ticks" } });
    const isTick = (line: string) => line.startsWith("tick");
    expect(lines.filter(isTick)).toEqual(ticks);
    expect((await printed).split("\n").filter(isTick)).toEqual(ticks);
    expect((await jobs.list()).filter(({ submission_id }) => submission_id === spec.submission_id)).toHaveLength(1);
    await jobs.delete(spec.submission_id);
    await expect(jobs.details(spec.submission_id)).rejects.toThrow("does not know such a job");
  });

  test("a job that raises in a worker ends with that worker's traceback", async () => {
    const { details, cause, failure } = await run(
      python(`
import ray
ray.init()
@ray.remote(num_cpus=0)
class Worker:
    def step(self):
        raise ValueError("bad reward")
@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self):
        return ray.get(Worker.remote().step.remote())
ray.get(TaskRunner.remote().run.remote())
`),
    );
    expect(details).toMatchObject({
      status: "FAILED",
      driver_exit_code: 1,
      error_type: "JOB_ENTRYPOINT_COMMAND_ERROR",
    });
    expect(cause).toMatchObject({ worker: { name: "Worker" }, message: "ValueError: bad reward" });
    expect(cause?.lines.join("\n")).toMatch(/^ {2}File ".*main\.py", line 7, in step\n {4}raise ValueError/);
    expect(failure).toMatch(/the worker Worker \(pid \d+, 127\.0\.0\.1\) raised ValueError: bad reward/);
  });

  test("a driver that is killed", async () => {
    const program = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n";
    expect(await run(python(program))).toMatchObject({
      details: { status: "FAILED", driver_exit_code: 137 },
      failure: expect.stringContaining("its driver was killed (exit status 137)"),
    });
  });

  test("an environment that cannot be set up, whose secrets stay out of the message", async () => {
    const submission_id = `broken-${process.pid}`;
    const runtime_env = {
      working_dir: "gcs://_ray_pkg_0123456789abcdef.zip",
      env_vars: { SERVICE_TOKEN: "a-secret-value" },
    };
    await httpFetch(`${ray.address}/api/jobs/`, {
      method: "POST",
      headers: { authorization: `Bearer ${ray.token}` },
      body: JSON.stringify({ submission_id, entrypoint: "true", runtime_env }),
    });
    const details = await ray.jobs().follow(submission_id, () => {});
    expect(details).toMatchObject({ status: "FAILED", error_type: "RUNTIME_ENV_SETUP_FAILURE" });
    expect(jobFailureText(details)).toContain("its environment could not be set up (");
    expect(JSON.stringify(details)).not.toContain("a-secret-value");
  });

  test("a job is stopped with its processes; one that waits for resources stays", async () => {
    const jobs = ray.jobs();
    const spec = python("import time\nprint('up', flush=True)\ntime.sleep(600)\n");
    const waiting = python("", { resources: { num_gpus: 1 } });
    await jobs.submit(waiting);
    await jobs.submit(spec);
    const up = new AbortController();
    const following = jobs.follow(spec.submission_id, ({ text }) => text === "up" && up.abort(), up.signal);
    await expect(following).rejects.toThrow();
    expect((await jobs.stop(spec.submission_id)).status).toBe("STOPPED");
    expect((await jobs.stop(waiting.submission_id, { waitMs: 1_000 })).status).toBe("PENDING");
  });

  test("100,000 lines and a line of 3 MiB arrive once and in order", async () => {
    const program = `
for i in range(100_000):
    print(f"line {i} " + "x" * 60)
    if i == 50_000:
        print("y" * 3 * 2**20)
`;
    const spec = python(program);
    const jobs = ray.jobs();
    const started = Date.now();
    await jobs.submit(spec);
    let [next, long, first] = [0, 0, 0];
    const { status } = await jobs.follow(spec.submission_id, ({ text }) => {
      first ||= Date.now() - started;
      if (text.startsWith("y")) long = text.length;
      if (!text.startsWith("line ")) return;
      if (!text.startsWith(`line ${next} x`)) throw new Error(`got ${text}, expected line ${next}`);
      next++;
    });
    console.log(`first line after ${first} ms, 100,000 after ${Date.now() - started} ms`);
    expect({ status, next }).toEqual({ status: "SUCCEEDED", next: 100_000 });
    expect(long).toBeGreaterThanOrEqual(MOST_OF_A_LINE);
    expect(long).toBeLessThan(MOST_OF_A_LINE + 100);
  });

  test("lines go on once and in order after the dashboard's process for jobs was killed", async () => {
    const program = `
import time
for i in range(20_000):
    print(f"line {i}", flush=i % 1000 == 0)
    if i % 2_000 == 0:
        time.sleep(0.5)
`;
    let killed = 0;
    const notices: string[] = [];
    const spec = python(program);
    const jobs = ray.jobs({ notify: (message) => void notices.push(message) });
    await jobs.submit(spec);
    const lines: string[] = [];
    await jobs.follow(spec.submission_id, ({ text }) => {
      if (text.startsWith("line ")) lines.push(text);
      if (text !== "line 1000") return;
      for (const pid of treeOf(ray.child.pid!).filter(isJobHead)) killed += Number(kill(pid));
    });
    expect(killed).toBe(1);
    expect(notices).toEqual([expect.stringContaining("lost the connection")]);
    expect(lines).toEqual(Array.from({ length: 20_000 }, (_, i) => `line ${i}`));
  });

  test("a line that is too long for the tail is passed over", async () => {
    const { details, lines, notices } = await run(
      python("print('before')\nprint('y' * 6 * 2**20)\nfor i in range(3):\n    print('after', i)\n"),
    );
    expect(details.status).toBe("SUCCEEDED");
    expect(lines.filter((line) => /^(before|after)/.test(line))).toEqual(["before", "after 0", "after 1", "after 2"]);
    expect(notices).toEqual([]);
  });

  test("a missing and a wrong token are refused, for requests and for the log", async () => {
    for (const [token, said] of [
      [undefined, "asks for a token"],
      ["wrong-token", "refuses the token"],
    ] as const) {
      const jobs = ray.jobs({ token });
      await expect(jobs.list()).rejects.toThrow(said);
      await expect(jobs.submit(python(""))).rejects.toThrow(said);
      await expect(jobs.follow("any", () => {})).rejects.toThrow(said);
    }
  });

  test("the probe finds whether a task reaches the service", async () => {
    const service = await startService();
    const url = `http://127.0.0.1:${(service.address() as AddressInfo).port}`;
    const ask = async (token: string): Promise<NodeAnswer> => {
      const [answer, ...others] = await probe(ray.jobs(), { url, token, run: "r1", script: PROBE });
      expect(others).toEqual([]);
      return answer!;
    };
    const [fine, wrongToken] = await Promise.all([ask("good"), ask("bad")]);
    await new Promise((resolve) => service.close(resolve));
    const refused = await ask("good");
    expect(fine).toMatchObject({ cpus: 2, gpus: 0 });
    expect([fine, wrongToken, refused].map(({ kind, status }) => [kind, status])).toEqual([
      ["ok", 200],
      ["status", 401],
      ["refused", undefined],
    ]);
    expect(unreachableMessage([refused], url)).toContain("A loopback address means each node itself");
    const left = (await ray.jobs().list()).map(({ submission_id }) => submission_id);
    expect(left.filter((id) => id.startsWith("grpu-probe-"))).toEqual([]);
  });

  test("Ctrl-C ends the cluster with its jobs and leaves no process and no file", async () => {
    await ray.jobs().submit(python("import time\ntime.sleep(600)\n"));
    const tree = treeOf(ray.child.pid!);
    expect(tree.length).toBeGreaterThan(5);
    ray.child.kill("SIGINT");
    expect(await ray.ended).toBe(0);
    expect(tree.filter(isAlive)).toEqual([]);
    const folder = /\$\(cat (\S+)\/token\)/.exec(ray.said())![1]!;
    expect(() => readFileSync(`${folder}/token`)).toThrow("ENOENT");
  });
});

describe.skipIf(!hasRay)("when Ray ends", () => {
  test("a head that is killed while a job is followed ends that and the command that started it, in bounded time", async () => {
    const ray = await startRay();
    const spec = python("import time\nprint('up', flush=True)\ntime.sleep(600)\n");
    const jobs = ray.jobs({ patienceMs: 3_000 });
    await jobs.submit(spec);
    let killedAt = 0;
    const following = jobs.follow(spec.submission_id, ({ text }) => {
      if (text !== "up") return;
      killedAt = Date.now();
      for (const pid of treeOf(ray.child.pid!)) if (pid !== ray.child.pid && isAlive(pid)) kill(pid);
    });
    await expect(following).rejects.toThrow(/^Cannot follow the job \S+: the Ray cluster at \S+ does not answer/);
    expect(killedAt).toBeGreaterThan(0);
    expect(Date.now() - killedAt).toBeLessThan(20_000);
    expect(await ray.ended).toBe(1);
    expect(ray.said()).toContain("Cannot go on: Ray has ended by itself");
  });
});

/** What a process prints, to its end or until it suffices. */
function output(child: ChildProcess, suffices: (text: string) => boolean = () => false): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    child.stdout?.on("data", (data) => {
      text += data;
      if (suffices(text)) resolve(text);
    });
    child.on("close", () => resolve(text));
  });
}

function startService(): Promise<Server> {
  const health = JSON.stringify({ service: "grpu", run: "r1", protocol: 1 });
  const server = createServer(({ headers }, reply) => {
    reply.writeHead(headers.authorization === "Bearer good" ? 200 : 401).end(health);
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

/** The dashboard starts it again. */
function isJobHead(pid: number): boolean {
  const { stdout } = spawnSync("ps", ["-o", "command=", "-p", String(pid)], { encoding: "utf8" });
  return stdout.includes("dashboard-JobHead");
}

function isAlive(pid: number): boolean {
  return kill(pid, 0);
}

function kill(pid: number, signal: NodeJS.Signals | 0 = "SIGKILL"): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}
