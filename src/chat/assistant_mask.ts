/**
 * Which tokens of a conversation the assistant wrote, for supervised training on its turns alone. Rollouts need none of
 * this: they keep the tokens that were sampled.
 */
import type { ChatMessage, ChatOptions, RenderedChat, Tokenizer } from "../contract/text.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";

/** A conversation as tokens. */
export interface MaskedConversation {
  readonly ids: readonly number[];
  /** 1 = the assistant wrote the token; one per token. */
  readonly mask: readonly number[];
}

type Span = readonly [start: number, end: number];
type Options = Pick<ChatOptions, "tools" | "variables">;

/**
 * Renders and encodes a conversation. The assistant's tokens are those of the template's `{% generation %}` blocks, as
 * with transformers' `return_assistant_tokens_mask`. A template without them is rendered up to each turn of the
 * assistant, before and after it: what the turn adds is the assistant's, up to the token that ends it.
 * @throws {ConfigError} for a conversation without a turn of the assistant, and where the template writes a turn
 * differently once others follow it; {UnsupportedError} without a chat template.
 */
export function encodeConversation(
  messages: readonly ChatMessage[],
  { tokenizer, ...options }: { readonly tokenizer: Tokenizer } & Options,
): MaskedConversation {
  const { text, generated } = render(messages, tokenizer, { ...options, addGenerationPrompt: false });
  if (!messages.some(({ role }) => role === "assistant")) throw noTurn();
  const hasBlocks = generated.length > 0;
  const spans = hasBlocks ? generated : turnSpans(messages, { text, tokenizer, options });
  const ids = encode(tokenizer, text);
  const mask = ids.map(() => 0);
  for (const span of spans) {
    const [start, end] = tokensOf(span, { text, ids, tokenizer });
    const stop = ids.findIndex((id, i) => i >= start && i < end && tokenizer.eosTokenIds.includes(id));
    // A block may hold what follows the end token; a turn may not, because sampling never gets there.
    mask.fill(1, start, hasBlocks || stop < 0 ? end : stop + 1);
  }
  if (mask.includes(1)) return { ids, mask };
  throw noTurn();
}

function noTurn(): ConfigError {
  return new ConfigError("Cannot train on the conversation: the assistant writes nothing in it. Add its reply.");
}

/** What each turn of the assistant adds to the text before it. */
function turnSpans(
  messages: readonly ChatMessage[],
  { text, tokenizer, options }: { text: string; tokenizer: Tokenizer; options: Options },
): Span[] {
  return messages.flatMap((message, i): Span[] => {
    if (message.role !== "assistant") return [];
    const before = render(messages.slice(0, i), tokenizer, { ...options, addGenerationPrompt: true }).text;
    const after = render(messages.slice(0, i + 1), tokenizer, { ...options, addGenerationPrompt: false }).text;
    if (after.startsWith(before) && text.startsWith(after)) return [[before.length, after.length]];
    const rule = after.startsWith(before)
      ? "once others follow it (as templates do that drop the reasoning of earlier turns)"
      : "than its prompt announces";
    throw new ConfigError(
      `Cannot train on the conversation: the chat template writes message ${i} differently ${rule}. Give one conversation for each turn of the assistant, ending with it, or a template with {% generation %} blocks (model.chat_template).`,
    );
  });
}

/** The tokens that hold the characters of a span. */
function tokensOf(
  [start, end]: Span,
  { text, ids, tokenizer }: { text: string; ids: readonly number[]; tokenizer: Tokenizer },
): Span {
  const until = (place: number) => {
    const own = encode(tokenizer, text.slice(0, place));
    const differing = own.findIndex((id, i) => id !== ids[i]);
    return { count: differing < 0 ? own.length : differing, isWhole: differing < 0 };
  };
  const last = until(end);
  // A token that crosses the end of the span belongs to it.
  return [until(start).count, last.isWhole ? last.count : last.count + 1];
}

function encode(tokenizer: Tokenizer, text: string): number[] {
  return tokenizer.encode(text, { addSpecialTokens: false });
}

function render(messages: readonly ChatMessage[], tokenizer: Tokenizer, options: ChatOptions): RenderedChat {
  if (tokenizer.renderChat) return tokenizer.renderChat(messages, options);
  if (tokenizer.formatChat) return { text: tokenizer.formatChat(messages, options), generated: [] };
  throw new UnsupportedError(
    "Cannot format a conversation: the tokenizer has no chat template. Set model.chat_template.",
    { part: "tokenizer", capability: "chat" },
  );
}
