/** Items of a response's input as messages. */
import type { ChatMessage, ToolCall } from "../../../engine/contract/text.ts";
import { ApiError } from "../../request.ts";
import { textContent } from "../content.ts";

export type InputItem = Readonly<Record<string, unknown>>;

const TEXTS = ["input_text", "output_text", "text"];

/**
 * The conversation of a response's input. What one reply was split into (reasoning, texts, calls) becomes one message of the
 * assistant again, so that the tokens that it was sampled as are found.
 * @throws {ApiError} for an item that is not supported
 */
export function inputMessages(input: string | readonly InputItem[]): ChatMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  const messages: ChatMessage[] = [];
  let turn: Turn | undefined;
  for (const [i, item] of input.entries()) {
    const param = `input.${i}`;
    const piece = pieceOf(item, param);
    if (!piece) {
      if (turn) messages.push(turn.message());
      turn = undefined;
      messages.push(otherMessage(item, param));
    } else {
      if (turn && !turn.takes(piece)) {
        messages.push(turn.message());
        turn = undefined;
      }
      turn ??= new Turn();
      turn.add(piece);
    }
  }
  return turn ? [...messages, turn.message()] : messages;
}

type Piece =
  | { readonly type: "reasoning" | "content"; readonly text: string }
  | { readonly type: "call"; readonly call: ToolCall };

/** One message of the assistant, collected from items. */
class Turn {
  private reasoning: string | undefined;
  private content: string | undefined;
  private readonly calls: ToolCall[] = [];

  /** A second text without a call between, and reasoning after either, belong to another reply. */
  takes({ type }: Piece): boolean {
    if (type === "call") return true;
    const isStarted = this.content !== undefined || this.calls.length > 0;
    return type === "reasoning" ? !isStarted : this.content === undefined || this.calls.length > 0;
  }

  add(piece: Piece): void {
    if (piece.type === "call") this.calls.push(piece.call);
    else this[piece.type] = (this[piece.type] ?? "") + piece.text;
  }

  message(): ChatMessage {
    const { reasoning, content = "", calls } = this;
    return {
      role: "assistant",
      content,
      ...(reasoning !== undefined && { reasoning_content: reasoning }),
      ...(calls.length > 0 && { tool_calls: calls }),
    };
  }
}

/** The item as a piece of the assistant's reply. `undefined` for another one's message. */
function pieceOf(item: InputItem, param: string): Piece | undefined {
  const { type = "message", role, content, name, arguments: args, call_id, summary } = item;
  if (type === "message" && role === "assistant")
    return { type: "content", text: textContent(content, { types: TEXTS, param: `${param}.content` }) };
  if (type === "reasoning") {
    const types = ["reasoning_text", "summary_text"];
    const hasContent = Array.isArray(content) && content.length > 0;
    return { type: "reasoning", text: textContent(hasContent ? content : (summary ?? []), { types, param }) };
  }
  if (type !== "function_call") return undefined;
  if (typeof name !== "string" || typeof call_id !== "string")
    throw new ApiError(`Cannot use ${param}: a function_call needs call_id, name and arguments.`, { param });
  return { type: "call", call: { id: call_id, type: "function", function: { name, arguments: args ?? "{}" } } };
}

function otherMessage(item: InputItem, param: string): ChatMessage {
  const { type = "message", role, content, call_id, output } = item;
  if (type === "message" && typeof role === "string")
    return { role, content: textContent(content, { types: TEXTS, param: `${param}.content` }) };
  if (type === "function_call_output") {
    const text = textContent(output, { types: TEXTS, param: `${param}.output` });
    return { role: "tool", tool_call_id: String(call_id), content: text };
  }
  const types = "message, function_call, function_call_output and reasoning";
  throw new ApiError(`Cannot use ${param}: only items of type ${types} are supported (${String(type)}).`, { param });
}
