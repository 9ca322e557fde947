/** Tokenizers against the `tokenizers` library (test/fixtures/tokenizers/make.py), and hostile patterns. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { createTokenizer } from "../../../../src/engine/model/files/tokenizer.ts";

interface Case {
  readonly tokenizer: { readonly model: object; readonly [key: string]: unknown };
  /** Of each text, without and with the post-processor's tokens. */
  readonly ids: readonly (readonly number[])[];
  readonly processed?: readonly (readonly number[])[];
  /** Ids, their text, and their text without special tokens. */
  readonly decoded: readonly (readonly [ids: readonly number[], whole: string, plain: string])[];
}

const { texts, cases } = JSON.parse(
  readFileSync(new URL("../../../fixtures/tokenizers/small.json", import.meta.url), "utf8"),
) as { texts: readonly string[]; cases: Readonly<Record<string, Case>> };

describe("createTokenizer() is the library's", () => {
  test.each(Object.entries(cases))("%s", (_, { tokenizer: json, ids, processed, decoded }) => {
    const tokenizer = createTokenizer({ tokenizer: json });
    for (const [i, text] of texts.entries()) {
      expect([text, tokenizer.encode(text, { addSpecialTokens: false })]).toEqual([text, ids[i]]);
      if (processed) expect([text, tokenizer.encode(text)]).toEqual([text, processed[i]]);
    }
    for (const [tokens, whole, plain] of decoded) {
      expect(tokenizer.decode(tokens, { skipSpecialTokens: false })).toBe(whole);
      expect(tokenizer.decode(tokens)).toBe(plain);
    }
  });

  test.each(Object.entries(cases).filter(([name]) => !name.includes("metaspace")))(
    "the bytes of tokens are those of their text: %s",
    (_, { tokenizer: json, decoded }) => {
      const tokenizer = createTokenizer({ tokenizer: json });
      if (!tokenizer.tokenBytes) return;
      for (const [tokens, whole] of decoded) {
        const bytes = tokens.map((id) => tokenizer.tokenBytes!(id));
        if (whole.includes("\uFFFD") || bytes.some((each) => each === undefined)) continue;
        const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(
          Uint8Array.from(bytes.flatMap((it) => [...it!])),
        );
        // Llama 2's decoder drops the space before a text.
        expect([whole, ` ${whole}`]).toContain(text);
      }
    },
  );
});

/** A tokenizer of bytes whose pieces are cut by a pattern. */
function cutBy(Regex: string) {
  const { model } = cases.gpt2!.tokenizer;
  const split = { type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false };
  const bytes = { type: "ByteLevel", add_prefix_space: false, use_regex: false };
  const pre_tokenizer = { type: "Sequence", pretokenizers: [split, bytes] };
  return createTokenizer({ tokenizer: { model, pre_tokenizer, decoder: { type: "ByteLevel" } }, folder: "m" });
}

describe("a pattern of tokenizer.json", () => {
  test.each([
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    "(?:a+){2,30}$",
    "(?:a*)*b",
    "(?:(?:a|b)?)*c",
    "x*a*a*b",
    "\\s*\\s*\\s*x",
    "(a+)(\\1)+b",
    `${"a?".repeat(40)}${"a".repeat(40)}`,
    "(?=(a+)+$)x",
    "(?:a|(?:b|(?:c+)+))d",
    "[^x]*[^y]*[^z]*w",
  ])("is refused where it takes more time than the text is long: %s", (pattern) => {
    expect(() => cutBy(pattern)).toThrow(
      /Cannot read the tokenizer: a regular expression may take too long.*m\/tokenizer\.json/,
    );
  });

  test.each([
    "(?:\\r?\\n)",
    "\\d+\\.\\d+\\.\\d+",
    "(?:ab)+",
    "[a-z]+ [a-z]+ [a-z]+",
    "\\p{N}{1,3}",
    "(?i:don't|won't)?x",
    "[\\p{L}&&[^a]]+b",
  ])("is taken: %s", (pattern) => {
    expect(cutBy(pattern).encode("ab 12")).toHaveLength(4);
  });

  test("which is slow from every place is stopped", () => {
    const tokenizer = cutBy("a*b");
    expect(tokenizer.encode("a".repeat(2000))).not.toHaveLength(0);
    const started = performance.now();
    expect(() => tokenizer.encode("a".repeat(1_000_000))).toThrow(
      /Cannot encode the text: a pattern .* takes too long/,
    );
    expect(performance.now() - started).toBeLessThan(20_000);
  });
});

test("tokens that tokenizer_config.json alone names are found in a text, and are special", () => {
  const { tokenizer: json } = cases.gpt2!;
  const vocabulary = (json.model as { vocab: Record<string, number> }).vocab;
  const model = { ...json.model, vocab: { ...vocabulary, "<|end|>": 400, "<|own|>": 401 } };
  const config = {
    eos_token: "<|end|>",
    pad_token: "<|absent|>",
    added_tokens_decoder: { "402": { content: "<|far|>", special: true }, "403": { content: "<|w|>", lstrip: true } },
    additional_special_tokens: ["<|own|>"],
  };
  const tokenizer = createTokenizer({ tokenizer: { ...json, model }, config });
  const plain = createTokenizer({ tokenizer: json });
  const text = "hello<|end|><|own|><|far|> <|w|>";
  const ids = tokenizer.encode(text);
  expect(ids.slice(-4)).toEqual([400, 401, 402, 403]);
  expect(tokenizer.decode(ids)).toBe("hello<|w|>");
  expect(tokenizer.eosTokenIds).toEqual([400]);
  // Without an id there is no row of the embedding table for it.
  expect(tokenizer.encode("<|absent|>")).toEqual(plain.encode("<|absent|>"));
});
