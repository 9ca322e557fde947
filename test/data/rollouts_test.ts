import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { rowAt, unpack } from "../../src/data/offsets.ts";
import { packRollouts } from "../../src/data/rollouts/builder.ts";
import { checkRollouts } from "../../src/data/rollouts/check.ts";
import { jsonlRows, linesOf, readJsonl, readParquet, streamJsonl } from "../../src/data/rollouts/read.ts";

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
  ])("refuses %j", (rows, message) => {
    expect(() => packRollouts(rows)).toThrow(message);
  });
});

describe("typed arrays", () => {
  const packed = packRollouts(ROWS);
  test("pass through unchanged when they are consistent", () => {
    expect(checkRollouts(packed)).toBe(packed);
  });
  test("are refused with row and token of the first number that is not finite", () => {
    const tokens = { logprobs: Float32Array.of(-1, -2, Number.NaN) };
    expect(() => checkRollouts({ ...packed, tokens })).toThrow(
      /logprobs must be finite \(NaN at row 2, token 0\)/,
    );
  });
  test("are refused when lengths disagree or offsets fall", () => {
    expect(() => checkRollouts({ ...packed, mask: Uint32Array.of(1) })).toThrow(
      /mask must have 3 numbers \(1\)/,
    );
    expect(() => checkRollouts({ ...packed, offsets: Uint32Array.of(0, 3, 2, 3) })).toThrow(/must not fall/);
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
    for await (const { source } of jsonlRows(`${TEXT.replace("\n", "\n\n")}\n`)) lines.push(source.line!);
    expect(lines).toEqual([1, 3, 4]);
  });
  test("names file and line of what is not JSON", async () => {
    await expect(readJsonl('{"reward":1}\n{"reward":NaN}', { file: "r.jsonl" })).rejects.toThrow(
      /as JSON.*r\.jsonl:2/s,
    );
    await expect(readJsonl("[1]", { file: "r.jsonl" })).rejects.toThrow(/not a JSON object.*r\.jsonl:1/s);
  });
  test("linesOf gives a last line without a line break", async () => {
    const lines: string[] = [];
    for await (const line of linesOf(["a\nb", "c"])) lines.push(line);
    expect(lines).toEqual(["a", "bc"]);
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

  test("needs groups", async () => {
    const parts = streamJsonl(() => '{"reward":1}', { tokensPerPart: 20 });
    await expect(parts.next()).rejects.toThrow(/has no group/);
  });
});

test("Parquet lists, 64-bit masks and strings read as the JSONL of the same rows does", async () => {
  const bytes = readFileSync(new URL("../fixtures/rollouts/lists.parquet", import.meta.url));
  const read = await readParquet(new Uint8Array(bytes).buffer);
  const rows = [
    { group: "a", reward: 1, mask: [1, 0], logprobs: [-1, -2.5] },
    { group: "b", reward: 0, mask: [1], logprobs: [-3.25] },
    { group: "a", reward: 0.5, mask: [1, 1], logprobs: [-0.5, -0.75] },
  ];
  expect(read).toEqual(packRollouts(rows));
});

test("a file that is not Parquet is refused by the reader", async () => {
  await expect(readParquet(new ArrayBuffer(64))).rejects.toThrow(/parquet/i);
});
