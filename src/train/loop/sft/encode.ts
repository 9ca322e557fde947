/** Examples as tokens, with what each token counts in the loss, within a length. */
import { encodeConversation, type MaskedConversation } from "../../../chat/assistant_mask.ts";
import { encodeJoined, encodeText, type Joined } from "../../../chat/seams.ts";
import type { TrainOnWhat } from "../../../chat/train_on_what.ts";
import { Transcript } from "../../../chat/transcript.ts";
import { turnWeights } from "../../../chat/turn_weights.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { PlacedExample, ResponseExample, SupervisedExample, Truncation } from "../../data/supervised.ts";

/** How an example becomes tokens. */
export interface EncodeOptions {
  readonly tokenizer: Tokenizer;
  /** Ends a response and a text. */
  readonly eos: number | undefined;
  readonly trainOn?: TrainOnWhat | undefined;
  /** A conversation of more tokens is not used, whatever its mask is. */
  readonly most?: number | undefined;
}

/**
 * A conversation as {@link encodeConversation} has it; a prompt and its response, which is trained on with the end token; a
 * text, all of which is trained on.
 */
export function encodeExample(example: SupervisedExample, options: EncodeOptions): MaskedConversation {
  const { tokenizer, trainOn, most } = options;
  if ("messages" in example) {
    const { messages, tools, variables } = example;
    return encodeConversation(messages, { tokenizer, tools, variables, trainOn, most });
  }
  if ("text" in example) {
    const ids = ended(encodeText(tokenizer, example.text), 0, options);
    return { ids, mask: ids.map(() => 1) };
  }
  const { ids: both, start } = encodeJoined(tokenizer, joinedOf(example, tokenizer));
  const ids = ended(both, start, options);
  return { ids, mask: ids.map((_, i) => Number(i >= start)) };
}

/** Returns the ids with the end token, unless what starts at `start` ends with one. */
function ended(ids: readonly number[], start: number, { tokenizer, eos }: EncodeOptions): readonly number[] {
  const last = ids.length > start ? ids.at(-1)! : undefined;
  const isEnded = last !== undefined && (last === eos || tokenizer.eosTokenIds.includes(last));
  return eos === undefined || isEnded ? ids : [...ids, eos];
}

function joinedOf({ prompt, response, tools, variables }: ResponseExample, tokenizer: Tokenizer): Joined {
  if (typeof prompt === "string") return { prompt, response, addSpecialTokens: true };
  const { text } = new Transcript({ tokenizer }).prompt(prompt, { tools, variables });
  return { prompt: text, response, addSpecialTokens: false };
}

/** The same, with the limit of a row. */
export interface FitOptions extends EncodeOptions {
  /** Most tokens of a row. */
  readonly maxLength: number;
  /** Treatment of a longer row. */
  readonly truncation: Truncation;
}

/** Rows that train, and how many were changed or left out. */
export interface EncodedRows {
  readonly rows: readonly EncodedRow[];
  readonly truncated: number;
  /** Longer than the limit. */
  readonly skipped: number;
  /** Rows of which truncation left no token to train on. */
  readonly emptied: number;
  /** Rows with an empty reply, which train on the token that ends it alone. */
  readonly unanswered: number;
}

/** A row as tokens, and where it comes from. */
export interface EncodedRow extends MaskedConversation, Pick<PlacedExample, "file" | "line"> {}

/**
 * Encodes every example within the limit of length.
 * @throws {ConfigError} naming file and line: for an example that cannot be trained on, and with `error` for one that is
 * too long
 */
export function encodeRows(examples: readonly PlacedExample[], options: FitOptions): EncodedRows {
  const { maxLength, truncation } = options;
  const isCut = truncation === "left" || truncation === "right";
  const encoding = { ...options, most: isCut ? undefined : maxLength };
  const rows: EncodedRow[] = [];
  const counts = { truncated: 0, skipped: 0, emptied: 0, unanswered: 0 };
  for (const { example, file, line } of examples) {
    const at = { file, line };
    const whole = placing(at, () => encodeExample(example, encoding));
    const isLong = whole.ids.length > maxLength;
    if (isLong && truncation === "error") throw tooLong(whole.ids.length, maxLength, at);
    if (isLong && truncation === "skip") {
      counts.skipped++;
      continue;
    }
    const row = isLong ? cut(whole, { maxLength, side: truncation }) : whole;
    if (isTrainable(row)) {
      rows.push({ ...row, ...at });
      counts.truncated += Number(isLong);
      counts.unanswered += Number(hasEmptyReply(example, options));
    } else if (isLong) counts.emptied++;
    else throw new ConfigError("Cannot train on the row: it has no token to train on. Add a response.", at);
  }
  return { rows, ...counts };
}

/** True where a reply that is trained on says nothing: no text, no reasoning, no call of a tool. */
function hasEmptyReply(example: SupervisedExample, { trainOn = "all_assistant_messages" }: EncodeOptions): boolean {
  if ("text" in example) return false;
  if ("response" in example) return example.response === "";
  const weights = turnWeights(example.messages, trainOn);
  return example.messages.some(
    ({ content, reasoning_content, tool_calls = [] }, i) =>
      weights[i]! > 0 && !content && !reasoning_content && tool_calls.length === 0,
  );
}

/** The first token of a row has no context. */
function isTrainable({ mask }: MaskedConversation): boolean {
  return mask.indexOf(1, 1) >= 0;
}

function tooLong(length: number, maxLength: number, at: { file: string; line: number }): ConfigError {
  return new ConfigError(
    `Cannot train on the row: it has ${length} tokens, and a row may have ${maxLength} (data.max_length, or the context of the model where that is shorter). Raise the limit, or choose what happens to such rows with data.truncation: right, left or skip.`,
    at,
  );
}

function cut(
  row: MaskedConversation,
  { maxLength, side }: { maxLength: number; side: Truncation },
): MaskedConversation {
  const range = side === "left" ? [-maxLength, undefined] : [0, maxLength];
  const part = (values: readonly number[]) => values.slice(...range);
  return { ids: part(row.ids), mask: part(row.mask), ...(row.weights && { weights: part(row.weights) }) };
}

/** Runs `make`; an error of it names the row. */
function placing<T>(at: { file: string; line: number }, make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (error instanceof ConfigError && error.file === undefined) throw new ConfigError(error.message, at);
    throw error;
  }
}
