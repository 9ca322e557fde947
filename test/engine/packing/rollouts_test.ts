import { readFileSync } from "node:fs";
import { parquetWriteBuffer } from "hyparquet-writer";
import { beforeEach, describe, expect, test } from "vitest";
import { rowAt, unpack } from "../../../src/engine/packing/offsets.ts";
import { packRollouts } from "../../../src/engine/packing/rollouts/builder.ts";
import { checkRollouts } from "../../../src/engine/packing/rollouts/check.ts";
import { jsonlRows, linesOf, readJsonl, readParquet, streamJsonl } from "../../../src/engine/packing/rollouts/read.ts";
import type { Rollouts } from "../../../src/engine/packing/rollouts/rollouts.ts";

const ROWS = [
  { group: "a", reward: 1, mask: [1, 0], logprobs: [-1, -2] },
  { group: "b", reward: 0, mask: [], logprobs: [] },
  { group: "a", reward: 0.5, mask: [1], logprobs: [-3] },
];
const TEXT = ROWS.map((row) => JSON.stringify(row)).join("\n");

describe("packing", () => {
  test("puts rows end to end, with zero-length rows and interleaved groups", () => {
    const packed = packRollouts(ROWS);
    expect(Array.from(packed.offsets)).toEqual([0, 2, 2, 3]);
    expect(Array.from(packed.mask)).toEqual([1, 0, 1]);
    expect(Array.from(packed.groupOfRow!)).toEqual([0, 1, 0]);
    expect(packed.groupNames).toEqual(["a", "b"]);
    expect(Array.from(packed.tokens.logprobs!)).toEqual([-1, -2, -3]);
    expect(unpack(packed.tokens.logprobs!, packed.offsets)).toEqual([[-1, -2], [], [-3]]);
  });
  test("sums token rewards where a row has no reward", () => {
    const { rewards } = packRollouts([{ token_rewards: [1, 2] }, { token_rewards: [0.5] }]);
    expect(Array.from(rewards!)).toEqual([3, 0.5]);
  });
  test("keeps float64 when asked to", () => {
    expect(packRollouts([{ reward: 0.1 }], { precision: "f64" }).rewards![0]).toBe(0.1);
    expect(packRollouts([{ reward: 0.1 }]).rewards![0]).toBe(Math.fround(0.1));
  });
  test("grows past its first thousand tokens", () => {
    const long = Array.from({ length: 5000 }, (_, t) => t);
    expect(packRollouts([{ values: long }, { values: [7] }]).tokens.values![5000]).toBe(7);
  });
  test.each([
    [[{ mask: [1, 1], logprobs: [0] }], /logprobs has 1 tokens where mask has 2/],
    [[{ mask: [2] }], /mask must be 0 or 1 at every token \(2 at token 0\)/],
    [[{ logprobs: [0, Number.NaN] }], /logprobs must be a finite number \(NaN at token 1\)/],
    [[{ reward: Number.POSITIVE_INFINITY }], /reward must be a finite number \(Infinity\)/],
    [[{ reward: 1 }, { group: "a", reward: 1 }], /row 1: it names a group, and the rows before it do not/],
    [[{ mask: [1], values: [1] }, { mask: [1] }], /row 1: it has no values/],
    [[{ reward: 1 }, { reward: 1, values: [1] }], /row 1: it has values, which the rows before it lack/],
    [[{ logprobs: 3 as never }], /must be a list of numbers/],
    [[{ mask: new DataView(new ArrayBuffer(1)) as never }], /mask must be a list of numbers/],
    [[{ mask: [], logprobs: [1] }], /logprobs has 1 tokens where mask has 0/],
    [[{ mask: [1, 1], logprobs: [0, 0], values: [0] }], /values has 1 tokens where mask has 2/],
    [[{ logprobs: [0, 0], values: [0] }], /values has 1 tokens where logprobs has 2/],
    [[{ group: "a", reward: 1 }, { reward: 1 }], /row 1: it names no group, and the rows before it do \(group\)\./],
    [[{ reward: 1 }, { reward_baseline: 1 }], /row 1: it has reward_baseline, which the rows before it lack/],
    [[{ rewards: { format: 1 } }, { rewards: {} }], /row 1: it has no rewards\.format, which other rows have/],
    [[{ rewards: { format: Number.NaN } }], /rewards\.format must be a finite number \(NaN\)/],
    [[{ reward: "1" as never }], /reward must be a finite number \(1\)/],
  ])("refuses %j", (rows, message) => {
    expect(() => packRollouts(rows)).toThrow(message);
  });
  test("numbers groups by name in the order of their first rows, a number and its text alike", () => {
    const packed = packRollouts([{ group: 7 }, { group: "b" }, { group: "7" }, { group: 0 }]);
    expect(packed.groupNames).toEqual(["7", "b", "0"]);
    expect(packed.groupOfRow).toEqual(Uint32Array.of(0, 1, 0, 2));
  });
  test("keeps a row's reward next to its token rewards, its components and its baseline", () => {
    const packed = packRollouts([
      { reward: 5, token_rewards: [1, 2], rewards: { format: 1, answer: 4 }, reward_baseline: 0.5 },
      { reward: 0, token_rewards: [3], rewards: { format: 0, answer: 0 }, reward_baseline: 0.25 },
    ]);
    expect(packed.rewards).toEqual(Float32Array.of(5, 0));
    expect(packed.rewardComponents).toEqual({
      format: Float32Array.of(1, 0),
      answer: Float32Array.of(4, 0),
    });
    expect(packed.rewardBaselines).toEqual(Float32Array.of(0.5, 0.25));
    expect(packed.tokens).toStrictEqual({ token_rewards: Float32Array.of(1, 2, 3) });
  });
  test("trains on all tokens of a row without a mask; a row without tokens has none", () => {
    const packed = packRollouts([{ values: [1, 2] }, { values: new Float32Array(0) }]);
    expect(packed.mask).toEqual(Uint32Array.of(1, 1));
    expect(packed.offsets).toEqual(Uint32Array.of(0, 2, 2));
    expect([packed.rewards, packed.rewardBaselines, packed.groupOfRow]).toEqual([undefined, undefined, undefined]);
    expect(packed.groupNames).toEqual([]);
    expect(packRollouts([]).offsets).toEqual(Uint32Array.of(0));
  });
});

describe("typed arrays", () => {
  let packed: Rollouts;
  beforeEach(() => {
    packed = packRollouts(ROWS);
  });
  test("pass through unchanged when they are consistent", () => {
    expect(checkRollouts(packed)).toBe(packed);
  });
  test("are refused with row and token of the first number that is not finite", () => {
    const tokens = { logprobs: Float32Array.of(-1, -2, Number.NaN) };
    expect(() => checkRollouts({ ...packed, tokens })).toThrow(/logprobs must be finite \(NaN at row 2, token 0\)/);
  });
  test("are refused when lengths disagree or offsets fall", () => {
    expect(() => checkRollouts({ ...packed, mask: Uint32Array.of(1) })).toThrow(/mask must have 3 numbers \(1\)/);
    expect(() => checkRollouts({ ...packed, offsets: Uint32Array.of(0, 3, 2, 3) })).toThrow(/must not fall/);
  });
  test.each<[name: string, changed: Partial<Rollouts>, says: string]>([
    ["a reward too few", { rewards: Float32Array.of(1) }, "rewards must have 3 numbers (1) (rewards)."],
    ["a group too many", { groupOfRow: new Uint32Array(4) }, "group must have 3 numbers (4) (group)."],
    [
      "a component too few",
      { rewardComponents: { format: new Float32Array(2) } },
      "format must have 3 numbers (2) (format).",
    ],
    [
      "a baseline too few",
      { rewardBaselines: new Float32Array(2) },
      "reward_baseline must have 3 numbers (2) (reward_baseline).",
    ],
    ["a token too many", { tokens: { values: new Float32Array(4) } }, "values must have 3 numbers (4) (values)."],
    [
      "a reward that is not finite",
      { rewards: Float32Array.of(1, Number.NEGATIVE_INFINITY, 0) },
      "rewards must be finite (-Infinity at row 1) (rewards).",
    ],
    [
      "the first token not finite",
      { tokens: { values: Float32Array.of(Number.NaN, 0, 0) } },
      "values must be finite (NaN at row 0, token 0) (values).",
    ],
    ["falling offsets", { offsets: Uint32Array.of(0, 3, 2, 3) }, "offsets must not fall (2 after 3 at row 1)."],
  ])("are refused for %s", (_, changed, says) => {
    expect(() => checkRollouts({ ...packed, ...changed })).toThrow(
      expect.objectContaining({ name: "ConfigError", message: `Cannot use packed rollouts: ${says}` }),
    );
  });
  test("rowAt skips zero-length rows", () => {
    expect([0, 1, 2].map((t) => rowAt(packed.offsets, t))).toEqual([0, 0, 2]);
  });
});

describe("JSONL", () => {
  async function* chunked(text: string, size: number) {
    for (let i = 0; i < text.length; i += size) yield text.slice(i, i + size);
  }
  test.each([1, 7, 1000])("cut into chunks of %i characters reads the same", async (size) => {
    expect(await readJsonl(chunked(TEXT, size))).toEqual(packRollouts(ROWS));
  });
  test("skips blank lines and counts them", async () => {
    const lines: number[] = [];
    for await (const { source } of jsonlRows(`${TEXT.replace("\n", "\n \t\n")}\n`)) lines.push(source.line!);
    expect(lines).toEqual([1, 3, 4]);
  });
  test("names file and line of what is not JSON", async () => {
    await expect(readJsonl('{"reward":1}\n{"reward":NaN}', { file: "r.jsonl" })).rejects.toThrow(
      /as JSON.*r\.jsonl:2/s,
    );
    for (const line of ["[1]", "1", "true", '"x"', "null"])
      await expect(readJsonl(line, { file: "r.jsonl" })).rejects.toThrow(/not a JSON object.*r\.jsonl:1/s);
  });
  test("names file and line of a row that cannot be packed", async () => {
    const read = readJsonl('{"reward":1}\n\n{"reward":null}', { file: "r.jsonl" });
    await expect(read).rejects.toMatchObject({ file: "r.jsonl", line: 3, path: "reward" });
    await expect(readJsonl("null")).rejects.toMatchObject({ file: undefined, line: 1 });
  });
  test("is read in the precision that is asked for", async () => {
    expect((await readJsonl('{"reward":0.1}', { precision: "f64" })).rewards).toEqual(Float64Array.of(0.1));
  });
  test.each<[chunks: string | string[], lines: string[]]>([
    [
      ["a\nb", "c"],
      ["a", "bc"],
    ],
    [
      ["a\n", "b\n"],
      ["a", "b"],
    ],
    ["a\n\nb", ["a", "", "b"]],
    ["", []],
    [["", "a", ""], ["a"]],
  ])("linesOf(%j) are %j", async (chunks, expected) => {
    const lines: string[] = [];
    for await (const line of linesOf(chunks)) lines.push(line);
    expect(lines).toEqual(expected);
  });
});

describe("streaming", () => {
  const many = Array.from({ length: 90 }, (_, i) => ({ group: `g${(i * 7) % 30}`, reward: i, mask: [1, 1] }));
  const text = many.map((row) => JSON.stringify(row)).join("\n");

  test("gives whole groups, each row once with its place in the file", async () => {
    const seen: number[] = [];
    let parts = 0;
    for await (const { rollouts, rows } of streamJsonl(() => text, { tokensPerPart: 20 })) {
      parts++;
      const sizes = new Map<number, number>();
      for (const group of rollouts.groupOfRow!) sizes.set(group, (sizes.get(group) ?? 0) + 1);
      expect([...sizes.values()].every((size) => size === 3)).toBe(true);
      for (const [k, row] of rows.entries()) expect(rollouts.rewards![k]).toBe(many[row]!.reward);
      seen.push(...rows);
    }
    expect(parts).toBeGreaterThan(3);
    expect(seen.toSorted((a, b) => a - b)).toEqual(many.map((_, i) => i));
  });

  test("a part ends with the group that fills it; what is left is the last part", async () => {
    const rows = ["a", "b", "a", "c"].map((group, reward) => ({ group, reward, mask: [1, 0] }));
    const lines = rows.map((row) => JSON.stringify(row)).join("\n");
    const parts = async (tokensPerPart: number) => {
      const found: (readonly number[])[] = [];
      for await (const part of streamJsonl(() => lines, { tokensPerPart })) found.push(part.rows);
      return found;
    };
    expect(await parts(1)).toEqual([[1], [0, 2], [3]]);
    expect(await parts(2)).toEqual([[1], [0, 2], [3]]);
    expect(await parts(3)).toEqual([[1, 0, 2], [3]]);
    expect(await parts(8)).toEqual([[1, 0, 2, 3]]);
    expect(await parts(9)).toEqual([[1, 0, 2, 3]]);
  });

  test("names file and line of a row without a group, and of one that cannot be packed", async () => {
    const options = { tokensPerPart: 20, file: "r.jsonl" };
    const read = (text: string) => streamJsonl(() => text, options).next();
    await expect(read('{"group":1}\n{"reward":1}')).rejects.toMatchObject({
      file: "r.jsonl",
      line: 2,
      path: "group",
    });
    await expect(read('\n{"group":1,"mask":[2]}')).rejects.toMatchObject({
      file: "r.jsonl",
      line: 2,
      path: "mask",
    });
  });

  test("needs groups", async () => {
    const parts = streamJsonl(() => '{"reward":1}', { tokensPerPart: 20 });
    await expect(parts.next()).rejects.toThrow(/has no group/);
  });
});

test("Parquet lists, 64-bit masks and strings read as the JSONL of the same rows does", async () => {
  const bytes = readFileSync(new URL("../../fixtures/rollouts/lists.parquet", import.meta.url));
  const read = await readParquet(new Uint8Array(bytes).buffer);
  const rows = [
    { group: "a", reward: 1, mask: [1, 0], logprobs: [-1, -2.5] },
    { group: "b", reward: 0, mask: [1], logprobs: [-3.25] },
    { group: "a", reward: 0.5, mask: [1, 1], logprobs: [-0.5, -0.75] },
  ];
  expect(read).toEqual(packRollouts(rows));
});

test("Parquet columns of 64-bit integers are numbers, and columns that are null in every row are absent", async () => {
  const write = (columns: Record<string, unknown[]>) =>
    parquetWriteBuffer({
      columnData: Object.entries(columns).map(([name, data]) => ({ name, data, nullable: true })),
    });
  const file = write({ group: [7n, 2n ** 40n], reward: [1n, 0n], reward_baseline: [null, null] });
  expect(await readParquet(file)).toEqual(
    packRollouts([
      { group: 7, reward: 1 },
      { group: 2 ** 40, reward: 0 },
    ]),
  );
  await expect(readParquet(write({ reward: [1, Number.NaN] }), { file: "r.parquet" })).rejects.toMatchObject({
    file: "r.parquet",
    line: 2,
    path: "reward",
  });
});

test("a file that is not Parquet is refused by the reader", async () => {
  await expect(readParquet(new ArrayBuffer(64))).rejects.toThrow(/parquet/i);
});
