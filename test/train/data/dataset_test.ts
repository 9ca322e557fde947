import { expect, test } from "vitest";
import { type Dataset, markOf, tasksFromDataset } from "../../../src/train/data/dataset.ts";
import { filesOfSplit } from "../../../src/train/data/folder_split.ts";

const ROWS = [{ prompt: "1+1=", answer: "2" }, { question: "2+2=" }];

async function* later() {
  yield* ROWS;
}

test.each<[string, Dataset]>([
  ["an array", ROWS],
  ["a set", new Set(ROWS)],
  ["an async iterable", later()],
  ["a function", () => ROWS],
  ["a function of the split", (split) => (split === "val" ? ROWS : [])],
  ["an async function of an async iterable", async () => later()],
])("tasksFromDataset() reads %s", async (_, dataset) => {
  const tasks = await tasksFromDataset(dataset, { name: "sums", split: "val" });
  expect(tasks.map((task) => task.instruction)).toEqual(["1+1=", "2+2="]);
  expect(tasks[0]).toMatchObject({ id: "sums-0", metadata: { answer: "2", data_source: "sums" } });
  expect(tasks[1]!.id).toBe("sums-1");
});

test("tasksFromDataset() reads prompts as its options say", async () => {
  const options = { name: "sums", split: "train", promptKey: "ask", promptType: "messages" } as const;
  const [task] = await tasksFromDataset([{ ask: "1+1=", prompt: "x" }], options);
  expect(task!.messages).toEqual([{ role: "user", content: "1+1=" }]);
});

test.each<[string, unknown, RegExp]>([
  ["no row", [], /data set sums: it has no rows for train/],
  ["a number", 7, /must be an array or an iterable of rows \(number\) \(data\.train_files\)\./],
  ["null", null, /must be an array or an iterable of rows \(object\)/],
  ["an object", { rows: ROWS }, /must be an array or an iterable of rows \(object\)/],
  ["text", "1+1=", /must be an array or an iterable of rows \(string\)/],
  ["a function of no rows", async () => undefined, /must be an array or an iterable of rows \(undefined\)/],
  ["a row of null", [null], /not an object \(null\) \(sums:1\)\./],
  ["a row that is not an object", [ROWS[0], "x"], /not an object \(x\) \(sums:2\)\./],
  ["a row without a prompt", [{ text: "x" }], /no field "prompt" .*\(it has text\).* \(sums:1\)/],
])("tasksFromDataset() refuses %s", async (_, dataset, message) => {
  await expect(tasksFromDataset(dataset as Dataset, { name: "sums", split: "train" })).rejects.toThrow(message);
});

test("markOf() tells data sets apart by every field and by order", async () => {
  const mark = async (rows: Dataset) => markOf(await tasksFromDataset(rows, { name: "s", split: "train" }));
  const marks = await Promise.all([
    mark(ROWS),
    mark([...ROWS].reverse()),
    mark(ROWS.slice(0, 1)),
    mark([{ ...ROWS[0]!, answer: "3" }, ROWS[1]!]),
    mark([{ ...ROWS[0]!, big: 2n }, ROWS[1]!]),
  ]);
  expect(new Set(marks.map(({ hash }) => hash)).size).toBe(5);
  expect(await mark(ROWS)).toEqual(marks[0]);
  expect(marks[2].rows).toBe(1);
});

test("markOf() is pinned, because checkpoints keep it", async () => {
  const rows = [
    { prompt: "1+1=", answer: "2" },
    { question: "2+2=", n: 3n },
  ];
  const tasks = await tasksFromDataset(rows, { name: "s", split: "train" });
  expect(markOf(tasks)).toEqual({ rows: 2, hash: "1d1e68f95840f099" });
  expect(markOf([])).toEqual({ rows: 0, hash: "811c9dc501000193" });
});

test.each([
  [["a.jsonl", "b.jsonl"], "train", ["a.jsonl", "b.jsonl"]],
  [["a.jsonl"], "val", ["a.jsonl"]],
  [["train.jsonl", "test.jsonl"], "train", ["train.jsonl"]],
  [["train.jsonl", "test.jsonl"], "val", ["test.jsonl"]],
  [["train.jsonl", "test.jsonl", "dev.jsonl"], "val", ["dev.jsonl"]],
  [
    ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/validation-0.parquet"],
    "train",
    ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
  ],
  [["train/test_questions.jsonl", "val/x.jsonl"], "train", ["train/test_questions.jsonl"]],
  [["my_train.jsonl", "my_eval.jsonl"], "val", ["my_eval.jsonl"]],
  [["trainer.jsonl", "contest.jsonl"], "train", ["trainer.jsonl", "contest.jsonl"]],
  [["train.jsonl"], "val", []],
] as const)("filesOfSplit(%j, %s)", (paths, split, expected) => {
  expect(filesOfSplit(paths, split)).toEqual(expected);
});
