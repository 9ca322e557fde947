/** tokenizer.json and tokenizer_config.json from a GGUF file's vocabulary. */
import { ConfigError, UnsupportedError } from "../../../../leaves/errors.ts";
import { type GgufModel, tokenId } from "./config.ts";
import { PRE_TOKENIZERS } from "./pre_tokenizers.ts";
import { TOKEN_TYPE } from "./token_types.ts";

type Json = Readonly<Record<string, unknown>>;

interface Vocabulary {
  readonly file: string;
  readonly tokens: readonly string[];
  readonly types: readonly number[];
  readonly scores: readonly number[];
  readonly merges: readonly string[];
  /** Name of the pre-tokenizer. */
  readonly pre: string;
  readonly addsBos: boolean;
  readonly addsEos: boolean;
  readonly addsSpace: boolean;
  readonly ids: Readonly<Record<"bos" | "eos" | "unknown" | "padding", number | undefined>>;
}

/** @throws ConfigError for a damaged vocabulary, UnsupportedError for a kind that is not read here; undefined where there is none */
export function tokenizerFiles(model: GgufModel): { tokenizer: Json; config: Json } | undefined {
  const { metadata, file } = model;
  const kind = metadata.get("tokenizer.ggml.model");
  if (kind === undefined || kind === "none") return undefined;
  const vocabulary = readVocabulary(model);
  if (kind === "gpt2") return { tokenizer: byteLevel(vocabulary), config: settings(vocabulary, metadata) };
  if (kind === "llama") return { tokenizer: sentencePieces(vocabulary), config: settings(vocabulary, metadata) };
  throw unsupported(`a vocabulary of the kind ${String(kind)}`, file);
}

function readVocabulary({ metadata, file }: GgufModel): Vocabulary {
  const at = (key: string) => metadata.get(`tokenizer.ggml.${key}`);
  const list = <T extends string | number>(key: string, type: "string" | "number"): readonly T[] => {
    const value = at(key) ?? [];
    if (Array.isArray(value) && (value.length === 0 || typeof value[0] === type)) return value as readonly T[];
    throw new ConfigError(`Cannot read the GGUF file: tokenizer.ggml.${key} is no list of ${type}s.`, { file });
  };
  const tokens = list<string>("tokens", "string");
  const types = list<number>("token_type", "number");
  const isSentencePieces = at("model") === "llama";
  const ids = { bos: tokenId(metadata, "bos"), eos: tokenId(metadata, "eos"), unknown: tokenId(metadata, "unknown") };
  for (const [name, id] of Object.entries(ids))
    if (id !== undefined && !(id < tokens.length))
      throw new ConfigError(
        `Cannot read the GGUF file: the ${name} token is ${id}, and it has ${tokens.length} tokens.`,
        { file },
      );
  const flag = (key: string, usual: boolean) => (typeof at(key) === "boolean" ? at(key) === true : usual);
  return {
    ...{ file, tokens, types, scores: list<number>("scores", "number"), merges: list<string>("merges", "string") },
    pre: String(at("pre") ?? "default"),
    // llama.cpp's own defaults.
    addsBos: flag("add_bos_token", isSentencePieces) && ids.bos !== undefined,
    addsEos: flag("add_eos_token", false) && ids.eos !== undefined,
    addsSpace: flag("add_space_prefix", isSentencePieces),
    ids: { ...ids, padding: tokenId(metadata, "padding") },
  };
}

/** GPT-2's kind: merges are listed. */
function byteLevel(vocabulary: Vocabulary): Json {
  const pre = PRE_TOKENIZERS.find(({ name }) => name === vocabulary.pre);
  if (!pre) throw unsupported(`the pre-tokenizer ${vocabulary.pre}`, vocabulary.file);
  const merges = vocabulary.merges.map((merge) => {
    const space = merge.indexOf(" ", 1);
    return [merge.slice(0, space), merge.slice(space + 1)];
  });
  return {
    ...common(vocabulary),
    normalizer: pre.normalizer ?? null,
    pre_tokenizer: pre.json,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { ...BPE, vocab: vocab(vocabulary), merges, ignore_merges: pre.ignoresMerges ?? false },
  };
}

/** SentencePiece's kind: a pair is merged where its piece is a token, the best score first. */
function sentencePieces(vocabulary: Vocabulary): Json {
  const replaced = { type: "Replace", pattern: { String: " " }, content: "▁" };
  const prepended = { type: "Sequence", normalizers: [{ type: "Prepend", prepend: "▁" }, replaced] };
  const strip = vocabulary.addsSpace ? [{ type: "Strip", content: " ", start: 1, stop: 0 }] : [];
  const back = { type: "Replace", pattern: { String: "▁" }, content: " " };
  return {
    ...common(vocabulary),
    normalizer: vocabulary.addsSpace ? prepended : replaced,
    pre_tokenizer: null,
    decoder: { type: "Sequence", decoders: [back, { type: "ByteFallback" }, { type: "Fuse" }, ...strip] },
    model: {
      ...BPE,
      unk_token: vocabulary.ids.unknown === undefined ? null : vocabulary.tokens[vocabulary.ids.unknown],
      fuse_unk: true,
      byte_fallback: true,
      vocab: vocab(vocabulary),
      merges: mergesOf(vocabulary),
    },
  };
}

const BPE = {
  ...{ type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null },
  ...{ fuse_unk: false, byte_fallback: false, ignore_merges: false },
};

function common(vocabulary: Vocabulary): Json {
  const special = [TOKEN_TYPE.control, TOKEN_TYPE.unknown];
  const added = vocabulary.tokens.flatMap((content, id) => {
    const type = vocabulary.types[id] ?? TOKEN_TYPE.normal;
    const isSpecial = special.includes(type as never);
    if (!isSpecial && type !== TOKEN_TYPE.user) return [];
    return [{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: isSpecial }];
  });
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added,
    post_processor: postProcessor(vocabulary),
  };
}

function postProcessor({ tokens, ids: { bos, eos }, addsBos, addsEos }: Vocabulary): Json | null {
  const first = addsBos ? [bos!] : [];
  const last = addsEos ? [eos!] : [];
  if (first.length + last.length === 0) return null;
  const special = (id: number) => ({ SpecialToken: { id: tokens[id], type_id: 0 } });
  const around = (...names: string[]) => [
    ...first.map(special),
    ...names.map((id, i) => ({ Sequence: { id, type_id: i } })),
    ...last.map(special),
  ];
  const named = [...first, ...last].map((id) => [tokens[id], { id: tokens[id], ids: [id], tokens: [tokens[id]] }]);
  return {
    type: "TemplateProcessing",
    single: around("A"),
    pair: [...around("A"), ...around("B")],
    special_tokens: Object.fromEntries(named),
  };
}

/** @throws ConfigError for a token that is there twice */
function vocab({ tokens, types, file }: Vocabulary): Record<string, number> {
  const found: Record<string, number> = Object.create(null);
  for (const [id, token] of tokens.entries()) {
    if (types[id] === TOKEN_TYPE.unused) continue;
    if (Object.hasOwn(found, token))
      throw new ConfigError(
        `Cannot read the GGUF file: the token ${JSON.stringify(token.slice(0, 80))} has the ids ${found[token]} and ${id}.`,
        { file },
      );
    found[token] = id;
  }
  return found;
}

/** Every split of a token in two others, by the token's score, then by the parts' ids. */
function mergesOf({ tokens, types, scores }: Vocabulary): [string, string][] {
  const isPiece = (id: number) =>
    types[id] === TOKEN_TYPE.normal || types[id] === undefined || types[id] === TOKEN_TYPE.user;
  const ids = new Map(tokens.flatMap((token, id) => (isPiece(id) ? [[token, id] as const] : [])));
  const merges: { pair: [string, string]; score: number; left: number; right: number }[] = [];
  for (const [token, id] of ids)
    for (const cut of cuts(token)) {
      const [left, right] = [ids.get(token.slice(0, cut)), ids.get(token.slice(cut))];
      if (left === undefined || right === undefined) continue;
      merges.push({ pair: [token.slice(0, cut), token.slice(cut)], score: scores[id] ?? -id, left, right });
    }
  merges.sort((a, b) => b.score - a.score || a.left - b.left || a.right - b.right);
  return merges.map(({ pair }) => pair);
}

/** Places between the characters of a text. */
function* cuts(text: string): Generator<number> {
  let at = 0;
  for (const character of text) {
    if (at > 0) yield at;
    at += character.length;
  }
}

function settings({ tokens, ids, addsBos, addsEos }: Vocabulary, metadata: GgufModel["metadata"]): Json {
  const named = Object.entries({ bos: ids.bos, eos: ids.eos, unk: ids.unknown, pad: ids.padding }).flatMap(
    ([name, id]) => (id === undefined || tokens[id] === undefined ? [] : [[`${name}_token`, tokens[id]]]),
  );
  const template = metadata.get("tokenizer.chat_template");
  return {
    ...Object.fromEntries(named),
    add_bos_token: addsBos,
    add_eos_token: addsEos,
    clean_up_tokenization_spaces: false,
    tokenizer_class: "PreTrainedTokenizerFast",
    ...(typeof template === "string" && { chat_template: template }),
  };
}

function unsupported(what: string, file: string): UnsupportedError {
  return new UnsupportedError(
    `Cannot read the tokenizer of the GGUF file: ${what} is not supported (${file}). Put the model's tokenizer.json into a folder with the weights (grpu import), or give the model's folder.`,
    { part: "gguf", capability: what },
  );
}
