/** How an accepted request ends, and how an error is reported to the client. */
import { ConfigError, DeviceLostError, UnsupportedError } from "../../../leaves/errors.ts";
import { Refusal } from "../../../leaves/http/refusal.ts";

export { Refusal };

/** Failures of accepted requests are results, not HTTP statuses: clients retry statuses. */
export type RequestOutcome =
  | { readonly kind: "json"; readonly body: Readonly<Record<string, unknown>> }
  | { readonly kind: "proto"; readonly bytes: Uint8Array }
  | { readonly kind: "failure"; readonly error: string; readonly category: "user" | "server" };

export function jsonOutcome(body: Readonly<Record<string, unknown>>): RequestOutcome {
  return { kind: "json", body };
}

/** The failure to report for an error; of category `user` where the request is at fault. */
export function requestFailure(error: unknown): RequestOutcome & { kind: "failure" } {
  const isUsers =
    (error instanceof ConfigError && !isDiskError(error)) ||
    error instanceof UnsupportedError ||
    (error instanceof Refusal && error.status < 500);
  const text =
    error instanceof DeviceLostError ? lossOf(error) : error instanceof Error ? error.message : String(error);
  return { kind: "failure", error: text, category: isUsers ? "user" : "server" };
}

/** Returns the message of a lost device in the server's words: it opens the device again before the next request. */
function lossOf({ why }: DeviceLostError): string {
  return `Cannot finish the request: the server's GPU device was lost (${why}). It is opened again: repeat requests to sample from the base model or from saved weights. Models in training and snapshots are lost since their last save.`;
}

/** A full or read-only disk is the server's fault, whatever the request was. */
function isDiskError({ cause }: ConfigError): boolean {
  return (cause as NodeJS.ErrnoException | undefined)?.code !== undefined;
}
