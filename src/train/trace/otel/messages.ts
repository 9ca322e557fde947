/** Messages of OpenAI's chat API and of the GenAI conventions, in which a message is a list of parts. */

import type { ChatMessage, ToolCall } from "../../../engine/contract/text.ts";
import { parseJson, stringifyJson } from "../../../leaves/json.ts";

/** One part of a message; the conventions allow further kinds and fields. */
export interface MessagePart {
  readonly type: string;
  readonly content?: unknown;
  readonly id?: string | null;
  readonly name?: string;
  readonly arguments?: unknown;
  readonly response?: unknown;
  /** `response`, as versions of the conventions before 1.38 name it. */
  readonly result?: unknown;
}

/** A message; outputs carry a finish reason. */
export interface PartMessage {
  readonly role: string;
  readonly parts: readonly MessagePart[];
  readonly finish_reason?: string;
  readonly name?: string;
}

/** A message of the chat API in parts. */
export function toParts(message: Readonly<Record<string, unknown>>): PartMessage {
  const { role, content, reasoning_content, tool_calls, tool_call_id, name } = message as unknown as ChatMessage;
  const parts: MessagePart[] = [];
  if (reasoning_content) parts.push({ type: "reasoning", content: reasoning_content });
  if (role === "tool") parts.push({ type: "tool_call_response", id: tool_call_id ?? null, response: content });
  else if (content)
    parts.push({ type: "text", content: typeof content === "string" ? content : stringifyJson(content) });
  for (const call of tool_calls ?? []) parts.push(toCall(call));
  return { role: role ?? "assistant", parts, ...(typeof name === "string" && { name }) };
}

function toCall({ id, function: { name, arguments: args } }: ToolCall): MessagePart {
  return { type: "tool_call", id: id ?? null, name, arguments: parsed(args) };
}

function parsed(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return parseJson(value);
  } catch {
    return value;
  }
}

/** The messages of a part message: each tool's response is one of its own. */
export function fromParts({ role, parts, name }: PartMessage): ChatMessage[] {
  const responses = parts.filter(({ type }) => type === "tool_call_response");
  const others = parts.filter(({ type }) => type !== "tool_call_response");
  const messages: ChatMessage[] = responses.map(({ id, response, result }) => ({
    role: "tool",
    content: asText(response ?? result ?? ""),
    ...(id && { tool_call_id: id }),
  }));
  if (others.length === 0 && responses.length > 0) return messages;
  const textOf = (kind: string) => others.filter(({ type }) => type === kind).map(({ content }) => asText(content));
  const reasoning = textOf("reasoning").join("");
  const calls = others.filter(({ type }) => type === "tool_call");
  messages.unshift({
    role,
    content: textOf("text").join(""),
    ...(name !== undefined && { name }),
    ...(reasoning && { reasoning_content: reasoning }),
    ...(calls.length > 0 && { tool_calls: calls.map(fromCall) }),
  });
  return messages;
}

function fromCall({ id, name = "", arguments: args }: MessagePart): ToolCall {
  return { ...(id && { id }), type: "function", function: { name, arguments: asText(args ?? {}) } };
}

function asText(value: unknown): string {
  return typeof value === "string" ? value : stringifyJson(value);
}
