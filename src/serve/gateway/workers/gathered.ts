/** Gathers what a worker sampled, from a whole answer or from the chunks of a stream. */
import type { TokenCounts } from "../../../chat/response.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";

/** One choice. */
export interface GatheredChoice {
  readonly tokens: number[];
  readonly logprobs: number[];
  readonly message: JsonBody;
  readonly finish_reason: string | null;
  /** The stop string that ended it, where the worker says so. */
  readonly stop: string | undefined;
  /** Id of the worker's own record of it. */
  readonly traceId: string | undefined;
}

interface Growing {
  readonly tokens: number[];
  readonly logprobs: number[];
  role: string;
  content: string;
  reasoning: string;
  readonly calls: Map<number, GrowingCall>;
  finish_reason: string | null;
  stop: string | undefined;
  traceId: string | undefined;
  /** Tokens that {@link Gathered.takeNew} has given. */
  taken: number;
}

interface GrowingCall {
  id?: string;
  name: string;
  arguments: string;
}

export class Gathered {
  model: string | undefined;
  promptIds: readonly number[] = [];
  usage: JsonBody = {};
  weightVersion: number | undefined;
  private readonly growing = new Map<number, Growing>();

  get isEmpty(): boolean {
    return this.growing.size === 0;
  }

  /** Whether every choice has ended. */
  get isWhole(): boolean {
    return !this.isEmpty && [...this.growing.values()].every(({ finish_reason }) => finish_reason !== null);
  }

  /** The tokens of a choice since the last call, those with log-probs where the worker reports any. */
  takeNew(index: number): { readonly tokens: number[]; readonly logprobs: number[] } {
    const growing = this.growing.get(index);
    if (!growing) return { tokens: [], logprobs: [] };
    const from = growing.taken;
    const to = Math.min(growing.tokens.length, growing.logprobs.length);
    growing.taken = Math.max(from, to);
    return { tokens: growing.tokens.slice(from, to), logprobs: growing.logprobs.slice(from, to) };
  }

  /** Returns the counts of the worker, else those of its tokens. */
  counts(index: number): TokenCounts {
    const { prompt_tokens, completion_tokens, completion_tokens_details } = this.usage;
    const { reasoning_tokens } = (completion_tokens_details ?? {}) as JsonBody;
    return {
      prompt: typeof prompt_tokens === "number" ? prompt_tokens : this.promptIds.length,
      completion:
        typeof completion_tokens === "number" ? completion_tokens : (this.growing.get(index)?.tokens.length ?? 0),
      reasoning: typeof reasoning_tokens === "number" ? reasoning_tokens : 0,
    };
  }

  /** Takes an answer, or a chunk of one. */
  add(part: JsonBody): void {
    if (typeof part.model === "string") this.model ??= part.model;
    if (typeof part.weight_version === "number") this.weightVersion = part.weight_version;
    if (part.usage) this.usage = part.usage as JsonBody;
    const choices = (part.choices ?? []) as JsonBody[];
    const promptIds = idsIn(part.prompt_token_ids) ?? idsIn(choices[0]?.prompt_token_ids);
    if (promptIds && this.promptIds.length === 0) this.promptIds = promptIds;
    choices.forEach((choice, i) => void this.addChoice(choice, typeof choice.index === "number" ? choice.index : i));
  }

  choices(): GatheredChoice[] {
    return [...this.growing].sort(([a], [b]) => a - b).map(([, growing]) => finished(growing));
  }

  private addChoice(choice: JsonBody, index: number): void {
    const growing: Growing = this.growing.get(index) ?? {
      tokens: [],
      logprobs: [],
      role: "assistant",
      content: "",
      reasoning: "",
      calls: new Map(),
      finish_reason: null,
      stop: undefined,
      traceId: undefined,
      taken: 0,
    };
    this.growing.set(index, growing);
    // grpu's own servers report it with each choice.
    if (typeof choice.weight_version === "number") this.weightVersion = choice.weight_version;
    growing.tokens.push(...(idsIn(choice.token_ids) ?? []));
    growing.logprobs.push(...logprobsIn(choice.logprobs));
    if (typeof choice.finish_reason === "string") growing.finish_reason = choice.finish_reason;
    if (typeof choice.stop_reason === "string") growing.stop = choice.stop_reason;
    if (typeof choice.trace_id === "string" && UUID.test(choice.trace_id)) growing.traceId = choice.trace_id;
    if (typeof choice.text === "string") growing.content += choice.text;
    addMessage(growing, (choice.message ?? choice.delta ?? {}) as JsonBody);
  }
}

function addMessage(choice: Growing, message: JsonBody): void {
  const { role, content, reasoning_content, reasoning } = message;
  if (typeof role === "string" && role !== "") choice.role = role;
  if (typeof content === "string") choice.content += content;
  const thought = reasoning_content ?? reasoning;
  if (typeof thought === "string") choice.reasoning += thought;
  const calls = Array.isArray(message.tool_calls) ? (message.tool_calls as JsonBody[]) : [];
  calls.forEach((call, i) => {
    const at = typeof call.index === "number" ? call.index : i;
    const { name, arguments: text } = (call.function ?? {}) as JsonBody;
    const growing = choice.calls.get(at) ?? { name: "", arguments: "" };
    choice.calls.set(at, growing);
    if (typeof call.id === "string") growing.id = call.id;
    if (typeof name === "string") growing.name += name;
    if (typeof text === "string") growing.arguments += text;
  });
}

function finished({ tokens, logprobs, role, content, reasoning, calls, ...ended }: Growing): GatheredChoice {
  const tool_calls = [...calls.values()].map(({ id, name, arguments: text }) => ({
    ...(id !== undefined && { id }),
    type: "function",
    function: { name, arguments: text },
  }));
  const message = {
    role,
    content,
    ...(reasoning !== "" && { reasoning_content: reasoning }),
    ...(tool_calls.length > 0 && { tool_calls }),
  };
  const { finish_reason, stop, traceId } = ended;
  return { tokens, logprobs, message, finish_reason, stop, traceId };
}

/** Ids as grpu's servers make them: other texts could be ids of traces that are there. */
const UUID = /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/;

function idsIn(value: unknown): number[] | undefined {
  return Array.isArray(value) ? value.filter((id) => typeof id === "number") : undefined;
}

/** Returns the log-probs of chat completions (`content[].logprob`) and of completions (`token_logprobs`). */
function logprobsIn(value: unknown): number[] {
  const { content, token_logprobs } = (value ?? {}) as JsonBody;
  const entries = Array.isArray(content) ? content.map((entry: JsonBody) => entry?.logprob) : token_logprobs;
  return Array.isArray(entries) ? entries.filter((logprob) => typeof logprob === "number") : [];
}
