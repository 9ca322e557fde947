/** What goes wrong between a client and the server, and how it is told. */
import { ConfigError, UnsupportedError } from "../errors.ts";

/**
 * A request that is refused at once, with an HTTP status: 400 for a conflict, 404 for what is not (or no longer) there,
 * 410 for what was dropped, 413, 422 for a wrong shape, 429 for a queue that is full, 503 while stopping.
 */
export class Refusal extends Error {
  override readonly name = "Refusal";
  readonly status: number;
  constructor(status: number, detail: string) {
    super(detail);
    this.status = status;
  }
}

/** How an accepted request ended. Failures are told as results: clients retry statuses, not these. */
export type Outcome =
  | { readonly kind: "json"; readonly body: Readonly<Record<string, unknown>> }
  | { readonly kind: "proto"; readonly bytes: Uint8Array }
  | { readonly kind: "failure"; readonly error: string; readonly category: "user" | "server" };

/** The failure that an error is to the client: their fault where it is of a class that says so. */
export function failureOf(error: unknown): Outcome & { kind: "failure" } {
  const isTheirs =
    error instanceof ConfigError || error instanceof UnsupportedError || error instanceof Refusal;
  const text = error instanceof Error ? error.message : String(error);
  return { kind: "failure", error: text, category: isTheirs ? "user" : "server" };
}
