/** Errors in each API's own form. */
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";
import { ApiError } from "../request.ts";

/** The API whose form an answer has. */
export type ApiForm = "openai" | "anthropic";

/** Anthropic's clients send their version with every request, to routes that both APIs have too. */
export function formOf(request: Request): ApiForm {
  const isAnthropic = /\/v1\/messages(\/|$)/.test(new URL(request.url).pathname);
  return isAnthropic || request.headers.has("anthropic-version") ? "anthropic" : "openai";
}

/**
 * The error as a response: 400 for the caller's faults, 500 for all others. Its request id is in the header that the API's
 * clients read, and in the body where the API has it there.
 */
export function errorResponse(error: unknown, form: ApiForm = "openai"): Response {
  const request_id = requestId();
  const isAnthropic = form === "anthropic";
  // The official clients retry a 500 without this header.
  return Response.json(errorBody(error, form, request_id), {
    status: isAnthropic ? anthropicStatus(toApiError(error).status) : toApiError(error).status,
    headers: { "x-should-retry": "false", [isAnthropic ? "request-id" : "x-request-id"]: request_id },
  });
}

/** @param request_id of the response's header; a new one for an error within a stream */
export function errorBody(error: unknown, form: ApiForm, request_id = requestId()): object {
  const { status, type, code, param, message } = toApiError(error);
  if (form === "openai") return { error: { message, type, param, code } };
  return { type: "error", error: { type: anthropicType(anthropicStatus(status)), message }, request_id };
}

/** Puts a request's id on an answer, under the name that the API's clients read. */
export function withRequestId(response: Response, form: ApiForm): Response {
  const name = form === "anthropic" ? "request-id" : "x-request-id";
  if (response.headers.has(name)) return response;
  const { status, statusText, body } = response;
  const headers = new Headers(response.headers);
  headers.set(name, requestId());
  return new Response(body, { status, statusText, headers });
}

function requestId(): string {
  return `req_${crypto.randomUUID().replaceAll("-", "")}`;
}

/** Anthropic's API has no 503: its clients know an overloaded server by 529. */
function anthropicStatus(status: number): number {
  return status === 503 ? 529 : status;
}

const ANTHROPIC_TYPES: Readonly<Record<number, string>> = {
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  529: "overloaded_error",
};

function anthropicType(status: number): string {
  return ANTHROPIC_TYPES[status] ?? (status < 500 ? "invalid_request_error" : "api_error");
}

export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  const message = error instanceof Error ? error.message : String(error);
  const isCallers = error instanceof ConfigError || error instanceof UnsupportedError;
  return isCallers ? new ApiError(message) : new ApiError(message, { status: 500, type: "server_error" });
}
