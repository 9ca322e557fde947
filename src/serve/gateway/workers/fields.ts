/** Fields that the gateway adds to requests for workers, and takes out of their answers: vLLM's extensions. */
import type { JsonBody } from "../../../leaves/http/json_body.ts";

/** Extensions that are used. Names are rLLM's. */
export interface FieldSettings {
  /** Ask for log-probs where the client does not. Default true. @see rLLM's `add_logprobs` */
  readonly addLogprobs?: boolean | undefined;
  /** Ask for token ids where the client does not. Default true. @see rLLM's `add_return_token_ids` */
  readonly addReturnTokenIds?: boolean | undefined;
  /** Take token ids and other extensions out of answers. Default true. @see rLLM's `strip_vllm_fields` */
  readonly stripVllmFields?: boolean | undefined;
}

const SAMPLED = /^\/v1\/(chat\/)?completions$/;

/** Whether a path's answers hold sampled tokens. */
export function isSampled(path: string): boolean {
  return SAMPLED.test(path);
}

/** The body with the extensions that make the worker return tokens and log-probs. */
export function withExtensions(
  body: JsonBody,
  path: string,
  { addLogprobs = true, addReturnTokenIds = true }: FieldSettings,
): JsonBody {
  if (!isSampled(path)) return body;
  // Completions take a number of alternatives: 0 is the sampled token alone, which vLLM reports with 1 too.
  const logprobs = path.includes("chat") ? true : 1;
  return {
    ...body,
    ...(addLogprobs && !("logprobs" in body) && { logprobs }),
    ...(addReturnTokenIds && !("return_token_ids" in body) && { return_token_ids: true }),
  };
}

const ROOT_FIELDS = ["prompt_token_ids", "prompt_logprobs", "kv_transfer_params", "weight_version"];
const CHOICE_FIELDS = [
  "token_ids",
  "stop_reason",
  "routing_matrices",
  "prompt_token_ids",
  "weight_version",
  "trace_id",
];

/** How an answer, or a chunk of one, goes back to the client: without what it did not ask for. */
export function forClient(answer: JsonBody, asked: JsonBody, { stripVllmFields = true }: FieldSettings): JsonBody {
  const keepsTokens = !stripVllmFields || asked.return_token_ids === true;
  const dropped = [...(keepsTokens ? [] : CHOICE_FIELDS), ...(isTruthy(asked.logprobs) ? [] : ["logprobs"])];
  const root = keepsTokens ? answer : without(answer, ROOT_FIELDS);
  if (!Array.isArray(root.choices)) return root;
  return { ...root, choices: root.choices.map((choice: JsonBody) => without(choice, dropped)) };
}

function isTruthy(value: unknown): boolean {
  return value !== undefined && value !== null && value !== false;
}

function without(value: JsonBody, keys: readonly string[]): JsonBody {
  return Object.fromEntries(Object.entries(value).filter(([key]) => !keys.includes(key)));
}
