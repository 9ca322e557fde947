/** Episodes that wait on disk: values come back as they were, and the folder is one run's alone. */
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, expect, test } from "vitest";
import { EpisodeStore } from "../../../src/train/log/episode_store.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const root = temporaryFolder("episodes");
let dir: string;
let count = 0;
beforeEach(() => {
  dir = join(root, String(count++), "deep");
});

const filesIn = (folder: string) => readdirSync(folder).filter((name) => !name.startsWith("."));

test("lists come back once, with the numbers that JSON does not have", async () => {
  const store = new EpisodeStore<unknown>(dir);
  const values = [
    { logprobs: [Number.NEGATIVE_INFINITY, 0, -0.5], reward: Number.NaN },
    [Number.POSITIVE_INFINITY],
    null,
    "$number",
    { task: { metadata: { seed: 2n ** 64n, sizes: [-1n] } } },
  ];
  await store.put(3, values);
  await store.put(12, []);
  expect(filesIn(dir).sort()).toEqual(["task_12.json", "task_3.json"]);
  expect(await store.take(3)).toEqual(values);
  expect(filesIn(dir)).toEqual(["task_12.json"]);
  await expect(store.take(3)).rejects.toThrow("ENOENT");
  await store.clear();
  expect(existsSync(dir) ? readdirSync(dir) : []).toEqual([]);
});

test("what a killed run left is removed, and nothing else", async () => {
  mkdirSync(dir, { recursive: true });
  const left = ["task_1.json", "task_22.json", "task_x.json", "task_1.json.bak", "my_task_1.json"];
  for (const name of left) writeFileSync(join(dir, name), "[]");
  const store = new EpisodeStore<number>(dir);
  expect(filesIn(dir)).toHaveLength(5);
  await store.put(2, [1]);
  expect(filesIn(dir).sort()).toEqual(["my_task_1.json", "task_1.json.bak", "task_2.json", "task_x.json"]);
  await store.clear();
  expect(filesIn(dir).sort()).toEqual(["my_task_1.json", "task_1.json.bak", "task_x.json"]);
});

test("a folder in use is refused, with the setting; once cleared it is free, and the store can be used again", async () => {
  const first = new EpisodeStore<number>(dir);
  const second = new EpisodeStore<number>(dir);
  await first.put(1, [1]);
  await expect(second.put(1, [2])).rejects.toThrow(
    /it is in use by PID \d+ .*Give each run a folder of its own with rllm\.async_training\.episode_offload_dir=DIR \(rllm\.async_training\.episode_offload_dir\)\.$/,
  );
  await second.clear();
  expect(await first.take(1)).toEqual([1]);
  await first.clear();
  await second.put(1, [2]);
  expect(await second.take(1)).toEqual([2]);
  await second.clear();
  await first.clear();
});

test("a folder that cannot be made is named", async () => {
  mkdirSync(join(dir, ".."), { recursive: true });
  writeFileSync(dir, "");
  await expect(new EpisodeStore(join(dir, "inside")).put(1, [])).rejects.toThrow(
    /^Cannot keep episodes on disk: .*deep\)\.$/,
  );
});
