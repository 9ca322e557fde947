/** Tokenizers with their files: Hugging Face's tokenizer.json, and two small kinds for models trained from scratch. */

import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { mergedJson } from "../../../leaves/json.ts";
import type { ChatMessage, ChatOptions, RenderedChat, Tokenizer } from "../../contract/text.ts";
import { type ChatTemplate, compileTemplate } from "./chat_template.ts";
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
  const config = readConfig(files);
  const alphabet = readAlphabet(config);
  const core = alphabet ? alphabetTokenizer(alphabet) : hubTokenizer(files, config);
  const idOf = (token: string | undefined) => (token === undefined ? undefined : core.tokenId(token));
  const eos = idOf(specialText(config.eos_token));
  const templates = readTemplates(files, config);
  return {
    ...core,
    eosTokenIds: [...new Set([...(eos === undefined ? [] : [eos]), ...(files.eosTokenIds ?? [])])],
    bosTokenId: idOf(specialText(config.bos_token)),
    padTokenId: idOf(specialText(config.pad_token)),
    chatTemplate: templates.standard?.source,
    formatChat: (messages, options = {}) => renderChat({ templates, config, messages, options }).text,
    renderChat: (messages, options = {}) => renderChat({ templates, config, messages, options }),
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

const CONFIG_FILE = "tokenizer_config.json";

/** @throws ConfigError for a tokenizer_config.json that is not an object. */
function readConfig({ config, folder }: TokenizerFiles): Record<string, unknown> {
  if (config === undefined) return {};
  if (typeof config === "object" && config !== null && !Array.isArray(config)) return config as Record<string, unknown>;
  const found = JSON.stringify(config)?.slice(0, 80);
  throw new ConfigError(`Cannot read the tokenizer: ${CONFIG_FILE} must be a JSON object (${found}).`, {
    file: within(folder, CONFIG_FILE),
  });
}

/** A template that is parsed on first use. */
interface LazyTemplate {
  readonly source: string;
  compile(): ChatTemplate;
}

/** Templates of one tokenizer. As in transformers, `tool_use` is used for conversations with tools. */
interface Templates {
  readonly standard: LazyTemplate | undefined;
  readonly toolUse?: LazyTemplate | undefined;
}

/**
 * Files give one template, or a list of named ones: `default`, `tool_use`.
 * @throws ConfigError for another form.
 */
function readTemplates(files: TokenizerFiles, config: Record<string, unknown>): Templates {
  const { chatTemplate, folder, templateFile = within(folder, "chat_template.jinja") } = files;
  if (chatTemplate !== undefined) return { standard: lazy(chatTemplate, templateFile) };
  const templates = config.chat_template ?? undefined;
  const file = within(folder, CONFIG_FILE);
  if (templates === undefined) return { standard: undefined };
  if (typeof templates === "string") return { standard: lazy(templates, file) };
  const named = Array.isArray(templates)
    ? new Map(templates.map((entry) => [entry?.name, entry?.template]))
    : new Map();
  if (named.size === 0 || [...named.values()].some((source) => typeof source !== "string"))
    throw new ConfigError("Cannot read the chat template: it must be a text, or a list of {name, template}.", {
      file,
      path: "chat_template",
    });
  const find = (name: string) => (named.has(name) ? lazy(named.get(name), file) : undefined);
  return { standard: find("default"), toolUse: find("tool_use") };
}

function lazy(source: string, file: string | undefined): LazyTemplate {
  let compiled: ChatTemplate | undefined;
  return {
    source,
    compile() {
      compiled ??= compileTemplate(source, { file });
      return compiled;
    },
  };
}

function within(folder: string | undefined, file: string): string | undefined {
  return folder && `${folder}/${file}`;
}

function renderChat(chat: {
  templates: Templates;
  config: Record<string, unknown>;
  messages: readonly ChatMessage[];
  options: ChatOptions;
}): RenderedChat {
  const { standard, toolUse } = chat.templates;
  const template = (chat.options.tools && toolUse) ?? standard;
  if (template === undefined) {
    const message =
      "Cannot format a conversation: the model has no chat template. Give it prompts of plain text, or set model.chat_template.";
    throw new UnsupportedError(message, { part: "tokenizer", capability: "chat" });
  }
  const special = Object.entries(chat.config)
    .map(([key, value]) => [key, specialText(value)] as const)
    .filter(([key, text]) => key.endsWith("_token") && text !== undefined);
  const values = {
    ...Object.fromEntries(special),
    messages: chat.messages,
    // Absent values are None in transformers, and templates test for that.
    tools: chat.options.tools ?? null,
    documents: null,
    add_generation_prompt: chat.options.addGenerationPrompt ?? true,
  };
  return template.compile()(mergedJson(values, chat.options.variables ?? {}));
}

/** Template of a model without roles: each message's text and the end token. */
export const PLAIN_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}";

/**
 * The tokenizer with another chat template, which {@link TextTokenizer.files} includes.
 * @param file of the template, named in its errors
 */
export function withChatTemplate(tokenizer: TextTokenizer, chatTemplate: string, file?: string): TextTokenizer {
  const files = tokenizer.files();
  return createTokenizer({
    tokenizer: JSON.parse(files["tokenizer.json"]!),
    config: JSON.parse(files["tokenizer_config.json"]!),
    chatTemplate,
    templateFile: file,
    eosTokenIds: tokenizer.eosTokenIds,
  });
}
