/** The archive of a job's files. */
import { createHash } from "node:crypto";
import { unzipSync } from "fflate";
import { describe, expect, test } from "vitest";
import { checkSize, packageFiles } from "../../../src/cluster/ray/package.ts";

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

  test("names it by the paths and the hashes of what it holds, so that every version of this program agrees", async () => {
    const hash = (text: string) => createHash("sha256").update(text).digest("hex");
    const lines = [`"a/b" ${hash("1")}`, `"c" ${hash("2")}`];
    const { name } = await packageFiles(filesOf({ c: "2", "a/b": "1" }));
    expect(name).toBe(`_ray_pkg_${hash(lines.join("\n"))}.zip`);
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

  test("refuses more than a cluster takes", () => {
    checkSize({ length: 512 * 2 ** 20 });
    expect(() => checkSize({ length: 512 * 2 ** 20 + 1 })).toThrow(
      "Cannot package the job: its files are larger than a Ray cluster takes (513 MiB zipped, of 512).",
    );
  });

  test.each(["/etc/passwd", "../up.py", "a/../b", "a//b", "./a", "", "a\\b"])("refuses the path %j", async (path) => {
    await expect(packageFiles(filesOf({ [path]: "x" }))).rejects.toThrow("is not relative to the job's directory");
  });
});
