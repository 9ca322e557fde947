/** Text of files: UTF-8 alone. */
import { expect, test } from "vitest";
import { decodeUtf8, utf8Chunks } from "../../src/leaves/utf8.ts";

const LATIN = Uint8Array.of(0x61, 0x0a, 0x62, 0x0a, 0x63, 0xe9, 0x64, 0x0a);
const AT = { what: "data file", file: "d.jsonl" };

test("text is read without its byte order mark", () => {
  expect(decodeUtf8(new TextEncoder().encode("\ufeffaé\n𝄞\ufeff"))).toBe("aé\n𝄞\ufeff");
});

test.each<[string, Uint8Array, number]>([
  ["Latin-1", LATIN, 3],
  ["UTF-16", Uint8Array.of(0xff, 0xfe, 0x61, 0x00), 1],
  ["a character that is cut off", Uint8Array.of(0x0a, 0x61, 0xe2, 0x82), 2],
  ["half of a surrogate pair", Uint8Array.of(0x0a, 0x0a, 0xed, 0xa0, 0x80), 3],
])("%s is refused with its line", (_, bytes, line) => {
  const thrown = (() => {
    try {
      return decodeUtf8(bytes, AT);
    } catch (error) {
      return error;
    }
  })();
  expect(thrown).toMatchObject({ name: "ConfigError", file: "d.jsonl", line });
  expect(String(thrown)).toMatch(/Cannot read the data file: it is not UTF-8 \(line \d.*\)\. Save it as UTF-8/);
});

test.each([1, 2, 3, 100])("a stream in pieces of %i bytes is read alike", async (size) => {
  const pieces = (bytes: Uint8Array) =>
    (async function* () {
      for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
    })();
  const text = "é\n𝄞 a\n";
  let read = "";
  for await (const chunk of utf8Chunks(pieces(new TextEncoder().encode(text)))) read += chunk;
  expect(read).toBe(text);
  const all = async () => {
    for await (const _ of utf8Chunks(pieces(LATIN), AT));
  };
  await expect(all()).rejects.toMatchObject({ line: 3 });
});
