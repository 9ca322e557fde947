/** Interface of each kind of tokenizer, and the files that it is built from. */
import type { Tokenizer } from "../../contract/text.ts";

/** The text codec of one kind of tokenizer. */
export interface TokenizerCore extends Pick<Tokenizer, "vocabSize" | "encode" | "decode" | "tokenBytes"> {
  /** Id of a token by its exact text. */
  tokenId(token: string): number | undefined;
}

/** Files of a model folder; JSON files parsed. */
export interface TokenizerFiles {
  readonly tokenizer: unknown;
  readonly config?: unknown;
  /** `chat_template.jinja`. Default: the template inside `config`. */
  readonly chatTemplate?: string | undefined;
  /** File from which `chatTemplate` was read, for messages. */
  readonly templateFile?: string | undefined;
  /** End tokens of config.json or generation_config.json, in addition to the tokenizer's own. */
  readonly eosTokenIds?: readonly number[];
  /** Folder of the files, for messages. */
  readonly folder?: string;
}
