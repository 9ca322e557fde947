/** Parses a model's reply: its reasoning, its answer, its tool calls. */
import type { ChatMessage, ToolCall } from "../contract/text.ts";

/** The syntax of tool calls in a family of models. */
export type ToolFormat = "hermes" | "llama3";

/** A reply as a message, with its tool calls' arguments as JSON text, as on the wire. */
export interface AssistantMessage extends ChatMessage {
  readonly role: "assistant";
}

/**
 * The tool-call format of a chat template: Hermes and Qwen put JSON between `<tool_call>` tags, Llama 3 writes only the
 * JSON. `undefined` for a template without tools, and for any other format.
 */
export function toolFormatOf(chatTemplate: string): ToolFormat | undefined {
  if (chatTemplate.includes("<function=")) return undefined;
  if (chatTemplate.includes("<tool_call>")) return "hermes";
  return chatTemplate.includes("ipython") && chatTemplate.includes("parameters") ? "llama3" : undefined;
}

export interface ParseOptions {
  /** The model's tool-call format. Absent: the reply has no tool calls. */
  readonly format?: ToolFormat | undefined;
  /** Prefix of the calls' ids; the caller keeps it unique. */
  readonly id: string;
  /** Whether the prompt ends inside the model's reasoning. Absent: unknown. */
  readonly isReasoning?: boolean | undefined;
}

/** Splits a reply. Text that only looks like a tool call stays text. */
export function parseReply(text: string, { format, id }: ParseOptions): AssistantMessage {
  const { reasoning, rest } = splitReasoning(text);
  const { content, calls } = format ? READERS[format](rest) : { content: rest, calls: [] };
  return {
    role: "assistant",
    content,
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(calls.length > 0 && { tool_calls: calls.map((call, i) => toolCall(call, `${id}_${i}`)) }),
  };
}

const OPEN = "<think>";
const CLOSE = "</think>";

/** Reasoning ends at `</think>`; the prompt may contain the opening tag. */
export function splitReasoning(text: string): { reasoning?: string; rest: string } {
  const end = text.indexOf(CLOSE);
  const isOpen = text.trimStart().startsWith(OPEN);
  if (end < 0) return isOpen ? { reasoning: text.trimStart().slice(OPEN.length).trim(), rest: "" } : { rest: text };
  const before = text.slice(0, end).trim();
  const reasoning = (isOpen ? before.slice(OPEN.length) : before).trim();
  return { reasoning, rest: text.slice(end + CLOSE.length).trimStart() };
}

interface Call {
  readonly name: string;
  readonly arguments: unknown;
}

interface Read {
  readonly content: string;
  readonly calls: readonly Call[];
}

const READERS: Readonly<Record<ToolFormat, (text: string) => Read>> = {
  hermes: readHermes,
  llama3: readLlama,
};

const TAGGED = /<tool_call>\s*([\s\S]*?)\s*<\/tool_call>/g;

function readHermes(text: string): Read {
  const calls = Array.from(text.matchAll(TAGGED), ([, json]) => asCall(parseJson(json!)));
  if (calls.length === 0 || calls.some((call) => call === undefined)) return { content: text, calls: [] };
  return { content: text.replaceAll(TAGGED, "").trim(), calls: calls as Call[] };
}

const PYTHON_TAG = "<|python_tag|>";

/** One JSON object, or several separated by `;`. */
function readLlama(text: string): Read {
  const body = text.trim().replace(PYTHON_TAG, "");
  const whole = asCall(parseJson(body));
  const calls = whole ? [whole] : body.split(/;\s*(?=\{)/).map((part) => asCall(parseJson(part)));
  if (calls.some((call) => call === undefined)) return { content: text, calls: [] };
  return { content: "", calls: calls as Call[] };
}

function asCall(value: unknown): Call | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const { name, arguments: given, parameters } = value as Record<string, unknown>;
  return typeof name === "string" ? { name, arguments: given ?? parameters ?? {} } : undefined;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function toolCall({ name, arguments: given }: Call, id: string): ToolCall {
  const text = typeof given === "string" ? given : JSON.stringify(given);
  return { id, type: "function", function: { name, arguments: text } };
}
