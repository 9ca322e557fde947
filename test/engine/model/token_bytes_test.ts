/** The bytes of tokens, by the decoders of published tokenizers. */
import { describe, expect, test } from "vitest";
import { tokenBytesOf } from "../../../src/engine/model/files/token_bytes.ts";
import { byteTokenizer, characterTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { chatTokenizer } from "../../fixtures/chat.ts";

const text = (bytes: Uint8Array | undefined) => bytes && new TextDecoder().decode(bytes);

describe("tokenBytesOf()", () => {
  test("joined, the bytes of a text's tokens are the text", () => {
    const sample = 'the 日本 🙂 {"é": [1,\n 2]}\u0000';
    for (const tokenizer of [chatTokenizer(), byteTokenizer()]) {
      const ids = tokenizer.encode(sample, { addSpecialTokens: false });
      const bytes = ids.flatMap((id) => [...tokenizer.tokenBytes!(id)!]);
      expect(text(Uint8Array.from(bytes))).toBe(sample);
      expect(tokenizer.eosTokenIds.map((id) => tokenizer.tokenBytes!(id))).toEqual([undefined]);
      expect(tokenizer.tokenBytes!(tokenizer.vocabSize)).toBeUndefined();
    }
    expect(text(characterTokenizer("aé").tokenBytes!(1))).toBe("é");
  });

  const texts = new Map(["▁the", "<0x0A>", "a▁b", "▁▁▁", "</s>"].map((token, id) => [id, token]));
  const special = new Set([4]);
  const decoders = [
    { type: "Replace", pattern: { String: "▁" }, content: " " },
    { type: "ByteFallback" },
    { type: "Fuse" },
    { type: "Strip", content: " ", start: 1, stop: 0 },
  ];

  // Gemma 3's runs of spaces are added tokens, and decoded as any other.
  test("SentencePiece: spaces, single bytes, added tokens", () => {
    const bytesOf = tokenBytesOf({ decoder: { type: "Sequence", decoders } }, { texts, special })!;
    expect([0, 1, 2, 3, 4, 5].map((id) => text(bytesOf(id)))).toEqual([
      " the",
      "\n",
      "a b",
      "   ",
      undefined,
      undefined,
    ]);
    const metaspace = tokenBytesOf({ decoder: { type: "Metaspace" } }, { texts, special })!;
    expect([0, 1].map((id) => text(metaspace(id)))).toEqual([" the", "<0x0A>"]);
  });

  test("byte level: a token with a character that stands for no byte is its own text, as when it is decoded", () => {
    const mixed = new Map(["Ġé", "Ġ日", "é"].map((token, id) => [id, token]));
    const bytesOf = tokenBytesOf({ decoder: { type: "ByteLevel" } }, { texts: mixed, special })!;
    expect([0, 1, 2].map((id) => [...bytesOf(id)!])).toEqual([
      [32, 0xe9],
      [...new TextEncoder().encode("Ġ日")],
      [0xe9],
    ]);
  });

  test.each([{}, { decoder: null }, { decoder: { type: "WordPiece" } }])("none by the decoder of %j", (json) => {
    expect(tokenBytesOf(json, { texts, special })).toBeUndefined();
  });
});
