/** A refused request: an HTTP status and a sentence. */

/**
 * Thrown anywhere below a route, answered as `{"detail": message}`: 400 for a conflict, 401 without the key, 403 for
 * another site's page, 404 for something that does not or no longer exist, 408 for a body that does not arrive, 410 for
 * something that was dropped, 413, 415, 422 for a wrong shape, 429 for a full queue, 503 while stopping.
 */
export class Refusal extends Error {
  override readonly name = "Refusal";
  readonly status: number;
  /** Seconds after which a client should try again. */
  readonly retryAfter: number | undefined;
  constructor(status: number, detail: string, more: { readonly retryAfter?: number | undefined } = {}) {
    super(detail);
    this.status = status;
    this.retryAfter = more.retryAfter ?? (status === 429 || status === 503 ? 1 : undefined);
  }
}

/** The answer to a refused request. */
export function refusalResponse({ status, message, retryAfter }: Refusal): Response {
  const headers: Record<string, string> = retryAfter === undefined ? {} : { "Retry-After": String(retryAfter) };
  return Response.json({ detail: message }, { status, headers });
}
