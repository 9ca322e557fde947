/**
 * The tokens of a conversation over several turns. A model's reply is never tokenised again: later prompts contain its
 * sampled tokens, so that the turns of an episode merge into one training row where the chat template allows it.
 *
 * A later prompt is rendered with marks around each known reply, then split at the marks. If the text before a mark
 * starts with the prompt of that reply, the tokens of prompt and reply are reused. If the template rewrites history (drops
 * reasoning, for example), the reply's tokens are placed between newly encoded pieces.
 */

import type { ChatMessage, ChatOptions, Tokenizer } from "../engine/contract/text.ts";
import type { PromptOrigin } from "../engine/contract/trace.ts";
import { ConfigError, UnsupportedError } from "../leaves/errors.ts";
import { stringifyJson } from "../leaves/json.ts";
import { HistoryTree, messageKey } from "./history.ts";
import { readMessages } from "./messages.ts";
import { type PrefixNode, PrefixTree, unitsOf } from "./prefix_tree.ts";
import { splitReasoning } from "./reply.ts";
import { endsInReasoning } from "./reply_reader.ts";
import { checkRoles } from "./roles.ts";

/** Tokenizer of a {@link Transcript}, and what it keeps of earlier replies. */
export interface TranscriptOptions {
  readonly tokenizer: Tokenizer;
  /** Keeps the reasoning of earlier replies in later prompts, for any template. Default false. */
  readonly accumulateReasoning?: boolean | undefined;
}

/** A conversation as text and tokens, in which earlier replies keep the tokens they were sampled as. */
export interface RenderedPrompt {
  /** Messages in the form that templates read. */
  readonly messages: readonly ChatMessage[];
  readonly ids: readonly number[];
  /** The rendered text, with marks for known replies. For {@link Transcript.record}. */
  readonly text: string;
  /** The options of the rendering, as JSON. */
  readonly options: string;
  readonly origin: Exclude<PromptOrigin, "tokens">;
}

/**
 * Parts of a reply that a later prompt needs. Its prompt shares its beginning with those of other turns, so that it is
 * not kept whole.
 */
interface Reply {
  /** The place of its prompt's text. */
  readonly text: PrefixNode<undefined>;
  /** The place of its tokens: prompt and response. */
  readonly whole: PrefixNode<unknown>;
  /** The options of its prompt's rendering. */
  readonly options: string;
  readonly responseIds: readonly number[];
  /** The response's tokens without its reasoning. */
  readonly keptIds: readonly number[];
  readonly reasoning?: string | undefined;
}

const MARK = /\uE000(\d+)\uE003([\s\S]*?)\uE001/;
/** Marks on both sides: a template that cuts or rewrites replies breaks them, one that trims does not. */
const marked = (content: string, index: number) => `\uE000${index}\uE003${content}\uE001`;
const reasoningMark = (index: number) => `\uE002${index}\uE001`;

/** Keeps the tokens of a conversation, so that later turns continue what was sampled. */
export class Transcript {
  private readonly tokenizer: Tokenizer;
  private readonly accumulates: boolean;
  private readonly histories = new HistoryTree();
  private readonly sequences: PrefixTree<unknown>;
  private readonly texts = new PrefixTree();
  /** Equal options are kept once: they contain the tools. */
  private readonly written = new Map<string, string>();
  /** Replies by the node of the conversation that ends with them. */
  private readonly replies = new Map<number, Reply>();
  /** Conversations that were replied to. */
  private readonly answered = new Set<number>();
  /** The replies as messages, whatever stood before them. */
  private readonly replyKeys = new Set<string>();
  /** Conversations that end with an assistant's message of the caller's own, such as an example. */
  private readonly callers = new Set<number>();

  /** @param sequences holds the tokens of prompts and replies; one that the caller fills as well saves memory */
  constructor({ tokenizer, accumulateReasoning = false }: TranscriptOptions, sequences = new PrefixTree<unknown>()) {
    this.tokenizer = tokenizer;
    this.accumulates = accumulateReasoning;
    this.sequences = sequences;
  }

  /**
   * The prompt of a conversation.
   * @throws {UnsupportedError} when the model has no chat template; {ConfigError} for malformed messages, for roles that
   * nobody knows, and for messages that the template refuses
   */
  prompt(newMessages: readonly ChatMessage[], options: ChatOptions = {}): RenderedPrompt {
    const messages = readMessages(newMessages);
    checkRoles(messages, this.tokenizer.chatTemplate ?? "");
    const nodes = this.histories.find(messages);
    const replies = this.knownReplies(nodes);
    const isEdited = this.isEdited(messages, nodes);
    const rendered = replies.size > 0 ? this.renderMarked(messages, { replies, options }) : undefined;
    if (rendered) return isEdited ? { ...rendered, origin: "diverged" } : rendered;
    const text = this.format(messages, options);
    const origin = isEdited || replies.size > 0 ? "diverged" : "rendered";
    return { messages, text, ids: this.encode(text), options: stringifyJson(options), origin };
  }

  /**
   * Remembers a reply. `message` is the one that the caller receives, and sends back in its next request. Without tokens, a
   * prompt that contains it counts as diverged.
   */
  record(prompt: RenderedPrompt, reply: { responseIds?: readonly number[]; message: ChatMessage }): void {
    const [message] = readMessages([reply.message]);
    this.answered.add(this.histories.add(prompt.messages));
    if (prompt.origin === "rendered") this.rememberCallers(prompt.messages);
    this.replyKeys.add(messageKey(message!));
    if (reply.responseIds)
      this.replies.set(this.histories.add([...prompt.messages, message!]), this.reply(prompt, reply.responseIds));
  }

  private reply(prompt: RenderedPrompt, responseIds: readonly number[]): Reply {
    const { reasoning } = splitReasoning(this.tokenizer.decode(responseIds), endsInReasoning(prompt.text));
    const keptIds = reasoning === undefined ? responseIds : this.withoutReasoning(responseIds);
    const text = this.texts.add(unitsOf(prompt.text));
    const whole = this.sequences.add([...prompt.ids, ...responseIds]);
    return { text, whole, options: this.once(prompt.options), responseIds, keptIds, reasoning };
  }

  private once(options: string): string {
    const written = this.written.get(options);
    if (written === undefined) this.written.set(options, options);
    return written ?? options;
  }

  private rememberCallers(messages: readonly ChatMessage[]): void {
    const nodes = this.histories.find(messages);
    messages.forEach(({ role }, i) => {
      if (role === "assistant") this.callers.add(nodes[i]!);
    });
  }

  /** Replies among the messages, by place. */
  private knownReplies(nodes: readonly (number | undefined)[]): Map<number, Reply> {
    const replies = new Map<number, Reply>();
    nodes.forEach((node, i) => {
      const reply = node !== undefined && this.replies.get(node);
      if (reply) replies.set(i, reply);
    });
    return replies;
  }

  /**
   * Whether a message replaces a reply, or is a reply whose earlier messages were changed. What stands before the last
   * known reply was in that reply's own prompt.
   */
  private isEdited(messages: readonly ChatMessage[], nodes: readonly (number | undefined)[]): boolean {
    const last = nodes.findLastIndex((node) => node !== undefined && this.replies.has(node));
    return messages.some((message, i) => {
      if (i <= last || message.role !== "assistant" || this.callers.has(nodes[i] ?? -1)) return false;
      return this.answered.has(nodes[i - 1] ?? -1) || this.replyKeys.has(messageKey(message));
    });
  }

  /** `undefined` unless the template shows each marked reply once, in order and unchanged. */
  private renderMarked(
    messages: readonly ChatMessage[],
    { replies, options }: { replies: ReadonlyMap<number, Reply>; options: ChatOptions },
  ): RenderedPrompt | undefined {
    const withMarks = messages.map((message, i): ChatMessage => {
      const reply = replies.get(i);
      if (!reply) return message;
      const { reasoning_content, tool_calls, ...others } = message;
      const reasoning = reply.reasoning !== undefined && { reasoning_content: reasoningMark(i) };
      return { ...others, content: marked(message.content, i), ...reasoning };
    });
    const text = attempt(() => this.format(withMarks, options));
    if (text === undefined) return undefined;
    const parts = text.split(MARK);
    const shown = parts.flatMap((part, i) => (i % 3 === 1 ? [marked(parts[i + 1]!, Number(part))] : []));
    if (
      !areEqual(
        shown,
        [...replies.keys()].map((i) => marked(messages[i]!.content, i)),
      )
    )
      return undefined;
    const written = stringifyJson(options);
    const ids = this.splice(parts, { replies, options: written });
    const { whole } = [...replies.values()].at(-1)!;
    const origin = this.sequences.pathOf(ids).has(whole) ? "continued" : "spliced";
    return { messages, text, ids, options: written, origin };
  }

  /** `parts` holds pieces of text, each followed by the index and the content of a reply. */
  private splice(
    parts: readonly string[],
    { replies, options }: { replies: ReadonlyMap<number, Reply>; options: string },
  ): number[] {
    const { text, marks } = marksOf(parts, replies);
    const path = this.texts.pathOf(unitsOf(text));
    // The last reply that continues its own prompt brings everything before it.
    const from = marks.findLastIndex((mark) => this.isContinued(mark, { text, path, options }));
    let previous = marks[from]?.reply;
    const ids = previous?.whole.sequence() ?? [];
    for (let i = from + 1; i <= marks.length; i++) {
      const piece = parts[3 * i]!.replace(/\uE002(\d+)\uE001/g, (_, at) => replies.get(Number(at))?.reasoning ?? "");
      const reply = marks[i]?.reply;
      for (const id of this.continuation(piece, previous)) ids.push(id);
      for (const id of reply?.keptIds ?? []) ids.push(id);
      previous = reply;
    }
    return ids;
  }

  /** Whether the prompt continues directly after the reply's own prompt. */
  private isContinued(
    { reply, index, at }: Mark,
    { text, path, options }: { text: string; path: ReadonlySet<PrefixNode<undefined>>; options: string },
  ): boolean {
    if (this.accumulates && reply.options === options) return true;
    if (reply.text.length > at || !path.has(reply.text)) return false;
    const between = text.slice(reply.text.length, at);
    return reply.reasoning === undefined ? between === "" : between.includes(reasoningMark(index));
  }

  /** The tokens of a piece after a reply. Drops its end token if the reply contains it already. */
  private continuation(piece: string, previous: Reply | undefined): number[] {
    const ids = this.encode(piece, previous !== undefined);
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
    return [...this.encode(rest, true), ...end];
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

  private encode(text: string, continues = false): number[] {
    return this.tokenizer.encode(text, { addSpecialTokens: false, continues });
  }
}

/** A known reply in a rendered text. */
interface Mark {
  readonly reply: Reply;
  readonly index: number;
  /** Start of the mark in the text. */
  readonly at: number;
}

/** The text up to the last mark with the marks in it; see {@link Transcript} for `parts`. */
function marksOf(parts: readonly string[], replies: ReadonlyMap<number, Reply>): { text: string; marks: Mark[] } {
  let text = "";
  const marks: Mark[] = [];
  for (let i = 0; i + 2 < parts.length; i += 3) {
    text += parts[i];
    const index = Number(parts[i + 1]);
    marks.push({ reply: replies.get(index)!, index, at: text.length });
    text += marked(parts[i + 2]!, index);
  }
  return { text, marks };
}

function areEqual(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((each, i) => each === b[i]);
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
