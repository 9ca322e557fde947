/** Follows the choices of a call while they are sampled, so that a caller that goes away leaves what it got. */
import type { ChatCall, ChoiceStart } from "../../chat/engine.ts";
import { parseReply } from "../../chat/reply.ts";
import type { Drawn, DrawnChat } from "../../chat/response.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";

interface Partial {
  readonly start: ChoiceStart;
  readonly tokens: number[];
  readonly logprobs: number[];
  firstTokenMs?: number;
  /** The reply, where it is whole. */
  whole?: Drawn | DrawnChat;
}

/** A choice of a call that was not finished. */
export interface PartialReply {
  readonly drawn: Drawn | DrawnChat;
  /** The others were still sampled. */
  readonly isWhole: boolean;
  readonly first_token_ms: number | undefined;
}

export class PartialReplies {
  /** The caller's call, listened to. */
  readonly call: ChatCall;
  private readonly startedAt = performance.now();
  private readonly choices = new Map<number, Partial>();

  constructor(call: ChatCall = {}) {
    this.call = {
      signal: call.signal,
      onStart: (choice, start) => {
        this.choices.set(choice, { start, tokens: [], logprobs: [] });
        call.onStart?.(choice, start);
      },
      onReply: (choice, drawn) => {
        const partial = this.choices.get(choice);
        if (partial) partial.whole = drawn;
        call.onReply?.(choice, drawn);
      },
      onTokens: (choice, tokens, logprobs, ...top) => {
        this.add(choice, { tokens, logprobs });
        call.onTokens?.(choice, tokens, logprobs, ...top);
      },
    };
  }

  get elapsedMs(): number {
    return performance.now() - this.startedAt;
  }

  /** Returns the time until a choice's first token; undefined where the engine reports none before the end. */
  firstTokenMs(choice: number): number | undefined {
    return this.choices.get(choice)?.firstTokenMs;
  }

  /** Returns the tokens sampled so far, of every choice that started. */
  replies(tokenizer: Tokenizer): PartialReply[] {
    return [...this.choices.values()].map(({ start, tokens, logprobs, firstTokenMs, whole }) => {
      if (whole) return { drawn: whole, isWhole: true, first_token_ms: firstTokenMs };
      const text = tokenizer.decode(tokens);
      const { parse = { id: "call" }, ...rest } = start;
      const message = parseReply(text, parse);
      const drawn = { ...rest, response_ids: tokens, logprobs, model_response: text };
      const cut = { ...drawn, message, finish_reason: "length" as const };
      return { drawn: cut, isWhole: false, first_token_ms: firstTokenMs };
    });
  }

  private add(choice: number, more: { tokens: readonly number[]; logprobs: readonly number[] }): void {
    const partial = this.choices.get(choice);
    if (!partial) return;
    partial.firstTokenMs ??= this.elapsedMs;
    partial.tokens.push(...more.tokens);
    partial.logprobs.push(...more.logprobs);
  }
}
