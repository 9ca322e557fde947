/** The bytes of tokens, by the decoders of published tokenizers. */
import { describe, expect, test } from "vitest";
import { tokenBytesOf } from "../../src/model/files/token_bytes.ts";
import { byteTokenizer, characterTokenizer } from "../../src/model/files/tokenizer.ts";
import { chatTokenizer } from "../fixtures/chat.ts";

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

  const vocabulary = new Map(["▁the", "<0x0A>", "a▁b", "<tool>", "</s>"].map((token, id) => [token, id]));
  const added_tokens = [
    { id: 3, content: "<tool>", special: false },
    { id: 4, content: "</s>", special: true },
  ];
  const decoders = ["Replace", "ByteFallback", "Fuse", "Strip"].map((type) => ({ type }));

  test("SentencePiece: spaces, single bytes, added tokens", () => {
    const bytesOf = tokenBytesOf({ decoder: { type: "Sequence", decoders }, added_tokens }, vocabulary)!;
    expect([0, 1, 2, 3, 4, 5].map((id) => text(bytesOf(id)))).toEqual([
      " the",
      "\n",
      "a b",
      "<tool>",
      undefined,
      undefined,
    ]);
    const metaspace = tokenBytesOf({ decoder: { type: "Metaspace" } }, vocabulary)!;
    expect(text(metaspace(1))).toBe("<0x0A>");
  });

  test.each([{}, null, { decoder: null }, { decoder: { type: "WordPiece" } }])("none by the decoder of %j", (json) => {
    expect(tokenBytesOf(json, vocabulary)).toBeUndefined();
  });
});
