/** The shapes of the protocol's JSON requests. */
import { z } from "zod";
import { ConfigError } from "../../../leaves/errors.ts";
import { readAs } from "../../../leaves/shape.ts";
import { MOST_MODEL_NUMBER } from "../checkpoint_path.ts";
import { Refusal } from "./outcome.ts";
import type { PromptRequest } from "./prompt_request.ts";
import { PROMPT_TARGETS } from "./prompt_targets.ts";

const id = z.string().min(1, "it must not be empty").max(256);
const count = z.number().int().min(0);
/** A number that may be above 2^53: {@link readJsonBody} keeps it as text. */
const bigId = z
  .union([count, z.string().regex(/^\d{1,30}$/, "it must be a whole number")], "it must be a whole number")
  .transform((value) => BigInt(value));
const metadata = z.record(z.string(), z.unknown()).nullish();
const type = z.string().optional();
/** Time to live of at most a hundred years: later times do not fit a Date. */
const ttl = z.number().int().min(1).max(3_155_760_000).nullish();
const modelNumber = count.max(MOST_MODEL_NUMBER);

/** Reason why the service's other optimiser is not here. */
export const NO_DIMUON = "Tinker's documentation describes the update of dimuon and publishes no formula of it";

const optimizer = z
  .object({ type: z.literal("adamw", `this server supports only adamw; ${NO_DIMUON}`) })
  .loose()
  .nullish();

export const SHAPES = {
  clientConfig: z.object({ sdk_version: z.string().optional() }),
  createSession: z.object({
    tags: z.array(z.string()).optional(),
    user_metadata: metadata,
    sdk_version: z.string().optional(),
    project_id: id.nullish(),
    display_name: z.string().max(1024).nullish(),
    type,
  }),
  heartbeat: z.object({ session_id: id, type }),
  createModel: z.object({
    session_id: id,
    model_seq_id: modelNumber,
    base_model: id,
    lora_config: z
      .object({
        rank: z.number().int().min(0).max(4096),
        seed: z.number().int().nullish(),
        train_unembed: z.boolean().default(true),
        train_mlp: z.boolean().default(true),
        train_attn: z.boolean().default(true),
      })
      .nullish(),
    user_metadata: metadata,
    optimizer_config: optimizer,
    type,
  }),
  model: z.object({ model_id: id, type }),
  optimStep: z.object({
    model_id: id,
    seq_id: bigId.default(0n),
    adam_params: z
      .object({
        learning_rate: z.number().default(1e-4),
        beta1: z.number().default(0.9),
        beta2: z.number().default(0.95),
        eps: z.number().default(1e-12),
        weight_decay: z.number().default(0),
        grad_clip_norm: z.number().default(0),
      })
      .nullish(),
    /** Parameters of an optimiser other than Adam. */
    optimizer_params: z.object({ type: z.string() }).loose().nullish(),
    type,
  }),
  saveWeights: z.object({
    model_id: id,
    path: z.string().nullish(),
    seq_id: bigId.default(0n),
    ttl_seconds: ttl,
    overwrite: z.boolean().default(false),
    user_metadata: metadata,
    type,
  }),
  saveForSampler: z.object({
    model_id: id,
    path: z.string().nullish(),
    sampling_session_seq_id: count.nullish(),
    kind: z.enum(["snapshot", "inflight"], 'it must be "snapshot" or "inflight"').default("snapshot"),
    seq_id: bigId.default(0n),
    ttl_seconds: ttl,
    user_metadata: metadata,
    type,
  }),
  saveExternal: z.object({
    model_id: id,
    path: z.string(),
    seq_id: bigId.default(0n),
    ttl_seconds: ttl,
    age_encryption_recipients: z.array(z.string()).nullish(),
    type,
  }),
  loadWeights: z.object({
    model_id: id.nullish(),
    seq_id: bigId.nullish(),
    session_id: id.nullish(),
    model_seq_id: modelNumber.nullish(),
    base_model: z.string().nullish(),
    user_metadata: metadata,
    path: z.string(),
    optimizer: z.boolean().default(false),
    optimizer_config: optimizer,
    weights_access_token: z.string().nullish(),
    type,
  }),
  createSampler: z.object({
    session_id: id,
    sampling_session_seq_id: count,
    base_model: z.string().nullish(),
    model_path: z.string().nullish(),
    type,
  }),
  sample: z.object({
    num_samples: count.default(1),
    prompt: z.object({ chunks: z.array(z.object({ type: z.string().default("encoded_text") }).loose()) }),
    sampling_params: z.object({
      max_tokens: z.number().nullish(),
      seed: z.number().int().nullish(),
      stop: z
        .union(
          [z.string(), z.array(z.string()), z.array(z.number().int())],
          "it must be one text, or several texts or tokens",
        )
        .nullish(),
      temperature: z.number().default(1),
      top_k: z.number().default(-1),
      top_p: z.number().default(1),
    }),
    sampling_session_id: id.nullish(),
    base_model: z.string().nullish(),
    model_path: z.string().nullish(),
    seq_id: bigId.nullish(),
    prompt_logprobs: z.boolean().nullish(),
    topk_prompt_logprobs: count.default(0),
    topk_sample_logprobs: count.default(0),
    prompt_logprobs_last_n: z.number().int().nullish(),
    target_prompt_logprobs: PROMPT_TARGETS.nullish(),
    prompt_alt_tokens_k: count.default(0),
    record_stability_info: z.boolean().nullish(),
    type,
  }),
  retrieve: z.object({
    request_id: id,
    allow_metadata_only: z.boolean().optional(),
    model_id: z.string().nullish(),
  }),
  cancel: z.object({ request_id: id }),
  weightsInfo: z.object({ tinker_path: z.string() }),
  ttl: z.object({ ttl_seconds: ttl }),
  project: z.object({ project_id: id }),
  searchSessions: z.object({
    session_id: z.string().nullish(),
    project_ids: z.array(z.string()).nullish(),
    user_metadata: metadata,
    display_name: z.string().min(1, "it must not be empty").max(1024).nullish(),
    owner: z
      .discriminatedUnion("type", [
        z.object({ type: z.literal("own") }),
        z.object({ type: z.literal("accessible") }),
        z.object({ type: z.literal("user"), owner_urns: z.array(z.string()) }),
      ])
      .nullish(),
    statuses: z
      .array(
        z.object({
          type: z.enum(["active", "cancelled", "failed", "client_finished"]),
          reasons: z.array(z.string()).nullish(),
        }),
      )
      .nullish(),
    limit: count.min(1).max(200).default(50),
    cursor: z.object({ last_created_at: z.string(), last_session_id: z.string() }).nullish(),
  }),
  finish: z.object({
    reason: z.object({ type: z.string() }).loose().optional(),
    detail: z.string().nullish(),
  }),
} as const;

/**
 * Reads a JSON body of a shape. An unknown field may only hold an empty value (null, false, 0, ""), because anything
 * else would be ignored silently.
 * @throws Refusal 422 naming the field.
 */
export function readShape<S extends z.ZodObject>(shape: S, body: string): z.output<S> {
  const raw = readJson(body);
  const read = readAs(shape, raw);
  if ("misfit" in read) {
    const { path, rule, value } = read.misfit;
    throw new Refusal(422, `Cannot read ${path || "the body"} of the request: ${rule} (${value}).`);
  }
  for (const [key, value] of Object.entries(raw as object))
    if (!Object.hasOwn(shape.shape, key) && !isEmpty(value))
      throw new Refusal(422, `Cannot read the request: this server does not support the field ${key}.`);
  return read.data;
}

/**
 * The model and number of a request; also of damaged or truncated JSON, if it holds them. The requests behind a refused
 * one then need not wait for its number.
 */
export function readAddress(bytes: Uint8Array): { modelId: string; number: bigint } | undefined {
  const body = new TextDecoder().decode(bytes);
  try {
    const { model_id, seq_id } = readJson(body) as { model_id?: unknown; seq_id?: unknown };
    return typeof model_id === "string" ? { modelId: model_id, number: BigInt(seq_id as number) } : undefined;
  } catch {
    return scanAddress(body.slice(0, ADDRESS_CHARACTERS));
  }
}

function scanAddress(text: string): { modelId: string; number: bigint } | undefined {
  const model = /"model_id"\s{0,9}:\s{0,9}"([^"\\]{1,256})"/.exec(text)?.[1];
  const number = /"seq_id"\s{0,9}:\s{0,9}"?(\d{1,30})/.exec(text)?.[1];
  return model === undefined || number === undefined ? undefined : { modelId: model, number: BigInt(number) };
}

/** Clients write a request's address near its start, or the request is short. */
const ADDRESS_CHARACTERS = 2 ** 16;

function readJson(body: string): unknown {
  try {
    // JSON.parse rounds numbers of 16 and more digits. The pattern cannot match inside a string: quotes are escaped there.
    return JSON.parse(body.replace(/"seq_id"\s*:\s*(\d{16,30})(?=\s*[,}])/g, '"seq_id":"$1"'));
  } catch (error) {
    throw new Refusal(422, `Cannot read the request: it must be JSON (${(error as Error).message}).`);
  }
}

function isEmpty(value: unknown): boolean {
  if (value === null || value === false || value === 0 || value === "") return true;
  return typeof value === "object" && Object.keys(value as object).length === 0;
}

/** A request to sample in the server's terms; its values are checked when it is queued. */
export function promptRequestOf(request: z.output<typeof SHAPES.sample>): PromptRequest {
  const { sampling_params: params } = request;
  const stop = typeof params.stop === "string" ? [params.stop] : params.stop;
  const texts = (stop ?? []).filter((item) => typeof item === "string");
  return {
    prompt: promptOf(request.prompt.chunks),
    count: request.num_samples,
    maxTokens: params.max_tokens ?? undefined,
    seed: params.seed ?? undefined,
    stopTexts: texts,
    stopTokens: stop?.filter((item) => typeof item === "number"),
    temperature: params.temperature,
    topK: params.top_k,
    topP: params.top_p,
    // The top tokens of a prompt come with the log-probs of its own.
    promptLogprobs: (request.prompt_logprobs ?? false) || request.topk_prompt_logprobs > 0,
    topkPromptLogprobs: request.topk_prompt_logprobs,
    topkSampleLogprobs: request.topk_sample_logprobs,
    recordsStability: request.record_stability_info ?? false,
    promptAltTokens: request.prompt_alt_tokens_k,
    promptLogprobsLastN: request.prompt_logprobs_last_n ?? undefined,
    targetPromptLogprobs: request.target_prompt_logprobs ?? undefined,
  };
}

/** @throws ConfigError for anything but text. */
function promptOf(chunks: readonly { readonly type: string; readonly tokens?: unknown }[]): number[] {
  return chunks.flatMap(({ type, tokens }) => {
    if (type !== "encoded_text")
      throw new ConfigError(
        `Cannot sample from a prompt with a chunk of type ${type}: this server's models read only text. Send chunks of type encoded_text.`,
      );
    if (Array.isArray(tokens) && tokens.every((id) => Number.isInteger(id))) return tokens as number[];
    throw new Refusal(422, "Cannot read the request: prompt.chunks.tokens must be whole numbers.");
  });
}

/** Values of a list's filter by owner. Every client of this server sees all of them. */
const SCOPES: readonly (string | undefined)[] = [undefined, "owned", "accessible"];

/**
 * The page of a list that a query selects.
 * @param names names of further fields that the list's route reads
 * @throws Refusal 422 for values that are no counts, and for fields that would be ignored.
 */
export function pageOf(
  query: Record<string, string | undefined>,
  names: readonly string[] = [],
): { offset: number; limit: number } {
  for (const name of Object.keys(query))
    if (!["offset", "limit", "access_scope", ...names].includes(name))
      throw new Refusal(422, `Cannot read the query: this server does not support the field ${name.slice(0, 100)}.`);
  if (!SCOPES.includes(query.access_scope))
    throw new Refusal(
      422,
      `Cannot read the query: access_scope must be owned or accessible (${query.access_scope?.slice(0, 100)}).`,
    );
  const read = (name: string, fallback: number) => {
    const value = Number(query[name] ?? fallback);
    if (Number.isInteger(value) && value >= 0) return value;
    throw new Refusal(422, `Cannot read the query: ${name} must be a whole number (${query[name]}).`);
  };
  return { offset: read("offset", 0), limit: read("limit", 100) };
}
