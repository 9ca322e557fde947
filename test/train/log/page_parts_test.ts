/** What the page of a run is made from: curves, samples of many items, followed files, the folder's state. */
import { execFileSync } from "node:child_process";
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import { Curve, Sampled } from "../../../src/train/log/page/curve.ts";
import { FollowedFile } from "../../../src/train/log/page/followed_file.ts";
import type { RunData } from "../../../src/train/log/page/page_data.ts";
import { renderPage } from "../../../src/train/log/page/render.ts";
import { isRunFolder, RunFolder } from "../../../src/train/log/page/run_folder.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { writeRun } from "../../fixtures/run_folder.ts";

const root = temporaryFolder("page-parts");
let dir: string;
let count = 0;
beforeEach(() => {
  dir = join(root, String(count++));
  mkdirSync(dir);
});

describe("Curve", () => {
  const dataOf = (limit: number, values: readonly number[]) => {
    const curve = new Curve(limit);
    for (const [i, value] of values.entries()) curve.add(i + 1, value);
    return curve.data();
  };

  test("averages neighbours each time that its points are full", () => {
    expect(dataOf(4, [1, 3, 5])).toMatchObject({ x: [1, 2, 3], y: [1, 3, 5] });
    // Full: two points of two values. The last x is the last step.
    expect(dataOf(4, [1, 3, 5, 7])).toMatchObject({ x: [1.5, 4], y: [2, 6] });
    // A point that is not full yet is drawn with what it has.
    expect(dataOf(4, [1, 3, 5, 7, 9])).toMatchObject({ x: [1.5, 3.5, 5], y: [2, 6, 9] });
    expect(dataOf(4, [1, 3, 5, 7, 9, 12])).toMatchObject({ x: [1.5, 3.5, 6], y: [2, 6, 10.5] });
    expect(dataOf(4, [1, 3, 5, 7, 9, 11, 13, 15])).toMatchObject({ x: [2.5, 8], y: [4, 12] });
  });

  test("counts every finite value in its totals", () => {
    const values = [2, Number.NaN, -4, Number.POSITIVE_INFINITY, 3];
    expect(dataOf(400, values)).toEqual({
      ...{ x: [1, 3, 5], y: [2, -4, 3], count: 3 },
      ...{ sum: 1, first: 2, last: 3, min: -4, max: 3 },
    });
  });

  test("has no points without values, and six digits of each", () => {
    expect(dataOf(4, [])).toMatchObject({ x: [], y: [], count: 0 });
    expect(dataOf(4, [1 / 3])).toMatchObject({ x: [1], y: [0.333333], last: 1 / 3 });
  });
});

test.each([
  [2, [0, 1, 2]],
  [3, [0, 2, 3]],
  [4, [0, 2, 4]],
  [5, [0, 2, 4, 5]],
  [6, [0, 4, 6]],
  [7, [0, 4, 7]],
  [11, [0, 4, 8, 11]],
  [17, [0, 8, 16, 17]],
])("Sampled(4) of items up to %i keeps %j", (last, kept) => {
  const sampled = new Sampled<number>(4);
  expect(sampled.items()).toEqual([]);
  for (let i = 0; i <= last; i++) sampled.add(i);
  expect(sampled.items()).toEqual(kept);
});

describe("FollowedFile", () => {
  function follow(file: string) {
    const followed = new FollowedFile(file);
    const poll = () => {
      const seen: string[] = [];
      followed.poll(
        (line) => void seen.push(line),
        () => void seen.push("RESET"),
      );
      return seen;
    };
    return { followed, poll };
  }

  test("reads lines that cross the pieces in which a file is read", () => {
    const file = join(dir, "lines");
    const long = "é".repeat(3 << 18);
    writeFileSync(file, `${long}\nb\n${long}${long}\nc`);
    const { poll } = follow(file);
    expect(poll().map((line) => line.length)).toEqual([long.length, 1, 2 * long.length]);
    appendFileSync(file, "d\n");
    expect(poll()).toEqual(["cd"]);
  });

  test("starts over with a file that was replaced while a line was too long or unfinished", () => {
    const file = join(dir, "lines");
    const { followed, poll } = follow(file);
    writeFileSync(file, `a\n${"x".repeat((16 << 20) + 1)}`);
    expect(poll()).toEqual(["a"]);
    expect(followed.tooLong).toBe(1);
    writeFileSync(file, "b\nc");
    expect(poll()).toEqual(["RESET", "b"]);
    expect(followed.tooLong).toBe(0);
    writeFileSync(file, "\n");
    expect(poll()).toEqual(["RESET"]);
    appendFileSync(file, "d\n");
    expect(poll()).toEqual(["d"]);
  });

  test("reads a line of the greatest length, and counts each longer one once", () => {
    const file = join(dir, "lines");
    const { followed, poll } = follow(file);
    const most = 16 << 20;
    writeFileSync(file, "x".repeat(most));
    expect(poll()).toEqual([]);
    appendFileSync(file, "\n");
    expect(poll().map((line) => line.length)).toEqual([most]);
    appendFileSync(file, "x".repeat(2 * most + 5));
    expect(poll()).toEqual([]);
    appendFileSync(file, "x".repeat(most));
    appendFileSync(file, "\nb\n");
    expect(poll()).toEqual(["b"]);
    expect(followed.tooLong).toBe(1);
  });

  test("throws what keeps a file from being opened, but for its absence", () => {
    mkdirSync(join(dir, "file"));
    expect(follow(join(dir, "none")).poll()).toEqual([]);
    expect(follow(join(dir, "none", "inside")).poll()).toEqual([]);
    expect(() => follow(join(dir, "file")).poll()).toThrow("EISDIR");
  });
});

test.each(["metrics.jsonl", "samples.jsonl", "config.yaml", "run.json"])(
  "%s that is a pipe or a device is an error",
  (name) => {
    for (const make of [
      (file: string) => execFileSync("mkfifo", [file]),
      (file: string) => symlinkSync("/dev/zero", file),
    ]) {
      const folder = mkdtempSync(join(tmpdir(), "grpu-pipe-"));
      make(join(folder, name));
      const read = () => {
        const run = new RunFolder(folder, { settingsOf: () => ({}) });
        run.poll();
        return run.data();
      };
      expect(read).toThrow(/Cannot read the run: it is not a regular file/);
      rmSync(folder, { recursive: true });
    }
  },
);

describe("RunFolder", () => {
  const line = (fields: object) => `${JSON.stringify(fields)}\n`;
  const sample = (step: number, task: string) => {
    return { step, task, prompt: "", response: "", reward: 1, is_correct: true };
  };

  test("counts a change for every line, every start over, and every new state of the run's own files", () => {
    const run = new RunFolder(dir);
    const first = run.poll();
    expect(run.poll()).toBe(first);
    appendFileSync(join(dir, "metrics.jsonl"), line({ phase: "train", step: 1, a: 1 }));
    expect(run.poll()).toBe(first + 1);
    appendFileSync(join(dir, "metrics.jsonl"), line({ phase: "train", step: 2, a: 1 }) + line({}));
    expect(run.poll()).toBe(first + 3);
    writeFileSync(join(dir, "metrics.jsonl"), line({ phase: "train", step: 1, a: 5 }));
    expect(run.poll()).toBe(first + 5);
    for (const [i, name] of ["run.json", "config.yaml"].entries()) {
      writeFileSync(join(dir, name), "");
      expect(run.poll()).toBe(first + 6 + i);
    }
    utimesSync(join(dir, "run.json"), 1, 1);
    expect(run.poll()).toBe(first + 8);
    expect(run.poll()).toBe(first + 8);
    expect(run.data().curves.train.a).toMatchObject({ count: 1, last: 5 });
    expect(run.data().badLines).toBe(0);
  });

  test("starts over with samples and groups that a resumed run cut back", () => {
    const group = (step: number) => ({ step, groups: [] });
    writeRun(dir, { samples: [sample(0, "a"), sample(5, "b")], groups: [group(1), group(2)] });
    appendFileSync(join(dir, "groups.jsonl"), "{\n");
    const run = new RunFolder(dir);
    run.poll();
    expect(run.data()).toMatchObject({ samples: [{ step: 0 }, { step: 5 }], groups: [{ step: 1 }, { step: 2 }] });
    expect(run.data().badLines).toBe(1);
    writeRun(dir, { samples: [sample(0, "c")], groups: [group(7)] });
    run.poll();
    expect(run.data()).toMatchObject({ samples: [{ task: "c" }], groups: [{ step: 7 }], badLines: 0 });
  });

  test("keeps the samples of the first and the last validation, 256 at most", () => {
    const run = new RunFolder(
      writeRun(dir, {
        samples: [0, 1, 2, 2].flatMap((step) => Array.from({ length: 100 }, (_, i) => sample(step, `${step}:${i}`))),
      }),
    );
    run.poll();
    const { samples } = run.data();
    expect(samples).toHaveLength(256);
    expect(samples.filter(({ step }) => step === 0)).toHaveLength(100);
    expect(samples.filter(({ step }) => step === 1)).toHaveLength(0);
    expect(samples.at(-1)!.task).toBe("2:55");
  });

  test("draws 4096 metrics of a phase, and only numbers", () => {
    const names = Object.fromEntries(Array.from({ length: 4097 }, (_, i) => [`m${i}`, i]));
    const metrics = [1, 2].map((step) => ({ phase: "val" as const, step, note: "x", ...names, m0: step }));
    const run = new RunFolder(writeRun(dir, { metrics }));
    run.poll();
    const { val, train } = run.data().curves;
    expect(Object.keys(val)).toHaveLength(4096);
    expect(val).not.toHaveProperty("note");
    expect(val).not.toHaveProperty("m4096");
    expect(val.m0).toMatchObject({ x: [1, 2], last: 2 });
    expect(train).toEqual({});
  });

  test("adds the mean reward of training steps alone, and leaves out curves without a finite value", () => {
    const rewards = { "reward/a/mean": 1, "reward/b/mean": 0 };
    const run = new RunFolder(
      writeRun(dir, {
        metrics: (["warmup", "train", "val"] as const).map((phase) => ({ phase, step: 1, ...rewards })),
      }),
    );
    appendFileSync(join(dir, "metrics.jsonl"), '{"phase":"train","step":2,"huge":1e999}\n');
    run.poll();
    const { warmup, train, val } = run.data().curves;
    expect(Object.keys(train)).toEqual(["reward/a/mean", "reward/b/mean", "reward"]);
    expect(train.reward!.y).toEqual([0.5]);
    const bare = new RunFolder(writeRun(join(dir, "bare"), { metrics: [{ phase: "train", step: 1, a: 1 }] }));
    bare.poll();
    expect(Object.keys(bare.data().curves.train)).toEqual(["a"]);
    expect([warmup, val].map((curves) => Object.keys(curves))).toEqual([Object.keys(rewards), Object.keys(rewards)]);
  });

  test("tells names, settings, and the newest change of its metrics and facts", () => {
    writeRun(dir, { config: "a: 1\n", facts: { subtitle: "s" } });
    utimesSync(join(dir, "metrics.jsonl"), 50, 50);
    utimesSync(join(dir, "run.json"), 70, 70);
    const settingsOf = (text: string) => ({ text });
    const run = new RunFolder(dir, { settingsOf, name: "mine" });
    appendFileSync(join(dir, "samples.jsonl"), `${"x".repeat((16 << 20) + 1)}\n{}\n`);
    run.poll();
    expect(run.data().badLines).toBe(2);
    expect(run.data()).toMatchObject({
      ...{ name: "mine", title: "mine", subtitle: "s", updated: 70_000, config: "a: 1\n" },
      ...{ settings: { text: "a: 1\n" }, status: "open", totalSteps: null, groups: [], samples: [] },
    });
    expect(new RunFolder(dir).data()).toMatchObject({ name: String(count - 1), settings: {} });
    rmSync(join(dir, "config.yaml"));
    const without = () => expect.fail("there are no settings to read");
    expect(new RunFolder(dir, { settingsOf: without }).data()).toMatchObject({ settings: {}, config: "" });
  });
});

test.each(["metrics.jsonl", "config.yaml", "run.json"])("a folder with %s is a run's", (name) => {
  writeFileSync(join(dir, "samples.jsonl"), "");
  expect(isRunFolder(dir)).toBe(false);
  writeFileSync(join(dir, name), "");
  expect(isRunFolder(dir)).toBe(true);
});

test("a page of several runs has their names as its title, says when it was made and whether it is live", () => {
  const runs = ["a", "b"].map((name) => ({ ...new RunFolder(dir, { name }).data(), title: "title" })) as RunData[];
  const page = renderPage(runs, { made: 7, isLive: true, nonce: "n1" });
  expect(page).toContain("<title>a, b · grpu</title>");
  expect(page).toMatch(/"made":7,"live":true}/);
  expect(page.match(/<script [^>]*nonce="n1">/g)).toHaveLength(2);
  const alone = renderPage(runs.slice(0, 1), {});
  expect(alone).toContain("<title>title · grpu</title>");
  expect(alone).not.toContain("nonce=");
  const made = Number(/"made":(\d+),"live":false/.exec(alone)![1]);
  expect(Math.abs(Date.now() - made)).toBeLessThan(60_000);
});
