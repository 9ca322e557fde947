/** Numbers and keys of data files: JSONL and Parquet, tasks, supervised rows and preferences. */
import { parquetWriteBuffer } from "hyparquet-writer";
import { describe, expect, test } from "vitest";
import { stringifyJson } from "../../../src/leaves/json.ts";
import { preferenceExamples } from "../../../src/train/data/preference.ts";
import { rowsOfJsonl, rowsOfParquet, tasksFromJsonl } from "../../../src/train/data/rows.ts";
import { type ChatExample, supervisedExamples } from "../../../src/train/data/supervised.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";

const ARGUMENTS = '{"id":1234567890123456789,"x":1.0,"e":1e3,"b":1,"10":2,"2":3}';
const KEYS = {
  ...{ messages: "messages", prompt: "prompt", response: "response", text: "text", tools: "tools" },
  ...{ enableThinking: "enable_thinking", promptType: "plaintext" as const, variables: {} },
};

describe("JSONL", () => {
  test("integers above 2^53 are bigints, other numbers are numbers, and all are written as they were", () => {
    const line = `{"prompt":"p","answer":1234567890123456789,"x":1.0,"deep":${ARGUMENTS}}`;
    const [task] = tasksFromJsonl(line, { file: "d.jsonl" });
    expect(task!.metadata).toMatchObject({ answer: 1234567890123456789n, x: 1 });
    expect(String(task!.metadata.answer)).toBe("1234567890123456789");
    expect(stringifyJson(task!.metadata)).toBe(`${line.slice(0, -1)},"data_source":"d"}`);
  });

  test("an id is its own text", () => {
    const ids = tasksFromJsonl('{"prompt":"p","id":12345678901234567890}\n{"prompt":"p","id":1.0}', {
      file: "d.jsonl",
    });
    expect(ids.map(({ id }) => id)).toEqual(["12345678901234567890", "1.0"]);
  });

  test.each([
    ["as JSON text", JSON.stringify(ARGUMENTS)],
    ["as values", ARGUMENTS],
  ])("calls of supervised conversations, %s, are rendered as they are written", (_, given) => {
    const call = `{"type":"function","function":{"name":"f","arguments":${given}}}`;
    const tools =
      '[{"type":"function","function":{"name":"f","parameters":{"const":9007199254740993,"10":1.0,"2":0}}}]';
    const line = `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[${call}]}],"tools":${tools}}`;
    const [{ example }] = supervisedExamples(rowsOfJsonl(line, "d.jsonl"), KEYS) as unknown as [
      { example: ChatExample },
    ];
    const { messages, tools: read } = example;
    const text = chatTokenizer(CHATML).formatChat!(messages, { tools: read });
    expect(text).toContain(`"arguments": ${ARGUMENTS.replaceAll(",", ", ").replaceAll(":", ": ")}`);
    expect(text).toContain('{"const": 9007199254740993, "10": 1.0, "2": 0}');
  });

  test("a response that is a number is its text", () => {
    const line = '{"prompt":"p","response":1.0}\n{"prompt":"p","response":12345678901234567890}';
    const read = supervisedExamples(rowsOfJsonl(line, "d.jsonl"), KEYS);
    expect(read.map(({ example }) => (example as { response: string }).response)).toEqual([
      "1.0",
      "12345678901234567890",
    ]);
  });

  test("answers of a pair that differ beyond 2^53 are two answers", () => {
    const keys = { ...KEYS, chosen: "chosen", rejected: "rejected", completion: "completion", label: "label" };
    const line = '{"prompt":"p","chosen":9007199254740993,"rejected":9007199254740992.0}';
    const [pair] = preferenceExamples(rowsOfJsonl(line, "d.jsonl"), keys, "pair");
    expect(pair!.answers.map(({ example }) => (example as { response: string }).response)).toEqual([
      "9007199254740993",
      "9007199254740992.0",
    ]);
  });
});

describe("Parquet", () => {
  const write = (schema: object[], columns: Record<string, unknown[]>) =>
    parquetWriteBuffer({
      schema: [{ name: "root", num_children: Object.keys(columns).length }, ...schema],
      columnData: Object.entries(columns).map(([name, data]) => ({ name, data })),
    } as never);
  const field = (name: string, more: object) => ({ name, repetition_type: "REQUIRED", ...more });

  test("integers keep 64 bits, and float32 its shortest digits", async () => {
    const file = write(
      [
        field("i", { type: "INT64" }),
        field("u", { type: "INT64", converted_type: "UINT_64" }),
        field("f", { type: "FLOAT" }),
        field("d", { type: "DOUBLE" }),
      ],
      {
        i: [1234567890123456789n, -7n],
        u: [18446744073709551615n, 7n],
        f: [0.1, 16777217.5],
        d: [Math.fround(0.1), 0.1],
      },
    );
    const rows = (await rowsOfParquet(file, "d.parquet")).map(({ row }) => row);
    expect(rows).toEqual([
      { i: 1234567890123456789n, u: 18446744073709551615n, f: 0.1, d: 0.10000000149011612 },
      { i: -7, u: 7, f: 16777218, d: 0.1 },
    ]);
    expect(stringifyJson(rows[0])).toBe(
      '{"i":1234567890123456789,"u":18446744073709551615,"f":0.1,"d":0.10000000149011612}',
    );
  });

  test("decimals are those of their digits", async () => {
    const file = write([field("x", { type: "INT32", converted_type: "DECIMAL", scale: 1, precision: 5 })], {
      x: [0.3, 0.7],
    });
    expect((await rowsOfParquet(file, "d.parquet")).map(({ row }) => row.x)).toEqual([0.3, 0.7]);
  });

  test("a column of JSON keeps its numbers", async () => {
    const bytes = (text: string) => new TextEncoder().encode(text);
    const file = write([field("x", { type: "BYTE_ARRAY", converted_type: "UTF8" })], { x: [bytes(ARGUMENTS)] });
    expect((await rowsOfParquet(file, "d.parquet"))[0]!.row.x).toBe(ARGUMENTS);
    const json = parquetWriteBuffer({ columnData: [{ name: "x", data: [{ a: 1 }], type: "JSON" }] });
    expect((await rowsOfParquet(json, "d.parquet"))[0]!.row.x).toEqual({ a: 1 });
  });

  test("text that is not UTF-8 is refused with its row and column", async () => {
    const cells = ["aé", "bé"].map((text) => new TextEncoder().encode(text));
    const file = new Uint8Array(write([field("x", { type: "BYTE_ARRAY", converted_type: "UTF8" })], { x: cells }));
    const at = file.findIndex((byte, i) => byte === 0x62 && file[i + 1] === 0xc3);
    expect(at).toBeGreaterThan(0);
    file[at + 1] = 0xe9;
    await expect(rowsOfParquet(file.buffer as ArrayBuffer, "d.parquet")).rejects.toMatchObject({
      message: expect.stringContaining("Cannot read the row: its text is not UTF-8. Write the file again as UTF-8"),
      line: 2,
      path: "x",
    });
  });
});
