/** Texts as tokens where one follows another: both are encoded at once, as a reader of the whole text has them. */
import type { Tokenizer } from "../engine/contract/text.ts";

/** A text with the special tokens around it; one that the text begins with itself is not put before it again. */
export function encodeText(tokenizer: Tokenizer, text: string): number[] {
  const ids = tokenizer.encode(text);
  if (ids.length < 2 || ids[0] !== ids[1]) return ids;
  const tokens = tokenizer.encode(text, { addSpecialTokens: false });
  return tokens[0] === ids[0] && tokens[1] !== ids[0] && ids.length > tokens.length ? ids.slice(1) : ids;
}

/** A prompt and what follows it. */
export interface Joined {
  readonly prompt: string;
  readonly response: string;
  /** False for a prompt that has its special tokens, as one by a chat template. */
  readonly addSpecialTokens: boolean;
}

/** The tokens of both, and the first of the response: one that crosses the seam belongs to it. */
export function encodeJoined(
  tokenizer: Tokenizer,
  { prompt, response, addSpecialTokens }: Joined,
): { ids: number[]; start: number } {
  const encode = (text: string) =>
    addSpecialTokens ? encodeText(tokenizer, text) : tokenizer.encode(text, { addSpecialTokens: false });
  const text = prompt + response;
  const ids = encode(text);
  const promptTokens = encode(prompt);
  const differing = promptTokens.findIndex((id, i) => id !== ids[i]);
  return {
    ids,
    start: wholeTokens(tokenizer, { ids, text, prompt, from: differing < 0 ? promptTokens.length : differing }),
  };
}

/** Tokens from `from` on that end within the prompt, although it is cut otherwise by itself. */
function wholeTokens(
  tokenizer: Tokenizer,
  { ids, text, prompt, from }: { ids: readonly number[]; text: string; prompt: string; from: number },
): number {
  const decode = (count?: number) => tokenizer.decode(ids.slice(0, count), { skipSpecialTokens: false });
  const whole = decode();
  // A normalized text has no places to compare.
  if (!whole.endsWith(text)) return from;
  const seam = whole.length - text.length + prompt.length;
  let count = from;
  while (count < ids.length && decode(count + 1).length <= seam) count++;
  return count;
}
