/** A conversation, read from any API, as a request for chat completions. */
import type { ChatRequest, ResponseFormat, ToolChoice } from "../../../chat/request.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";

/** A streamed request: a worker's stream can be recorded when it breaks off. */
export function chatBodyOf(request: ChatRequest, model: string | undefined): JsonBody {
  const { messages, params, stop, n, seed, topLogprobs, metadata, variables } = request;
  const { tools, toolChoice, parallelToolCalls, responseFormat } = request;
  return {
    ...(model !== undefined && { model }),
    messages,
    ...params,
    n,
    stream: true,
    stream_options: { include_usage: true },
    ...(stop.length > 0 && { stop }),
    ...(seed !== undefined && { seed }),
    ...(topLogprobs && { logprobs: true, top_logprobs: topLogprobs }),
    ...(tools && { tools }),
    ...(toolChoice !== undefined && { tool_choice: choiceOf(toolChoice) }),
    ...(parallelToolCalls !== undefined && { parallel_tool_calls: parallelToolCalls }),
    ...(responseFormat && { response_format: formatOf(responseFormat) }),
    ...(variables && { chat_template_kwargs: variables }),
    ...(metadata && { metadata }),
  };
}

function choiceOf(choice: ToolChoice): unknown {
  return typeof choice === "string" ? choice : { type: "function", function: { name: choice.name } };
}

function formatOf(format: ResponseFormat): object {
  if (format.type !== "json_schema") return format;
  const { type, name, schema } = format;
  return { type, json_schema: { name, schema } };
}
