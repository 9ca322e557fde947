/** What goes wrong between a client and the server, and how it is told. */
import { ConfigError, UnsupportedError } from "../../errors.ts";
import { Refusal } from "../../http/refusal.ts";

export { Refusal };

/** How an accepted request ended. Failures are told as results: clients retry statuses, not these. */
export type Outcome =
  | { readonly kind: "json"; readonly body: Readonly<Record<string, unknown>> }
  | { readonly kind: "proto"; readonly bytes: Uint8Array }
  | { readonly kind: "failure"; readonly error: string; readonly category: "user" | "server" };

/** The failure that an error is to the client: their fault where it is of a class that says so. */
export function failureOf(error: unknown): Outcome & { kind: "failure" } {
  const isTheirs =
    (error instanceof ConfigError && !isOfDisk(error)) ||
    error instanceof UnsupportedError ||
    (error instanceof Refusal && error.status < 500);
  const text = error instanceof Error ? error.message : String(error);
  return { kind: "failure", error: text, category: isTheirs ? "user" : "server" };
}

/** A disk that is full or read-only is the server's, whatever was asked of it. */
function isOfDisk({ cause }: ConfigError): boolean {
  return (cause as NodeJS.ErrnoException | undefined)?.code !== undefined;
}
