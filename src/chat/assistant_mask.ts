/**
 * Finds the tokens of a conversation that the assistant wrote, for supervised training on its turns alone. Rollouts
 * need none of this: they keep the tokens that were sampled.
 */
import type { ChatMessage, ChatOptions, RenderedChat, Tokenizer } from "../engine/contract/text.ts";
import { ConfigError, UnsupportedError } from "../leaves/errors.ts";
import type { TrainOnWhat } from "./train_on_what.ts";
import { turnWeights } from "./turn_weights.ts";

/** A conversation as tokens. */
export interface MaskedConversation {
  readonly ids: readonly number[];
  /** 1 = the assistant wrote the token, in a turn that is trained on; one per token. */
  readonly mask: readonly number[];
  /** Weight of each token in the loss. Absent: as the mask says. */
  readonly weights?: readonly number[];
}

type Span = readonly [start: number, end: number];
type Options = Pick<ChatOptions, "tools" | "variables">;
/** A turn, and what its tokens count in the loss. */
type Turn = { readonly span: Span; readonly weight: number };

interface EncodeOptions extends Options {
  readonly tokenizer: Tokenizer;
  /** The turns that are trained on where no message says so itself. Default: all of the assistant's. */
  readonly trainOn?: TrainOnWhat | undefined;
  /**
   * A conversation of more tokens is of no use: its mask is all 0. Finding the turns takes a time that is quadratic in
   * their number.
   */
  readonly most?: number | undefined;
}

/**
 * Renders and encodes a conversation. The assistant's tokens are those of the template's `{% generation %}` blocks, as
 * with transformers' `return_assistant_tokens_mask`. A template without them is rendered up to each turn of the
 * assistant, before and after it: what the turn adds is the assistant's, up to the token that ends it.
 * A message may weigh its turn: `weight` (a number), `train` or `trainable` (a boolean). Turns of weight 0 are not
 * trained on, and the template may write them differently once others follow.
 * @throws {ConfigError} for a conversation without a turn of the assistant that is trained on, and where the template
 * writes such a turn differently once others follow it; {UnsupportedError} without a chat template.
 */
export function encodeConversation(
  messages: readonly ChatMessage[],
  { tokenizer, trainOn = "all_assistant_messages", most, ...options }: EncodeOptions,
): MaskedConversation {
  const { text, generated } = render(messages, tokenizer, { ...options, addGenerationPrompt: false });
  if (!messages.some(({ role }) => role === "assistant")) throw noTurn();
  const weighed = turnWeights(messages, trainOn);
  if (weighed.every((weight) => weight === 0)) throw noWeight();
  const ids = encode(tokenizer, text);
  if (most !== undefined && ids.length > most) return { ids, mask: ids.map(() => 0) };
  const hasBlocks = generated.length > 0;
  const turns = hasBlocks
    ? blockTurns(messages, { weighed, generated })
    : turnSpans(messages, { weighed, text, tokenizer, options });
  const weights = ids.map(() => 0);
  for (const { span, weight } of turns) {
    const [start, end] = tokensOf(span, { text, ids, tokenizer });
    const stop = ids.findIndex((id, i) => i >= start && i < end && tokenizer.eosTokenIds.includes(id));
    // A block may hold what follows the end token; a turn may not, because sampling never gets there.
    weights.fill(weight, start, hasBlocks || stop < 0 ? end : stop + 1);
  }
  const mask = weights.map((weight) => Number(weight > 0));
  if (!mask.includes(1)) throw noTurn();
  return weights.every((weight, i) => weight === mask[i]) ? { ids, mask } : { ids, mask, weights };
}

function noTurn(): ConfigError {
  return new ConfigError("Cannot train on the conversation: the assistant writes nothing in it. Add its reply.");
}

function noWeight(): ConfigError {
  return new ConfigError(
    "Cannot train on the conversation: no turn of the assistant is trained on, because each has weight 0. Give one a weight, or leave the row out.",
  );
}

/** The template's blocks. Weights that differ belong to the blocks in order, one block a turn. */
function blockTurns(
  messages: readonly ChatMessage[],
  { weighed, generated }: { weighed: readonly number[]; generated: readonly Span[] },
): Turn[] {
  const ofAssistant = weighed.filter((_, i) => messages[i]!.role === "assistant");
  if (ofAssistant.length === generated.length) return generated.map((span, i) => ({ span, weight: ofAssistant[i]! }));
  if (ofAssistant.every((weight) => weight === ofAssistant[0]))
    return generated.map((span) => ({ span, weight: ofAssistant[0]! }));
  throw new ConfigError(
    `Cannot weigh the turns of the conversation: the chat template marks ${generated.length} blocks as generated for ${ofAssistant.length} turns of the assistant. Give all turns one weight, or a template with one {% generation %} block for each (model.chat_template).`,
  );
}

/** Returns the spans of text that the trained turns of the assistant add to the text before them. */
function turnSpans(
  messages: readonly ChatMessage[],
  of: { weighed: readonly number[]; text: string; tokenizer: Tokenizer; options: Options },
): Turn[] {
  const { weighed, text, tokenizer, options } = of;
  return messages.flatMap((_, i): Turn[] => {
    const weight = weighed[i]!;
    if (weight === 0) return [];
    const before = render(messages.slice(0, i), tokenizer, { ...options, addGenerationPrompt: true }).text;
    const after = render(messages.slice(0, i + 1), tokenizer, { ...options, addGenerationPrompt: false }).text;
    if (after.startsWith(before) && text.startsWith(after)) return [{ span: [before.length, after.length], weight }];
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
    const before = encode(tokenizer, text.slice(0, place));
    const differing = before.findIndex((id, i) => id !== ids[i]);
    return { count: differing < 0 ? before.length : differing, isWhole: differing < 0 };
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
