/** Makes examples for supervised training of the rows of data files: chats, prompts with responses, and plain texts. */

import type { ChatMessage } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { numberText, parseJson, stringifyJson } from "../../leaves/json.ts";
import { OTHER_PROMPT_KEYS, type PlacedRow, type Row, readAt } from "./rows.ts";

/**
 * Treatments of a row that is too long: the run is refused, the row is cut at that end, or it is left out. verl's
 * names, and `skip`.
 */
export const TRUNCATIONS = ["error", "left", "right", "skip"] as const;
/** One of {@link TRUNCATIONS}. */
export type Truncation = (typeof TRUNCATIONS)[number];

/** A conversation; trained on the turns of the assistant. */
export interface ChatExample extends Rendering {
  readonly messages: readonly ChatMessage[];
}

/** Inputs of the chat template besides the messages. */
export interface Rendering {
  readonly tools?: readonly unknown[] | undefined;
  /** Further variables of the template. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
}

/** Trained on the response and the token that ends it. A prompt that is text is not rendered. */
export interface ResponseExample extends Rendering {
  readonly prompt: string | readonly ChatMessage[];
  readonly response: string;
}

/** Trained on the whole text and the token that ends it. */
export interface TextExample {
  readonly text: string;
}

/** A training example made of a row. */
export type SupervisedExample = ChatExample | ResponseExample | TextExample;

/** An example and where it comes from. */
export interface PlacedExample extends Pick<PlacedRow, "file" | "line"> {
  readonly example: SupervisedExample;
}

/** The fields of a row that hold an example, and how a conversation begins. Names as in verl's SFT trainer. */
export interface SupervisedKeys {
  readonly messages: string;
  readonly tools: string;
  readonly enableThinking: string;
  /** Then `instruction` and `question` are tried. */
  readonly prompt: string;
  /** Then `completion` and `answer` are tried. */
  readonly response: string;
  readonly text: string;
  /** `messages` turns a text prompt into one user message. */
  readonly promptType: "plaintext" | "messages";
  /** Inserted before conversations without a system message. */
  readonly systemPrompt?: string | undefined;
  /** Variables of the chat template for every conversation. */
  readonly variables: Readonly<Record<string, unknown>>;
}

const OTHER_RESPONSE_KEYS = ["completion", "answer"];

type At = Pick<PlacedRow, "file" | "line">;

/**
 * One example per row: of its messages, else of its prompt and response, else of its text. All rows have the same form.
 * @throws {ConfigError} for a row without the fields of a form, or with values of another type, naming file and line; for
 * rows of different forms
 */
export function supervisedExamples(rows: readonly PlacedRow[], keys: SupervisedKeys): PlacedExample[] {
  let first: (At & { readonly form: string }) | undefined;
  return rows.map(({ row, file, line }) => {
    const at = { file, line };
    const { form, example } = exampleOf(row, keys, at);
    first ??= { form, ...at };
    if (form !== first.form)
      throw new ConfigError(
        `Cannot train on rows of two forms: this one is ${form}, and that on line ${first.line} of ${first.file} is ${first.form}. Give all rows one form.`,
        at,
      );
    return { example, ...at };
  });
}

interface Formed {
  /** Form of the row, for messages. */
  readonly form: "a conversation" | "a prompt with a response" | "a text";
  readonly example: SupervisedExample;
}

function exampleOf(row: Row, keys: SupervisedKeys, at: At): Formed {
  if (isThere(row[keys.messages])) return { form: "a conversation", example: chatOf(row, keys, at) };
  const promptKey = [keys.prompt, ...OTHER_PROMPT_KEYS].find((name) => isThere(row[name]));
  if (promptKey !== undefined)
    return { form: "a prompt with a response", example: responseOf(row, keys, { ...at, promptKey }) };
  if (isThere(row[keys.text])) return { form: "a text", example: { text: textAt(row, keys.text, at) } };
  const fields = Object.keys(row).join(", ");
  throw new ConfigError(
    `Cannot make an example of the row: it has neither "${keys.messages}", nor "${keys.prompt}" with "${keys.response}", nor "${keys.text}" (it has ${fields}). Name the fields with data.messages_key, with data.prompt_key and data.response_key, or with data.text_key.`,
    at,
  );
}

/** A column of a Parquet file is null where a row has no value. */
function isThere(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function chatOf(row: Row, keys: SupervisedKeys, at: At): ChatExample {
  return { messages: withSystem(readAt(row[keys.messages], at), keys), ...renderingOf(row, keys, at) };
}

function renderingOf(row: Row, keys: SupervisedKeys, at: At): Rendering {
  const thinking = row[keys.enableThinking];
  if (isThere(thinking) && typeof thinking !== "boolean")
    throw new ConfigError(
      `Cannot make an example of the row: "${keys.enableThinking}" must be true or false (${stringifyJson(thinking).slice(0, 80)}). Correct it, or name another field with data.enable_thinking_key.`,
      at,
    );
  const variables = { ...keys.variables, ...(isThere(thinking) && { enable_thinking: thinking }) };
  return {
    tools: toolsOf(row[keys.tools], { ...at, key: keys.tools }),
    ...(Object.keys(variables).length > 0 && { variables }),
  };
}

function withSystem(messages: readonly ChatMessage[], { systemPrompt }: SupervisedKeys): readonly ChatMessage[] {
  if (systemPrompt === undefined || messages[0]!.role === "system") return messages;
  return [{ role: "system", content: systemPrompt }, ...messages];
}

/** A list, or the JSON text of one. */
function toolsOf(value: unknown, { key, ...at }: At & { key: string }): readonly unknown[] | undefined {
  if (!isThere(value)) return undefined;
  const tools = typeof value === "string" ? parsed(value) : value;
  if (Array.isArray(tools)) return tools.length > 0 ? tools : undefined;
  throw new ConfigError(
    `Cannot read the tools: "${key}" must be a list of JSON schemas, or the JSON text of one (${stringifyJson(value).slice(0, 80)}).`,
    at,
  );
}

function parsed(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

/** Messages as the response make a conversation in which the prompt's turns count nothing. */
function responseOf(
  row: Row,
  keys: SupervisedKeys,
  { promptKey, ...at }: At & { promptKey: string },
): ResponseExample | ChatExample {
  const key = [keys.response, ...OTHER_RESPONSE_KEYS].find((name) => isThere(row[name]));
  if (key === undefined) {
    const fields = Object.keys(row).join(", ");
    throw new ConfigError(
      `Cannot make an example of the row: it has a prompt ("${promptKey}") and no response, because there is no field "${keys.response}" (it has ${fields}). Name the field with data.response_key.`,
      at,
    );
  }
  const prompt = promptOf(row, keys, { ...at, promptKey });
  if (!Array.isArray(row[key])) {
    const response = textAt(row, key, at);
    return typeof prompt === "string" ? { prompt, response } : { prompt, response, ...renderingOf(row, keys, at) };
  }
  const before = typeof prompt === "string" ? withSystem([{ role: "user", content: prompt }], keys) : prompt;
  return { messages: [...before.map(untrained), ...readAt(row[key], at)], ...renderingOf(row, keys, at) };
}

function untrained({ train: _, trainable: __, ...message }: ChatMessage): ChatMessage {
  return { ...(message as ChatMessage), weight: 0 };
}

function promptOf(row: Row, keys: SupervisedKeys, { promptKey, ...at }: At & { promptKey: string }) {
  if (Array.isArray(row[promptKey])) return withSystem(readAt(row[promptKey], at), keys);
  const text = textAt(row, promptKey, at);
  return keys.promptType === "messages" ? withSystem([{ role: "user", content: text }], keys) : text;
}

function textAt(row: Row, key: string, at: At): string {
  const value = row[key];
  if (typeof value === "string") return value;
  // An answer that is a number is meant as text.
  if (typeof value === "number" || typeof value === "bigint" || typeof value === "boolean")
    return numberText(row, key) ?? String(value);
  throw new ConfigError(
    `Cannot make an example of the row: "${key}" must be text (${stringifyJson(value).slice(0, 80)}).`,
    at,
  );
}
