import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, test } from "vitest";
import { type CommandProgram, runProgram } from "../../src/cli/front.ts";
import { EXITS, Fault, Interruption } from "../../src/cli/process/exit.ts";
import { PROGRAM } from "../../src/cli/program.ts";
import { ConfigError, fileError, RemoteError } from "../../src/leaves/errors.ts";
import { captured, grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { someMetrics, writeRun } from "../fixtures/run_folder.ts";

const dir = temporaryFolder("exit");
beforeAll(() => {
  writeRun(join(dir, "run"), { metrics: someMetrics(2) });
  writeFileSync(join(dir, "file"), "");
  writeFileSync(join(dir, "bad.jsonl"), "{\n");
  writeFileSync(join(dir, "bad.yaml"), "rllm: {rollout: {n: none}}\n");
  mkdirSync(join(dir, "empty"));
});

test("--help and the documentation hold the same table", async () => {
  const { out } = await grpu(["--help"]);
  const page = readFileSync(fileURLToPath(new URL("../../docs/exit-statuses.md", import.meta.url)), "utf8");
  for (const [status, meaning] of EXITS) {
    expect(out).toContain(`  ${status.padEnd(8)}${meaning}\n`);
    expect(page).toContain(`| ${status} | ${meaning} |`);
  }
});

/** At least one failure of each command; DIR is the folder of the test. */
const FAILURES: readonly (readonly [number, string])[] = [
  [2, "trian"],
  [2, "train --device gpu"],
  [3, "train examples/arithmetic/run.yaml rllm.rollout.nn=3"],
  [3, "train examples/arithmetic/run.yaml task.name=sums"],
  [3, "train DIR/bad.yaml"],
  [4, "train DIR/nowhere.yaml"],
  [4, "train examples/arithmetic/run.yaml data.train_files=DIR/bad.jsonl"],
  [4, "train examples/arithmetic/run.yaml data.train_files=DIR/nowhere.jsonl"],
  [4, "train examples/arithmetic/run.yaml training.default_local_dir=DIR/file/run --device cpu"],
  [4, "train examples/arithmetic/run.yaml --import DIR/nowhere.ts"],
  [3, "eval examples/arithmetic/run.yaml --n 0"],
  [4, "eval examples/arithmetic/run.yaml --checkpoint DIR/nowhere --device cpu"],
  [2, "report"],
  [4, "report DIR/empty"],
  [4, "report DIR/run --output DIR/file/report.html"],
  [4, "report DIR/run --output DIR/empty"],
  [2, "view DIR/run --port x"],
  [4, "view DIR/nowhere"],
  [2, "sample --prompt x"],
  [4, "sample --model DIR/empty --prompt x --device cpu"],
  [2, "device extra"],
  [4, "model score --model DIR/empty --input DIR/nowhere.jsonl"],
  [2, "model generate --model DIR/empty --tokens x"],
  [4, "compute advantages --input DIR/nowhere.jsonl --estimator grpo --device cpu"],
  [3, "config show rllm.rollout.n=none"],
  [3, "config validate DIR/bad.yaml"],
  [4, "metrics convert --from verl --to trinity DIR/nowhere.jsonl"],
  [4, "metrics convert --from verl --to trinity DIR/bad.jsonl"],
  [2, "serve tinker --model DIR/empty --port x"],
  [2, "serve tinker --model DIR/empty --host 0.0.0.0"],
  [4, "serve tinker --model DIR/empty --device cpu --checkpoints DIR/served"],
];

test.each(FAILURES)("status %i: grpu %s", async (status, line) => {
  const { code, err, out } = await grpu(line.replaceAll("DIR", dir).split(" "));
  expect(err + out).toMatch(/Cannot|unknown command|required option|Allowed choices|takes no argument|error:/);
  expect(err).not.toMatch(/\n {4}at /);
  expect(code).toBe(status);
});

test.runIf(existsSync("/proc/self"))("a disk that cannot be written to is named, with what to do", async () => {
  const { code, err } = await grpu(["report", join(dir, "run"), "--output", "/proc/report.html"]);
  expect(err).toMatch(/^grpu: Cannot write the report: .*\. (Check|Name|Change).* \(\/proc\/report\.html\)\.\n$/);
  expect(code).toBe(4);
});

test.each(["ENOSPC", "EROFS", "EACCES", "ENOENT", "EISDIR", "ENOTDIR", "EMFILE", "EIO"])(
  "%s becomes an error of ours",
  (code) => {
    const raw = Object.assign(new Error(`${code}: raw`), { code, path: "/a/b" });
    const error = fileError(raw);
    expect(error).toBeInstanceOf(ConfigError);
    expect(error).toMatchObject({ kind: "data", file: "/a/b", cause: raw });
    expect(error?.message).toMatch(new RegExp(`^Cannot use the file: .* \\(${code}\\)\\. .* \\(/a/b\\)\\.$`));
  },
);

test("an error of a write, which names no file, is ours; one of a socket is not the file system's", () => {
  const raw = (code: string, syscall: string) => Object.assign(new Error(code), { code, syscall });
  expect(fileError(raw("ENOSPC", "write"))?.message).toBe(
    "Cannot write a file: the disk is full (ENOSPC). Free some space, or name another place.",
  );
  expect(fileError(raw("EACCES", "listen"))).toBeUndefined();
  expect(fileError(raw("ECONNREFUSED", "connect"), { file: "x" })).toBeUndefined();
});

async function ending(run: () => Promise<void>, signal = new AbortController().signal) {
  const { io, written } = captured({ signal, columns: 80 });
  const program: CommandProgram = { ...PROGRAM, commands: [{ path: "x", summary: "", examples: [], run }] };
  return { status: await runProgram(program, ["x"], io), err: written.err };
}

const full = Object.assign(new Error("raw"), { code: "ENOSPC", path: "/full" });

test.each([
  [1, new TypeError("x is undefined")],
  [1, new RemoteError("Cannot reach the server", { retryable: false })],
  [2, new ConfigError("Cannot use --n")],
  [3, new ConfigError("Cannot use n", { path: "a.b" })],
  [3, new ConfigError("Cannot read it", { file: "run.yaml", line: 3 })],
  [4, new ConfigError("Cannot read it", { file: "rows.jsonl", path: "answer" })],
  [4, full],
])("status %i for %s", async (status, error) => {
  expect((await ending(() => Promise.reject(error))).status).toBe(status);
});

const SIGNALS = [
  [130, new Interruption("SIGINT")],
  [143, new Interruption("SIGTERM")],
  [129, new Interruption("SIGHUP")],
  [1, new Fault("reported already")],
] as const;

test.each(SIGNALS)("status %i after %s", async (status, reason) => {
  const stop = new AbortController();
  const run = async () => {
    stop.abort(reason);
    stop.signal.throwIfAborted();
  };
  expect(await ending(run, stop.signal)).toEqual({ status, err: "" });
});

test("an error that comes after Ctrl-C is told, and the status is the signal's", async () => {
  const stop = new AbortController();
  const run = async () => {
    stop.abort(new Interruption("SIGINT"));
    throw full;
  };
  const { status, err } = await ending(run, stop.signal);
  expect(err).toMatch(/the disk is full/);
  expect(status).toBe(130);
});

const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));

test("the process ends with the status", () => {
  const run = (...args: string[]) => spawnSync(process.execPath, [CLI, ...args], { encoding: "utf8" }).status;
  expect(run("--version")).toBe(0);
  expect(run("trian")).toBe(2);
  expect(run("config", "show", "rllm.rollout.n=none")).toBe(3);
  expect(run("report", join(dir, "empty"))).toBe(4);
});
