/** The tokenizer of a model as llama.cpp reads it: tokens, their types and scores, merges. */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { PRE_TOKENIZERS } from "../files/gguf/pre_tokenizers.ts";
import { TOKEN_TYPE } from "../files/gguf/token_types.ts";
import type { GgufValue } from "./container.ts";

/** Parts of tokenizer.json that are read here. */
interface TokenizerJson {
  readonly model: {
    readonly type?: string;
    readonly vocab: Readonly<Record<string, number>>;
    readonly merges?: readonly (string | readonly [string, string])[];
    readonly byte_fallback?: boolean;
    readonly unk_token?: string | null;
  };
  readonly added_tokens?: readonly { readonly id: number; readonly content: string; readonly special?: boolean }[];
  readonly pre_tokenizer?: unknown;
  readonly normalizer?: unknown;
  readonly post_processor?: unknown;
}

export interface VocabularyOptions {
  readonly vocabSize: number;
  readonly bosTokenId?: number | undefined;
  readonly eosTokenIds: readonly number[];
  readonly padTokenId?: number | undefined;
  readonly chatTemplate: string | undefined;
  /** tokenizer_config.json. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly file: string;
}

/** @throws UnsupportedError for a tokenizer that llama.cpp has no name for. */
export function vocabularyMetadata(json: unknown, options: VocabularyOptions): [string, GgufValue][] {
  const tokenizer = json as TokenizerJson;
  const { type, byte_fallback } = tokenizer.model;
  if (type !== "BPE") throw unsupported(`a ${type ?? "nameless"} vocabulary`, options.file);
  const vocabulary = byte_fallback ? sentencePieces(tokenizer, options) : byteLevel(tokenizer, options.file);
  const [eos] = options.eosTokenIds;
  const ids = { bos: options.bosTokenId, eos, padding: options.padTokenId };
  const named = Object.entries(ids).flatMap(([name, id]): [string, GgufValue][] =>
    id === undefined ? [] : [[`${name}_token_id`, { type: "u32", value: id }]],
  );
  const { add_bos_token: addsBos } = options.settings;
  const isAdded = typeof addsBos === "boolean" ? addsBos : addsFirst(tokenizer.post_processor);
  const entries: [string, GgufValue][] = [
    ...vocabulary,
    ...tokens(tokenizer, options),
    ...named,
    ["add_bos_token", { type: "bool", value: isAdded && ids.bos !== undefined }],
  ];
  const template: [string, GgufValue][] = options.chatTemplate
    ? [["tokenizer.chat_template", { type: "string", value: options.chatTemplate }]]
    : [];
  return [...entries.map(([key, value]): [string, GgufValue] => [`tokenizer.ggml.${key}`, value]), ...template];
}

/** Whether a post-processor puts a token before a text. */
function addsFirst(processor: unknown): boolean {
  const { type, single = [], processors = [] } = (processor ?? {}) as PostProcessor;
  return type === "TemplateProcessing" ? "SpecialToken" in (single[0] ?? {}) : processors.some(addsFirst);
}

interface PostProcessor {
  readonly type?: string;
  readonly single?: readonly object[];
  readonly processors?: readonly unknown[];
}

/** Tokens that are made of bytes, as GPT-2's are: merges are listed. */
function byteLevel({ model, pre_tokenizer }: TokenizerJson, file: string): [string, GgufValue][] {
  const written = JSON.stringify(pre_tokenizer ?? null);
  const pre = PRE_TOKENIZERS.find(({ part }) =>
    part.startsWith("{") ? written.startsWith(part) : written.includes(part),
  )?.name;
  if (pre === undefined || !written.includes('"ByteLevel"')) throw unsupported("its pre-tokenizer", file);
  return [
    ["model", { type: "string", value: "gpt2" }],
    ["pre", { type: "string", value: pre }],
    ["merges", { type: "strings", value: mergesOf(model).map((pair) => pair.join(" ")) }],
  ];
}

/** A token's score is less the rank of the merge that makes it, as SentencePiece writes it: llama.cpp merges the best score first. */
function sentencePieces({ model, normalizer }: TokenizerJson, { vocabSize }: VocabularyOptions): [string, GgufValue][] {
  const merges = mergesOf(model);
  const scores = new Array<number>(vocabSize).fill(-merges.length);
  for (const [rank, pair] of merges.entries()) {
    const id = model.vocab[pair.join("")];
    if (id !== undefined && id < vocabSize) scores[id] = Math.max(scores[id]!, -rank);
  }
  return [
    ["model", { type: "string", value: "llama" }],
    ["scores", { type: "f32s", value: scores }],
    ["add_space_prefix", { type: "bool", value: JSON.stringify(normalizer ?? null).includes('"Prepend"') }],
  ];
}

/** Older files write `a b`, newer ones `["a", "b"]`. */
function mergesOf({ merges = [] }: TokenizerJson["model"]): (readonly [string, string])[] {
  return merges.map((merge) => {
    if (typeof merge !== "string") return merge;
    const at = merge.indexOf(" ", 1);
    return [merge.slice(0, at), merge.slice(at + 1)];
  });
}

/** All ids of the embedding: those without a token are unused. */
function tokens(
  { model, added_tokens = [] }: TokenizerJson,
  { vocabSize, file }: VocabularyOptions,
): [string, GgufValue][] {
  const texts = Array.from({ length: vocabSize }, (_, id) => `[PAD${id}]`);
  const types = new Array<number>(vocabSize).fill(TOKEN_TYPE.unused);
  const put = (id: number, token: string, type: number) => {
    if (id >= vocabSize)
      throw new ConfigError(
        `Cannot export the vocabulary: the token ${JSON.stringify(token)} has the id ${id}, outside of the embedding (${vocabSize}). Use the tokenizer of the model.`,
        { file },
      );
    texts[id] = token;
    types[id] = type;
  };
  for (const [token, id] of Object.entries(model.vocab)) put(id, token, typeOf(token, model));
  for (const { id, content, special } of added_tokens)
    put(id, content, content === model.unk_token ? TOKEN_TYPE.unknown : special ? TOKEN_TYPE.control : TOKEN_TYPE.user);
  return [
    ["tokens", { type: "strings", value: texts }],
    ["token_type", { type: "i32s", value: types }],
  ];
}

function typeOf(token: string, { byte_fallback, unk_token }: TokenizerJson["model"]): number {
  if (token === unk_token) return TOKEN_TYPE.unknown;
  return byte_fallback && /^<0x[0-9A-F]{2}>$/.test(token) ? TOKEN_TYPE.byte : TOKEN_TYPE.normal;
}

function unsupported(what: string, file: string): UnsupportedError {
  return new UnsupportedError(
    `Cannot export the tokenizer of ${file} as GGUF: llama.cpp has no name for ${what}. Export safetensors (without --gguf) instead.`,
    { part: "gguf", capability: what },
  );
}
