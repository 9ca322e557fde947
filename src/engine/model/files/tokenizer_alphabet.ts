/**
 * Tokenizers with one token per character or per byte. Their tokenizer.json is a BPE without merges, so that other
 * readers split text in the same way. The key `grpu` of tokenizer_config.json names the kind.
 */
import { ConfigError } from "../../../leaves/errors.ts";
import type { TokenizerCore, TokenizerFiles } from "./tokenizer_core.ts";

export interface AlphabetSpec {
  readonly kind: "character" | "byte";
  /** Characters in the order of their ids; empty for bytes. */
  readonly alphabet: readonly string[];
  /** Has a `<bos>` token, which `encode` puts first by default. */
  readonly bos: boolean;
}

/** The kind and alphabet of a tokenizer_config.json; `undefined` for other tokenizers. @throws ConfigError */
export function readAlphabet(config: Readonly<Record<string, unknown>>): AlphabetSpec | undefined {
  const spec = config.grpu as Partial<AlphabetSpec> | undefined;
  if (spec?.kind !== "character" && spec?.kind !== "byte") return undefined;
  const { kind, alphabet = [], bos = false } = spec;
  if (
    Array.isArray(alphabet) &&
    alphabet.every((character) => typeof character === "string") &&
    typeof bos === "boolean"
  )
    return { kind, alphabet, bos };
  throw new ConfigError("Cannot read the tokenizer: its alphabet must be a list of characters.", {
    path: "grpu.alphabet",
    file: "tokenizer_config.json",
  });
}

/** @throws ConfigError for a repeated character, or one of several code points. */
export function alphabetTokenizer(spec: AlphabetSpec): TokenizerCore {
  checkAlphabet(spec);
  const specials = specialTokens(spec);
  const [encodeText, decodeIds] = spec.kind === "byte" ? byteCodec() : characterCodec(spec.alphabet);
  const first = spec.kind === "byte" ? 256 : spec.alphabet.length;
  // As with tokenizer.json, a special token written out in the text becomes that token.
  const splitter = new RegExp(`(${specials.join("|")})`);
  const bosId = spec.bos ? first + specials.indexOf("<bos>") : undefined;
  const piece = (part: string) => {
    const special = specials.indexOf(part);
    return special < 0 ? encodeText(part) : [first + special];
  };
  return {
    vocabSize: first + specials.length,
    encode(text, { addSpecialTokens = true } = {}) {
      const ids = text.split(splitter).flatMap(piece);
      return bosId !== undefined && addSpecialTokens ? [bosId, ...ids] : ids;
    },
    decode(ids, { skipSpecialTokens = true } = {}) {
      let text = "";
      let run: number[] = [];
      for (const id of ids) {
        if (id < first) {
          run.push(id);
          continue;
        }
        if (skipSpecialTokens) continue;
        text += decodeIds(run) + (specials[id - first] ?? "");
        run = [];
      }
      return text + decodeIds(run);
    },
    tokenBytes: (id) => {
      if (id < 0 || id >= first) return undefined;
      return spec.kind === "byte" ? Uint8Array.of(id) : new TextEncoder().encode(spec.alphabet[id]);
    },
    tokenId(token) {
      const special = specials.indexOf(token);
      if (special >= 0) return first + special;
      const id = spec.kind === "byte" ? BYTE_CHARACTERS.indexOf(token) : spec.alphabet.indexOf(token);
      return id < 0 ? undefined : id;
    },
  };
}

/** Files that give the same ids in {@link readAlphabet} and in Hugging Face's tokenizers. */
export function alphabetFiles(spec: AlphabetSpec): TokenizerFiles {
  const specials = specialTokens(spec);
  const characters = spec.kind === "byte" ? BYTE_CHARACTERS : spec.alphabet;
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false };
  return {
    tokenizer: {
      version: "1.0",
      truncation: null,
      padding: null,
      added_tokens: specials.map((content, i) => addedToken(content, characters.length + i)),
      normalizer: null,
      pre_tokenizer: spec.kind === "byte" ? byteLevel : null,
      post_processor: spec.bos ? bosTemplate(characters.length + specials.indexOf("<bos>")) : null,
      decoder: spec.kind === "byte" ? byteLevel : { type: "Fuse" },
      model: bpeWithoutMerges([...characters, ...specials]),
    },
    config: {
      tokenizer_class: "PreTrainedTokenizerFast",
      clean_up_tokenization_spaces: false,
      pad_token: "<pad>",
      eos_token: "<eos>",
      ...(spec.bos ? { bos_token: "<bos>" } : {}),
      grpu: spec,
    },
  };
}

function addedToken(content: string, id: number): object {
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  return { id, content, ...flags };
}

function bpeWithoutMerges(tokens: readonly string[]): object {
  return {
    type: "BPE",
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: null,
    end_of_word_suffix: null,
    fuse_unk: false,
    byte_fallback: false,
    ignore_merges: false,
    vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    merges: [],
  };
}

function specialTokens({ bos }: AlphabetSpec): string[] {
  return bos ? ["<pad>", "<eos>", "<bos>"] : ["<pad>", "<eos>"];
}

function checkAlphabet({ alphabet, kind }: AlphabetSpec): void {
  const fail = (rule: string) => new ConfigError(`Cannot make a tokenizer: ${rule}.`, { path: "alphabet" });
  if (kind === "character" && alphabet.length === 0) throw fail("its alphabet is empty");
  const seen = new Set<string>();
  for (const character of alphabet) {
    if (seen.has(character)) throw fail(`a character is repeated (${JSON.stringify(character)})`);
    if ([...character].length !== 1) throw fail(`an entry is not one character (${JSON.stringify(character)})`);
    seen.add(character);
  }
}

type Codec = readonly [encode: (text: string) => number[], decode: (ids: readonly number[]) => string];

function characterCodec(alphabet: readonly string[]): Codec {
  const idOf = new Map(alphabet.map((character, id) => [character, id]));
  const encode = (text: string) =>
    Array.from(text, (character) => {
      const id = idOf.get(character);
      if (id !== undefined) return id;
      const alphabetJson = JSON.stringify(alphabet.join(""));
      throw new ConfigError(
        `Cannot encode the text: a character is outside the alphabet ${alphabetJson} (${JSON.stringify(character)}).`,
      );
    });
  return [encode, (ids) => ids.map((id) => alphabet[id]).join("")];
}

function byteCodec(): Codec {
  const [encoder, decoder] = [new TextEncoder(), new TextDecoder("utf-8", { ignoreBOM: true })];
  return [(text) => [...encoder.encode(text)], (ids) => decoder.decode(Uint8Array.from(ids))];
}

function bosTemplate(id: number): object {
  const sequence = (name: string) => ({ Sequence: { id: name, type_id: 0 } });
  const bos = { SpecialToken: { id: "<bos>", type_id: 0 } };
  return {
    type: "TemplateProcessing",
    single: [bos, sequence("A")],
    pair: [bos, sequence("A"), bos, sequence("B")],
    special_tokens: { "<bos>": { id: "<bos>", ids: [id], tokens: ["<bos>"] } },
  };
}

/** The printable character of each byte in byte-level BPE: GPT-2's `bytes_to_unicode`. */
export const BYTE_CHARACTERS: readonly string[] = byteCharacters();

function byteCharacters(): string[] {
  let next = 256;
  const printable = (byte: number) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}
