/** The messages between this process and the thread that reads prompts. */
import type { ThreadChat, ThreadText } from "../../../chat/text_work.ts";

export interface TextWorkerData {
  /** Texts by the names of the files. */
  readonly files: Readonly<Record<string, string>>;
  readonly eosTokenIds: readonly number[];
}

export type TextQuestion = { readonly chat: ThreadChat } | { readonly encode: ThreadText };

export interface TextFailure {
  readonly name: string;
  /** Message with its place, for a ConfigError. */
  readonly message: string;
  readonly stack?: string | undefined;
  readonly part?: string;
  readonly capability?: string;
  /** The file that a ConfigError names. */
  readonly file?: string;
}

export type TextAnswer =
  | { readonly begun: true }
  | { readonly value: string | Uint32Array }
  | { readonly failure: TextFailure };
