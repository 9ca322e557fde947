/** Bodies of OpenAI's `/v1/responses`. */

import { z } from "zod";
import type { ChatMessage } from "../../../engine/contract/text.ts";
import { mergedJson } from "../../../leaves/json.ts";
import { anyObject } from "../../../leaves/shape.ts";
import { ApiError, type ChatRequest } from "../../request.ts";
import { RESPONSE_FIELDS } from "../fields.ts";
import {
  checkBody,
  checkMessages,
  given,
  optionalCount,
  RESPONSE_FORMAT,
  responseFormat,
  stopsOf,
  toolsOf,
  topP,
} from "../read.ts";
import { type InputItem, inputMessages } from "./input.ts";

const TOOL = z.object(
  {
    type: z.literal("function", "only tools of type function are supported"),
    name: z.string(),
    description: z.string().nullish(),
    parameters: anyObject().nullish(),
    strict: z.boolean().nullish(),
  },
  "it must be a function",
);

export const RESPONSE = z.strictObject({
  ...RESPONSE_FIELDS,
  model: z.string().nullish(),
  input: z.union([z.string(), z.array(z.looseObject({})).min(1)], "it must be a text or a list of items"),
  instructions: z.string().nullish(),
  previous_response_id: z.string().nullish(),
  store: z.boolean().nullish(),
  max_output_tokens: optionalCount,
  temperature: z.number().min(0).nullish(),
  top_p: topP,
  top_logprobs: z.number().int().min(0).max(20).nullish(),
  tools: z.array(TOOL).nullish(),
  tool_choice: z
    .union(
      [z.enum(["auto", "none", "required"]), z.object({ type: z.literal("function"), name: z.string() })],
      "only auto, none, required and a function are supported",
    )
    .nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  text: z
    .object({ format: RESPONSE_FORMAT.nullish(), verbosity: z.enum(["low", "medium", "high"]).nullish() })
    .nullish(),
  reasoning: z.object({ effort: z.string().nullish(), summary: z.string().nullish() }).nullish(),
  include: z.array(z.string()).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_obfuscation: z.boolean().nullish() }).nullish(),
  metadata: anyObject().nullish(),
  // Extensions, as in chat.
  seed: z.number().int().nullish(),
  top_k: z.number().int().min(-1).nullish(),
  stop: z.union([z.string(), z.array(z.string())], "it must be one text, or several").nullish(),
  return_token_ids: z.boolean().nullish(),
  chat_template_kwargs: anyObject().nullish(),
});

export type ResponseBody = z.infer<typeof RESPONSE>;

/** A request, its body, and its conversation without the instructions, for later requests that continue it. */
export interface ResponseRequest {
  readonly request: ChatRequest;
  readonly body: ResponseBody;
  readonly history: readonly ChatMessage[];
}

/**
 * @param historyOf the conversation of an earlier response, with its reply
 * @throws {ApiError} for a parameter that is wrong, or that has no effect here
 */
export function readResponseRequest(
  given_: unknown,
  historyOf: (id: string) => readonly ChatMessage[],
): ResponseRequest {
  const body = checkBody(RESPONSE, given_);
  const earlier = body.previous_response_id == null ? [] : historyOf(body.previous_response_id);
  const history = [...earlier, ...inputMessages(body.input as string | readonly InputItem[])];
  const system: ChatMessage[] = body.instructions == null ? [] : [{ role: "system", content: body.instructions }];
  const messages = checkMessages([...system, ...history], "input");
  return { request: { ...samplingOf(body), ...partsOf(body), messages }, body, history };
}

const LOGPROBS = "message.output_text.logprobs";
/** Reasoning is plain text here, so that nothing is to be encrypted. */
const NO_EFFECT = "reasoning.encrypted_content";

function samplingOf(body: ResponseBody): Omit<ChatRequest, "messages"> {
  const { max_output_tokens: max_tokens, temperature, top_p, top_k, include } = body;
  const unknown = include?.find((name) => name !== LOGPROBS && name !== NO_EFFECT);
  if (unknown !== undefined)
    throw new ApiError(`Cannot use include: only ${LOGPROBS} is supported (${unknown}).`, { param: "include" });
  const logprobs = include?.includes(LOGPROBS) ?? false;
  if (body.top_logprobs && !logprobs)
    throw new ApiError(`Cannot use top_logprobs: it needs include=["${LOGPROBS}"].`, { param: "top_logprobs" });
  return {
    params: given({ max_tokens, temperature, top_p, top_k }),
    stop: stopsOf(body.stop, "stop"),
    n: 1,
    logprobs,
    stream: body.stream ?? false,
    includeUsage: true,
    returnTokenIds: body.return_token_ids ?? false,
    ...(body.seed != null && { seed: body.seed }),
    ...(logprobs && body.top_logprobs && { topLogprobs: body.top_logprobs }),
    ...(body.metadata && { metadata: body.metadata }),
  };
}

function partsOf({ tools, tool_choice, parallel_tool_calls, text, reasoning, chat_template_kwargs }: ResponseBody) {
  const variables = mergedJson(
    given({ reasoning_effort: reasoning?.effort, verbosity: text?.verbosity }),
    chat_template_kwargs ?? {},
  );
  return {
    ...toolsOf({
      // Chat templates read tools in the form of the chat API.
      tools: tools?.map(({ type, ...about }) => ({ type, function: given(about) })),
      choice: typeof tool_choice === "object" && tool_choice ? { name: tool_choice.name } : tool_choice,
      parallel: parallel_tool_calls,
    }),
    ...responseFormat(text?.format),
    ...(Object.keys(variables).length > 0 && { variables }),
  };
}
