/** A session's sampling parameters carry the names of chat completions; the other APIs have names of their own. */
import type { JsonBody } from "../../../leaves/http/json_body.ts";

/** Parameters of chat completions alone: they change how an answer looks, not what is sampled. */
const OF_CHAT = ["n", "logprobs", "top_logprobs", "stream", "stream_options", "user", "max_completion_tokens"];
/** Have no effect at these values, with which chat completions take them. */
const NEUTRAL: JsonBody = { presence_penalty: 0, frequency_penalty: 0, repetition_penalty: 1, min_p: 0 };
/** Parameters that the count of a prompt's tokens depends on. */
const OF_PROMPTS = ["model", "chat_template_kwargs"];

/** The parameters under the names of the API that a path belongs to. One that the API does not know keeps its name, and is refused there. */
export function paramsFor(path: string, { rllm_metadata: _, ...params }: JsonBody): JsonBody {
  if (path === "/v1/messages/count_tokens")
    return Object.fromEntries(Object.entries(params).filter(([name]) => OF_PROMPTS.includes(name)));
  if (path !== "/v1/responses" && path !== "/v1/messages") return params;
  const { max_tokens, stop, ...others } = withoutChats(params);
  const most = params.max_completion_tokens ?? max_tokens ?? undefined;
  const isMessages = path === "/v1/messages";
  const stops = typeof stop === "string" ? [stop] : stop;
  return {
    ...others,
    ...(most !== undefined && { [isMessages ? "max_tokens" : "max_output_tokens"]: most }),
    ...(stops != null && { [isMessages ? "stop_sequences" : "stop"]: stops }),
  };
}

function withoutChats(params: JsonBody): JsonBody {
  const kept = Object.entries(params).filter(
    ([name, value]) => !OF_CHAT.includes(name) && (!(name in NEUTRAL) || (value !== null && value !== NEUTRAL[name])),
  );
  return Object.fromEntries(kept);
}
