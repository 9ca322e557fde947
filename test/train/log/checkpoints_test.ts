/** The folder of checkpoints: names, order, what is skipped and why, what a failure leaves, and damage found by checksums. */
import fs, { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { basename, join, relative } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  FolderCheckpoints,
  type FolderCheckpointsOptions,
  readCheckpoint,
} from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import { damageOf, sealFolder } from "../../../src/train/log/checkpoint/seal.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const root = temporaryFolder("checkpoints");
let dir: string;
let count = 0;
beforeEach(() => {
  dir = join(root, String(count++), "run");
});

function opened(options: FolderCheckpointsOptions = {}) {
  const skipped: string[] = [];
  const store = new FolderCheckpoints<{ step: number }>(dir, {
    onSkip: (message) => skipped.push(message),
    ...options,
  });
  const save = (name: string, more: object = {}) => {
    const write = async (to: string) => writeFileSync(join(to, "weights"), name);
    return store.save(name, { state: { step: Number(name.split("_").at(-1)) }, write, ...more });
  };
  return { store, save, skipped };
}

const names = () => readdirSync(dir).sort();
const text = (...path: string[]) => readFileSync(join(dir, ...path), "utf8");

describe("saving", () => {
  test("writes the state, the checksums, and which checkpoint is the newest and the best", async () => {
    const { store, save } = opened();
    expect(await store.latest()).toBeUndefined();
    expect(await store.best()).toBeUndefined();
    await save("global_step_9", { best: { metric: "val/x", value: 0.5 } });
    await save("global_step_10");
    expect(names()).toEqual([
      "best_checkpoint.json",
      "global_step_10",
      "global_step_9",
      "latest_checkpointed_iteration.txt",
    ]);
    expect(readdirSync(join(dir, "global_step_9")).sort()).toEqual(["files.json", "loop.json", "weights"]);
    expect(text("latest_checkpointed_iteration.txt")).toBe("10\n");
    expect(JSON.parse(text("best_checkpoint.json"))).toEqual({
      checkpoint: "global_step_9",
      metric: "val/x",
      value: 0.5,
    });
    expect(await store.best()).toMatchObject({ checkpoint: "global_step_9", value: 0.5 });
    expect(await store.latest()).toBe("global_step_10");
    expect(store.lastSaved).toEqual({ dir: join(dir, "global_step_10"), state: { step: 10 } });
  });

  test("a warm-up's checkpoint comes before all steps, and is not tracked", async () => {
    const { store, save } = opened();
    await save("warmup_step_40");
    expect(existsSync(join(dir, "latest_checkpointed_iteration.txt"))).toBe(false);
    expect(await store.latest()).toBe("warmup_step_40");
    await save("global_step_0");
    rmSync(join(dir, "latest_checkpointed_iteration.txt"));
    expect(await store.latest()).toBe("global_step_0");
  });

  test("keeps the newest, at least one, and the best", async () => {
    for (const [keep, kept] of [
      [2, ["global_step_1", "global_step_3", "global_step_4"]],
      [0, ["global_step_1", "global_step_4"]],
      [9, ["global_step_1", "global_step_2", "global_step_3", "global_step_4"]],
    ] as const) {
      rmSync(dir, { recursive: true, force: true });
      const { save } = opened({ keep });
      for (const step of [1, 2, 3, 4])
        await save(`global_step_${step}`, step === 1 ? { best: { metric: "m", value: 1 } } : {});
      expect(names().filter((name) => name.startsWith("global"))).toEqual(kept);
    }
  });

  test("asks before it writes and before the name, and replaces a checkpoint of the same name", async () => {
    const seen: string[][] = [];
    const beforeWrite = async () => void seen.push(existsSync(dir) ? names() : []);
    const { store, save } = opened({ beforeWrite });
    await save("global_step_1");
    expect(seen).toEqual([[], [".writing-global_step_1"]]);
    const write = async (to: string) => writeFileSync(join(to, "other"), "");
    await store.save("global_step_1", { state: { step: 7 }, write });
    expect(readdirSync(join(dir, "global_step_1")).sort()).toEqual(["files.json", "loop.json", "other"]);
    expect((await store.find())?.state).toEqual({ step: 7 });
  });

  test("removes what crashes left of checkpoints, and nothing else", async () => {
    const left = [".writing-global_step_7", ".deleting-global_step_1", "x.writing-y", "mine"];
    for (const name of left) {
      mkdirSync(join(dir, name), { recursive: true });
      writeFileSync(join(dir, name, "file"), "");
    }
    await opened().save("global_step_2");
    expect(names()).toEqual(["global_step_2", "latest_checkpointed_iteration.txt", "mine", "x.writing-y"]);
  });
});

describe("a failed save", () => {
  const fails = (error: unknown) => ({ write: () => Promise.reject(error) });
  const errno = (code: string) => Object.assign(new Error(code), { code });

  test.each([
    ["a full disk", errno("ENOSPC"), true],
    ["a quota", errno("EDQUOT"), true],
    ["a backend's own words", new Error("Cannot write: the disk is full (x)"), true],
    ["a cause", new Error("a", { cause: new Error("b", { cause: errno("ENOSPC") }) }), true],
    ["another reason", errno("EACCES"), false],
    ["another cause", new Error("a", { cause: errno("EACCES") }), false],
  ])("for %s leaves the checkpoints before it", async (_, error, isFull) => {
    const { store, save } = opened();
    const failed = expect(save("global_step_1", fails(error))).rejects;
    if (isFull)
      await failed.toThrow(/the disk is full \(.*global_step_1\)\. No checkpoint precedes it\. Free some space/);
    else await failed.toBe(error);
    await save("global_step_2");
    const again = expect(save("global_step_3", fails(error))).rejects;
    if (isFull) await again.toMatchObject({ kind: "data", path: "training.default_local_dir" });
    else await again.toBe(error);
    if (isFull)
      await expect(save("global_step_3", fails(error))).rejects.toThrow(
        `The previous checkpoint is whole: ${join(dir, "global_step_2")}.`,
      );
    expect(names()).toEqual(["global_step_2", "latest_checkpointed_iteration.txt"]);
    expect((await store.find())?.state).toEqual({ step: 2 });
  });
});

describe("resuming", () => {
  test("skips damaged checkpoints and unfinished ones, with the reason, the newest first", async () => {
    const { save } = opened();
    for (const step of [1, 2, 3]) await save(`global_step_${step}`);
    rmSync(join(dir, "global_step_3", "loop.json"));
    writeFileSync(join(dir, "global_step_2", "weights"), "global_step_x");
    mkdirSync(join(dir, ".writing-global_step_4"));
    const { store, skipped } = opened();
    expect(await store.find()).toEqual({ dir: join(dir, "global_step_1"), state: { step: 1 } });
    expect(skipped).toEqual([
      `The run ended while it wrote global_step_4; that checkpoint is ignored (${dir})`,
      expect.stringMatching(
        /^Cannot resume: the folder is not a checkpoint .* it has no loop\.json .*global_step_3\)\. .* It is skipped\.$/,
      ),
      expect.stringMatching(
        /the checkpoint is damaged: weights is not what was written \(its checksum differs\) .*global_step_2\)/,
      ),
    ]);
    skipped.length = 0;
    expect((await store.find())?.state.step).toBe(1);
    expect(skipped).toEqual([]);
  });

  test("tries the tracked checkpoint first, and the highest step where that is gone", async () => {
    const { save } = opened();
    for (const step of [1, 2, 10]) await save(`global_step_${step}`);
    writeFileSync(join(dir, "latest_checkpointed_iteration.txt"), "2\n");
    expect((await opened().store.find())?.state.step).toBe(2);
    writeFileSync(join(dir, "global_step_2", "weights"), "");
    expect((await opened().store.find())?.state.step).toBe(10);
    writeFileSync(join(dir, "latest_checkpointed_iteration.txt"), "77\n");
    expect((await opened().store.find())?.state.step).toBe(10);
  });

  test("is refused where none is whole; there is nothing to resume in an empty folder", async () => {
    expect(await opened().store.find()).toBeUndefined();
    await opened().save("global_step_1");
    writeFileSync(join(dir, "global_step_1", "files.json"), "{");
    const found = opened().store.find();
    await expect(found).rejects.toThrow(
      /^Cannot resume: no checkpoint in the folder is whole .*training\.resume_mode\)\.$/,
    );
    expect(await opened({ resumeMode: "disable" }).store.find()).toBeUndefined();
  });

  test("from a path reads that checkpoint, or says what is wrong with it", async () => {
    await opened().save("global_step_1");
    await opened().save("global_step_2");
    const from = (resumeFrom?: string) => opened({ resumeMode: "resume_path", resumeFrom }).store.find();
    expect((await from(join(dir, "global_step_1")))?.state.step).toBe(1);
    await expect(from(dir)).rejects.toThrow(
      /it has no loop\.json .* Name another folder \(training\.resume_from_path\)\.$/,
    );
    await expect(from()).rejects.toThrow(/not a checkpoint/);
    const file = join(dir, "global_step_1", "loop.json");
    rmSync(join(dir, "global_step_1", "files.json"));
    writeFileSync(file, "{");
    await expect(readCheckpoint(join(dir, "global_step_1"))).rejects.toMatchObject({
      message: expect.stringMatching(/^Cannot resume: the checkpoint's state is not JSON\./),
      file,
    });
  });

  test("a best checkpoint that is gone is none", async () => {
    const { store, save } = opened();
    await save("global_step_1", { best: { metric: "m", value: 1 } });
    await save("global_step_2");
    rmSync(join(dir, "global_step_1"), { recursive: true });
    expect(await store.best()).toBeUndefined();
  });

  test("an error of the system is not skipped", async () => {
    await opened().save("global_step_1");
    rmSync(join(dir, "global_step_1", "weights"));
    mkdirSync(join(dir, "global_step_1", "weights"));
    const { store } = opened();
    await expect(store.find()).rejects.toThrow(/no checkpoint in the folder is whole|EISDIR/);
  });
});

describe("the list of checksums", () => {
  beforeEach(() => mkdirSync(join(dir, "deep"), { recursive: true }));
  const write = (name: string, content: string) => writeFileSync(join(dir, name), content);

  test("names every file with its bytes and its CRC-32", async () => {
    write("b", "123456789");
    write("a", "");
    write("deep/c", "x");
    await sealFolder(dir);
    // 0xcbf43926: the published check value of CRC-32.
    const list = JSON.parse(text("files.json"));
    expect(list).toEqual({ a: [0, 0], b: [9, 0xcbf43926], "deep/c": [1, 0x8cdc1683] });
    expect(Object.keys(list)).toEqual(["a", "b", "deep/c"]);
    expect(await damageOf(dir)).toBeUndefined();
  });

  test("a file in several pieces", async () => {
    write("a", "y".repeat((1 << 20) + 5));
    await sealFolder(dir);
    expect(await damageOf(dir)).toBeUndefined();
    write("a", `${"y".repeat(1 << 20)}yyyyz`);
    expect(await damageOf(dir)).toMatch(/^a is not what was written/);
  });

  test.each<[what: string, damage: () => void, only: RegExp | undefined, expected: string | undefined]>([
    ["no list", () => rmSync(join(dir, "files.json")), undefined, undefined],
    ["a broken list", () => write("files.json", "{"), undefined, "files.json is not JSON"],
    ["a missing file", () => rmSync(join(dir, "b")), undefined, "b is missing"],
    ["a missing file that is not asked for", () => rmSync(join(dir, "b")), /^a$/, undefined],
    ["a missing file among those asked for", () => rmSync(join(dir, "b")), /./, undefined],
    ["another size", () => write("b", "12"), undefined, "b has 2 bytes of 3"],
    ["another size that is not asked for", () => write("b", "12"), /^a$/, undefined],
    ["other bytes", () => write("b", "124"), /^b$/, "b is not what was written (its checksum differs)"],
    ["a new file", () => write("new", "1"), undefined, undefined],
  ])("%s", async (_, damage, only, expected) => {
    write("a", "1");
    write("b", "123");
    await sealFolder(dir);
    damage();
    expect(await damageOf(dir, only ? { only } : {})).toBe(expected);
  });
});

describe("before a checkpoint has its name", () => {
  const { open, rename } = fs.promises;
  afterEach(() => {
    Object.assign(fs.promises, { open, rename });
    syncBuiltinESMExports();
  });

  test("every file and folder of it is flushed to the disk, and then the folder that names it", async () => {
    const done: string[] = [];
    const shown = (path: unknown) => relative(dir, String(path)) || ".";
    Object.assign(fs.promises, {
      open: async (...args: Parameters<typeof open>) => {
        const handle = await open(...args);
        const sync = handle.sync.bind(handle);
        handle.sync = () => {
          done.push(shown(args[0]));
          return sync();
        };
        return handle;
      },
      rename: (from: string, to: string) => {
        done.push(`-> ${basename(to)}`);
        return rename(from, to);
      },
    });
    syncBuiltinESMExports();
    const write = async (to: string) => {
      mkdirSync(join(to, "deep"));
      writeFileSync(join(to, "deep", "weights"), "1");
    };
    await opened().store.save("global_step_1", { state: { step: 1 }, write });
    const at = done.indexOf("-> global_step_1");
    const temporary = ".writing-global_step_1";
    expect(
      done
        .slice(0, at)
        .filter((name) => !name.startsWith("->"))
        .sort(),
    ).toEqual(["", "/deep", "/deep/weights", "/files.json", "/loop.json"].map((name) => `${temporary}${name}`));
    expect(done.slice(at + 1)).toEqual([
      ".writing-latest_checkpointed_iteration.txt",
      "-> latest_checkpointed_iteration.txt",
      ".",
    ]);
  });
});
