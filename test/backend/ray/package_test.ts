/** The archive of a job's files. */
import { unzipSync } from "fflate";
import { describe, expect, test } from "vitest";
import { packageFiles } from "../../../src/backend/ray/package.ts";

const bytes = (text: string) => new TextEncoder().encode(text);
const FILES = { "main.py": "print(1)\n", "data/train.jsonl": "{}\n".repeat(1000), "ünï.txt": "" };
const filesOf = (texts: Record<string, string>) =>
  new Map(Object.entries(texts).map(([path, text]) => [path, bytes(text)]));

describe("packageFiles()", () => {
  test("holds every file at its path", async () => {
    const made = await packageFiles(filesOf(FILES));
    const found = Object.entries(unzipSync(made.bytes)).map(([path, data]) => [path, new TextDecoder().decode(data)]);
    expect(Object.fromEntries(found)).toEqual(FILES);
  });

  test("gives the same name and bytes in any order of the files, at any time", async () => {
    const first = await packageFiles(filesOf(FILES));
    await new Promise((resolve) => setTimeout(resolve, 2_100));
    const second = await packageFiles(new Map([...filesOf(FILES)].reverse()));
    expect(second.name).toBe(first.name);
    expect(second.bytes).toEqual(first.bytes);
    expect(first.name).toMatch(/^_ray_pkg_[0-9a-f]{64}\.zip$/);
  });

  test("gives another name for another content, path or division into files", async () => {
    const variants = [
      FILES,
      { ...FILES, "main.py": "print(2)\n" },
      { "main2.py": "print(1)\n", "data/train.jsonl": FILES["data/train.jsonl"], "ünï.txt": "" },
      { a: "bc" },
      { ab: "c" },
      { a: "b", c: "" },
    ];
    const names = await Promise.all(variants.map(async (texts) => (await packageFiles(filesOf(texts))).name));
    expect(new Set(names).size).toBe(variants.length);
  });

  test.each(["/etc/passwd", "../up.py", "a/../b", "a//b", "./a", "", "a\\b"])("refuses the path %j", async (path) => {
    await expect(packageFiles(filesOf({ [path]: "x" }))).rejects.toThrow("is not relative to the job's directory");
  });
});
