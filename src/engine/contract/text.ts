/** Text at the edge of the system: chat messages in OpenAI's form, and the tokenizer that turns text into tokens. */

/** A tool call of an assistant in OpenAI's chat API; `arguments` is JSON text or the parsed value. */
export interface ToolCall {
  readonly id?: string;
  readonly type?: string;
  readonly function: { readonly name: string; readonly arguments: unknown };
}

/** One message of a conversation in OpenAI's chat API. */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
  readonly [key: string]: unknown;
}

/** How a conversation is rendered as text. */
export interface ChatOptions {
  /** Ends the text where the assistant's reply starts. Default true. */
  readonly addGenerationPrompt?: boolean;
  /** JSON schemas of functions, as OpenAI's `tools`. */
  readonly tools?: readonly unknown[] | undefined;
  /** Further variables of the template: `enable_thinking`, ... */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
}

/** A conversation as text. */
export interface RenderedChat {
  readonly text: string;
  /** Places [start, end) of the template's `{% generation %}` blocks, in order: what the assistant wrote. */
  readonly generated: readonly (readonly [start: number, end: number])[];
}

/** How a text becomes tokens. */
export interface EncodeTextOptions {
  /** Puts the special tokens of the tokenizer around it, such as a first `<s>`. Default true. */
  readonly addSpecialTokens?: boolean;
  /** True for a text that continues another: the mark of a first word (SentencePiece's `▁`) is not put before it. */
  readonly continues?: boolean;
}

/** Text to token ids and back, and conversations to text. */
export interface Tokenizer {
  readonly vocabSize: number;
  readonly eosTokenIds: readonly number[];
  /** Jinja source. Absent where the model has none. */
  readonly chatTemplate?: string | undefined;
  /**
   * The conversation in the form that the model was trained on, special tokens included: encode it with
   * `addSpecialTokens: false`. Absent where the tokenizer cannot format conversations.
   * @throws UnsupportedError when the model has no chat template; ConfigError when the template rejects the messages.
   */
  formatChat?(messages: readonly ChatMessage[], options?: ChatOptions): string;
  /** Formats like `formatChat`, with the places that the assistant wrote. */
  renderChat?(messages: readonly ChatMessage[], options?: ChatOptions): RenderedChat;
  encode(text: string, options?: EncodeTextOptions): number[];
  decode(ids: readonly number[], options?: { readonly skipSpecialTokens?: boolean }): string;
  /**
   * The bytes that a token adds to a text, UTF-8. `undefined` for special tokens and unused ids. Absent where tokens have no
   * bytes of their own, because their text depends on their neighbours.
   */
  readonly tokenBytes?: ((id: number) => Uint8Array | undefined) | undefined;
}
