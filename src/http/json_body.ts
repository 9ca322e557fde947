/** Reads the JSON body of a request within a server's limits. */
import { type BodyLimits, readBody } from "./body.ts";
import type { Budget, Lease } from "./budget.ts";
import { checkJson } from "./json.ts";
import { Refusal } from "./refusal.ts";

/** A JSON object, or nothing. */
export type JsonBody = Readonly<Record<string, unknown>>;

export interface ReadJson {
  readonly body: JsonBody;
  readonly text: string;
  /** Equal for equal bodies. */
  readonly print: string;
  /** Held until the request is answered. */
  readonly lease: Lease;
}

/** Agents' conversations nest little; a body of 32 MiB holds fewer values than this. */
const JSON_LIMITS = { depth: 64, values: 4_000_000 };
const BYTES_PER_VALUE = 32;
const IDLE_MS = 30_000;

/** @throws {Refusal} 400 for anything but a JSON object, and as `readBody` */
export async function readJson(request: Request, limits: { budget: Budget; bytes: number }): Promise<ReadJson> {
  const settings: BodyLimits = { type: "application/json", idleMs: IDLE_MS, ...limits };
  const read = await readBody(request, settings);
  try {
    // A short value, such as an empty list, takes more memory than text.
    read.lease.take(BYTES_PER_VALUE * checkJson(read.bytes, JSON_LIMITS));
    const text = read.text();
    return { body: objectOf(text), text, print: read.print, lease: read.lease };
  } catch (error) {
    read.lease.release();
    throw error;
  }
}

/** A field that takes an object. Spreading a long text would make a key of each letter. @throws {Refusal} 400 */
export function objectIn(body: JsonBody, name: string): JsonBody | undefined {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "object" && !Array.isArray(value)) return value as JsonBody;
  throw new Refusal(400, `Cannot read ${name}: it is not an object (${typeof value}). Send {"key": value}.`);
}

function objectOf(text: string): JsonBody {
  if (text.trim() === "") return {};
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new Refusal(400, `Cannot read the body: it is not JSON (${(cause as Error).message.slice(0, 200)}).`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as JsonBody;
  throw new Refusal(400, "Cannot read the body: it is not a JSON object.");
}
