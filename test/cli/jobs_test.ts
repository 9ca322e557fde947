/** `grpu jobs` against a stand-in of Ray's dashboard, and what `grpu launch local` refuses; test/interop has a real Ray. */
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { FakeDashboard } from "../cluster/ray/fake_dashboard.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const dir = temporaryFolder("jobs");
let ray: FakeDashboard;
beforeAll(async () => {
  ray = await new FakeDashboard().listen();
});
afterAll(() => ray.close());
beforeEach(() => {
  ray.jobs.clear();
  ray.requests.length = 0;
  ray.token = undefined;
});

const jobs = (args: readonly string[], env: Record<string, string> = {}) =>
  grpu(["jobs", ...args], { env: { RAY_ADDRESS: ray.address, ...env }, clock: ray.clock });

describe("grpu jobs", () => {
  test("list prints a table, or JSON", async () => {
    expect(await jobs(["list"])).toMatchObject({ code: 0, out: "", err: `no jobs at ${ray.address}\n` });
    ray.addJob("sum-1", { entrypoint: "python3 -m verl.trainer.main_ppo" });
    const { out } = await jobs(["list"]);
    expect(out.split("\n")[0]).toMatch(/^job +status +started +took +command$/);
    expect(out.split("\n")[1]).toMatch(/^sum-1 +RUNNING .* python3 -m verl\.trainer\.main_ppo$/);
    expect(JSON.parse((await jobs(["list", "--json"])).out)).toMatchObject([
      { submission_id: "sum-1", status: "RUNNING" },
    ]);
  });

  test("show says why a job failed", async () => {
    ray.addJob("sum-1", {
      status: "FAILED",
      message: "no memory\n",
      driver_exit_code: 137,
      error_type: "JOB_ENTRYPOINT_COMMAND_ERROR",
      metadata: { run: "sum" },
    });
    const { code, out, err } = await jobs(["show", "sum-1"]);
    expect(code).toBe(0);
    expect(out).toMatch(/^status +FAILED, JOB_ENTRYPOINT_COMMAND_ERROR\n/);
    expect(out).toMatch(/\nexit status +137\nrun +sum\n\nno memory\n$/);
    expect(err).toContain("Cannot finish the job sum-1: its driver was killed (exit status 137)");
    expect(JSON.parse((await jobs(["show", "sum-1", "--json"])).out)).toMatchObject({ driver_exit_code: 137 });
  });

  test("logs prints the log as Ray does, without colours", async () => {
    ray.addJob("sum-1", { log: "one\n\x1b[36m(W pid=3, ip=10.0.0.2)\x1b[0m two\n\x1b[36m(pid=4)\x1b[0m three" });
    expect(await jobs(["logs", "sum-1"])).toMatchObject({
      code: 0,
      out: "one\n(W pid=3, ip=10.0.0.2) two\n(pid=4) three\n",
    });
  });

  test("logs --follow ends with the job, and with status 1 and the cause if it failed", async () => {
    const log = '(W pid=3) Traceback (most recent call last):\n(W pid=3)   File "a.py"\n(W pid=3) ValueError: bad\n';
    const job = ray.addJob("sum-1", { log: "one\n" });
    setTimeout(() => Object.assign(job, { log: `one\n${log}`, status: "FAILED", driver_exit_code: 1 }), 20);
    const { code, out, err } = await jobs(["logs", "sum-1", "--follow"]);
    expect({ code, out }).toEqual({ code: 1, out: `one\n${log}` });
    expect(err).toBe(
      "grpu: Cannot finish the job sum-1: the worker W (pid 3) raised ValueError: bad. grpu jobs logs sum-1 prints its whole log.\n",
    );
    ray.addJob("sum-2", { log: "done\n", status: "SUCCEEDED" });
    expect(await jobs(["logs", "sum-2", "--follow"])).toEqual({
      code: 0,
      out: "done\n",
      err: "the job sum-2 has ended: SUCCEEDED\n",
    });
  });

  test("stop and delete say what they did", async () => {
    ray.addJob("sum-1");
    expect(await jobs(["delete", "sum-1"])).toMatchObject({
      code: 2,
      err: expect.stringContaining("it has not ended"),
    });
    expect(await jobs(["stop", "sum-1"])).toMatchObject({ code: 0, err: "the job sum-1 has ended: STOPPED\n" });
    ray.addJob("sum-2", { status: "FAILED" });
    expect(await jobs(["delete", "sum-1", "sum-2"])).toMatchObject({ code: 0, err: "deleted sum-1\ndeleted sum-2\n" });
    expect(ray.jobs.size).toBe(0);
  });

  test("refuses a missing id, two ids, a broken header and an address that is no dashboard's", async () => {
    for (const args of [["show"], ["delete"], ["stop", "a", "b"]])
      expect(await jobs(args)).toMatchObject({ code: 2, err: expect.stringContaining("Cannot choose a job") });
    expect((await jobs(["list", "--header", "none"])).err).toContain("Cannot use the header: it has no colon (none)");
    expect(await jobs(["list", "--address", "ray://head:10001"])).toMatchObject({
      code: 2,
      err: expect.stringContaining("usually http://head:8265"),
    });
    expect(ray.requests).toEqual([]);
  });

  test("sends headers and the token from the environment, from a file, or from home", async () => {
    ray.token = "secret-token";
    const file = join(dir, "auth_token");
    writeFileSync(file, "secret-token\n");
    expect((await jobs(["list"])).err).toContain("asks for a token");
    expect((await jobs(["list"], { RAY_AUTH_TOKEN: "secret-token" })).code).toBe(0);
    expect((await jobs(["list", "--header", "X-Proxy: a:b"], { RAY_AUTH_TOKEN_PATH: file })).code).toBe(0);
    expect(ray.requests.at(-1)!.headers["x-proxy"]).toBe("a:b");
    expect(await jobs(["list"], { RAY_AUTH_TOKEN_PATH: join(dir, "none") })).toMatchObject({
      code: 4,
      err: expect.stringContaining("Cannot read the token of the Ray cluster: there is no such file"),
    });
    // Ray itself does not look there unless token authentication is asked for.
    expect((await jobs(["list"], { HOME: dir })).err).toContain("asks for a token");
    expect((await jobs(["list"], { HOME: dir, RAY_AUTH_MODE: "token" })).err).toContain(
      join(dir, ".ray", "auth_token"),
    );
  });
});

describe("grpu launch local refuses", () => {
  const launch = (args: readonly string[]) => grpu(["launch", "local", ...args]);

  test("a Python that is not there, and one without Ray", async () => {
    expect(await launch(["--python", "no-such-python"])).toMatchObject({
      code: 2,
      err: expect.stringContaining("Cannot start Ray: there is no such program (no-such-python)"),
    });
    const python = join(dir, "python");
    writeFileSync(python, "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'ray'\" >&2\nexit 1\n", {
      mode: 0o755,
    });
    expect(await launch(["--python", python])).toMatchObject({
      code: 2,
      err: `grpu: Cannot start Ray: ${python} has no module ray. Install it with ${python} -m pip install "ray[default]", or give another Python: --python PATH.\n`,
    });
  });

  test("a port that is taken, and counts that are none", async () => {
    const python = join(dir, "python_with_ray");
    writeFileSync(python, '#!/bin/sh\necho \'["/bin/false", "2.60.0"]\'\n', { mode: 0o755 });
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    expect((await launch(["--python", python, "--port", String(port)])).err).toContain(
      `Cannot start Ray: the port of its dashboard is taken (${port})`,
    );
    await new Promise((resolve) => server.close(resolve));
    expect(await launch(["--python", python, "--port", String(port)])).toMatchObject({
      code: 1,
      err: expect.stringContaining("Cannot start Ray: it ended with status 1"),
    });
    expect((await launch(["--num-cpus", "0"])).err).toContain("--num-cpus");
  });
});
