/** The grammars of replies: their reasoning, a form of their content, calls of tools. */
import { ConfigError } from "../leaves/errors.ts";
import { MOST_STATES, type StateBudget } from "./grammar/intersection.ts";
import { ANY_OBJECT, member, SPACE } from "./grammar/json.ts";
import {
  anyOf,
  choiceRule,
  GrammarRule,
  literal,
  optional,
  repeat,
  type SymbolSequence,
  textAfter,
  textAround,
  textUntil,
} from "./grammar/rules.ts";
import { schemaRule } from "./grammar/schema.ts";
import { CALL_CLOSE, CALL_OPEN, type PromptReasoning, type ToolFormat } from "./reply_reader.ts";
import type { ChatRequest, ResponseFormat } from "./request.ts";

/** The parts of a request that its replies keep. */
export type Demand = Pick<Partial<ChatRequest>, "responseFormat" | "tools" | "toolChoice" | "parallelToolCalls">;

/** The replies to a prompt of each kind. The schemas of a demand are read once for all of them. */
export type ReplyRules = (reasoning: PromptReasoning) => GrammarRule;

/** Whether a reply must call a tool. */
export function isForced(choice: ChatRequest["toolChoice"]): boolean {
  return choice === "required" || typeof choice === "object";
}

/**
 * Replies in a form from their first character on, or behind their reasoning.
 * @param format of the model's template. Undefined: it has no tools
 * @throws {ConfigError} as {@link schemaRule}
 */
export function replyRules(demand: Demand, format: ToolFormat | undefined): ReplyRules {
  const { responseFormat, tools, toolChoice } = demand;
  const alternatives: GrammarRule[] = [];
  if (!isForced(toolChoice)) alternatives.push(contentRule(responseFormat));
  if (tools && format) alternatives.push(callsRule(demand, format));
  const answer = choiceRule(...alternatives.map((rule) => [rule]));
  const thought = [textUntil("</think>"), repeat(anyOf(" \n"), { most: 4 })];
  return (reasoning) => {
    if (reasoning === "open") return choiceRule([...thought, answer]);
    return reasoning === "none" ? answer : choiceRule([optional(...literal("<think>"), ...thought), answer]);
  };
}

function contentRule(format: ResponseFormat | undefined): GrammarRule {
  if (format?.type === "json_schema") return schemaRule(format.schema);
  return ANY_OBJECT;
}

interface NamedTool {
  readonly name: string;
  readonly parameters?: Readonly<Record<string, unknown>>;
  readonly strict?: boolean | null;
}

function namedTools({ tools = [] }: Demand): NamedTool[] {
  return tools.map((tool) => (tool as { function: NamedTool }).function);
}

/** Whether a tool's calls must keep its schema. */
export function isStrict(demand: Demand): boolean {
  return namedTools(demand).some(({ strict }) => strict === true);
}

/** The demand with calls of any object for the tools that are not strict. */
export function strictAlone(demand: Demand): Demand {
  const tools = namedTools(demand).map((tool) => ({
    type: "function",
    function: { ...tool, strict: tool.strict === true },
  }));
  return { ...demand, tools };
}

/** One call or more, in the format of the model's template. */
function callsRule(demand: Demand, format: ToolFormat): GrammarRule {
  const { toolChoice, parallelToolCalls } = demand;
  const named = namedTools(demand);
  const budget = { left: MOST_STATES };
  const isOne = typeof toolChoice === "object";
  const usable = isOne ? named.filter(({ name }) => name === toolChoice.name) : named;
  const call = choiceRule(...usable.map((tool) => callText(tool, { format, budget })));
  const separator = format === "hermes" ? literal("\n") : literal("; ");
  const further = repeat(choiceRule([...separator, call]));
  return isOne || parallelToolCalls === false ? call : choiceRule([call, further]);
}

function callText(tool: NamedTool, { format, budget }: { format: ToolFormat; budget: StateBudget }): SymbolSequence {
  const key = format === "hermes" ? "arguments" : "parameters";
  const json = [
    ...literal(`{"name": ${JSON.stringify(tool.name)}, "${key}": `),
    argumentsOf(tool, budget),
    ...literal("}"),
  ];
  return format === "hermes" ? [...literal(`${CALL_OPEN}\n`), ...json, ...literal(`\n${CALL_CLOSE}`)] : json;
}

function argumentsOf({ name, parameters }: NamedTool, budget: StateBudget): GrammarRule {
  return parameters ? schemaRule(parameters, { path: `tools.${name}.parameters`, budget }) : ANY_OBJECT;
}

/**
 * Any reply, whose calls name a tool of the request and keep its schema. A tool that is not strict, and whose schema no grammar
 * keeps, takes any object; one with `strict: false` does so always.
 * @throws {ConfigError} for a strict tool whose schema no grammar keeps
 */
export function freeReplyRules(demand: Demand, format: ToolFormat): ReplyRules {
  const budget = { left: MOST_STATES };
  const tools = namedTools(demand).map((tool) => ({ name: tool.name, values: lenientArguments(tool, budget) }));
  const answer = format === "hermes" ? hermesText(tools) : llamaText(tools);
  const thought = textAround("</think>", answer);
  // What reads as reasoning and as content keeps to either, so that a call behind the reasoning keeps to both.
  const content = choiceRule([answer], [SPACES, ...literal("<think>"), thought]);
  return (reasoning) => (reasoning === "open" ? thought : content);
}

const SPACES = repeat(anyOf(" \t\r\n"));

function lenientArguments(tool: NamedTool, budget: StateBudget): GrammarRule {
  if (tool.strict === false) return ANY_OBJECT;
  try {
    return argumentsOf(tool, budget);
  } catch (error) {
    if (tool.strict === true || !(error instanceof ConfigError)) throw error;
    return ANY_OBJECT;
  }
}

interface Call {
  readonly name: string;
  readonly values: GrammarRule;
}

/** White space between the tags and the JSON of a call. */
const GAP = repeat(anyOf(" \n"), { most: 4 });

function hermesText(tools: readonly Call[]): GrammarRule {
  const calls = tools.map(
    ({ name, values }): SymbolSequence => [
      ...literal("{"),
      SPACE,
      ...member(literal('"name"'), choiceRule(literal(JSON.stringify(name)))),
      ...literal(","),
      SPACE,
      ...member(literal('"arguments"'), values),
      SPACE,
      ...literal("}"),
    ],
  );
  const text: GrammarRule = textAround(
    CALL_OPEN,
    new GrammarRule(() => [[GAP, choiceRule(...calls), GAP, ...literal(CALL_CLOSE), text]]),
  );
  return text;
}

/** The reply is calls from its beginning on, or text. */
function llamaText(tools: readonly Call[]): GrammarRule {
  const further: GrammarRule = new GrammarRule(() => [
    [],
    [SPACES, ...literal(";"), SPACES, choiceRule(...beginnings(" "), ...beginnings(""))],
  ]);
  const rest = new Map(
    tools.map(({ name, values }) => [
      name,
      choiceRule([optional(...literal(" ")), values, SPACE, ...literal("}"), further]),
    ]),
  );
  const markOf = (name: string, gap: string) => `{"name":${gap}${JSON.stringify(name)},${gap}"parameters":`;
  const beginnings = (gap: string) =>
    tools.map(({ name }): SymbolSequence => [...literal(markOf(name, gap)), rest.get(name)!]);
  const marks = tools.flatMap(({ name }) => [" ", ""].map((gap) => [markOf(name, gap), rest.get(name)!] as const));
  return textAfter(new Map(marks));
}
