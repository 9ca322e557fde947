/** A Ray cluster of this machine, started as a user does: by `grpu launch local` in a process of its own. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import type { JobSpec, RayOptions } from "../../src/cluster/ray/contract.ts";
import { RayJobs } from "../../src/cluster/ray/jobs.ts";
import { httpFetch } from "../../src/train/run/net/http.ts";
import { readWebSocket } from "../../src/train/run/net/websocket.ts";

const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));

/** The Python with Ray: `$RAY_PYTHON`, or the environment that CI makes. */
export const RAY_PYTHON =
  process.env.RAY_PYTHON ?? fileURLToPath(new URL("../../.cache/ray/bin/python", import.meta.url));

export const hasRay = existsSync(RAY_PYTHON) && imports("ray.dashboard.optional_deps");
if (!hasRay) console.warn(`SKIPPED: no Ray in ${RAY_PYTHON}: python3 -m venv .cache/ray, pip install "ray[default]"`);

function imports(module: string): boolean {
  try {
    execFileSync(RAY_PYTHON, ["-c", `import ${module}`], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

export interface RayCluster {
  readonly address: string;
  readonly token: string;
  /** The command that holds the cluster. */
  readonly child: ChildProcess;
  /** What it wrote. */
  readonly said: () => string;
  readonly ended: Promise<number | null>;
  jobs(options?: Partial<RayOptions>): RayJobs;
  /** Runs `grpu jobs ...` in a process of its own. */
  cli(args: readonly string[]): ChildProcess;
}

export async function startRay(): Promise<RayCluster> {
  const port = await freePort();
  const args = [
    "launch",
    "local",
    "--python",
    RAY_PYTHON,
    "--port",
    String(port),
    "--num-cpus",
    "2",
    "--num-gpus",
    "0",
  ];
  const child = spawn(process.execPath, [CLI, ...args], { env: { ...process.env, RAY_AUTH_TOKEN: "" } });
  let said = "";
  const ended = new Promise<number | null>((resolve) => child.on("exit", resolve));
  const tokenFile = await new Promise<string>((resolve, reject) => {
    child.stderr.on("data", (data) => {
      said += data;
      const found = /\$\(cat (\S+)\)[\s\S]*Ctrl-C/.exec(said);
      if (found) resolve(found[1]!);
    });
    void ended.then((code) => reject(new Error(`grpu launch local ended with ${code}: ${said}`)));
  });
  const address = `http://127.0.0.1:${port}`;
  const token = readFileSync(tokenFile, "utf8");
  const env = { ...process.env, RAY_ADDRESS: address, RAY_AUTH_TOKEN: token };
  return {
    address,
    token,
    child,
    said: () => said,
    ended,
    jobs: (options = {}) => new RayJobs({ address, token, request: httpFetch, tail: readWebSocket, ...options }),
    cli: (more) => spawn(process.execPath, [CLI, "jobs", ...more], { env }),
  };
}

let count = 0;
/** A job that runs this program, with an id of its own. */
export function python(program: string, more: Partial<JobSpec> = {}): JobSpec {
  return {
    submission_id: `job-${process.pid}-${count++}`,
    entrypoint: "python main.py",
    files: new Map([["main.py", new TextEncoder().encode(program)]]),
    env: {},
    metadata: { test: "interop" },
    ...more,
  };
}

/** Every process below this one, itself included. Linux. */
export function treeOf(pid: number): number[] {
  const rows = execFileSync("ps", ["-A", "-o", "pid=,ppid="], { encoding: "utf8" }).trim().split("\n");
  const parents = rows.map((row) => row.trim().split(/\s+/).map(Number) as [number, number]);
  const found = new Set([pid]);
  for (let size = 0; size !== found.size; ) {
    size = found.size;
    for (const [each, parent] of parents) if (found.has(parent)) found.add(each);
  }
  return [...found];
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
