/** A Ray head of this machine alone, as child processes of ours. Ended by process id: `ray stop` would end every Ray here. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { withoutEscapes } from "../../cluster/ray/lines.ts";
import { SYSTEM_CLOCK } from "../../leaves/clock.ts";
import { ConfigError, RemoteError } from "../../leaves/errors.ts";
import { httpFetch } from "../../train/run/net/http.ts";

export interface HeadOptions {
  /** The Python that has Ray: a name on the PATH, or a path. */
  readonly python: string;
  /** Port of the dashboard. */
  readonly port: number;
  readonly numCpus?: number | undefined;
  readonly numGpus?: number | undefined;
  /** Default: a new one. */
  readonly token?: string | undefined;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal: AbortSignal;
}

export interface RayHead {
  readonly address: string;
  /** The version of Ray. */
  readonly version: string;
  /** Holds the token; only this user can read it. */
  readonly tokenFile: string;
  readonly logs: string;
  /** Resolves when Ray has ended by itself, with its last words. */
  readonly ended: Promise<string>;
  /** Ends Ray with everything it runs. */
  stop(): Promise<void>;
}

const START_MS = 120_000;
/** Ray's own processes get this long to end, ms. */
const END_MS = 10_000;
const LAST_WORDS = 4_000;

/** @throws {ConfigError} without Python, Ray or a free port. @throws {RemoteError} if Ray ends or does not answer. */
export async function startRayHead(options: HeadOptions): Promise<RayHead> {
  const { executable, version } = await findRay(options.python);
  await checkPort(options.port);
  const root = mkdtempSync(join(baseFolder(), "grpu-ray-"));
  const token = options.token ?? randomBytes(32).toString("hex");
  const tokenFile = join(root, "token");
  writeFileSync(tokenFile, token, { mode: 0o600 });
  const child = spawn(executable, ["-m", "ray.scripts.scripts", "start", ...(await startArguments(options, root))], {
    env: { ...options.env, ...environment(executable, { root, token, env: options.env }) } as NodeJS.ProcessEnv,
    stdio: ["ignore", "pipe", "pipe"],
    // In a group of its own: Ctrl-C in the terminal reaches us alone, and we end it in order.
    detached: true,
  });
  const address = `http://127.0.0.1:${options.port}`;
  const said = lastWords(child);
  const ended = new Promise<string>((resolve) => child.once("close", () => resolve(said())));
  const stop = () => endTree(child, root);
  try {
    await answering({ address, token, child, said, signal: options.signal });
  } catch (error) {
    await stop();
    throw error;
  }
  return { address, version, tokenFile, logs: join(root, "ray", "session_latest", "logs"), ended, stop };
}

const FIND = "import json, sys, ray, ray.dashboard.optional_deps; print(json.dumps([sys.executable, ray.__version__]))";

async function findRay(python: string): Promise<{ executable: string; version: string }> {
  const { error, stdout, stderr } = await output(python, ["-c", FIND]);
  if ((error as NodeJS.ErrnoException | null)?.code === "ENOENT")
    throw new ConfigError(
      `Cannot start Ray: there is no such program (${python}). Give the Python that has Ray: --python PATH.`,
    );
  if (error) {
    const missing = /No module named '(\w+)/.exec(stderr)?.[1];
    const why = missing ? `has no module ${missing}` : `fails to import it: ${stderr.trim().split("\n").at(-1)}`;
    throw new ConfigError(
      `Cannot start Ray: ${python} ${why}. Install it with ${python} -m pip install "ray[default]", or give another Python: --python PATH.`,
    );
  }
  const [executable, version] = JSON.parse(stdout.trim().split("\n").at(-1)!) as [string, string];
  return { executable, version };
}

function output(program: string, args: string[]): Promise<{ error: Error | null; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(program, args, (error, stdout, stderr) => resolve({ error, stdout, stderr }));
  });
}

async function checkPort(port: number): Promise<void> {
  await listenOnce(port).catch((cause) => {
    throw new ConfigError(
      `Cannot start Ray: the port of its dashboard is taken (${port}). Another Ray may run here: use it, or give another port with --port.`,
      {},
      { cause },
    );
  });
}

/** @returns the port, which is free again. */
function listenOnce(port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(port, "127.0.0.1", () => {
      const { port: found } = server.address() as { port: number };
      server.close(() => resolve(found));
    });
  });
}

/** Ray makes sockets below it, whose paths may have 103 characters on macOS. */
function baseFolder(): string {
  return tmpdir().length > 24 && existsSync("/tmp") ? "/tmp" : tmpdir();
}

async function startArguments({ port, numCpus, numGpus }: HeadOptions, root: string): Promise<string[]> {
  const [agent, client] = [await listenOnce(0), await listenOnce(0)];
  const values: Readonly<Record<string, string | number | undefined>> = {
    "node-ip-address": "127.0.0.1",
    port: 0,
    "dashboard-host": "127.0.0.1",
    "dashboard-port": port,
    "dashboard-agent-listen-port": agent,
    "ray-client-server-port": client,
    "temp-dir": join(root, "ray"),
    "num-cpus": numCpus,
    "num-gpus": numGpus,
  };
  const defined = Object.entries(values).filter(([, value]) => value !== undefined);
  return ["--head", "--block", "--disable-usage-stats", ...defined.map(([name, value]) => `--${name}=${value}`)];
}

function environment(
  executable: string,
  { root, token, env }: { root: string; token: string; env: HeadOptions["env"] },
): Record<string, string | undefined> {
  return {
    // Of another cluster; a Ray that finds one does not start another.
    RAY_ADDRESS: undefined,
    RAY_API_SERVER_ADDRESS: undefined,
    // Otherwise Ray listens on the machine's address instead of loopback.
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER: "0",
    RAY_AUTH_MODE: "token",
    RAY_AUTH_TOKEN: token,
    PATH: [programFolder(executable, root), env.PATH].filter(Boolean).join(delimiter),
    PYTHONUNBUFFERED: "1",
  };
}

/** Returns a folder where `python` and `python3`, as jobs call them, are this Python. */
function programFolder(executable: string, root: string): string {
  const folder = dirname(executable);
  if (existsSync(join(folder, "python")) && existsSync(join(folder, "python3"))) return folder;
  // A link would leave a virtual environment.
  const script = `#!/bin/sh\nexec '${executable.replaceAll("'", "'\\''")}' "$@"\n`;
  for (const name of ["python", "python3"]) writeFileSync(join(root, name), script, { mode: 0o755 });
  return root;
}

function lastWords({ stdout, stderr }: ChildProcess): () => string {
  let said = "";
  for (const stream of [stdout, stderr])
    stream?.on("data", (data) => {
      said = (said + String(data)).slice(-LAST_WORDS);
    });
  return () => withoutEscapes(said).trim();
}

interface Answering {
  readonly address: string;
  readonly token: string;
  readonly child: ChildProcess;
  readonly said: () => string;
  readonly signal: AbortSignal;
}

async function answering({ address, token, child, said, signal }: Answering): Promise<void> {
  const headers = { authorization: `Bearer ${token}` };
  for (const end = Date.now() + START_MS; Date.now() < end; ) {
    if (child.exitCode !== null || child.signalCode !== null)
      throw new RemoteError(`Cannot start Ray: it ended with status ${child.exitCode}. Its last words:\n${said()}`, {
        retryable: false,
      });
    const answer = await httpFetch(`${address}/api/jobs/`, { headers, signal: AbortSignal.timeout(5_000) }).catch(
      () => undefined,
    );
    if (answer?.ok) return;
    await SYSTEM_CLOCK.sleep(500, signal);
  }
  throw new RemoteError(
    `Cannot start Ray: its dashboard does not answer within ${START_MS / 1000} s (${address}). Its last words:\n${said()}`,
    {
      retryable: true,
    },
  );
}

/** Asks Ray to end, then kills what is left, and removes its files. */
async function endTree(child: ChildProcess, root: string): Promise<void> {
  const pid = child.pid as number;
  const tree = [pid, ...(await descendantsOf(pid))];
  kill(pid, "SIGTERM");
  for (const end = Date.now() + END_MS; Date.now() < end && tree.some(isAlive); ) await SYSTEM_CLOCK.sleep(100);
  for (const each of tree) kill(each, "SIGKILL");
  rmSync(root, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
}

function isAlive(pid: number): boolean {
  return kill(pid, 0);
}

/** False if it is gone. */
function kill(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}

/** Every process below this one. */
async function descendantsOf(pid: number): Promise<number[]> {
  const parents = existsSync("/proc/self/stat") ? parentsInProc() : await parentsByPs();
  const found = new Set([pid]);
  for (let size = 0; size !== found.size; ) {
    size = found.size;
    for (const [each, parent] of parents) if (found.has(parent)) found.add(each);
  }
  found.delete(pid);
  return [...found];
}

type Parents = readonly (readonly [pid: number, parent: number])[];

function parentsInProc(): Parents {
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  return pids.flatMap((pid) => {
    try {
      // `pid (name) state parent ...`; the name may hold spaces and parentheses.
      const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
      return [[Number(pid), Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1])] as const];
    } catch {
      return [];
    }
  });
}

async function parentsByPs(): Promise<Parents> {
  const { stdout } = await output("ps", ["-A", "-o", "pid=,ppid="]);
  const rows = stdout
    .trim()
    .split("\n")
    .map((line) => line.trim().split(/\s+/).map(Number));
  return rows.map(([pid = 0, parent = 0]) => [pid, parent] as const);
}
