/** Rows of data files as tasks: kinds of value, prompts, ids, sources. */
import { parquetWriteBuffer } from "hyparquet-writer";
import { describe, expect, test } from "vitest";
import { tasksFromJsonl, tasksFromParquet } from "../../../src/train/data/rows.ts";

const AT = { file: "d/sums.jsonl" };
const jsonl = (...rows: object[]) => rows.map((row) => JSON.stringify(row)).join("\n");
const user = (content: string) => ({ role: "user", content });

describe("Parquet", () => {
  const write = (columns: Record<string, unknown[]>) =>
    parquetWriteBuffer({
      columnData: Object.entries(columns).map(([name, data]) => ({ name, data })),
    });

  test("values are those that JSON has; times stay dates", async () => {
    const at = new Date("2026-01-02T03:04:05.000Z");
    const file = write({
      prompt: ["1+1=", "2+2="],
      big: [7n, -(2n ** 40n)],
      extra: [{ answer: 2, of: [1, { x: null }] }, { answer: 4 }],
      at: [at, at],
      note: ["x", null],
    });
    const tasks = await tasksFromParquet(file, { file: "sums.parquet" });
    const shared = { data_source: "sums", at };
    expect(tasks.map(({ metadata }) => metadata)).toEqual([
      { ...shared, prompt: "1+1=", big: 7, extra: { answer: 2, of: [1, { x: null }] }, note: "x" },
      { ...shared, prompt: "2+2=", big: -(2 ** 40), extra: { answer: 4 }, note: null },
    ]);
    expect(tasks.map(({ id }) => id)).toEqual(["sums-0", "sums-1"]);
  });

  test("a file without rows is refused", async () => {
    await expect(tasksFromParquet(write({ prompt: [] }), { file: "none.parquet" })).rejects.toThrow(
      "Cannot use the data file: it has no rows. Add some, or name another file (none.parquet).",
    );
  });

  test.each<[name: string, bytes: string, says: RegExp]>([
    ["too short", "PAR1PAR1", /does not begin and end with PAR1/],
    ["the last mark lacking", "PAR1........XXXX", /does not begin and end with PAR1/],
    ["the first mark lacking", "XXXX........PAR1", /does not begin and end with PAR1/],
    ["both marks and a broken footer", "PAR1\0\0\0\0PAR1", /Cannot read the Parquet file: .*\(x\.parquet\)/],
  ])("%s is refused", async (_, bytes, says) => {
    const file = new TextEncoder().encode(bytes).buffer as ArrayBuffer;
    await expect(tasksFromParquet(file, { file: "x.parquet" })).rejects.toThrow(says);
  });
});

test.each(["", " \n\n"])("a JSONL file of %j has no rows", (text) => {
  expect(() => tasksFromJsonl(text, AT)).toThrow(/it has no rows.* \(d\/sums\.jsonl\)\.$/);
});

test.each<[row: object, options: object, prompt: string]>([
  [{ prompt: "p", instruction: "i", question: "q" }, {}, "p"],
  [{ instruction: "i", question: "q" }, {}, "i"],
  [{ question: "q" }, {}, "q"],
  [{ prompt: 7, question: "q" }, {}, "q"],
  [{ text: "t", instruction: "i" }, { promptKey: "text" }, "t"],
  [{ prompt: "p", question: "q" }, { promptKey: "text" }, "q"],
])("the prompt of %j with %j is %s", (row, options, prompt) => {
  expect(tasksFromJsonl(jsonl(row), { ...AT, ...options })[0]!.instruction).toBe(prompt);
});

test("a prompt field that is not named is not tried", () => {
  expect(() => tasksFromJsonl('{"prompt":"p"}', { ...AT, promptKey: "text" })).toThrow(
    'Cannot make a task of the row: it has no field "text" with text or messages (it has prompt). Name the field with data.prompt_key (d/sums.jsonl:1).',
  );
});

test.each<[options: object, row: object, source: unknown]>([
  [{ file: "a/b/gsm8k.train.jsonl" }, {}, "gsm8k.train"],
  [{ file: "a\\b\\sums.jsonl" }, {}, "sums"],
  [{ file: "sums" }, {}, "sums"],
  [{ ...AT, source: "math" }, {}, "math"],
  [{ ...AT, source: "math" }, { data_source: "own" }, "own"],
])("with %j, the source of the row %j is %s", (options, row, source) => {
  const [task] = tasksFromJsonl(jsonl({ prompt: "p", ...row }), { ...AT, ...options });
  expect(task!.metadata.data_source).toBe(source);
});

test("ids count rows, not lines, and a row's own id counts, 0 too", () => {
  const ids = tasksFromJsonl('\n{"prompt":"a"}\n\n{"prompt":"b","id":0}\n{"prompt":"c"}', AT);
  expect(ids.map(({ id }) => id)).toEqual(["sums-0", "0", "sums-2"]);
});

test.each<[name: string, messages: object[], instruction: string]>([
  ["the last user message", [user("a"), { role: "assistant", content: "b" }, user("c")], "c"],
  ["before a reply", [user("a"), { role: "assistant", content: "b" }], "a"],
  [
    "the last message where no user speaks",
    [
      { role: "system", content: "s" },
      { role: "tool", content: "t" },
    ],
    "t",
  ],
])("a conversation's instruction is %s", (_, messages, instruction) => {
  expect(tasksFromJsonl(jsonl({ prompt: messages }), AT)[0]).toMatchObject({ instruction, messages });
});

test.each<[options: object, prompt: unknown, messages: unknown]>([
  [{}, "why?", undefined],
  [{ promptType: "plaintext", systemPrompt: "s" }, "why?", undefined],
  [{ promptType: "messages" }, "why?", [user("why?")]],
  [{ promptType: "messages", systemPrompt: "" }, "why?", [{ role: "system", content: "" }, user("why?")]],
  [{ systemPrompt: "s" }, [user("a")], [{ role: "system", content: "s" }, user("a")]],
  [
    { systemPrompt: "s" },
    [{ role: "system", content: "own" }, user("a")],
    [{ role: "system", content: "own" }, user("a")],
  ],
])("with %j, the messages of the prompt %j are %j", (options, prompt, messages) => {
  const [task] = tasksFromJsonl(jsonl({ prompt }), { ...AT, ...options });
  expect(task!.messages).toEqual(messages);
  expect(Object.hasOwn(task!, "messages")).toBe(messages !== undefined);
});
