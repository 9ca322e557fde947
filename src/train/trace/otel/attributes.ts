/** Attributes of spans in OTLP's JSON form, and their names in the GenAI conventions. */

/** @see https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ */
export const GEN_AI = {
  operation: "gen_ai.operation.name",
  provider: "gen_ai.provider.name",
  requestModel: "gen_ai.request.model",
  responseModel: "gen_ai.response.model",
  responseId: "gen_ai.response.id",
  finishReasons: "gen_ai.response.finish_reasons",
  inputTokens: "gen_ai.usage.input_tokens",
  outputTokens: "gen_ai.usage.output_tokens",
  conversation: "gen_ai.conversation.id",
  input: "gen_ai.input.messages",
  output: "gen_ai.output.messages",
  system: "gen_ai.system_instructions",
  tools: "gen_ai.tool.definitions",
} as const;

/** Sampling parameters, by their names in a trace. */
export const GEN_AI_SAMPLING = {
  temperature: "gen_ai.request.temperature",
  top_p: "gen_ai.request.top_p",
  top_k: "gen_ai.request.top_k",
  max_tokens: "gen_ai.request.max_tokens",
} as const;

/** Attributes that the conventions have no names for: without the first three a span cannot be trained on. */
export const OWN = {
  promptIds: "grpu.prompt_token_ids",
  completionIds: "grpu.completion_token_ids",
  logprobs: "grpu.logprobs",
  weightVersion: "grpu.weight_version",
  metadata: "grpu.metadata",
  /** Fields of the trace that neither these conventions nor the names above hold, as JSON. */
  more: "grpu.more",
  /** The session's record, as JSON, in the first span of each session. */
  session: "grpu.session",
} as const;

/** A value in OTLP's JSON form: 64-bit integers are text. */
export type AnyValue =
  | { readonly stringValue: string }
  | { readonly intValue: string | number }
  | { readonly doubleValue: number }
  | { readonly boolValue: boolean }
  | { readonly arrayValue: { readonly values?: readonly AnyValue[] } }
  | { readonly kvlistValue: { readonly values?: readonly KeyValue[] } };

/** One attribute. */
export interface KeyValue {
  readonly key: string;
  readonly value: AnyValue;
}

/** Returns values as attributes; null and undefined are left out. */
export function toAttributes(values: Readonly<Record<string, unknown>>): KeyValue[] {
  return Object.entries(values)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([key, value]) => ({ key, value: toAnyValue(value) }));
}

function toAnyValue(value: unknown): AnyValue {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  if (typeof value === "number") return Number.isSafeInteger(value) ? { intValue: `${value}` } : { doubleValue: value };
  if (Array.isArray(value)) return { arrayValue: { values: value.map(toAnyValue) } };
  return { kvlistValue: { values: toAttributes(value as Record<string, unknown>) } };
}

/** The attributes by key. Of two with one key the last counts. */
export function fromAttributes(attributes: readonly KeyValue[]): Record<string, unknown> {
  return Object.fromEntries(attributes.map(({ key, value }) => [key, fromAnyValue(value)]));
}

function fromAnyValue(value: AnyValue): unknown {
  if ("intValue" in value) return Number(value.intValue);
  if ("arrayValue" in value) return (value.arrayValue.values ?? []).map(fromAnyValue);
  if ("kvlistValue" in value) return fromAttributes(value.kvlistValue.values ?? []);
  return Object.values(value)[0];
}
