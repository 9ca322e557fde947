/** Anthropic's blocks of content as messages of OpenAI's form. */
import type { ChatMessage, ToolCall } from "../../../engine/contract/text.ts";
import { ApiError } from "../../request.ts";
import { partText, textContent } from "../content.ts";

type Block = Readonly<Record<string, unknown>>;

interface GivenMessage {
  readonly role: "user" | "assistant";
  readonly content: string | readonly Block[];
}

/** @throws {ApiError} for images, documents and other blocks that a model of text cannot read */
export function chatMessages(messages: readonly GivenMessage[]): ChatMessage[] {
  return messages.flatMap(({ role, content }, i) => {
    if (typeof content === "string") return [{ role, content }];
    const param = `messages.${i}.content`;
    return role === "assistant" ? [assistantMessage(content, param)] : userMessages(content, param);
  });
}

/** Results of tools first, in messages of their own; then the texts. A content without blocks is an empty text. */
function userMessages(blocks: readonly Block[], param: string): ChatMessage[] {
  const results: ChatMessage[] = [];
  const texts: string[] = [];
  for (const [i, block] of blocks.entries()) {
    const at = `${param}.${i}`;
    if (block.type === "tool_result") {
      const content = textContent(block.content ?? "", { types: ["text"], param: `${at}.content` });
      results.push({ role: "tool", tool_call_id: String(block.tool_use_id), content });
    } else {
      texts.push(partText(block, { types: ["text", "tool_result"], param: at }));
    }
  }
  return texts.length > 0 || results.length === 0 ? [...results, { role: "user", content: texts.join("") }] : results;
}

function assistantMessage(blocks: readonly Block[], param: string): ChatMessage {
  const calls: ToolCall[] = [];
  let [content, reasoning]: [string, string | undefined] = ["", undefined];
  for (const [i, block] of blocks.entries()) {
    const { type, id, name, input, text, thinking } = block;
    if (type === "text" && typeof text === "string") content += text;
    else if (type === "thinking" && typeof thinking === "string") reasoning = (reasoning ?? "") + thinking;
    else if (type === "tool_use" && typeof name === "string" && typeof id === "string")
      calls.push({ id, type: "function", function: { name, arguments: input ?? {} } });
    else throw badBlock(type, `${param}.${i}`);
  }
  return {
    role: "assistant",
    content,
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(calls.length > 0 && { tool_calls: calls }),
  };
}

function badBlock(type: unknown, param: string): ApiError {
  return new ApiError(
    `Cannot use ${param}: an assistant's blocks must be text, thinking or tool_use (${JSON.stringify(type) ?? "none"}).`,
    { param },
  );
}
