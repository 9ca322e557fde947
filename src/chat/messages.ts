/** Reads the messages of a conversation from a data file or a request. */

import type { ChatMessage, ToolCall } from "../engine/contract/text.ts";
import { ConfigError } from "../leaves/errors.ts";
import { jsonField, mergedJson, numberText, stringifyJson } from "../leaves/json.ts";

/**
 * Messages in the form that chat templates read: content is text (parts are joined), the arguments of tool calls are
 * values instead of JSON text, and the role `developer` becomes `system`.
 * @throws {ConfigError} for anything but a list of messages, naming the wrong one
 */
export function readMessages(value: unknown): ChatMessage[] {
  if (!Array.isArray(value) || value.length === 0) {
    throw new ConfigError(`Cannot read the messages: they must be a list with at least one message (${brief(value)}).`);
  }
  return value.map(readMessage);
}

function readMessage(value: unknown, index: number): ChatMessage {
  const fail = (rule: string, at: unknown): never => {
    throw new ConfigError(`Cannot read message ${index}: ${rule} (${brief(at)}).`);
  };
  if (typeof value !== "object" || value === null) return fail("it must be {role, content}", value);
  const { role, content, tool_calls, ...others } = value as Record<string, unknown>;
  if (typeof role !== "string") return fail("its role must be a string", role);
  const calls = tool_calls === undefined || tool_calls === null ? undefined : readCalls(tool_calls);
  if (calls === null) return fail("its tool_calls must be a list of {function: {name, arguments}}", tool_calls);
  const text = textOf(content, { isOptional: role === "assistant" });
  if (text === undefined) return fail("its content must be a string, or parts of type text", content);
  return {
    ...others,
    role: role === "developer" ? "system" : role,
    content: text,
    ...(calls && calls.length > 0 && { tool_calls: calls }),
  };
}

function textOf(content: unknown, { isOptional }: { isOptional: boolean }): string | undefined {
  if (typeof content === "string") return content;
  if (content === null || content === undefined) return isOptional ? "" : undefined;
  if (!Array.isArray(content)) return undefined;
  const texts = content.map((part) => (part?.type === "text" ? part.text : undefined));
  return texts.every((text) => typeof text === "string") ? texts.join("") : undefined;
}

/** Null for anything but a list of calls. */
function readCalls(value: unknown): ToolCall[] | null {
  if (!Array.isArray(value)) return null;
  const calls = value.map((call): ToolCall | null => {
    const name = call?.function?.name;
    if (typeof name !== "string") return null;
    return { ...call, type: "function", function: mergedJson({ name }, argumentsOf(call.function)) };
  });
  return calls.every((call) => call !== null) ? calls : null;
}

/** Arguments arrive as JSON text and are rendered as values, numbers as they are written. Other text stays text. */
function argumentsOf(call: Readonly<Record<string, unknown>>): { readonly arguments: unknown } {
  const args = call.arguments;
  const number = numberText(call, "arguments");
  if (number !== undefined) return jsonField("arguments", number);
  if (typeof args !== "string") return { arguments: args ?? {} };
  try {
    return jsonField("arguments", args);
  } catch {
    return { arguments: args };
  }
}

function brief(value: unknown): string {
  return (stringifyJson(value) ?? "undefined").slice(0, 80);
}
