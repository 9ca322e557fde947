/** Errors as answers: in the form of the API that was called, or of rLLM's gateway. */
import { errorResponse, formOf } from "../chat/apis/errors.ts";
import { ApiError } from "../chat/request.ts";
import { ConfigError } from "../errors.ts";
import { Refusal } from "../http/refusal.ts";
import { AccessRefusal } from "./auth.ts";

/** Of routes that are not model calls: `{"error": message}`. */
export function routeError(error: unknown): Response {
  const { status, message, retryAfter } = statusOf(error);
  return withRetry(Response.json({ error: message }, { status }), retryAfter);
}

function statusOf(error: unknown): { status: number; message: string; retryAfter?: number | undefined } {
  if (error instanceof Refusal || error instanceof AccessRefusal || error instanceof ApiError) return error;
  if (error instanceof ConfigError) return { status: 400, message: error.message };
  return { status: 500, message: "Cannot answer: the gateway failed." };
}

/** Of model calls: the form of the API that was called. */
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
