/** A worker's error as one of the gateway's, so that it reaches the client in the form of the API that it called. */
import { ApiError } from "../../../chat/request.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { readErrorText } from "../../../leaves/read_reply.ts";

/** Letters of an answer that is not JSON. */
const SHOWN = 200;

/** Returns the error of an answer with an error status. */
export async function workerError(response: Response): Promise<ApiError> {
  const text = await readErrorText(response);
  let body: JsonBody = {};
  try {
    body = JSON.parse(text) as JsonBody;
  } catch {
    // Said as it is.
  }
  return errorIn(body, { status: response.status, text });
}

/**
 * Returns the error of an event, or of the body of an answer: `{"error": {message, type, code}}`, or vLLM's older form
 * without `error`.
 */
export function errorIn(
  body: JsonBody,
  { status = 502, text = "" }: { status?: number; text?: string } = {},
): ApiError {
  const { message, type, code, param } = (body.error ?? body) as JsonBody;
  return new ApiError(typeof message === "string" ? message : `The worker failed: ${text.slice(0, SHOWN)}`, {
    status,
    type: typeof type === "string" ? type : status < 500 ? "invalid_request_error" : "server_error",
    ...(typeof code === "string" && { code }),
    ...(typeof param === "string" && { param }),
  });
}
