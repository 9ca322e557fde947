/** Errors as answers: in the form of the API that was called, or of rLLM's gateway. */
import { errorResponse, formOf } from "../../chat/apis/errors.ts";
import { ApiError } from "../../chat/request.ts";
import { Refusal } from "../../leaves/http/refusal.ts";
import { AccessRefusal } from "./auth.ts";
import { publicError } from "./guarded_engine.ts";

/**
 * Returns the answer of routes that are not model calls: `{"error": message}`. One that is not the request's fault is
 * logged, and shown as an id.
 */
export function routeError(error: unknown, log: (line: string) => void): Response {
  const { status, message, retryAfter } = statusOf(publicError(error, log));
  return withRetry(Response.json({ error: message }, { status }), retryAfter);
}

function statusOf(shown: Error): { status: number; message: string; retryAfter?: number | undefined } {
  if (shown instanceof Refusal || shown instanceof AccessRefusal || shown instanceof ApiError) return shown;
  return { status: 400, message: shown.message };
}

/** Returns the answer of a model call in the form of the API that was called. */
export function callError(error: unknown, request: Request): Response {
  const form = formOf(request);
  if (error instanceof AccessRefusal) {
    const { message, status } = error;
    return errorResponse(
      new ApiError(message, { status, type: "authentication_error", code: "invalid_api_key" }),
      form,
    );
  }
  if (!(error instanceof Refusal)) return errorResponse(error, form);
  const { message, status, retryAfter } = error;
  return withRetry(errorResponse(new ApiError(message, { status }), form), retryAfter);
}

function withRetry(response: Response, seconds: number | undefined): Response {
  if (seconds !== undefined) response.headers.set("Retry-After", String(seconds));
  return response;
}
