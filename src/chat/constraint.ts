/** What a request demands of its reply's tokens. */
import type { TokenConstraint } from "../contract/backend.ts";
import type { Tokenizer } from "../contract/text.ts";
import { toolFormatOf } from "./reply.ts";
import { ApiError, type ChatRequest } from "./request.ts";

/**
 * The constraint that a request's `responseFormat` and `toolChoice` make. `undefined` where any reply will do.
 * @throws {ApiError} for a demand that cannot be met
 */
export function constraintOf({ responseFormat, toolChoice }: ChatRequest): TokenConstraint | undefined {
  if (responseFormat && responseFormat.type !== "text") throw unsupported("response_format", responseFormat.type);
  if (toolChoice && toolChoice !== "auto" && toolChoice !== "none")
    throw unsupported("tool_choice", typeof toolChoice === "string" ? toolChoice : toolChoice.name);
  return undefined;
}

/** @throws {ApiError} for tools that the model's chat template cannot show, or whose calls cannot be read */
export function checkTools({ tools }: ChatRequest, { chatTemplate = "" }: Pick<Tokenizer, "chatTemplate">): void {
  if (!tools || toolFormatOf(chatTemplate)) return;
  throw new ApiError(
    "Cannot use tools: the model's chat template has none, or writes tool calls in a format that grpu cannot read. Use a template with Hermes or Llama 3 tool calls.",
    { param: "tools", code: "unsupported_parameter" },
  );
}

function unsupported(param: string, value: string): ApiError {
  return new ApiError(`Cannot use ${param}: the sampler cannot constrain tokens (${value}).`, {
    param,
    code: "unsupported_parameter",
  });
}
