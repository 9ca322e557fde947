/**
 * Work on the texts of prompts that many callers wait for: short texts in turns, long ones in a thread, and none that no context
 * could hold. The callers' code stays synchronous: it runs again with what the thread has answered so far.
 */
import type { ChatMessage, ChatOptions, Tokenizer } from "../engine/contract/text.ts";
import { Turns } from "./turns.ts";

/** Renders and encodes away from the event loop. */
export interface TextThread {
  /** @throws as {@link Tokenizer.formatChat}; Error where it takes too long or too much memory */
  formatChat(request: ThreadChat, signal?: AbortSignal): Promise<string>;
  /** @throws Error where it takes too long or too much memory */
  encode(request: ThreadText, signal?: AbortSignal): Promise<readonly number[]>;
  close(): void;
}

export interface ThreadChat {
  readonly messages: readonly ChatMessage[];
  readonly options: ChatOptions;
}

export interface ThreadText {
  readonly text: string;
  readonly options: NonNullable<Parameters<Tokenizer["encode"]>[1]>;
}

export interface TextWorkOptions {
  readonly tokenizer: Tokenizer;
  /** Absent: long texts are worked on here. */
  readonly thread?: TextThread | undefined;
  /** Tokens of the longest prompt. Absent: any length. */
  readonly contextLength?: number | undefined;
  /** The error for a prompt of more letters than `most`, the most that the context can hold. */
  readonly tooLong?: (letters: number, most: number) => Error;
}

/** Letters that take about ten milliseconds. */
const LONG_LETTERS = 8192;
/** A template loops over them. */
const MANY_MESSAGES = 128;
/** A value that a run needs from the thread: thrown through the caller's code, which then runs again. */
class Wanted {
  readonly ask: (thread: TextThread, signal?: AbortSignal) => Promise<unknown>;
  constructor(ask: Wanted["ask"]) {
    this.ask = ask;
  }
}

type Answer = { readonly value: unknown } | { readonly error: unknown };

export class TextWork {
  /** Tokenizer for the code that {@link run} calls. */
  readonly tokenizer: Tokenizer;
  private readonly options: TextWorkOptions;
  /** Infinity where any length is taken. */
  private readonly most: number;
  /** Answers of the thread to the run that is under way, in the order of its questions. */
  private answers: Answer[] | undefined;
  private asked = 0;
  private readonly turns = new Turns();

  constructor(options: TextWorkOptions) {
    this.options = options;
    const { tokenizer, contextLength } = options;
    this.most = contextLength === undefined ? Number.POSITIVE_INFINITY : contextLength * longestToken(tokenizer);
    const threadTokenizer: Partial<Tokenizer> = { encode: (text, how = {}) => this.encode(text, how) };
    if (tokenizer.formatChat) threadTokenizer.formatChat = (messages, how = {}) => this.formatChat(messages, how);
    this.tokenizer = Object.assign(Object.create(tokenizer) as Tokenizer, threadTokenizer);
  }

  /**
   * Calls `make`, which may do so several times: it must change nothing before it has its texts from {@link tokenizer}.
   * @throws what `make` throws, `tooLong`, and what the thread throws
   */
  async run<T>(make: () => T, signal?: AbortSignal): Promise<T> {
    const answers: Answer[] = [];
    for (;;) {
      await this.turns.take();
      signal?.throwIfAborted();
      try {
        this.answers = answers;
        this.asked = 0;
        return make();
      } catch (error) {
        if (!(error instanceof Wanted)) throw error;
        answers.push(await settled(error.ask(this.options.thread!, signal)));
      } finally {
        this.answers = undefined;
      }
    }
  }

  /** Before messages are rendered, which takes longer the longer they are. @throws `tooLong` */
  check(messages: readonly ChatMessage[]): void {
    let letters = 0;
    for (const { content, tool_calls } of messages) letters += (content?.length ?? 0) + lettersIn(tool_calls ?? "");
    this.checkLength(letters);
  }

  private checkLength(letters: number): void {
    const { tooLong } = this.options;
    if (letters > this.most && tooLong) throw tooLong(letters, this.most);
  }

  private encode(text: string, options: ThreadText["options"]): number[] {
    const { tokenizer } = this.options;
    this.checkLength(text.length);
    if (text.length <= LONG_LETTERS) return tokenizer.encode(text, options);
    return this.elsewhere(
      () => tokenizer.encode(text, options),
      (thread, signal) => thread.encode({ text, options }, signal),
    ) as number[];
  }

  private formatChat(messages: readonly ChatMessage[], options: ChatOptions): string {
    const { tokenizer } = this.options;
    const here = () => tokenizer.formatChat!(messages, options);
    const isLong = messages.length > MANY_MESSAGES || lettersIn([messages, options]) > LONG_LETTERS;
    if (!isLong) return here();
    return this.elsewhere(here, (thread, signal) => thread.formatChat({ messages, options }, signal)) as string;
  }

  private elsewhere(here: () => unknown, ask: Wanted["ask"]): unknown {
    if (!this.answers || !this.options.thread) return here();
    const answer = this.answers[this.asked++];
    if (!answer) throw new Wanted(ask);
    if ("error" in answer) throw answer.error;
    return answer.value;
  }
}

async function settled(asked: Promise<unknown>): Promise<Answer> {
  try {
    return { value: await asked };
  } catch (error) {
    return { error };
  }
}

/**
 * The most letters that a token stands for: bytes of its text, or letters of its name. A normalizer or an unknown token may stand
 * for more; a prompt full of those is then refused as too long.
 */
export function longestToken(tokenizer: Tokenizer): number {
  const cached = longest.get(tokenizer);
  if (cached !== undefined) return cached;
  let most = 1;
  for (let id = 0; id < tokenizer.vocabSize; id++) {
    const bytes = tokenizer.tokenBytes?.(id);
    const length = bytes?.length ?? tokenizer.decode([id], { skipSpecialTokens: false }).length;
    if (length > most) most = length;
  }
  longest.set(tokenizer, most);
  return most;
}

const longest = new WeakMap<Tokenizer, number>();

/** Counts the letters of all texts and keys of a value; any other leaf counts as eight. */
function lettersIn(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 8;
  let sum = 0;
  for (const [key, each] of Object.entries(value)) sum += key.length + lettersIn(each);
  return sum;
}
