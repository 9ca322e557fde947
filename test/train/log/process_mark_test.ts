/** Whether the process that a file names still runs, also where there is no /proc: systems are played by fake modules. */
import { afterEach, describe, expect, test, vi } from "vitest";

interface System {
  readonly platform: string;
  /** What `ps` prints; an error where it is undefined. */
  readonly ps?: string;
  /** By path. */
  readonly files?: Readonly<Record<string, string>>;
  /** What a signal to a process ends with: a code, or nothing. */
  readonly kill?: string;
}

const { platform } = process;
afterEach(() => {
  vi.restoreAllMocks();
  Object.defineProperty(process, "platform", { value: platform });
});

async function on({ platform: name, ps, files = {}, kill }: System) {
  const asked: { command: string; args: readonly string[]; env: NodeJS.ProcessEnv }[] = [];
  const read = async (path: string) => files[path] ?? Promise.reject(new Error("ENOENT"));
  const fakes: Record<string, object> = {
    "node:os": { hostname: () => "here" },
    "node:fs/promises": { readFile: read, readlink: read },
    "node:child_process": {
      execFile: (
        command: string,
        args: readonly string[],
        { env }: { env: NodeJS.ProcessEnv },
        done: (error: Error | null, out: string) => void,
      ) => {
        asked.push({ command, args, env });
        done(ps === undefined ? new Error("no ps") : null, ps ?? "partial");
      },
    },
  };
  vi.spyOn(process, "getBuiltinModule").mockImplementation(((name: string) => fakes[name]) as never);
  vi.spyOn(process, "kill").mockImplementation(() => {
    if (kill) throw Object.assign(new Error(kill), { code: kill });
    return true;
  });
  Object.defineProperty(process, "platform", { value: name });
  vi.resetModules();
  return { ...(await import("../../../src/train/log/folder/process_mark.ts")), asked };
}

const SPACE = { "/proc/sys/kernel/random/boot_id": "boot\n", "/proc/self/ns/pid": "pid:[1]" };
/** The 20th field after the name is the start; the name may hold anything. */
const statLine = (state: string, start: number) =>
  `7 (a) b) ${state} ${Array.from({ length: 18 }, (_, i) => i).join(" ")} ${start} 99\n`;
const mark = { pid: 7, host: "here", space: "boot pid:[1]" };

describe("on Linux", () => {
  const files = { ...SPACE, [`/proc/${process.pid}/stat`]: statLine("R", 500), "/proc/7/stat": statLine("S", 123) };

  test("a process is marked by its PID, its boot and namespace, and the ticks at its start", async () => {
    const { markThisProcess, asked } = await on({ platform: "linux", files });
    expect(await markThisProcess()).toEqual({ ...mark, pid: process.pid, born: "500" });
    expect(asked).toEqual([]);
  });

  test.each([
    [{ ...mark }, true],
    [{ ...mark, host: "there" }, false],
    [{ ...mark, space: "boot pid:[2]" }, false],
    [{ ...mark, space: "" }, false],
  ])("%j can be looked up: %j", async (it, expected) => {
    const { isFromHere } = await on({ platform: "linux", files });
    expect(await isFromHere(it)).toBe(expected);
  });

  test.each<[what: string, born: string | undefined, more: Partial<System>, runs: boolean]>([
    ["one that started then", "123", {}, true],
    ["one whose start is not known", undefined, {}, true],
    ["a later one with its PID", "122", {}, false],
    ["a zombie", "123", { files: { "/proc/7/stat": statLine("Z", 123) } }, false],
    ["no process", "123", { kill: "ESRCH" }, false],
    ["another user's", "123", { kill: "EPERM" }, true],
    ["another user's, started later", "122", { kill: "EPERM" }, false],
    ["one that cannot be looked at", "123", { files: {} }, true],
  ])("%s", async (_, born, more, runs) => {
    const { isRunning } = await on({ platform: "linux", files, ...more });
    expect(await isRunning({ ...mark, ...(born && { born }) })).toBe(runs);
  });

  test("without /proc there is no start and no space", async () => {
    const { markThisProcess, isFromHere, asked } = await on({ platform: "linux", files: {}, ps: "now" });
    expect(await markThisProcess()).toEqual({ pid: process.pid, host: "here", space: "" });
    expect(await isFromHere({ ...mark, space: "" })).toBe(true);
    expect(asked).toEqual([]);
  });
});

describe("elsewhere", () => {
  test("`ps` tells the start, in one language and time zone", async () => {
    const { markThisProcess, isRunning, asked } = await on({ platform: "darwin", ps: "  Sat Nov 22 17:00:00 2026\n" });
    const born = "Sat Nov 22 17:00:00 2026";
    expect(await markThisProcess()).toEqual({ pid: process.pid, host: "here", space: "", born });
    expect(asked[0]).toMatchObject({ command: "ps", args: ["-o", "lstart=", "-p", String(process.pid)] });
    expect(asked[0]!.env).toMatchObject({ LC_ALL: "C", TZ: "UTC", PATH: process.env.PATH });
    expect(await isRunning({ ...mark, born })).toBe(true);
    expect(await isRunning({ ...mark, born: "earlier" })).toBe(false);
  });

  test.each<[what: string, system: System]>([
    ["a `ps` that fails", { platform: "darwin" }],
    ["a `ps` that prints nothing", { platform: "darwin", ps: " \n" }],
    ["Windows, where nothing is asked", { platform: "win32", ps: "now" }],
  ])("with %s the start is not known, and the PID decides", async (_, system) => {
    const { markThisProcess, isRunning, asked } = await on(system);
    expect(await markThisProcess()).not.toHaveProperty("born");
    expect(asked).toHaveLength(system.platform === "win32" ? 0 : 1);
    expect(await isRunning({ ...mark, born: "any" })).toBe(true);
  });
});
