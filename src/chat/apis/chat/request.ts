/** Bodies of OpenAI's `/v1/chat/completions`. */

import { z } from "zod";
import { mergedJson } from "../../../leaves/json.ts";
import { anyObject } from "../../../leaves/shape.ts";
import { ApiError, type ChatRequest } from "../../request.ts";
import { CHAT_FIELDS } from "../fields.ts";
import {
  checkBody,
  checkMessages,
  given,
  optionalCount,
  RESPONSE_FORMAT,
  responseFormat,
  SAMPLING,
  samplingRequest,
  toolsOf,
} from "../read.ts";

const TOOL_CHOICE = z.union(
  [
    z.enum(["auto", "none", "required"]),
    z.object({ type: z.literal("function"), function: z.object({ name: z.string() }) }),
  ],
  "only auto, none, required and a function are supported",
);

const FORMAT = z.preprocess(
  // Chat nests the schema: {type, json_schema: {name, schema}}.
  (value) => {
    const { json_schema, ...others } = (value ?? {}) as { json_schema?: object };
    return value && { ...json_schema, ...others };
  },
  RESPONSE_FORMAT.nullish(),
);

export const CHAT = z.strictObject({
  ...CHAT_FIELDS,
  ...SAMPLING,
  messages: z.unknown().optional(),
  max_completion_tokens: optionalCount,
  logprobs: z.boolean().nullish(),
  top_logprobs: z.number().int().min(0).max(20).nullish(),
  tools: z
    .array(z.looseObject({ type: z.literal("function"), function: z.looseObject({ name: z.string() }) }))
    .nullish(),
  tool_choice: TOOL_CHOICE.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  response_format: FORMAT,
  chat_template_kwargs: anyObject().nullish(),
  reasoning_effort: z.string().nullish(),
  verbosity: z.enum(["low", "medium", "high"]).nullish(),
});

/** @throws {ApiError} for a parameter that is wrong, or that has no effect here */
export function readChatRequest(body: unknown): ChatRequest {
  const read = checkBody(CHAT, body);
  if (read.top_logprobs && !read.logprobs)
    throw new ApiError("Cannot use top_logprobs: it needs logprobs=true.", { param: "top_logprobs" });
  const { tool_choice: choice, chat_template_kwargs, reasoning_effort, verbosity } = read;
  const variables = mergedJson(given({ reasoning_effort, verbosity }), chat_template_kwargs ?? {});
  return {
    ...samplingRequest({ ...read, max_tokens: read.max_completion_tokens ?? read.max_tokens }),
    messages: checkMessages(read.messages),
    logprobs: read.logprobs ?? false,
    ...(read.top_logprobs && { topLogprobs: read.top_logprobs }),
    ...toolsOf({
      tools: read.tools,
      choice: typeof choice === "object" && choice ? { name: choice.function.name } : choice,
      parallel: read.parallel_tool_calls,
    }),
    ...responseFormat(read.response_format),
    ...(Object.keys(variables).length > 0 && { variables }),
  };
}
