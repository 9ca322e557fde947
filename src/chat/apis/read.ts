/** Reads the bodies of requests. Parameters without an effect here are refused. */
import { z } from "zod";
import type { ChatMessage } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { anyObject, readAs } from "../../leaves/shape.ts";
import { readMessages } from "../messages.ts";
import { ApiError, type ResponseFormat, type SamplingRequest, type ToolChoice } from "../request.ts";
import { SAMPLING_FIELDS } from "./fields.ts";

/**
 * Least top_p. At 0 only the most probable token is sampled: no vocabulary is so large that one below 1e-6 is the most
 * probable.
 */
const LEAST_TOP_P = 1e-6;
export const topP = z
  .number()
  .min(0)
  .max(1)
  .transform((value) => Math.max(value, LEAST_TOP_P))
  .nullish();

/** A count that a request may leave out. */
export const optionalCount = z.number().int().min(1).nullish();

/** @throws {ApiError} for a parameter that is wrong, or that has no effect here */
export function checkBody<T extends z.ZodType>(schema: T, body: unknown): z.infer<T> {
  const read = readAs(schema, body);
  if ("data" in read) return read.data;
  const { path: param, rule, value } = read.misfit;
  throw new ApiError(`Cannot use ${param || "the body"}: ${rule} (${value}).`, { param });
}

/** @throws {ApiError} for messages that cannot be read */
export function checkMessages(value: unknown, param = "messages"): ChatMessage[] {
  const messages: unknown = Array.isArray(value) ? value.map(withoutFunctions) : value;
  checkArguments(messages, param);
  try {
    return readMessages(messages);
  } catch (error) {
    if (error instanceof ConfigError) throw new ApiError(error.message, { param });
    throw error;
  }
}

/** Limits of arguments, as for a request's own JSON: it is read within a request, and templates walk over it. */
const MOST_ARGUMENTS = { letters: 2 ** 22, values: 65_536, levels: 64 };

/** Arguments of calls are JSON within JSON, which the limits of the request do not see. */
function checkArguments(messages: unknown, param: string): void {
  if (!Array.isArray(messages)) return;
  let [letters, values] = [0, 0];
  for (const [i, message] of messages.entries())
    for (const call of Array.isArray(message?.tool_calls) ? message.tool_calls : []) {
      const text: unknown = call?.function?.arguments;
      if (typeof text !== "string") continue;
      letters += text.length;
      if (letters > MOST_ARGUMENTS.letters) throw tooMany(i, `${MOST_ARGUMENTS.letters} characters`, param);
      const size = jsonSize(text);
      values += size.values;
      if (values > MOST_ARGUMENTS.values) throw tooMany(i, `${MOST_ARGUMENTS.values} values`, param);
      if (size.levels > MOST_ARGUMENTS.levels) throw tooMany(i, `${MOST_ARGUMENTS.levels} levels`, param);
    }
}

function tooMany(message: number, what: string, param: string): ApiError {
  return new ApiError(
    `Cannot read message ${message}: the arguments of its tool calls, with those of earlier messages, have more than ${what}. Send fewer.`,
    { param },
  );
}

/** Counts the values and levels of JSON; returns some number for any other text. Stops where there are too many values. */
function jsonSize(text: string): { values: number; levels: number } {
  let [values, depth, levels, isText] = [1, 0, 0, false];
  for (let i = 0; i < text.length && values <= MOST_ARGUMENTS.values; i++) {
    const mark = text.charCodeAt(i);
    if (isText) {
      if (mark === 0x5c) i++;
      else if (mark === 0x22) isText = false;
    } else if (mark === 0x22) isText = true;
    else if (mark === 0x2c) values++;
    else if (mark === 0x5b || mark === 0x7b) {
      values++;
      levels = Math.max(levels, ++depth);
    } else if (mark === 0x5d || mark === 0x7d) depth--;
  }
  return { values, levels };
}

/** Refuses what tools replaced: the role `function`, and an assistant's `function_call`. A template would leave them out. */
function withoutFunctions(message: unknown): unknown {
  if (typeof message !== "object" || message === null) return message;
  const { role, function_call, audio, refusal, content, ...others } = message as Readonly<Record<string, unknown>>;
  if (audio != null)
    throw new ApiError("Cannot use messages: a message holds audio. The model reads text alone.", {
      param: "messages",
    });
  const calls = function_call == null ? {} : { tool_calls: [{ type: "function", function: function_call }] };
  return {
    ...others,
    ...calls,
    role: role === "function" ? "tool" : role,
    content: content ?? refusal,
    ...(content != null && refusal != null && { refusal }),
  };
}

/** Parameters of OpenAI's chat and completion requests. */
export const SAMPLING = {
  ...SAMPLING_FIELDS,
  model: z.string().nullish(),
  max_tokens: optionalCount,
  temperature: z.number().min(0).nullish(),
  top_p: topP,
  top_k: z.number().int().min(-1).nullish(),
  n: z.number().int().min(1).max(128).nullish(),
  stop: z.union([z.string(), z.array(z.string())], "it must be one text, or several").nullish(),
  stream: z.boolean().nullish(),
  stream_options: z
    .object({ include_usage: z.boolean().nullish(), include_obfuscation: z.boolean().nullish() })
    .nullish(),
  return_token_ids: z.boolean().nullish(),
  seed: z.number().int().nullish(),
  // Zeros change nothing.
  logit_bias: z.record(z.string(), z.literal(0, "only an empty one is supported")).nullish(),
  metadata: anyObject().nullish(),
};

type ReadSampling = z.infer<z.ZodObject<typeof SAMPLING>>;

export function samplingRequest(read: ReadSampling): Omit<SamplingRequest, "logprobs"> {
  const { max_tokens, temperature, top_p, top_k } = read;
  return {
    params: given({ max_tokens, temperature, top_p, top_k }),
    stop: stopsOf(read.stop, "stop"),
    n: read.n ?? 1,
    stream: read.stream ?? false,
    includeUsage: read.stream_options?.include_usage ?? false,
    returnTokenIds: read.return_token_ids ?? false,
    ...(read.seed != null && { seed: read.seed }),
    ...(read.metadata && { metadata: read.metadata }),
  };
}

/** Each sampled token is compared with all of them. */
const MOST_STOPS = 64;
const MOST_STOP_LETTERS = 1024;

/** Stop strings without empty ones. @throws {ApiError} for more or longer ones than a sampler should look for */
export function stopsOf(stop: string | readonly string[] | null | undefined, param: string): readonly string[] {
  const stops = [stop ?? []].flat().filter((text) => text !== "");
  if (stops.length > MOST_STOPS)
    throw new ApiError(`Cannot use ${param}: it has ${stops.length} texts, more than ${MOST_STOPS}. Name fewer.`, {
      param,
    });
  const long = stops.find((text) => text.length > MOST_STOP_LETTERS);
  if (long === undefined) return stops;
  throw new ApiError(
    `Cannot use ${param}: a text has ${long.length} letters, more than ${MOST_STOP_LETTERS}. Name a shorter one.`,
    { param },
  );
}

/** Returns the values that are neither null nor undefined. */
export function given<T extends object>(values: T): { [K in keyof T]?: NonNullable<T[K]> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value != null)) as {
    [K in keyof T]?: NonNullable<T[K]>;
  };
}

const SCHEMA = anyObject();

/** OpenAI's `response_format`, nested as in chat or flat as in responses. */
export const RESPONSE_FORMAT = z.discriminatedUnion("type", [
  z.object({ type: z.literal("text") }),
  z.object({ type: z.literal("json_object") }),
  z.object({ type: z.literal("json_schema"), name: z.string(), schema: SCHEMA, strict: z.boolean().nullish() }),
]);

export function responseFormat(read: z.infer<typeof RESPONSE_FORMAT> | null | undefined): {
  responseFormat?: ResponseFormat;
} {
  if (!read || read.type === "text") return {};
  if (read.type === "json_object") return { responseFormat: { type: "json_object" } };
  const { type, name, schema } = read;
  return { responseFormat: { type, name, schema } };
}

/** Each has a grammar, and is shown by the template. OpenAI takes 128. */
const MOST_TOOLS = 512;

export interface ToolSettings {
  readonly tools: readonly Readonly<Record<string, unknown>>[] | null | undefined;
  readonly choice: ToolChoice | null | undefined;
  readonly parallel: boolean | null | undefined;
}

/** @throws {ApiError} for a choice of a tool that the request does not have */
export function toolsOf({ tools, choice, parallel }: ToolSettings) {
  const hasTools = tools != null && tools.length > 0;
  if (hasTools && tools.length > MOST_TOOLS)
    throw new ApiError(`Cannot use tools: there are ${tools.length}, more than ${MOST_TOOLS}. Name fewer.`, {
      param: "tools",
    });
  if (choice === "required" && !hasTools) throw noSuchTool("there are no tools");
  if (typeof choice === "object" && choice && !(hasTools && tools.some((tool) => toolName(tool) === choice.name)))
    throw noSuchTool(`there is no tool ${choice.name}`);
  if (!hasTools || choice === "none") return {};
  return {
    tools,
    ...(choice && choice !== "auto" && { toolChoice: choice }),
    ...(parallel === false && { parallelToolCalls: false }),
  };
}

function noSuchTool(what: string): ApiError {
  return new ApiError(`Cannot use tool_choice: ${what}.`, { param: "tool_choice" });
}

/** The name of a tool in the form of OpenAI's chat API. */
function toolName(tool: Readonly<Record<string, unknown>>): unknown {
  return (tool.function as { name?: unknown } | undefined)?.name;
}
