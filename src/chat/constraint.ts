/** Demands of a request on its reply's tokens: a form of its content, calls of tools, alternatives. */

import type { SampleRequest, TokenConstraint } from "../engine/contract/backend.ts";
import type { Tokenizer } from "../engine/contract/text.ts";
import { ConfigError, UnsupportedError } from "../leaves/errors.ts";
import { stringifyJson } from "../leaves/json.ts";
import { RecentCache } from "../leaves/recent_cache.ts";
import { anyTokens, relaxedTo } from "./grammar/relaxed.ts";
import type { GrammarRule } from "./grammar/rules.ts";
import { GrammarConstraint } from "./grammar/vocabulary.ts";
import { toolFormatOf } from "./reply.ts";
import { type PromptReasoning, reasoningAt, type ToolFormat } from "./reply_reader.ts";
import {
  type Demand,
  freeReplyRules,
  isForced,
  isStrict,
  type ReplyRules,
  replyRules,
  strictAlone,
} from "./reply_rule.ts";
import { ApiError, type ChatRequest, type ResponseFormat, type SamplingRequest } from "./request.ts";

/** A request's demands, which the sampler and the conversation keep. */
export interface ReplyDemands {
  /** Fields of the sample request, once its prompt is known as text. */
  drawOf(prompt: string): Pick<SampleRequest, "allowed" | "top_logprobs">;
  /** The reply ends with its first call of a tool. */
  readonly isSingleCall: boolean;
}

/** The sampler's abilities. */
export interface DemandOptions {
  readonly tokenizer: Tokenizer;
  /** See {@link Backend.isConstrainable}. */
  readonly isConstrainable: boolean;
  /**
   * Whether calls that the model may make (`tool_choice` auto) keep their tools' schemas. Default false: a model in training
   * keeps its own, because masked tokens are not what it sampled.
   */
  readonly constrainsFreeCalls?: boolean;
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
  const constrainsCalls = isConstrainable && isFree && tools && tools.length > 0 && options.constrainsFreeCalls;
  const constraints = isFree && !constrainsCalls ? undefined : constraintsOf(request, { tokenizer, isFree });
  return {
    isSingleCall: tools !== undefined && parallelToolCalls === false,
    drawOf: (prompt) => ({
      ...(topLogprobs > 0 && { top_logprobs: topLogprobs }),
      ...givenConstraint(constraints?.(reasoningAt(prompt, tokenizer.chatTemplate))),
    }),
  };
}

function givenConstraint(allowed: TokenConstraint | undefined): Pick<SampleRequest, "allowed"> {
  return allowed ? { allowed } : {};
}

const TEXT: ResponseFormat = { type: "text" };

/** Refuses tools that the model's chat template cannot show, or whose calls cannot be read. */
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

/** Constraints by the reasoning of a prompt; undefined where tools are called freely and none can be kept. */
type Constraints = (reasoning: PromptReasoning) => TokenConstraint | undefined;

/** Constraints are shared by requests that demand the same: most come many times. */
const cache = new WeakMap<Tokenizer, RecentCache<string, Constraints>>();
/** Demands, such as sets of tools, that are kept at least; see {@link RecentCache}. */
const CACHED_DEMANDS = 32;

/**
 * Limit of letters of the tools and the form of a reply, as JSON: each letter of a name or a constant is a place in the
 * grammar.
 */
const MOST_LETTERS = 2 ** 20;

function tooLarge(letters: number, param: string): ApiError {
  return new ApiError(
    `Cannot constrain the reply: its tools and its form have ${letters} characters as JSON, more than ${MOST_LETTERS}. Shorten them.`,
    { param },
  );
}

interface ConstraintOptions {
  readonly tokenizer: Tokenizer;
  readonly isFree: boolean;
}

function constraintsOf(demand: Demand, options: ConstraintOptions): Constraints {
  const { responseFormat, tools, toolChoice, parallelToolCalls } = demand;
  const key = stringifyJson([options.isFree, responseFormat, tools, toolChoice, parallelToolCalls]);
  if (key.length > MOST_LETTERS) throw tooLarge(key.length, tools ? "tools" : "response_format");
  const byDemands = cache.get(options.tokenizer) ?? new RecentCache<string, Constraints>(CACHED_DEMANDS);
  cache.set(options.tokenizer, byDemands);
  return byDemands.get(key, () => makeConstraints(demand, options));
}

function makeConstraints(demand: Demand, { tokenizer, isFree }: ConstraintOptions): Constraints {
  const format = toolFormatOf(tokenizer.chatTemplate ?? "");
  if (!isFree || !format)
    return byReasoning(replyRules(demand, format), (rule) => new GrammarConstraint(rule, tokenizer));
  try {
    return freeConstraints(demand, { tokenizer, format });
  } catch (error) {
    const isOurs = error instanceof ConfigError || error instanceof UnsupportedError;
    if (isStrict(demand) || !isOurs) throw error;
    // Such as a vocabulary without the bytes of its tokens: calls stay the model's own.
    return () => undefined;
  }
}

/** A tool that is not strict is no reason to lose a reply: where its grammar fails in one, its calls take any object from there on. */
function freeConstraints(
  demand: Demand,
  { tokenizer, format }: { tokenizer: Tokenizer; format: ToolFormat },
): Constraints {
  const made = (rule: GrammarRule) => new GrammarConstraint(rule, tokenizer, { allowsSilent: true });
  const strict = (reasoning: PromptReasoning) =>
    isStrict(demand) ? made(freeReplyRules(strictAlone(demand), format)(reasoning)) : anyTokens(tokenizer);
  return byReasoning(freeReplyRules(demand, format), (rule, reasoning) =>
    relaxedTo(() => strict(reasoning), made(rule)),
  );
}

/** Makes the first at once, so that what cannot be kept is refused before a prompt is rendered. */
function byReasoning(
  rules: ReplyRules,
  make: (rule: GrammarRule, reasoning: PromptReasoning) => TokenConstraint,
): Constraints {
  const made = new Map<PromptReasoning, TokenConstraint>([["none", make(rules("none"), "none")]]);
  return (reasoning) => {
    const constraint = made.get(reasoning) ?? make(rules(reasoning), reasoning);
    made.set(reasoning, constraint);
    return constraint;
  };
}
