/** How llama.cpp's names of pre-tokenizers are written in tokenizer.json, in both directions. */

export interface NamedPreTokenizer {
  readonly name: string;
  /** Part of tokenizer.json's text by which an export knows it; the first that fits. */
  readonly part: string;
  readonly json: object;
  readonly normalizer?: object;
  /** A whole word that is a token is not merged. */
  readonly ignoresMerges?: boolean;
}

const byteLevel = (isSplitting: boolean) => ({
  type: "ByteLevel",
  add_prefix_space: false,
  trim_offsets: true,
  use_regex: isSplitting,
});
const split = (regex: string) => ({
  type: "Sequence",
  pretokenizers: [{ type: "Split", pattern: { Regex: regex }, behavior: "Isolated", invert: false }, byteLevel(false)],
});

/** Words of Llama 3 and of Qwen 2, which take as many digits as `digits` says. */
const words = (digits: string) =>
  `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;

export const PRE_TOKENIZERS: readonly NamedPreTokenizer[] = [
  {
    name: "llama-bpe",
    part: "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*",
    json: split(words("\\p{N}{1,3}")),
    ignoresMerges: true,
  },
  {
    name: "qwen2",
    part: "\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*",
    json: split(words("\\p{N}")),
    normalizer: { type: "NFC" },
  },
  {
    name: "smollm",
    part: '"individual_digits":true',
    json: { type: "Sequence", pretokenizers: [{ type: "Digits", individual_digits: true }, byteLevel(true)] },
  },
  // GPT-2's own: ByteLevel splits, and nothing else does.
  { name: "gpt-2", part: '{"type":"ByteLevel"', json: byteLevel(true) },
];
