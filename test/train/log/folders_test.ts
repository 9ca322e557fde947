/** Folders that are made, and those that make way. */
import { mkdirSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import { makeFolders } from "../../../src/train/log/folder/make_folders.ts";
import { placeAside } from "../../../src/train/log/folder/place_aside.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const root = temporaryFolder("folders");
let dir: string;
let count = 0;
beforeEach(() => {
  dir = join(root, String(count++));
  mkdirSync(dir);
});

describe("makeFolders()", () => {
  test("makes what is missing and names it, the innermost first", () => {
    expect(makeFolders(join(dir, "a", "b"))).toEqual([join(dir, "a", "b"), join(dir, "a")]);
    expect(makeFolders(join(dir, "a", "b"))).toEqual([]);
    expect(makeFolders("/")).toEqual([]);
  });

  test("gives every folder that it makes the permissions", () => {
    for (const path of makeFolders(join(dir, "a", "b"), { mode: 0o700 }))
      expect(statSync(path).mode & 0o777).toBe(0o700);
  });

  test.each([
    [{}, /^Cannot make the folder: .* \(ENOTDIR|EEXIST\)/],
    [{ act: "keep checkpoints" }, /^Cannot keep checkpoints: .* \(ENOTDIR|EEXIST\)/],
  ])("%j: names a file that is in the way", (options, message) => {
    writeFileSync(join(dir, "file"), "");
    expect(() => makeFolders(join(dir, "file", "inside"), options)).toThrow(message);
    expect(() => makeFolders(join(dir, "file"), options)).toThrow(/a file of that name is in the way \(EEXIST\)/);
  });

  test.skipIf(process.platform !== "linux")("returns where a file system refuses new folders", () => {
    expect(() => makeFolders("/proc/grpu/inside")).toThrow(/^Cannot make the folder: .*\/proc\/grpu\)\.$/);
  });
});

test.each<[what: string, names: string[], expected: string]>([
  ["alone", ["run"], "run.1"],
  ["numbered ones", ["run", "run.1", "run.3"], "run.4"],
  ["two digits", ["run.9", "run.10"], "run.11"],
  ["others of a similar name", ["run", "run.x", "run.1.5", "runs.7", "other.8", "xrun.9", "run12"], "run.1"],
  ["numbers below zero", ["run.-3"], "run.1"],
])("placeAside() gives the number after the highest: %s", async (_, names, expected) => {
  for (const name of names) mkdirSync(join(dir, name));
  expect(await placeAside(join(dir, "run"))).toBe(join(dir, expected));
  expect(readdirSync(dir)).toHaveLength(names.length);
});
