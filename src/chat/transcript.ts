/**
 * The tokens of a conversation over several turns. A model's reply is never tokenised again: later prompts contain its
 * sampled tokens, so that the turns of an episode merge into one training row where the chat template allows it.
 *
 * A later prompt is rendered with a mark instead of each known reply, then split at the marks. If the text before a mark
 * starts with the prompt of that reply, the tokens of prompt and reply are reused. If the template rewrites history (drops
 * reasoning, for example), the reply's tokens are placed between newly encoded pieces.
 */
import type { ChatMessage, ChatOptions, Tokenizer } from "../contract/text.ts";
import { readMessages } from "../data/messages.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import { splitReasoning } from "./reply.ts";

/** Tokenizer of a {@link Transcript}, and what it keeps of earlier replies. */
export interface TranscriptOptions {
  readonly tokenizer: Tokenizer;
  /** Keeps the reasoning of earlier replies in later prompts, for any template. Default false. */
  readonly accumulateReasoning?: boolean | undefined;
}

/** A conversation as text and tokens, in which earlier replies keep the tokens they were sampled as. */
export interface RenderedPrompt {
  /** In the form that templates read. */
  readonly messages: readonly ChatMessage[];
  readonly ids: readonly number[];
  /** The rendered text, with marks for known replies. For {@link Transcript.record}. */
  readonly text: string;
  /** The options of the rendering, as JSON. */
  readonly options: string;
}

interface Reply {
  readonly prompt: RenderedPrompt;
  readonly responseIds: readonly number[];
  /** The response's tokens without its reasoning. */
  readonly keptIds: readonly number[];
  readonly reasoning?: string | undefined;
}

const MARK = /\uE000(\d+)\uE001/;
const contentMark = (index: number) => `\uE000${index}\uE001`;
const reasoningMark = (index: number) => `\uE002${index}\uE001`;

/** Keeps the tokens of a conversation, so that later turns continue what was sampled. */
export class Transcript {
  private readonly tokenizer: Tokenizer;
  private readonly accumulates: boolean;
  private readonly replies = new Map<string, Reply>();

  constructor({ tokenizer, accumulateReasoning = false }: TranscriptOptions) {
    this.tokenizer = tokenizer;
    this.accumulates = accumulateReasoning;
  }

  /**
   * The prompt of a conversation.
   * @throws {UnsupportedError} when the model has no chat template; {ConfigError} for malformed messages, and for those
   * that the template refuses
   */
  prompt(given: readonly ChatMessage[], options: ChatOptions = {}): RenderedPrompt {
    const messages = readMessages(given);
    const known = this.knownReplies(messages);
    const marked = known.size > 0 ? this.renderMarked(messages, { known, options }) : undefined;
    if (marked) return marked;
    const text = this.format(messages, options);
    return { messages, text, ids: this.encode(text), options: JSON.stringify(options) };
  }

  /** Remembers a reply. `message` is the one that the caller receives, and sends back in its next request. */
  record(prompt: RenderedPrompt, it: { responseIds: readonly number[]; message: ChatMessage }): void {
    const [message] = readMessages([it.message]);
    const { reasoning } = splitReasoning(this.tokenizer.decode(it.responseIds));
    this.replies.set(historyKey([...prompt.messages, message!]), {
      prompt,
      responseIds: it.responseIds,
      keptIds: reasoning === undefined ? it.responseIds : this.withoutReasoning(it.responseIds),
      reasoning,
    });
  }

  private knownReplies(messages: readonly ChatMessage[]): Map<number, Reply> {
    const known = new Map<number, Reply>();
    messages.forEach((message, i) => {
      const reply = message.role === "assistant" && this.replies.get(historyKey(messages.slice(0, i + 1)));
      if (reply) known.set(i, reply);
    });
    return known;
  }

  /** `undefined` unless the template shows each mark once, in order. */
  private renderMarked(
    messages: readonly ChatMessage[],
    { known, options }: { known: ReadonlyMap<number, Reply>; options: ChatOptions },
  ): RenderedPrompt | undefined {
    const marked = messages.map((message, i): ChatMessage => {
      const reply = known.get(i);
      if (!reply) return message;
      const { reasoning_content, tool_calls, ...others } = message;
      const reasoning = reply.reasoning !== undefined && { reasoning_content: reasoningMark(i) };
      return { ...others, content: contentMark(i), ...reasoning };
    });
    const text = attempt(() => this.format(marked, options));
    const parts = text?.split(MARK) ?? [];
    const shown = parts.filter((_, i) => i % 2 === 1).map(Number);
    if (text === undefined || `${shown}` !== `${[...known.keys()]}`) return undefined;
    const written = JSON.stringify(options);
    return { messages, text, ids: this.splice(parts, { known, options: written }), options: written };
  }

  /** `parts` alternates between pieces of text and indexes of replies. */
  private splice(
    parts: readonly string[],
    { known, options }: { known: ReadonlyMap<number, Reply>; options: string },
  ): number[] {
    let ids: number[] = [];
    let before = "";
    let previous: Reply | undefined;
    for (let i = 0; i < parts.length; i += 2) {
      const piece = parts[i]!.replace(/\uE002(\d+)\uE001/g, (_, at) => known.get(Number(at))?.reasoning ?? "");
      const reply = known.get(Number(parts[i + 1]));
      before += parts[i];
      if (!reply) {
        ids.push(...this.continuation(piece, previous));
      } else if (this.isContinued(before, { reply, index: Number(parts[i + 1]), options })) {
        ids = [...reply.prompt.ids, ...reply.responseIds];
      } else {
        ids.push(...this.continuation(piece, previous), ...reply.keptIds);
      }
      if (reply) before += contentMark(Number(parts[i + 1]));
      previous = reply;
    }
    return ids;
  }

  /** Whether the prompt continues directly after the reply's own prompt. */
  private isContinued(
    before: string,
    { reply, index, options }: { reply: Reply; index: number; options: string },
  ): boolean {
    const { prompt } = reply;
    if (this.accumulates && prompt.options === options) return true;
    if (!before.startsWith(prompt.text)) return false;
    const between = before.slice(prompt.text.length);
    return reply.reasoning === undefined ? between === "" : between.includes(reasoningMark(index));
  }

  /** The tokens of a piece after a reply. Drops its end token if the reply contains it already. */
  private continuation(piece: string, previous: Reply | undefined): number[] {
    const ids = this.encode(piece);
    const ends = (id: number | undefined) => id !== undefined && this.tokenizer.eosTokenIds.includes(id);
    return ends(previous?.responseIds.at(-1)) && ends(ids[0]) ? ids.slice(1) : ids;
  }

  private withoutReasoning(responseIds: readonly number[]): readonly number[] {
    const { tokenizer } = this;
    const { rest } = splitReasoning(tokenizer.decode(responseIds));
    // The text from token k on becomes shorter with k.
    let [low, high] = [0, responseIds.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tokenizer.decode(responseIds.slice(middle)).length <= rest.length) high = middle;
      else low = middle + 1;
    }
    const kept = responseIds.slice(low);
    if (tokenizer.decode(kept) === rest) return kept;
    const end = responseIds.slice(-1).filter((id) => tokenizer.eosTokenIds.includes(id));
    return [...this.encode(rest), ...end];
  }

  private format(messages: readonly ChatMessage[], options: ChatOptions): string {
    if (this.tokenizer.formatChat) return this.tokenizer.formatChat(messages, options);
    throw new UnsupportedError(
      "Cannot format a conversation: the tokenizer has no chat template. Set model.chat_template.",
      {
        part: "tokenizer",
        capability: "chat",
      },
    );
  }

  private encode(text: string): number[] {
    return this.tokenizer.encode(text, { addSpecialTokens: false });
  }
}

/** Identifies a reply by its text, its tool calls and all earlier messages. */
function historyKey(messages: readonly ChatMessage[]): string {
  return JSON.stringify(
    messages.map(({ role, content, tool_calls = [] }) => [
      role,
      content,
      tool_calls.map((call) => [call.function.name, call.function.arguments]),
    ]),
  );
}

/** `undefined` when the template refuses, as some do when a mark replaces tool calls. */
function attempt<T>(run: () => T): T | undefined {
  try {
    return run();
  } catch (error) {
    if (error instanceof ConfigError) return undefined;
    throw error;
  }
}
