/** Bodies of Anthropic's `/v1/messages`. */

import { z } from "zod";
import type { ChatMessage } from "../../../engine/contract/text.ts";
import { mergedJson } from "../../../leaves/json.ts";
import { anyObject } from "../../../leaves/shape.ts";
import { ApiError, type ChatRequest, PLAIN_REQUEST, type ToolChoice } from "../../request.ts";
import { textContent } from "../content.ts";
import { MESSAGE_FIELDS, MESSAGE_TOOL_FIELDS } from "../fields.ts";
import { checkBody, checkMessages, given, RESPONSE_FORMAT, responseFormat, stopsOf, toolsOf, topP } from "../read.ts";
import { chatMessages } from "./blocks.ts";

const TOOL = z.strictObject({
  ...MESSAGE_TOOL_FIELDS,
  type: z.literal("custom", "only tools with an input_schema are supported").nullish(),
  name: z.string(),
  description: z.string().nullish(),
  input_schema: anyObject(),
  strict: z.boolean().nullish(),
});

const CHOICE = z.object({
  type: z.enum(["auto", "any", "tool", "none"]),
  name: z.string().optional(),
  disable_parallel_tool_use: z.boolean().nullish(),
});

/** Fields of the prompt that both routes read. */
const PROMPT = {
  ...MESSAGE_FIELDS,
  model: z.string().nullish(),
  messages: z
    .array(
      z.object({ role: z.enum(["user", "assistant"]), content: z.union([z.string(), z.array(z.looseObject({}))]) }),
    )
    .min(1),
  system: z.union([z.string(), z.array(z.looseObject({}))]).nullish(),
  tools: z.array(TOOL).nullish(),
  tool_choice: CHOICE.nullish(),
  thinking: z.object({ type: z.enum(["enabled", "disabled", "adaptive", "between_tools"]) }).nullish(),
  output_config: z.object({ effort: z.string().nullish(), format: z.unknown().optional() }).nullish(),
  output_format: z.unknown().optional(),
  // An extension, as in OpenAI's API.
  chat_template_kwargs: anyObject().nullish(),
};

/** `metadata` names a call's session, and has no effect on the count. */
export const COUNT = z.strictObject({ ...PROMPT, metadata: anyObject().nullish() });

export const MESSAGES = z.strictObject({
  ...PROMPT,
  max_tokens: z.number("it must be a whole number above 0").int().min(1),
  temperature: z.number().min(0).nullish(),
  top_p: topP,
  top_k: z.number().int().min(-1).nullish(),
  stop_sequences: z.array(z.string()).nullish(),
  stream: z.boolean().nullish(),
  metadata: anyObject().nullish(),
  // Extensions, as in OpenAI's API.
  seed: z.number().int().nullish(),
  return_token_ids: z.boolean().nullish(),
});

/** @throws {ApiError} for a parameter that is wrong, or that has no effect here */
export function readMessagesRequest(body: unknown): ChatRequest {
  const read = checkBody(MESSAGES, body);
  const { max_tokens, temperature, top_p, top_k } = read;
  return {
    ...promptOf(read),
    params: given({ max_tokens, temperature, top_p, top_k }),
    stop: stopsOf(read.stop_sequences, "stop_sequences"),
    n: 1,
    logprobs: false,
    stream: read.stream ?? false,
    includeUsage: true,
    returnTokenIds: read.return_token_ids ?? false,
    ...(read.seed != null && { seed: read.seed }),
    ...(read.metadata && { metadata: read.metadata }),
  };
}

/** A request whose prompt is counted. @throws {ApiError} as {@link readMessagesRequest} */
export function readCountRequest(body: unknown): ChatRequest {
  return { ...PLAIN_REQUEST, ...promptOf(checkBody(COUNT, body)) };
}

type Prompt = z.infer<typeof COUNT>;

function promptOf(read: Prompt): Pick<ChatRequest, "messages" | "tools" | "toolChoice" | "variables"> {
  const { system, tools, tool_choice, thinking, chat_template_kwargs, output_config, output_format } = read;
  const instructions: ChatMessage[] =
    system == null || (Array.isArray(system) && system.length === 0)
      ? []
      : [{ role: "system", content: textContent(system, { types: ["text"], param: "system" }) }];
  if (read.messages.at(-1)!.role === "assistant")
    throw new ApiError(
      "Cannot use messages: the last one must be the user's, because a reply that was begun cannot be continued.",
      { param: "messages" },
    );
  const enable_thinking = thinking && { enable_thinking: thinking.type !== "disabled" };
  const variables = mergedJson(
    enable_thinking || {},
    given({ reasoning_effort: output_config?.effort }),
    chat_template_kwargs ?? {},
  );
  return {
    messages: checkMessages([...instructions, ...chatMessages(read.messages)]),
    ...toolsOf({
      // Chat templates read tools in the form of OpenAI's chat API.
      tools: tools?.map(({ name, description, strict, input_schema: parameters }) => ({
        type: "function",
        function: { name, ...given({ description }), parameters, ...given({ strict }) },
      })),
      choice: tool_choice && choiceOf(tool_choice),
      parallel: tool_choice?.disable_parallel_tool_use ? false : undefined,
    }),
    ...jsonFormat(output_config?.format ?? output_format),
    ...(Object.keys(variables).length > 0 && { variables }),
  };
}

function choiceOf({ type, name }: z.infer<typeof CHOICE>): ToolChoice {
  if (type === "any") return "required";
  if (type !== "tool") return type;
  if (name !== undefined) return { name };
  throw new ApiError("Cannot use tool_choice: type tool needs the name of the tool.", { param: "tool_choice.name" });
}

/** Anthropic's formats have no name. */
function jsonFormat(format: unknown) {
  if (format == null) return {};
  const named = { name: "output", ...(format as object) };
  return responseFormat(
    checkBody(z.object({ output_format: RESPONSE_FORMAT }), { output_format: named }).output_format,
  );
}
