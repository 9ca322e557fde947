/**
 * Treatment of the fields of requests that no reply here depends on. The rule: a value that changes nothing is
 * accepted, one that would be ignored is an error. Null changes nothing anywhere. Fields that replies depend on are
 * read by each API's `request.ts`; test/chat/apis/fields_test.ts holds both against the types of the official clients,
 * so that a new field must be decided.
 */
import { z } from "zod";
import { stringifyJson } from "../../leaves/json.ts";

/** Accepted with any value: a note to the provider's own service, or a hint that makes replies quicker. */
const note = z.unknown().optional();

/** Accepted only with values that change nothing. @param why others cannot be used */
function neutral(values: readonly unknown[] | ((value: unknown) => boolean), why: string) {
  const isNeutral = typeof values === "function" ? values : (value: unknown) => values.some(isSame(value));
  return z
    .unknown()
    .refine((value) => value === null || value === undefined || isNeutral(value), why)
    .optional();
}

function isSame(value: unknown): (other: unknown) => boolean {
  const text = stringifyJson(value);
  return (other) => stringifyJson(other) === text;
}

const unsupported = (why: string) => neutral([], why);
const TIERS = neutral(["auto", "default"], "only auto and default are supported");
const CACHE = { prompt_cache_key: note, prompt_cache_options: note, prompt_cache_retention: note };

/** Fields of `/v1/chat/completions` and `/v1/completions`. */
export const SAMPLING_FIELDS = {
  presence_penalty: neutral([0], "only 0 is supported"),
  frequency_penalty: neutral([0], "only 0 is supported"),
  repetition_penalty: neutral([1], "only 1 is supported"),
  min_p: neutral([0], "only 0 is supported"),
  user: note,
};

/** Fields of `/v1/chat/completions`. */
export const CHAT_FIELDS = {
  audio: unsupported("the model writes text alone"),
  functions: neutral([[]], "send tools, which replaced it"),
  function_call: neutral(["none", "auto"], "send tool_choice, which replaced it"),
  modalities: z.array(z.literal("text")).nullish(),
  moderation: unsupported("nothing here moderates texts"),
  prediction: note,
  safety_identifier: note,
  service_tier: TIERS,
  store: note,
  web_search_options: unsupported("the model searches nothing"),
  ...CACHE,
};

/** Fields of `/v1/responses`. */
export const RESPONSE_FIELDS = {
  background: neutral([false], "only false is supported"),
  context_management: neutral([[]], "only an empty one is supported, because a conversation is never shortened"),
  conversation: unsupported("conversations are not kept; send previous_response_id"),
  max_tool_calls: unsupported("no tools run here"),
  moderation: unsupported("nothing here moderates texts"),
  prompt: unsupported("templates of prompts are not kept; send instructions and input"),
  safety_identifier: note,
  service_tier: TIERS,
  truncation: neutral(["disabled"], "only disabled is supported"),
  user: note,
  ...CACHE,
};

/** Fields of `/v1/messages`, and of the count of its tokens. */
export const MESSAGE_FIELDS = {
  betas: note,
  billing_policy: note,
  cache_control: note,
  compaction: unsupported("a conversation is never shortened"),
  container: unsupported("no code runs here"),
  context_management: neutral(
    keepsAll,
    "only edits that keep everything are supported, because a conversation is never shortened",
  ),
  diagnostics: neutral(isWithoutMessage, "earlier messages are not kept"),
  fallback_credit_token: note,
  fallbacks: neutral([[], "default"], "there is no other model"),
  inference_geo: note,
  mcp_servers: neutral([[]], "only an empty list is supported, because no servers are called here"),
  service_tier: neutral(["auto", "standard_only"], "only auto and standard_only are supported"),
  speed: neutral(["standard"], "only standard is supported"),
  thread: unsupported("conversations are not kept; send all messages"),
  user_profile_id: note,
  workspace_id: note,
};

/** Fields of a tool of `/v1/messages`. */
export const MESSAGE_TOOL_FIELDS = {
  allowed_callers: neutral([[], ["direct"]], "only direct is supported"),
  cache_control: note,
  defer_loading: neutral([false], "only false is supported"),
  eager_input_streaming: note,
  input_examples: neutral([[]], "put examples into the description"),
};

/** `{edits: []}`, and Claude Code's edit that clears no thinking. */
function keepsAll(value: unknown): boolean {
  const { edits = [], ...others } = (value ?? {}) as { edits?: unknown };
  if (Object.keys(others).length > 0 || !Array.isArray(edits)) return false;
  return edits.every(({ type, keep }: { type?: unknown; keep?: unknown }) => {
    const kept = (keep as { type?: unknown } | undefined)?.type ?? keep;
    return type === "clear_thinking_20251015" && kept === "all";
  });
}

function isWithoutMessage(value: unknown): boolean {
  return ((value ?? {}) as { previous_message_id?: unknown }).previous_message_id == null;
}
