/**
 * The tokens of a conversation over several turns. A model's reply is never tokenised again: later prompts contain its
 * sampled tokens, so that the turns of an episode merge into one training row where the chat template allows it.
 *
 * A later prompt is rendered with marks around each known reply, then split at the marks. If the text before a mark
 * starts with the prompt of that reply, the tokens of prompt and reply are reused. If the template rewrites history (drops
 * reasoning, for example), the reply's tokens are placed between newly encoded pieces.
 */
import type { ChatMessage, ChatOptions, Tokenizer } from "../contract/text.ts";
import type { PromptOrigin } from "../contract/trace.ts";
import { readMessages } from "../data/messages.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import { HistoryTree, messageKey } from "./history.ts";
import { splitReasoning } from "./reply.ts";
import { endsInReasoning } from "./reply_reader.ts";

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
  readonly origin: Exclude<PromptOrigin, "tokens">;
}

interface Reply {
  readonly prompt: RenderedPrompt;
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
  /** By the node of the conversation that ends with the reply. */
  private readonly replies = new Map<number, Reply>();
  /** Conversations that were replied to. */
  private readonly answered = new Set<number>();
  /** The replies as messages, whatever stood before them. */
  private readonly replyKeys = new Set<string>();
  /** Conversations that end with an assistant's message of the caller's own, such as an example. */
  private readonly callers = new Set<number>();

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
    const nodes = this.histories.find(messages);
    const known = this.knownReplies(nodes);
    const isEdited = this.isEdited(messages, nodes);
    const rendered = known.size > 0 ? this.renderMarked(messages, { known, options }) : undefined;
    if (rendered) return isEdited ? { ...rendered, origin: "diverged" } : rendered;
    const text = this.format(messages, options);
    const origin = isEdited || known.size > 0 ? "diverged" : "rendered";
    return { messages, text, ids: this.encode(text), options: JSON.stringify(options), origin };
  }

  /**
   * Remembers a reply. `message` is the one that the caller receives, and sends back in its next request. Without tokens, a
   * prompt that contains it counts as diverged.
   */
  record(prompt: RenderedPrompt, it: { responseIds?: readonly number[]; message: ChatMessage }): void {
    const [message] = readMessages([it.message]);
    this.answered.add(this.histories.add(prompt.messages));
    if (prompt.origin === "rendered") this.rememberCallers(prompt.messages);
    this.replyKeys.add(messageKey(message!));
    if (it.responseIds)
      this.replies.set(this.histories.add([...prompt.messages, message!]), this.reply(prompt, it.responseIds));
  }

  private reply(prompt: RenderedPrompt, responseIds: readonly number[]): Reply {
    const { reasoning } = splitReasoning(this.tokenizer.decode(responseIds), endsInReasoning(prompt.text));
    const keptIds = reasoning === undefined ? responseIds : this.withoutReasoning(responseIds);
    return { prompt, responseIds, keptIds, reasoning };
  }

  private rememberCallers(messages: readonly ChatMessage[]): void {
    const nodes = this.histories.find(messages);
    messages.forEach(({ role }, i) => {
      if (role === "assistant") this.callers.add(nodes[i]!);
    });
  }

  /** Replies among the messages, by place. */
  private knownReplies(nodes: readonly (number | undefined)[]): Map<number, Reply> {
    const known = new Map<number, Reply>();
    nodes.forEach((node, i) => {
      const reply = node !== undefined && this.replies.get(node);
      if (reply) known.set(i, reply);
    });
    return known;
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
    { known, options }: { known: ReadonlyMap<number, Reply>; options: ChatOptions },
  ): RenderedPrompt | undefined {
    const withMarks = messages.map((message, i): ChatMessage => {
      const reply = known.get(i);
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
        [...known.keys()].map((i) => marked(messages[i]!.content, i)),
      )
    )
      return undefined;
    const written = JSON.stringify(options);
    const ids = this.splice(parts, { known, options: written });
    const { prompt, responseIds } = [...known.values()].at(-1)!;
    const origin = startsWith(ids, [...prompt.ids, ...responseIds]) ? "continued" : "spliced";
    return { messages, text, ids, options: written, origin };
  }

  /** `parts` holds pieces of text, each followed by the index and the content of a reply. */
  private splice(
    parts: readonly string[],
    { known, options }: { known: ReadonlyMap<number, Reply>; options: string },
  ): number[] {
    let ids: number[] = [];
    let before = "";
    let previous: Reply | undefined;
    for (let i = 0; i < parts.length; i += 3) {
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
      if (reply) before += marked(parts[i + 2]!, Number(parts[i + 1]));
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

function areEqual(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((each, i) => each === b[i]);
}

function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  return prefix.every((token, i) => token === tokens[i]);
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
