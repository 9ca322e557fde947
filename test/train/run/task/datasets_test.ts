import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { parquetWriteBuffer } from "hyparquet-writer";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Split } from "../../../../src/train/data/dataset.ts";
import { readTasks } from "../../../../src/train/run/task/datasets.ts";
import { registerDataset } from "../../../../src/train/task/registered.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "grpu-data-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function write(path: string, content: string | Uint8Array): string {
  const file = join(dir, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, content);
  return file;
}

const jsonl = (...prompts: string[]) => prompts.map((prompt) => `${JSON.stringify({ prompt })}\n`).join("");

function parquet(codec: "SNAPPY" | "UNCOMPRESSED", ...prompts: string[]): Uint8Array {
  const columnData = [
    { name: "question", data: prompts, type: "STRING" as const },
    { name: "answer", data: prompts.map((_, i) => BigInt(i + 40)), type: "INT64" as const },
    { name: "data_source", data: prompts.map(() => "gsm"), type: "STRING" as const },
  ];
  return new Uint8Array(parquetWriteBuffer({ columnData, codec }));
}

function read(files: string | readonly string[], split: Split = "train") {
  const key = split === "train" ? "train_files" : "val_files";
  return readTasks({ data: { [key]: files, prompt_key: "prompt" } } as never, { split });
}

test.each(["SNAPPY", "UNCOMPRESSED"] as const)("a Parquet file (%s) gives one task a row", async (codec) => {
  const tasks = await read(write("gsm.parquet", parquet(codec, "a?", "b?")));
  expect(tasks.map(({ id, instruction }) => [id, instruction])).toEqual([
    ["gsm-0", "a?"],
    ["gsm-1", "b?"],
  ]);
  expect(tasks[1]!.metadata).toMatchObject({ answer: 41, data_source: "gsm" });
});

test("a folder's splits are read over formats and folders, in order of their names", async () => {
  write("set/train/b.jsonl", jsonl("b"));
  write("set/train/a.parquet", parquet("SNAPPY", "a"));
  write("set/validation.jsonl", jsonl("v"));
  write("set/test.jsonl", jsonl("t"));
  write("set/.cache/train.jsonl", jsonl("hidden"));
  write("set/README.md", "no data");
  const folder = join(dir, "set");
  const train = await read(folder);
  expect(train.map((task) => task.instruction)).toEqual(["a", "b"]);
  expect(train[1]!.metadata.data_source).toBe("set");
  expect((await read(folder, "val")).map((task) => task.instruction)).toEqual(["v"]);
});

test("several names are read one after the other, registered ones first by name", async () => {
  registerDataset("datasets_test", async () => [{ prompt: "made" }]);
  const file = write("x.jsonl", jsonl("x", "y"));
  expect((await read([file, "datasets_test"])).map((task) => task.instruction)).toEqual(["x", "y", "made"]);
  await expect(read("datasets_tset")).rejects.toThrow(/nor data set: registered are .*datasets_test/);
});

test.each([
  ["an empty folder", "none", /holds no \.jsonl and no \.parquet file/],
  ["a folder of another split", "other", /its files are named for other splits \(test\.jsonl\)/],
  ["a file that is no Parquet", "bad.parquet", /Cannot read the Parquet file/],
  ["a file without rows", "empty.jsonl", /it has no rows/],
])("%s is refused", async (_, name, message) => {
  mkdirSync(join(dir, "none"));
  write("other/test.jsonl", jsonl("t"));
  write("bad.parquet", "PAR1nothing of the kindPAR1");
  write("empty.jsonl", "\n\n");
  await expect(read(join(dir, name))).rejects.toThrow(message);
});
