/** Tokenizers with their files: Hugging Face's tokenizer.json, and two small kinds for models trained from scratch. */
import type { ChatMessage, ChatOptions, Tokenizer } from "../../contract/text.ts";
import { UnsupportedError } from "../../errors.ts";
import { compileTemplate } from "./chat_template.ts";
import { type AlphabetSpec, alphabetFiles, alphabetTokenizer, readAlphabet } from "./tokenizer_alphabet.ts";
import type { TokenizerCore, TokenizerFiles } from "./tokenizer_core.ts";
import { hubTokenizer } from "./tokenizer_hub.ts";

/** A {@link Tokenizer} that can be saved in a model folder. */
export interface TextTokenizer extends Tokenizer, TokenizerCore {
  readonly bosTokenId?: number | undefined;
  readonly padTokenId?: number | undefined;
  formatChat(messages: readonly ChatMessage[], options?: ChatOptions): string;
  /** Text of each file by name, for a model folder. */
  files(): Record<string, string>;
}

/**
 * A tokenizer from the files of a model folder. By default `encode` adds the special tokens of the post-processor (for
 * example a first `<s>`), and `decode` leaves special tokens out.
 * @throws ConfigError for a tokenizer.json that cannot be read.
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
 * One token per character of `alphabet`, in order, then `<pad>`, `<eos>` and, with `bos`, `<bos>`. Its files are a
 * valid tokenizer.json. `encode` throws ConfigError for a character outside the alphabet.
 */
export function characterTokenizer(alphabet: string, options: { bos?: boolean } = {}): TextTokenizer {
  return fromSpec({ kind: "character", alphabet: [...alphabet], bos: options.bos ?? false });
}

/** One token per UTF-8 byte (ids 0-255), then `<pad>` 256, `<eos>` 257 and, with `bos`, `<bos>` 258. */
export function byteTokenizer(options: { bos?: boolean } = {}): TextTokenizer {
  return fromSpec({ kind: "byte", alphabet: [], bos: options.bos ?? false });
}

function fromSpec(spec: AlphabetSpec): TextTokenizer {
  return createTokenizer(alphabetFiles(spec));
}

/** Files give a special token as text or as {content, ...}. */
function specialText(token: unknown): string | undefined {
  if (typeof token === "string") return token;
  const content = (token as { content?: unknown } | null | undefined)?.content;
  return typeof content === "string" ? content : undefined;
}

/** Files give one template, or a list of named ones, of which `default` is used. */
function defaultTemplate(template: unknown): string | undefined {
  if (typeof template === "string") return template;
  if (!Array.isArray(template)) return undefined;
  return template.find((entry) => entry?.name === "default")?.template;
}

/** Parses the template on first use. @throws ConfigError for invalid Jinja. */
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
      "Cannot format a conversation: the model has no chat template. Give it prompts of plain text, or set model.chat_template.";
    throw new UnsupportedError(message, { part: "tokenizer", capability: "chat" });
  }
  const special = Object.entries(it.config)
    .map(([key, value]) => [key, specialText(value)] as const)
    .filter(([key, text]) => key.endsWith("_token") && text !== undefined);
  return template({
    ...Object.fromEntries(special),
    messages: it.messages,
    // Absent values are None in transformers, and templates test for that.
    tools: it.options.tools ?? null,
    documents: null,
    add_generation_prompt: it.options.addGenerationPrompt ?? true,
    ...it.options.variables,
  }).text;
}

/** For a model without roles: each message's text and the end token. */
export const PLAIN_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}";

/** The tokenizer with another chat template, which {@link TextTokenizer.files} includes. */
export function withChatTemplate(tokenizer: TextTokenizer, chatTemplate: string): TextTokenizer {
  const files = tokenizer.files();
  return createTokenizer({
    tokenizer: JSON.parse(files["tokenizer.json"]!),
    config: JSON.parse(files["tokenizer_config.json"]!),
    chatTemplate,
    eosTokenIds: tokenizer.eosTokenIds,
  });
}
