/** Frames written by hand from RFC 8878, and two that the reference encoder wrote. */
import { describe, expect, test } from "vitest";
import { Refusal } from "../../../src/leaves/http/refusal.ts";
import { decompress } from "../../../src/leaves/http/zstd.ts";
import { uniform } from "../../fixtures/numbers.ts";

const LIMIT = 2 ** 20;
const hex = (text: string) => Uint8Array.from(Buffer.from(text.replaceAll(" ", ""), "hex"));

async function content(bytes: Uint8Array, limit = LIMIT): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  const tooLarge = () => new Refusal(413, "too large");
  await decompress(bytes, { limit, tooLarge, take: (piece) => void pieces.push(piece) });
  return Uint8Array.from(pieces.flatMap((piece) => [...piece]));
}

/** A frame of one block; `header` is everything before it. */
const frame = (header: string, block: string) => hex(`28b52ffd ${header} ${block}`);
const repeat = (bytes: Uint8Array, times: number) =>
  Uint8Array.from({ length: bytes.length * times }, (_, i) => bytes[i % bytes.length]!);
/** `hello` as one raw block. */
const HELLO = frame("2005", "290000 68656c6c6f");
/** `abc` 3,000 times by the reference encoder, with size and checksum, and without both. */
const WITH_SIZE = hex("28b52ffd 6428225d00001861626301002243de0d 012688ab56");
const WITHOUT_SIZE = hex("28b52ffd 00205d00001861626301002243de0d01");

describe("zstd is read with", () => {
  test.each<[string, Uint8Array, string]>([
    ["a raw block", HELLO, "hello"],
    ["a run", frame("2003", "1b0000 61"), "aaa"],
    ["no size but a window", frame("0050", "290000 68656c6c6f"), "hello"],
    ["a window of 8 MiB", frame("0068", "290000 68656c6c6f"), "hello"],
    ["a window of 7.5 MiB", frame("0067", "290000 68656c6c6f"), "hello"],
    ["several frames", repeat(HELLO, 3), "hellohellohello"],
    ["an empty frame", frame("2000", "010000"), ""],
    ["a compressed block and its size", WITH_SIZE, "abc".repeat(3000)],
    ["a compressed block without its size", WITHOUT_SIZE, "abc".repeat(3000)],
  ])("%s", async (_, bytes, text) => {
    expect(Buffer.from(await content(bytes)).toString()).toBe(text);
  });
});

describe("zstd is refused before anything is allocated for", () => {
  const heldNow = () => process.memoryUsage().arrayBuffers;
  test.each<[string, Uint8Array, RegExp]>([
    ["200 frames of 2^30 windows", repeat(hex("28b52ffd 00a0 0b0000 61"), 200), /window is larger than 8388608/],
    ["a window one step above 8 MiB", frame("0069", "010000"), /window is larger than/],
    ["a size above 8 MiB in one segment", frame("a0 00008001", "010000"), /window is larger than/],
    ["more frames than a request may hold", repeat(HELLO, 17), /16 frames/],
    ["a dictionary", frame("2101 05", "010000"), /dictionary/],
    ["a skippable frame", hex("502a4d18 ffffff7f 00"), /magic/],
    ["a reserved bit", frame("2805", "010000"), /reserved/],
    ["a reserved block", frame("2005", "2f0000"), /a block is invalid/],
    ["a block above 128 KiB", frame("0058", "fbffff 61"), /a block is invalid/],
    ["more blocks than a request may hold", hex(`28b52ffd 0058 ${"000000".repeat(70_000)}`), /65536 blocks/],
    ["a truncated frame", HELLO.subarray(0, 12), /cut off/],
    ["a truncated header", hex("28b52ffd a000"), /cut off/],
    ["nothing", new Uint8Array(), /empty/],
    ["bytes that are not zstd", new TextEncoder().encode("nonsense"), /magic/],
    ["a wrong checksum", WITH_SIZE.map((byte, i) => (i === 24 ? byte ^ 1 : byte)), /damaged/],
    ["a size other than the content's", frame("2006", "290000 68656c6c6f"), /damaged/],
  ])("%s", async (_, bytes, why) => {
    const held = heldNow();
    await expect(content(bytes)).rejects.toThrow(why);
    expect(heldNow() - held).toBeLessThan(64 * 2 ** 20);
  });

  test("content beyond the limit, with its size in the header or not", async () => {
    const told = frame("a0 00000200", "03001061");
    const untold = hex(`28b52ffd 0058 ${"02001061".repeat(4)} 03001061`);
    for (const bytes of [told, untold, repeat(untold, 2)])
      await expect(content(bytes, 100_000)).rejects.toMatchObject({ status: 413 });
    expect((await content(untold)).length).toBe(5 * 2 ** 17);
  });
});

test.each([
  ["with sizes", HELLO],
  ["without sizes", frame("0050", "290000 68656c6c6f")],
])("frames %s share the limit", async (_, one) => {
  expect((await content(repeat(one, 2), 10)).length).toBe(10);
  await expect(content(repeat(one, 2), 9)).rejects.toMatchObject({ status: 413 });
});

test("frames whose sizes exceed the limit are refused before the first is decompressed", async () => {
  let taken = 0;
  const take = () => void taken++;
  const tooLarge = () => new Refusal(413, "too large");
  await expect(decompress(repeat(HELLO, 2), { limit: 9, tooLarge, take })).rejects.toThrow("too large");
  expect(taken).toBe(0);
});

test("frames share the limit of blocks", async () => {
  const blocks = (count: number) => hex(`28b52ffd 0058 ${"000000".repeat(count - 1)} 010000`);
  await expect(content(repeat(blocks(40_000), 2))).rejects.toThrow(/65536 blocks/);
});

test("4,000 damaged frames are read or refused with 422, and no memory leaks", async () => {
  const next = uniform(7);
  const good = frame("0058", "290000 68656c6c6f");
  const seeds = [good, HELLO, repeat(HELLO, 2), WITH_SIZE, WITHOUT_SIZE];
  const refused = { count: 0 };
  for (let i = 0; i < 4000; i++) {
    const bytes = seeds[i % seeds.length]!.slice();
    for (let flip = 0; flip <= i % 4; flip++) bytes[Math.floor(next() * bytes.length)] = 256 * next();
    try {
      await content(bytes);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      expect([413, 422]).toContain(error.status);
      refused.count++;
    }
  }
  expect(refused.count).toBeGreaterThan(1000);
});
