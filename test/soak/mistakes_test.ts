/**
 * Random mistakes against the command line. Whatever a person does: no hang, no status 0 for what failed, an error that
 * explains itself, and a finished run as it was. `npm run test:soak` makes 220 of them.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, describe, expect, test } from "vitest";
import { temporaryFolder } from "../fixtures/folder.ts";
import { type Mistake, mistakeOf, prepare, SMALL, VAL } from "./mistakes.ts";

const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));
const COUNT = Number(process.env.SOAK_MISTAKES ?? 220);
const FIRST = Number(process.env.SOAK_FIRST ?? 0);
/** Longer than the longest of them takes on a busy machine. */
const LIMIT_MS = 90_000;

const root = temporaryFolder("soak");
let finished: string;
beforeAll(async () => {
  finished = join(root, "finished");
  mkdirSync(finished);
  prepare({ name: "", lines: [] }, finished);
  const { status, err } = await run(["train", ...SMALL], { dir: finished });
  if (status !== 0) throw new Error(`The finished run did not finish: ${err}`);
}, LIMIT_MS);

interface Ended {
  readonly line: readonly string[];
  readonly status: number | null;
  readonly signal: string | null;
  readonly out: string;
  readonly err: string;
  readonly isHung: boolean;
}

function run(
  words: readonly string[],
  { dir, signals = [], limit }: { dir: string; signals?: Mistake["signals"]; limit?: number | undefined },
): Promise<Ended> {
  const line = words.map((word) => word.replaceAll("DIR", dir));
  const [program, first] = limit === undefined ? [process.execPath, []] : ["bash", ["-c", limited(limit)]];
  const child: ChildProcess = spawn(program, [...first, CLI, ...line], { stdio: ["ignore", "pipe", "pipe"] });
  let [out, err, isHung] = ["", "", false];
  child.stdout?.on("data", (text) => {
    out += text;
  });
  child.stderr?.on("data", (text) => {
    err += text;
  });
  const timers = signals.map(({ signal, afterMs }) => setTimeout(() => child.kill(signal), afterMs));
  const hung = setTimeout(() => {
    isHung = true;
    child.kill("SIGKILL");
  }, LIMIT_MS);
  return new Promise((resolve) => {
    child.on("close", (status, signal) => {
      for (const timer of [...timers, hung]) clearTimeout(timer);
      resolve({ line, status, signal, out, err, isHung });
    });
  });
}

/** A shell's command that runs node where no file may be larger: the disk of those who may not mount one. */
function limited(kib: number): string {
  return `ulimit -f ${kib}; exec "${process.execPath}" "$0" "$@"`;
}

/** A file system of that size at DIR/small, where this user may mount one. */
function mountSmall(dir: string, kib: number): boolean {
  mkdirSync(join(dir, "small"));
  const options = ["-t", "tmpfs", "-o", `size=${kib}k`, "tmpfs", join(dir, "small")];
  return spawnSync("mount", options, { stdio: "ignore" }).status === 0;
}

/** Hashes of a run's files by name. */
function filesOf(dir: string): Record<string, string> {
  if (!existsSync(dir)) return {};
  const names = readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  const hash = (file: string) => createHash("sha256").update(readFileSync(file)).digest("hex");
  return Object.fromEntries(names.map((file) => [relative(dir, file), hash(file)]));
}

/** The run as it was, where it was or set aside; damage that the mistake itself did is part of "was". */
function checkRun(dir: string, before: Record<string, string>): void {
  const places = readdirSync(dir).filter(
    (name) => /^run(\.\d+)?$/.test(name) && statSync(join(dir, name)).isDirectory(),
  );
  const kept = places.map((name) => filesOf(join(dir, name)));
  expect(kept, "a finished run was changed").toContainEqual(expect.objectContaining(before));
}

/** Statuses of a failure: the table's, and those of the signals that were sent. */
const FAILED = [1, 2, 3, 4, 130, 143];

function checkEnding({ line, status, signal, err, out, isHung }: Ended, mistake: Mistake): void {
  const what = `${mistake.name}\ngrpu ${line.join(" ")}\nstatus ${status} ${signal}\n${out}\n${err}`;
  expect(isHung, `it hangs: ${what}`).toBe(false);
  const isKilled = signal !== null && mistake.signals?.some((sent) => sent.signal === signal);
  if (isKilled) return;
  expect(status === 0 || FAILED.includes(status as number), `an unknown status: ${what}`).toBe(true);
  expect(err, `an error that is not ours: ${what}`).not.toMatch(/GRPU_DEBUG=1|\[object Object\]|DeprecationWarning/);
  const explained = /failed: |uncaught error ends the command: /;
  if (/\n {4}at /.test(err)) expect(err, `a stack without a word: ${what}`).toMatch(explained);
  if (status === 0 || status === 130 || status === 143) return;
  expect(err + out, `nothing said: ${what}`).toMatch(/grpu: |error: |uncaught/);
}

async function commit(mistake: Mistake, dir: string): Promise<void> {
  cpSync(finished, dir, { recursive: true });
  prepare(mistake, dir);
  const before = filesOf(join(dir, "run"));
  const { signals, disk } = mistake;
  const isMounted = disk !== undefined && mountSmall(dir, disk);
  const limit = isMounted ? undefined : disk;
  const started = mistake.lines.map((line, i) => run(line, { dir, limit, ...(i === 0 && { signals }) }));
  const ended = await Promise.all(started);
  if (isMounted) spawnSync("umount", [join(dir, "small")]);
  for (const each of ended) checkEnding(each, mistake);
  const passed = ended.filter(({ status }) => status === 0).length;
  const said = ended.map(({ line, err }) => `grpu ${line.join(" ")}\n${err}`).join("\n");
  if (mistake.passing !== undefined) expect(passed, said).toBe(mistake.passing);
  else if (!mistake.mayPass) expect(passed, `status 0: ${mistake.name}\n${said}`).toBe(0);
  if (!isContinued(mistake)) checkRun(dir, before);
  rmSync(dir, { recursive: true, force: true });
}

/** A run that is continued may grow. */
function isContinued({ lines }: Mistake): boolean {
  return lines.some((line) => line.includes("training.resume_mode=auto"));
}

test("the generator makes mistakes of every kind, and the same ones each time", () => {
  const names = Array.from({ length: 220 }, (_, i) => mistakeOf(i).name);
  expect(names).toEqual(Array.from({ length: 220 }, (_, i) => mistakeOf(i).name));
  expect(new Set(names).size).toBeGreaterThan(150);
  expect(VAL).toContain("prompt");
});

describe.concurrent("a random mistake", () => {
  test.each(Array.from({ length: COUNT }, (_, i) => [FIRST + i, mistakeOf(FIRST + i)] as const))(
    "%i",
    async (seed, mistake) => {
      await commit(mistake, join(root, `${seed}`));
    },
    2 * LIMIT_MS,
  );
});
