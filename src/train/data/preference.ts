/** Makes preferences of the rows of data files: a prompt with a chosen and a rejected answer, or with one labelled answer. */

import { TURN_WEIGHTS } from "../../chat/train_on_what.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { mergedJson, pickedJson, stringifyJson } from "../../leaves/json.ts";
import type { PlacedRow, Row } from "./rows.ts";
import { type PlacedExample, type SupervisedKeys, supervisedExamples } from "./supervised.ts";

/** A prompt with its answers, and where it comes from. */
export interface PlacedPreference extends Pick<PlacedRow, "file" | "line"> {
  /** The chosen and the rejected answer to one prompt; or one answer, with a label. */
  readonly answers: readonly PlacedExample[];
  /** Whether the one answer is desirable. Absent for pairs. */
  readonly label?: boolean | undefined;
  /** Least lead of the chosen answer of a pair. Absent: 0. */
  readonly margin?: number | undefined;
}

/** The fields of a row that hold a preference. Names as in TRL. */
export interface PreferenceKeys extends Omit<SupervisedKeys, "messages" | "response" | "text"> {
  readonly chosen: string;
  readonly rejected: string;
  /** Column of the completion, for labelled rows. */
  readonly completion: string;
  readonly label: string;
  /** Column of the margin, for pairs of a reward model. Absent: margins are not read. */
  readonly margin?: string | undefined;
}

/** Forms of a row: a chosen and a rejected answer, or one answer with a label (KTO). */
export type PreferenceForm = "pair" | "row";

type At = Pick<PlacedRow, "file" | "line">;

/**
 * One preference per row. Pairs: `prompt`, `chosen` and `rejected`, texts or lists of messages; two conversations without a
 * prompt share their first messages, which are the prompt. Labelled rows: `prompt`, `completion` and `label`.
 * @throws {ConfigError} naming file and line, for a missing field, an empty answer, a turn of an answer with a weight, and a pair
 * whose answers are equal
 */
export function preferenceExamples(
  rows: readonly PlacedRow[],
  keys: PreferenceKeys,
  form: PreferenceForm,
): PlacedPreference[] {
  return rows.map((placed) => (form === "pair" ? pairOf(placed, keys) : labelledOf(placed, keys)));
}

function pairOf({ row, file, line }: PlacedRow, keys: PreferenceKeys): PlacedPreference {
  const at = { file, line };
  const names = [keys.chosen, keys.rejected];
  for (const name of names) checkAnswer(row, name, { at, names, keys, wanted: "a pair" });
  const [chosen, rejected] = names.map((name) => row[name]);
  if (isSame(chosen, rejected))
    throw new ConfigError(
      `Cannot use the pair: "${keys.chosen}" and "${keys.rejected}" are equal (${shown(chosen)}), so that nothing is preferred. Remove the row, or correct it.`,
      at,
    );
  const prompt = row[keys.prompt];
  const [head, ...tails] = isThere(prompt) ? [prompt, chosen, rejected] : sharedPrompt(chosen, rejected, { at, keys });
  const whole = (name: string, tail: unknown) =>
    isThere(prompt) ? row : mergedJson(row, { [keys.prompt]: head, [name]: tail });
  const answers = tails.map((tail, i) => answerOf(whole(names[i]!, tail), names[i]!, { at, keys }));
  return { ...at, answers, ...marginOf(row, keys.margin, at) };
}

function marginOf(row: Row, name: string | undefined, at: At): Pick<PlacedPreference, "margin"> {
  const margin = name === undefined ? undefined : row[name];
  if (!isThere(margin)) return {};
  if (typeof margin === "number" && Number.isFinite(margin)) return { margin };
  throw new ConfigError(
    `Cannot use the pair: "${name}" must be a number (${shown(margin)}). Correct it, or name another field with data.margin_key.`,
    at,
  );
}

function labelledOf({ row, file, line }: PlacedRow, keys: PreferenceKeys): PlacedPreference {
  const at = { file, line };
  const names = [keys.prompt, keys.completion];
  for (const name of names)
    checkAnswer(row, name, { at, names: [...names, keys.label], keys, wanted: "a labelled row" });
  const label = row[keys.label];
  if (typeof label !== "boolean")
    throw new ConfigError(
      `Cannot use the labelled row: "${keys.label}" must be true (desirable) or false (${shown(label)}). Correct it, or name another field with data.label_key.`,
      at,
    );
  return { ...at, label, answers: [answerOf(row, keys.completion, { at, keys })] };
}

interface Wanted {
  readonly at: At;
  readonly names: readonly string[];
  readonly keys: PreferenceKeys;
  readonly wanted: string;
}

function checkAnswer(row: Row, name: string, { at, names, wanted }: Wanted): void {
  const value = row[name];
  const list = names.map((each) => `"${each}"`).join(" and ");
  if (!isThere(value))
    throw new ConfigError(
      `Cannot make ${wanted} of the row: there is no field "${name}" (it has ${Object.keys(row).join(", ")}), and ${wanted} takes ${list}. Add it, or name the fields with data.prompt_key, data.chosen_key, data.rejected_key, data.completion_key and data.label_key.`,
      at,
    );
  if (isEmpty(value))
    throw new ConfigError(
      `Cannot make ${wanted} of the row: "${name}" is empty (${shown(value)}). Remove the row, or give an answer.`,
      at,
    );
}

/** True for a text without a character, a list without a message, and messages of which the last says nothing. */
function isEmpty(value: unknown): boolean {
  if (typeof value === "string") return value === "";
  if (!Array.isArray(value)) return false;
  const last = value.at(-1) as { content?: unknown; reasoning_content?: unknown; tool_calls?: unknown } | undefined;
  return !(last?.content || last?.reasoning_content || last?.tool_calls);
}

/** TRL's implicit prompt: the messages that two conversations begin with. */
function sharedPrompt(
  chosen: unknown,
  rejected: unknown,
  { at, keys }: { at: At; keys: PreferenceKeys },
): readonly [head: unknown, chosen: unknown, rejected: unknown] {
  if (!Array.isArray(chosen) || !Array.isArray(rejected))
    throw new ConfigError(
      `Cannot make a pair of the row: it has no field "${keys.prompt}", and only lists of messages can hold the prompt in themselves. Add the prompt, or name its field with data.prompt_key.`,
      at,
    );
  const differs = chosen.findIndex((message, i) => !isSame(message, rejected[i]));
  const count = differs < 0 ? chosen.length : differs;
  const [first, second] = [chosen.slice(count), rejected.slice(count)];
  if (count > 0 && first.length > 0 && second.length > 0) return [chosen.slice(0, count), first, second];
  const why = count === 0 ? "do not begin with the same message" : "are the same up to the end of one";
  throw new ConfigError(
    `Cannot make a pair of the row: without "${keys.prompt}" the prompt is what both conversations begin with, and these ${why}. Add the prompt.`,
    at,
  );
}

/** The example of a prompt and the answer in the field `name`, as for supervised training. */
function answerOf(row: Row, name: string, { at, keys }: { at: At; keys: PreferenceKeys }): PlacedExample {
  const { prompt, tools, enableThinking } = keys;
  const picked = pickedJson(row, [prompt, tools, enableThinking, name]);
  if (Array.isArray(picked[name])) refuseWeights(picked[name], name, at);
  const [example] = supervisedExamples([{ row: picked, ...at }], { ...keys, messages: "", text: "", response: name });
  return example!;
}

/** A preference is about whole answers: no turn of one counts less than another. */
function refuseWeights(messages: readonly unknown[], name: string, at: At): void {
  for (const [i, message] of messages.entries()) {
    if (!isAssistants(message)) continue;
    const flag = TURN_WEIGHTS.find((each) => isThere(message[each]) && message[each] !== true && message[each] !== 1);
    if (flag === undefined) continue;
    throw new ConfigError(
      `Cannot weigh a turn of an answer: ${flag} of message ${i} of "${name}" is ${shown(message[flag])}, and a preference is about whole answers. Remove the field, or the turn.`,
      at,
    );
  }
}

function isAssistants(message: unknown): message is Row {
  return typeof message === "object" && message !== null && "role" in message && message.role === "assistant";
}

/** A column of a Parquet file is null where a row has no value. */
function isThere(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function isSame(a: unknown, b: unknown): boolean {
  return stringifyJson(a) === stringifyJson(b);
}

function shown(value: unknown): string {
  return value === undefined ? "missing" : stringifyJson(value).slice(0, 80);
}
