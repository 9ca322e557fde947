/** Paths that callers may request from workers. */
import { ApiError } from "../../../chat/request.ts";

/**
 * A worker has more routes below `/v1` than those of models, and the gateway would open them with the worker's key:
 * `/v1/load_lora_adapter` replaces what it serves.
 */
const ALLOWED: readonly RegExp[] = [
  /^POST \/v1\/(chat\/completions|completions|embeddings)$/,
  /^POST \/v1\/messages(\/count_tokens)?$/,
  /^POST \/v1\/responses(\/[\w.:-]+\/cancel)?$/,
  /^(GET|DELETE) \/v1\/responses\/[\w.:-]+$/,
  // The name of a model may contain slashes, as they are or encoded.
  /^GET \/v1\/models(\/([\w.:@+-]|%2F|\/)+)?$/i,
];
/** A part of a path that a server may resolve to the one above. */
const UPWARDS = /(^|\/|%2F)\.\.?(\/|%2F|$)/i;

/** @throws {ApiError} 404 for a path that is not forwarded */
export function checkWorkerPath(method: string, path: string): void {
  if (ALLOWED.some((allowed) => allowed.test(`${method} ${path}`)) && !UPWARDS.test(path)) return;
  throw new ApiError(
    `Cannot answer ${method} ${path.slice(0, 200)}: workers get chat/completions, completions, responses, messages, embeddings and models alone. Call one of them.`,
    { status: 404, code: "unknown_url" },
  );
}
