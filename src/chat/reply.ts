/** A model's reply as a message: its reasoning, its answer, its tool calls. */

import type { ChatMessage, ToolCall } from "../engine/contract/text.ts";
import { stringifyJson } from "../leaves/json.ts";
import { type ParseOptions, type ReplyPart, ReplyReader, type ToolFormat } from "./reply_reader.ts";

export type { ParseOptions, ToolFormat } from "./reply_reader.ts";

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

/** Splits a reply. Text that only looks like a tool call stays text. */
export function parseReply(text: string, options: ParseOptions): AssistantMessage {
  const reader = new ReplyReader(options);
  const parts = [...reader.push(text), ...reader.end()];
  const calls = parts.filter((part) => part.type === "call");
  const reasoning = joined(parts, "reasoning");
  return {
    role: "assistant",
    content: joined(parts, "content") ?? "",
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(calls.length > 0 && { tool_calls: calls.map((call, i) => toolCall(call, { index: i, id: options.id })) }),
  };
}

/** `undefined` without such a part. */
function joined(parts: readonly ReplyPart[], type: "reasoning" | "content"): string | undefined {
  const texts = parts.flatMap((part) => (part.type === type ? [part.text] : []));
  return texts.length > 0 ? texts.join("") : undefined;
}

/** Splits off the reasoning, which ends at `</think>`. `isReasoning` as in {@link ParseOptions}. */
export function splitReasoning(
  text: string,
  isReasoning?: boolean,
): { readonly reasoning?: string | undefined; readonly rest: string } {
  const { content, reasoning_content: reasoning } = parseReply(text, { id: "", isReasoning });
  return { reasoning, rest: content };
}

/** The part as a call on the wire. */
export function toolCall(
  { name, arguments: args }: Extract<ReplyPart, { type: "call" }>,
  { index, id }: { readonly index: number; readonly id: string },
): ToolCall {
  const text = typeof args === "string" ? args : stringifyJson(args);
  return { id: `${id}_${index}`, type: "function", function: { name, arguments: text } };
}
