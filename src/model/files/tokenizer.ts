/** Text to tokens and back: Hugging Face's tokenizer.json, and two small ones for models trained from scratch. */
import { Tokenizer as HubTokenizer } from "@huggingface/tokenizers";
import type { ChatMessage, ChatOptions, Tokenizer } from "../../contract/text.ts";
import { ConfigError, UnsupportedError } from "../../errors.ts";
import { compileTemplate } from "./chat_template.ts";
import { type AlphabetSpec, alphabetFiles, alphabetTokenizer, readAlphabet } from "./tokenizer_alphabet.ts";

/** A {@link Tokenizer} that came from a model folder and can be saved in one. */
export interface TextTokenizer extends Tokenizer {
  readonly bosTokenId?: number | undefined;
  readonly padTokenId?: number | undefined;
  formatChat(messages: readonly ChatMessage[], options?: ChatOptions): string;
  /** Id of a token by its exact text. */
  tokenId(token: string): number | undefined;
  /** Text of each file by name, for a model folder. */
  files(): Record<string, string>;
}

/** Files of a model folder, parsed where they are JSON. */
export interface TokenizerFiles {
  readonly tokenizer: unknown;
  readonly config?: unknown;
  /** `chat_template.jinja`; else the template inside `config`. */
  readonly chatTemplate?: string | undefined;
  /** End tokens that config.json or generation_config.json name, besides the tokenizer's own. */
  readonly eosTokenIds?: readonly number[];
  /** For messages. */
  readonly name?: string;
}

/**
 * A tokenizer from the files of a model folder. `encode` adds the special tokens its post-processor says (a first
 * `<s>`, say) unless told not to; `decode` leaves special tokens out unless told not to.
 * @throws ConfigError when tokenizer.json is not one that can be read.
 */
export function createTokenizer(files: TokenizerFiles): TextTokenizer {
  const config = (files.config ?? {}) as Record<string, unknown>;
  const alphabet = readAlphabet(config);
  const core = alphabet ? alphabetTokenizer(alphabet) : hubTokenizer(files, config);
  const idOf = (token: string | undefined) => (token === undefined ? undefined : core.tokenId(token));
  const eos = idOf(specialText(config.eos_token));
  const chatTemplate = files.chatTemplate ?? defaultTemplate(config.chat_template);
  const template = chatTemplate === undefined ? undefined : compileOnce(chatTemplate);
  return {
    ...core,
    eosTokenIds: [...new Set([...(eos === undefined ? [] : [eos]), ...(files.eosTokenIds ?? [])])],
    bosTokenId: idOf(specialText(config.bos_token)),
    padTokenId: idOf(specialText(config.pad_token)),
    chatTemplate,
    formatChat: (messages, options = {}) => formatChat({ template, config, messages, options }),
    files: () => ({
      "tokenizer.json": JSON.stringify(files.tokenizer, null, 1),
      "tokenizer_config.json": JSON.stringify(config, null, 1),
      ...(files.chatTemplate === undefined ? {} : { "chat_template.jinja": files.chatTemplate }),
    }),
  };
}

/**
 * One token per character of `alphabet`, in order, then `<pad>`, `<eos>` and, when wanted, `<bos>`. Its files are a
 * valid tokenizer.json. `encode` throws ConfigError at a character outside the alphabet.
 */
export function characterTokenizer(alphabet: string, options: { bos?: boolean } = {}): TextTokenizer {
  return fromSpec({ kind: "character", alphabet: [...alphabet], bos: options.bos ?? false });
}

/** One token per UTF-8 byte (ids 0-255), then `<pad>` 256, `<eos>` 257 and, when wanted, `<bos>` 258. */
export function byteTokenizer(options: { bos?: boolean } = {}): TextTokenizer {
  return fromSpec({ kind: "byte", alphabet: [], bos: options.bos ?? false });
}

function fromSpec(spec: AlphabetSpec): TextTokenizer {
  return createTokenizer(alphabetFiles(spec));
}

/** What the two kinds of tokenizer must do themselves. */
export type TokenizerCore = Pick<TextTokenizer, "vocabSize" | "encode" | "decode" | "tokenId">;

function hubTokenizer(files: TokenizerFiles, config: Record<string, unknown>): TokenizerCore {
  const name = files.name ?? "tokenizer.json";
  const hub = buildHub(files.tokenizer, { config, name });
  const clean_up_tokenization_spaces = cleansUp(files.tokenizer, config);
  let largest = -1;
  for (const id of hub.get_vocab(true).values()) if (id > largest) largest = id;
  return {
    vocabSize: largest + 1,
    encode: (text, { addSpecialTokens = true } = {}) =>
      hub.encode(text, { add_special_tokens: addSpecialTokens }).ids,
    decode: (ids, { skipSpecialTokens = true } = {}) =>
      ids.length === 0
        ? ""
        : hub.decode([...ids], { skip_special_tokens: skipSpecialTokens, clean_up_tokenization_spaces }),
    tokenId: (token) => hub.token_to_id(token),
  };
}

/**
 * Whether decoding drops spaces before punctuation (" .5" becomes ".5"). Transformers' rule: absent means no, and a BPE
 * tokenizer, whose tokens hold their own spaces, never does; `tokenizers` itself knows no such step.
 * @see transformers 5.23, `TokenizersBackend._decode`
 */
function cleansUp(json: unknown, config: Record<string, unknown>): boolean {
  const { type, merges } = (json as { model?: { type?: unknown; merges?: unknown } } | null)?.model ?? {};
  const isBpe = type === "BPE" || (type === undefined && merges !== undefined);
  const isForced = config.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output === true;
  return config.clean_up_tokenization_spaces === true && (!isBpe || isForced);
}

/** No vocabulary is larger; lists are made as long as the largest id. */
const MOST_IDS = 2 ** 24;

function checkIds(json: unknown, file: string): void {
  const { model, added_tokens } = (json ?? {}) as { model?: { vocab?: unknown }; added_tokens?: unknown };
  const { vocab } = model ?? {};
  const named =
    typeof vocab === "object" && vocab !== null && !Array.isArray(vocab) ? Object.values(vocab) : [];
  const added = Array.isArray(added_tokens) ? added_tokens.map((token) => token?.id) : [];
  const isId = (id: unknown) => Number.isInteger(id) && (id as number) >= 0 && (id as number) < MOST_IDS;
  for (const id of [...named, ...added])
    if (!isId(id))
      throw new ConfigError(
        `Cannot read the tokenizer: ids must be whole numbers in [0, ${MOST_IDS}): ${JSON.stringify(id)?.slice(0, 80)}`,
        { file },
      );
}

function buildHub(json: unknown, at: { config: object; name: string }): HubTokenizer {
  checkIds(json, at.name);
  try {
    return new HubTokenizer(json as object, at.config);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`Cannot read the tokenizer: ${reason}`, { file: at.name });
  }
}

/** A special token is written as text or as {content, ...}. */
function specialText(token: unknown): string | undefined {
  if (typeof token === "string") return token;
  const content = (token as { content?: unknown } | null | undefined)?.content;
  return typeof content === "string" ? content : undefined;
}

/** A template is one text, or a list of named ones of which `default` counts. */
function defaultTemplate(template: unknown): string | undefined {
  if (typeof template === "string") return template;
  if (!Array.isArray(template)) return undefined;
  return template.find((entry) => entry?.name === "default")?.template;
}

/** The template, parsed when it is first needed. @throws ConfigError when it is no Jinja that can be read. */
function compileOnce(source: string): () => ReturnType<typeof compileTemplate> {
  let template: ReturnType<typeof compileTemplate> | undefined;
  return () => {
    template ??= compileTemplate(source);
    return template;
  };
}

function formatChat(it: {
  template: ReturnType<typeof compileOnce> | undefined;
  config: Record<string, unknown>;
  messages: readonly ChatMessage[];
  options: ChatOptions;
}): string {
  const template = it.template?.();
  if (template === undefined) {
    const message =
      "Cannot format a conversation as the model has no chat template: give it prompts of plain text, or set model.chat_template";
    throw new UnsupportedError(message, { part: "tokenizer", capability: "chat" });
  }
  const special = Object.entries(it.config)
    .map(([key, value]) => [key, specialText(value)] as const)
    .filter(([key, text]) => key.endsWith("_token") && text !== undefined);
  return template({
    ...Object.fromEntries(special),
    messages: it.messages,
    tools: it.options.tools,
    add_generation_prompt: it.options.addGenerationPrompt ?? true,
    ...it.options.variables,
  });
}

/** Of a model that was never taught roles: each message's text and the end token, nothing else. */
export const PLAIN_CHAT_TEMPLATE =
  "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}";

/** The tokenizer with another chat template, which its files then hold. */
export function withChatTemplate(tokenizer: TextTokenizer, chatTemplate: string): TextTokenizer {
  const files = tokenizer.files();
  return createTokenizer({
    tokenizer: JSON.parse(files["tokenizer.json"]!),
    config: JSON.parse(files["tokenizer_config.json"]!),
    chatTemplate,
    eosTokenIds: tokenizer.eosTokenIds,
  });
}
