/** Changes of a text before it is cut: the normalizers of tokenizer.json. */
import { BYTE_CHARACTERS } from "../tokenizer_alphabet.ts";
import { flag, flattenSteps, type TokenizerStep, text } from "./json.ts";
import { BertNormalizer, PrecompiledNormalizer } from "./library.ts";
import { replaceMatches, stepPattern } from "./pattern.ts";
import { lowerCase, normalForm, trimEnd, trimStart, withoutMarks } from "./unicode.ts";

export type Normalizer = (text: string) => string;

const NORMALIZERS: Readonly<Record<string, (step: TokenizerStep) => Normalizer>> = {
  NFC: () => (value) => normalForm(value, "NFC"),
  NFD: () => (value) => normalForm(value, "NFD"),
  NFKC: () => (value) => normalForm(value, "NFKC"),
  NFKD: () => (value) => normalForm(value, "NFKD"),
  Lowercase: () => lowerCase,
  StripAccents: () => withoutMarks,
  Strip(step) {
    const [left, right] = [flag(step, "strip_left", true), flag(step, "strip_right", true)];
    return (value) => {
      const kept = left ? trimStart(value) : value;
      return right ? trimEnd(kept) : kept;
    };
  },
  Prepend(step) {
    const prefix = text(step, "prepend");
    return (value) => (value === "" ? value : prefix + value);
  },
  Replace(step) {
    const [find, by] = [stepPattern(step), text(step, "content")];
    return (value) => replaceMatches(value, find, by);
  },
  ByteLevel: () => byteCharacters,
  BertNormalizer: fromLibrary(BertNormalizer),
  Precompiled: fromLibrary(PrecompiledNormalizer),
};

function fromLibrary(Kind: typeof BertNormalizer) {
  return (step: TokenizerStep): Normalizer => {
    const normalizer = new Kind(step);
    return (value) => normalizer.normalize(value);
  };
}

const encoder = new TextEncoder();

/** A printable character for each byte, as GPT-2 has them. */
export function byteCharacters(value: string): string {
  if (PLAIN.test(value)) return value.replaceAll(" ", SPACE);
  let out = "";
  for (const byte of encoder.encode(value)) out += BYTE_CHARACTERS[byte];
  return out;
}

/** Bytes that stand for themselves, and the space. */
const PLAIN = /^[\x20-\x7e]*$/;
const SPACE = BYTE_CHARACTERS[0x20]!;

/**
 * @param options.isMarked false leaves out the mark of a first word.
 * @throws for an unknown type or setting.
 */
export function createNormalizer(
  json: TokenizerStep | null | undefined,
  { isMarked = true }: { isMarked?: boolean } = {},
): Normalizer | undefined {
  const used = flattenSteps(json, "normalizers").filter(({ type }) => isMarked || type !== "Prepend");
  const steps = used.map((step) => {
    const create = Object.hasOwn(NORMALIZERS, step.type) ? NORMALIZERS[step.type] : undefined;
    if (!create) throw new Error(`normalizer ${JSON.stringify(step.type)} is not known`);
    return create(step);
  });
  if (steps.length === 0) return undefined;
  return (value) => steps.reduce((at, step) => step(at), value);
}
