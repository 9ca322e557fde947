/** Containers, whole and damaged: what a file says of sizes is compared with its own before it is believed. */
import { expect, test } from "vitest";
import { parsed, smallGguf } from "../../../../fixtures/gguf/container.ts";

const whole = await smallGguf();

test("a container has its metadata and the places of its tensors", async () => {
  const { metadata, tensors } = await parsed(whole);
  expect(Object.fromEntries(metadata)).toEqual({
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.rope.freq_base": 10_000,
    "tokenizer.ggml.tokens": ["a", "\ufeffb", "▁c"],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.ggml.add_bos_token": false,
  });
  expect(tensors).toMatchObject([
    { name: "output_norm.weight", shape: [4], type: "F32", byteLength: 16 },
    { name: "token_embd.weight", shape: [3, 32], type: "Q8_0", byteLength: 102 },
  ]);
  expect(tensors.every(({ offset }) => offset % 32 === 0)).toBe(true);
});

test("a header longer than the first read is read to its end", async () => {
  const tokens = Array.from({ length: 150_000 }, (_, i) => `token ${i}`);
  const { metadata } = await parsed(await smallGguf({ tokens }));
  expect(metadata.get("tokenizer.ggml.tokens")).toEqual(tokens);
});

const u32 = (at: number, value: number) => (view: DataView) => view.setUint32(at, value, true);
const u64 = (at: number, value: bigint) => (view: DataView) => view.setBigUint64(at, value, true);
const text = new TextDecoder("latin1").decode(whole);
/** The first byte after a text. */
const after = (part: string) => text.indexOf(part) + part.length;
const dimensions = after("token_embd.weight");

test.each<[string, (view: DataView) => void, RegExp]>([
  ["another magic", u32(0, 1), /does not begin with "GGUF"/],
  ["version 1", u32(4, 1), /version must be 2 or 3, little-endian \(1\)/],
  ["big-endian", u32(4, 0x03000000), /version must be 2 or 3, little-endian \(50331648\)/],
  ["2^63 tensors", u64(8, 2n ** 63n), /larger than the file can hold/],
  ["10^6 keys", u64(16, 1_000_000n), /larger than the file can hold|more than the file can hold/],
  ["a key of 2^40 bytes", u64(24, 2n ** 40n), /larger than the file can hold/],
  [
    "a value of an unknown type",
    u32(after("general.architecture"), 77),
    /type of its key "general\.architecture" is unknown \(77\)/,
  ],
  ["a list of 2^50 texts", u64(after("tokenizer.ggml.tokens") + 8, 2n ** 50n), /larger than the file can hold/],
  ["900 dimensions", u32(dimensions, 900), /tensor "token_embd\.weight" has 900 dimensions/],
  ["a shape of 2^52", u64(dimensions + 4, 2n ** 52n), /larger than the file can hold/],
  ["a row that no block fits", u64(dimensions + 4, 33n), /has rows of 33, which Q8_0 cannot hold/],
  ["more rows than bytes", u64(dimensions + 12, 300n), /ends at byte \d+ of \d+: the file is truncated/],
  ["a type of another kind", u32(dimensions + 20, 19), /its type is IQ1_S/],
  ["an offset between two blocks", u64(dimensions + 24, 7n), /no multiple of 32/],
  ["an offset over another tensor", u64(dimensions + 24, 0n), /overlaps another/],
  ["a text that is not UTF-8", (view) => view.setUint8(after("llama.block_count") - 1, 0xff), /is not UTF-8/],
])("%s is refused", async (_, damage, message) => {
  const bytes = whole.slice();
  damage(new DataView(bytes.buffer));
  await expect(parsed(bytes)).rejects.toThrow(message);
  await expect(parsed(bytes)).rejects.toThrow("test.gguf");
});

test("a file that is cut anywhere is refused", async () => {
  for (let length = 0; length < whole.length - 30; length += 7)
    await expect(parsed(whole.slice(0, length)), String(length)).rejects.toThrow(/Cannot read the GGUF file/);
});
