/** One process writes to a folder: who gets it, who is refused, what a crash leaves, and what an owner notices. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import fs, {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { ConfigError, RemoteError } from "../../../src/leaves/errors.ts";
import { FolderLock, type FolderLockOptions } from "../../../src/train/log/folder/lock.ts";
import { commandOf, type FolderOwner, OWNER_FILE, thisOwner } from "../../../src/train/log/folder/owner.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const SOURCE = fileURLToPath(new URL("../../fixtures/lock_child.ts", import.meta.url));
const OPTIONS: FolderLockOptions = { advice: "Choose another.", heartbeatMs: 20, staleMs: 200 };

const root = temporaryFolder("lock");
let script: string;
let folder: string;
let children: ChildProcess[] = [];
const locks: FolderLock[] = [];

beforeAll(async () => {
  script = join(root, "child.mjs");
  await build({ entryPoints: [SOURCE], bundle: true, platform: "node", format: "esm", outfile: script });
});
beforeEach(() => {
  folder = mkdtempSync(join(root, "run-"));
});
afterEach(async () => {
  for (const lock of locks.splice(0)) await lock.release();
  for (const child of children) child.kill("SIGKILL");
  children = [];
});

async function take(options: Partial<FolderLockOptions> = {}): Promise<FolderLock> {
  const lock = await FolderLock.take(folder, { ...OPTIONS, ...options });
  locks.push(lock);
  return lock;
}

interface Child {
  readonly process: ChildProcess;
  /** The next line it prints. */
  readonly line: () => Promise<string>;
}

async function startChild(folders: readonly string[]): Promise<Child> {
  const child = spawn(process.execPath, [script, ...folders], { stdio: ["pipe", "pipe", "inherit"] });
  children.push(child);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const line = async () => String((await lines.next()).value);
  expect(await line()).toBe("ready");
  return { process: child, line };
}

/** A child that holds `folder`. */
async function holder(): Promise<Child> {
  const child = await startChild([folder]);
  child.process.stdin?.write("go\n");
  expect(await child.line()).toBe("held");
  return child;
}

async function writeOwnerFile(change: Partial<FolderOwner>, { ageMs = 0 } = {}): Promise<string> {
  const file = join(folder, OWNER_FILE);
  writeFileSync(file, JSON.stringify({ ...(await thisOwner("train a.yaml")), ...change }));
  const then = new Date(Date.now() - ageMs);
  utimesSync(file, then, then);
  return file;
}

describe("a folder in use", () => {
  test("is refused to a second process, with who uses it and what to do", async () => {
    const child = await holder();
    const refused = take({ setting: "training.default_local_dir" });
    await expect(refused).rejects.toThrow(ConfigError);
    await expect(refused).rejects.toThrow(
      new RegExp(
        `in use by PID ${child.process.pid} on \\S+, since 20\\S+Z \\(.*child\\.mjs.*\\)\\. Choose another \\(training`,
      ),
    );
    expect(readdirSync(folder)).toEqual([OWNER_FILE]);
  });

  test("is refused to another part of the same process, and free after the release", async () => {
    const lock = await take();
    await expect(take()).rejects.toThrow(`PID ${process.pid}`);
    await lock.release();
    await lock.release();
    expect(readdirSync(folder)).toEqual([]);
    await (await take()).check();
  });

  test("is refused by any other name, and a link to it goes on leading to it", async () => {
    const name = `${folder}.link`;
    symlinkSync(folder, name);
    const lock = await FolderLock.take(name, OPTIONS);
    locks.push(lock);
    await expect(take()).rejects.toThrow("in use");
    writeFileSync(join(name, "old"), "1");
    await lock.moveAside(`${lock.folder}.1`);
    expect([readdirSync(name), readdirSync(`${folder}.1`)]).toEqual([[OWNER_FILE], ["old"]]);
    expect(lstatSync(name).isSymbolicLink()).toBe(true);
  });

  test("is free at once after kill -9, and after an exit that released nothing", async () => {
    for (const end of ["kill", "exit"]) {
      const child = await holder();
      const gone = once(child.process, "exit");
      if (end === "kill") child.process.kill("SIGKILL");
      else child.process.stdin?.end();
      await gone;
      expect(existsSync(join(folder, OWNER_FILE)), end).toBe(end === "kill");
      const lock = await take({ staleMs: 1e9 });
      await lock.release();
    }
  });

  test("loses what processes left that were killed while they took it", async () => {
    for (const left of ["", ".1-2-3", ".after-1-2-3"]) writeFileSync(join(folder, `${OWNER_FILE}${left}`), "");
    await writeOwnerFile({ born: "1" });
    const lock = await take();
    expect(readdirSync(folder)).toEqual([OWNER_FILE]);
    await lock.release();
    expect(readdirSync(folder)).toEqual([]);
  });

  test("of a reused PID is free: the process with that PID began later", async () => {
    await writeOwnerFile({ born: "1" });
    await take({ staleMs: 1e9 });
  });

  test("of a process that cannot be looked up stays taken while its heart beats", async () => {
    for (const other of [{ host: "elsewhere" }, { space: "another boot" }]) {
      const file = await writeOwnerFile({ ...other, pid: 999_999 });
      await expect(take({ staleMs: 5_000 })).rejects.toThrow("PID 999999");
      // By a wrong clock the heartbeats are an hour old, or an hour ahead, but they come.
      for (const hours of [1, -1]) {
        let beats = 0;
        const timer = setInterval(() => {
          const then = new Date(Date.now() - hours * 3_600_000 + ++beats);
          utimesSync(file, then, then);
        }, 10);
        await expect(take())
          .rejects.toThrow("PID 999999")
          .finally(() => clearInterval(timer));
      }
    }
  });

  test("of a process that cannot be looked up is free after missed heartbeats", async () => {
    await writeOwnerFile({ host: "elsewhere" }, { ageMs: 3_600_000 });
    await take();
  });

  test.each([
    ["whole", (mark: string) => mark],
    ["half written", (mark: string) => mark.slice(0, 20)],
  ])("is free where the process that took it over was killed as well, its note %s", async (_, noteOf) => {
    await writeOwnerFile({ born: "1" });
    const { nonce } = JSON.parse(readFileSync(join(folder, OWNER_FILE), "utf8"));
    const note = join(folder, `${OWNER_FILE}.after-${nonce}`);
    writeFileSync(note, noteOf(JSON.stringify({ ...(await thisOwner("killed")), born: "1" })));
    const isWhole = noteOf("x".repeat(30)).length === 30;
    // Seven seconds old: what a process that cannot be looked up left counts for three more.
    if (!isWhole) utimesSync(note, Date.now() / 1000 - 7, Date.now() / 1000 - 7);
    const started = performance.now();
    await take();
    expect(performance.now() - started > 2_500).toBe(!isWhole);
    expect(readdirSync(folder)).toEqual([OWNER_FILE]);
  });

  test("with an owner file that says nothing is free when the file is old, refused when it is new", async () => {
    const file = join(folder, OWNER_FILE);
    writeFileSync(file, "{");
    await expect(take({ staleMs: 1e9 })).rejects.toThrow(`${file} names no owner`);
    utimesSync(file, 1, 1);
    await take();
  });
});

describe("a race", () => {
  test.each([["a free folder"], ["a folder whose owner crashed"]])("for %s has one winner", async (what) => {
    const folders = Array.from({ length: 12 }, (_, i) => join(folder, String(i)));
    const mark = await thisOwner("crashed");
    for (const each of what === "a free folder" ? [] : folders) {
      mkdirSync(each);
      writeFileSync(join(each, OWNER_FILE), JSON.stringify({ ...mark, born: "1" }));
    }
    const racers = await Promise.all(Array.from({ length: 4 }, () => startChild(folders)));
    for (const { process: racer } of racers) racer.stdin?.write("go\n");
    for (const each of folders) {
      const said = await Promise.all(racers.map(({ line }) => line()));
      expect(
        said.filter((text) => text === "held"),
        each,
      ).toHaveLength(1);
      expect(
        said.filter((text) => text.startsWith("refused: Cannot write to the folder")),
        each,
      ).toHaveLength(3);
      expect(readdirSync(each)).toEqual([OWNER_FILE]);
    }
  });
});

test("a file system without hard links gives a folder to one of many, too", async () => {
  const { link } = fs.promises;
  let refused = 0;
  fs.promises.link = () => {
    refused++;
    return Promise.reject(Object.assign(new Error("no links"), { code: "EPERM" }));
  };
  vi.resetModules();
  try {
    const { FolderLock: Unlinked } = await import("../../../src/train/log/folder/lock.ts");
    const takeAll = async () => {
      const got = await Promise.allSettled(Array.from({ length: 8 }, () => Unlinked.take(folder, OPTIONS)));
      const taken = got.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
      locks.push(...taken);
      return taken.length;
    };
    expect(await takeAll()).toBe(1);
    await writeOwnerFile({ born: "1" });
    expect(await takeAll()).toBe(1);
    expect(readdirSync(folder)).toEqual([OWNER_FILE]);
    expect(refused).toBeGreaterThan(8);
  } finally {
    fs.promises.link = link;
    vi.resetModules();
  }
});

describe("an owner", () => {
  test.each([
    ["the folder was moved", () => renameSync(folder, `${folder}.away`), "moved or deleted"],
    ["the folder was deleted", () => rmSync(folder, { recursive: true }), "moved or deleted"],
    ["the lock was deleted", () => rmSync(join(folder, OWNER_FILE)), "moved or deleted"],
    ["another took it", () => writeOwnerFile({ pid: 77 }), "another process took it, PID 77 on"],
  ])("notices that %s, by its heartbeat and when it asks", async (_, lose, why) => {
    const lock = await take();
    const told = once(lock.signal, "abort");
    await lock.check();
    expect(lock.signal.aborted).toBe(false);
    await lose();
    await expect(lock.check()).rejects.toThrow(why);
    await told;
    expect(lock.signal.reason).toBeInstanceOf(RemoteError);
    await lock.release();

    // Without asking.
    mkdirSync(folder, { recursive: true });
    rmSync(join(folder, OWNER_FILE), { force: true });
    const second = await take();
    const aborted = once(second.signal, "abort");
    rmSync(`${folder}.away`, { recursive: true, force: true });
    await lose();
    await aborted;
  });

  test("leaves another's lock alone when it releases its own", async () => {
    const lock = await take();
    const file = await writeOwnerFile({ pid: 77, nonce: "other" });
    await lock.release();
    expect(readFileSync(file, "utf8")).toContain("other");
  });

  test("keeps the lock while it sets contents aside and puts them back", async () => {
    const lock = await take();
    writeFileSync(join(folder, "old"), "1");
    const [aside, away] = [`${folder}.1`, `${folder}.away`];
    await lock.moveAside(aside);
    expect([readdirSync(aside), readdirSync(folder)]).toEqual([["old"], [OWNER_FILE]]);
    await expect(take()).rejects.toThrow("in use");
    await lock.check();
    writeFileSync(join(folder, "new"), "2");
    await lock.replaceBy(aside, { keepAs: away });
    expect([readdirSync(away), readdirSync(folder)]).toEqual([["new"], [OWNER_FILE, "old"]]);
    await expect(take()).rejects.toThrow("in use");
    await lock.check();
  });

  test("keeps folder and lock, and leaves nothing else, where contents cannot be set aside", async () => {
    const lock = await take();
    writeFileSync(join(folder, "old"), "1");
    for (const to of [join(folder, "no", "such"), `${folder}.file/x`])
      await expect(lock.moveAside(to)).rejects.toThrow(/ENOENT|EINVAL/);
    expect(readdirSync(folder).sort()).toEqual([OWNER_FILE, "old"]);
    expect(readdirSync(root).filter((name) => name.includes(".taking-"))).toEqual([]);
    await lock.check();
    await expect(take()).rejects.toThrow("in use");
  });

  test("takes back the folder whose place another could not take", async () => {
    const lock = await take();
    writeFileSync(join(folder, "old"), "1");
    // Moves away with the folder, so that there is nothing to put in its place.
    const fresh = join(folder, "fresh");
    mkdirSync(fresh);
    await expect(lock.replaceBy(fresh, { keepAs: `${folder}.kept` })).rejects.toThrow("ENOENT");
    rmSync(fresh, { recursive: true });
    expect(readdirSync(folder).sort()).toEqual([OWNER_FILE, "old"]);
    expect(existsSync(`${folder}.kept`)).toBe(false);
    await lock.check();
  });

  test("takes away a folder that it made and left empty, and no other", async () => {
    const made = join(folder, "made");
    const locked = await FolderLock.take(made, OPTIONS);
    await locked.release();
    expect(existsSync(made)).toBe(false);
    const used = await FolderLock.take(made, OPTIONS);
    writeFileSync(join(made, "file"), "");
    await used.release();
    expect(readdirSync(made)).toEqual(["file"]);
  });

  test("needs a folder above, and a place for a folder", async () => {
    const file = join(folder, "file");
    writeFileSync(file, "");
    for (const bad of [join(folder, "no", "such"), join(file, "inside"), file])
      await expect(FolderLock.take(bad, OPTIONS)).rejects.toThrow(/^Cannot lock the folder: .*\(E\w+\)\. .*\//);
  });
});

test("the command line that others read holds no secret", () => {
  const shown = commandOf(["grpu", "serve", "tinker", "--api-key", "tml-x", "--api-key-file", "f", "--api-key=tml-y"]);
  expect(shown).toBe("grpu serve tinker --api-key … --api-key-file f --api-key=…");
  expect(commandOf(["grpu", "train", "a.yaml", "tinker.api_key=tml-x", "a.lr=1"])).toBe(
    "grpu train a.yaml tinker.api_key=… a.lr=1",
  );
});
