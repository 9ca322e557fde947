/** A reply of the service, and the checks of its content. */
import type { z } from "zod";
import { RemoteError } from "../../../leaves/errors.ts";
import { readAs } from "../../../leaves/shape.ts";

export interface HttpReply {
  readonly status: number;
  /** The parsed JSON; undefined for a binary reply. */
  readonly json?: unknown;
  readonly bytes: Uint8Array;
}

/** The JSON of a reply in its required shape. @throws {RemoteError} naming the field that does not fit. */
export function checkReply<S extends z.ZodType>(
  request: string,
  { reply, shape }: { reply: HttpReply; shape: S },
): z.output<S> {
  const read = readAs(shape, reply.json);
  if ("data" in read) return read.data;
  const { path, rule, value } = read.misfit;
  const where = path === "" ? "" : ` at ${path}`;
  throw new RemoteError(`Cannot read the service's reply to ${request}${where}: ${rule} (${value}).`, {
    retryable: false,
  });
}

/** The description of a failure in a reply: FastAPI's `detail`, or the text. */
export function detailOf(bytes: Uint8Array): string {
  const LONGEST = 500;
  const text = new TextDecoder().decode(bytes.subarray(0, 4 * LONGEST));
  const detail = (parseReplyJson(bytes) as { detail?: unknown } | undefined)?.detail;
  return (detail === undefined ? text : typeof detail === "string" ? detail : JSON.stringify(detail)).slice(0, LONGEST);
}

/** Undefined for text that is not JSON. */
export function parseReplyJson(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}
