/** What a request demands of its reply's tokens: a form of its content, calls of tools, alternatives. */
import type { SampleRequest, TokenConstraint } from "../contract/backend.ts";
import type { Tokenizer } from "../contract/text.ts";
import { ANY_OBJECT } from "./grammar/json.ts";
import { anyOf, choice, literal, optional, type Rule, repeat, type Sequence, textUntil } from "./grammar/rules.ts";
import { schemaRule } from "./grammar/schema.ts";
import { GrammarConstraint } from "./grammar/vocabulary.ts";
import { toolFormatOf } from "./reply.ts";
import { type PromptReasoning, reasoningAt, type ToolFormat } from "./reply_reader.ts";
import { ApiError, type ChatRequest, type ResponseFormat, type SamplingRequest } from "./request.ts";

/** A request's demands, which the sampler and the conversation keep. */
export interface ReplyDemands {
  /** Fields of the sample request, once its prompt is known as text. */
  drawOf(prompt: string): Pick<SampleRequest, "allowed" | "top_logprobs">;
  /** The reply ends with its first call of a tool. */
  readonly isSingleCall: boolean;
}

/** What the sampler can do. */
export interface DemandOptions {
  readonly tokenizer: Tokenizer;
  /** See {@link Backend.isConstrainable}. */
  readonly isConstrainable: boolean;
}

/**
 * The demands of a request, checked.
 * @throws {ApiError} for one that the sampler or the model cannot keep; {ConfigError} for a schema with keywords that the
 *   grammar cannot keep
 */
export function demandsOf(
  request: SamplingRequest & Partial<Omit<ChatRequest, keyof SamplingRequest>>,
  options: DemandOptions,
): ReplyDemands {
  const { tokenizer, isConstrainable } = options;
  const { topLogprobs = 0, tools, toolChoice, responseFormat, parallelToolCalls } = request;
  if (tools) checkTools(tokenizer);
  const isFree = !isForced(toolChoice) && (responseFormat ?? TEXT).type === "text";
  if (!isConstrainable && topLogprobs > 0) throw unsupported("top_logprobs", topLogprobs);
  if (!isConstrainable && !isFree) throw unsupported(isForced(toolChoice) ? "tool_choice" : "response_format");
  const constraints = isFree ? undefined : constraintsOf(request, tokenizer);
  // A schema that cannot be kept is refused before the prompt is rendered.
  constraints?.("none");
  return {
    isSingleCall: tools !== undefined && parallelToolCalls === false,
    drawOf: (prompt) => ({
      ...(topLogprobs > 0 && { top_logprobs: topLogprobs }),
      ...(constraints && { allowed: constraints(reasoningAt(prompt, tokenizer.chatTemplate)) }),
    }),
  };
}

const TEXT: ResponseFormat = { type: "text" };

function isForced(choice: ChatRequest["toolChoice"]): boolean {
  return choice === "required" || typeof choice === "object";
}

/** For tools that the model's chat template cannot show, or whose calls cannot be read. */
function checkTools({ chatTemplate = "" }: Tokenizer): void {
  if (toolFormatOf(chatTemplate)) return;
  throw new ApiError(
    "Cannot use tools: the model's chat template has none, or writes tool calls in a format that grpu cannot read. Use a template with Hermes or Llama 3 tool calls.",
    { param: "tools", code: "unsupported_parameter" },
  );
}

function unsupported(param: string, value?: number): ApiError {
  const shown = value === undefined ? "" : ` (${value})`;
  return new ApiError(`Cannot use ${param}: this model's sampler does not support it${shown}. Use a local backend.`, {
    param,
    code: "unsupported_parameter",
  });
}

type Demand = Pick<Partial<ChatRequest>, "responseFormat" | "tools" | "toolChoice" | "parallelToolCalls">;

/** Constraints are shared by requests that demand the same: most come many times. */
const cache = new WeakMap<Tokenizer, Map<string, GrammarConstraint>>();
const MOST_CACHED = 32;

function constraintsOf(demand: Demand, tokenizer: Tokenizer): (reasoning: PromptReasoning) => TokenConstraint {
  const { responseFormat, tools, toolChoice, parallelToolCalls } = demand;
  const key = JSON.stringify([responseFormat, tools, toolChoice, parallelToolCalls]);
  const known = cache.get(tokenizer) ?? new Map<string, GrammarConstraint>();
  cache.set(tokenizer, known);
  return (reasoning) => {
    const name = `${reasoning} ${key}`;
    const constraint = known.get(name) ?? new GrammarConstraint(replyRule(demand, { reasoning, tokenizer }), tokenizer);
    // The last used is the last to go.
    known.delete(name);
    known.set(name, constraint);
    if (known.size > MOST_CACHED) known.delete(known.keys().next().value as string);
    return constraint;
  };
}

function replyRule(demand: Demand, it: { reasoning: PromptReasoning; tokenizer: Tokenizer }): Rule {
  const { responseFormat = TEXT, tools, toolChoice } = demand;
  const alternatives: Rule[] = [];
  if (!isForced(toolChoice)) alternatives.push(contentRule(responseFormat));
  if (tools) alternatives.push(callsRule(demand, toolFormatOf(it.tokenizer.chatTemplate ?? "")!));
  const answer = choice(...alternatives.map((rule) => [rule]));
  const thought = [textUntil("</think>"), repeat(anyOf(" \n"), { most: 4 })];
  if (it.reasoning === "open") return choice([...thought, answer]);
  return it.reasoning === "none" ? answer : choice([optional(...literal("<think>"), ...thought), answer]);
}

function contentRule(format: ResponseFormat): Rule {
  if (format.type === "json_schema") return schemaRule(format.schema);
  return ANY_OBJECT;
}

interface NamedTool {
  readonly name: string;
  readonly parameters?: Readonly<Record<string, unknown>>;
}

/** One call or more, in the format of the model's template. */
function callsRule({ tools = [], toolChoice, parallelToolCalls }: Demand, format: ToolFormat): Rule {
  const named = tools.map((tool) => (tool as { function: NamedTool }).function);
  const isOne = typeof toolChoice === "object";
  const usable = isOne ? named.filter(({ name }) => name === toolChoice.name) : named;
  const call = choice(...usable.map((tool) => callText(tool, format)));
  const separator = format === "hermes" ? literal("\n") : literal("; ");
  const further = repeat(choice([...separator, call]));
  return isOne || parallelToolCalls === false ? call : choice([call, further]);
}

function callText({ name, parameters }: NamedTool, format: ToolFormat): Sequence {
  const values = parameters ? schemaRule(parameters) : ANY_OBJECT;
  const key = format === "hermes" ? "arguments" : "parameters";
  const json = [...literal(`{"name": ${JSON.stringify(name)}, "${key}": `), values, ...literal("}")];
  return format === "hermes" ? [...literal("<tool_call>\n"), ...json, ...literal("\n</tool_call>")] : json;
}
