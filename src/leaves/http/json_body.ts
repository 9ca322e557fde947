/** Reads the JSON body of a request within a server's limits. */
import { parseJson } from "../json.ts";
import { type BodyLimits, readBody } from "./body.ts";
import type { ByteBudget, Lease } from "./budget.ts";
import { SLICE_BYTES, yieldToEventLoop } from "./event_loop.ts";
import { checkJsonInTurns, type JsonLimits } from "./json.ts";
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

/** Conversations nest little, and to check a value takes microseconds; the ids of a prompt take less. */
const JSON_LIMITS: JsonLimits = {
  depth: 64,
  values: 65_536,
  numbers: { most: 2 ** 21, keys: ["prompt"], level: 1 },
};
const BYTES_PER_VALUE = 32;
const IDLE_MS = 30_000;

/** @throws {Refusal} 400 for anything but a JSON object, and as `readBody` */
export async function readJsonBody(
  request: Request,
  limits: { budget: ByteBudget; bytes: number; json?: JsonLimits },
): Promise<ReadJson> {
  const { budget, bytes } = limits;
  const settings: BodyLimits = { type: "application/json", idleMs: IDLE_MS, budget, bytes };
  const read = await readBody(request, settings);
  try {
    // A short value, such as an empty list, takes more memory than text.
    read.lease.take(BYTES_PER_VALUE * (await checkJsonInTurns(read.bytes, limits.json ?? JSON_LIMITS)));
    const text = textOf(read.bytes);
    if (read.bytes.length > SLICE_BYTES) await yieldToEventLoop();
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

function textOf(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Refusal(400, "Cannot read the body: it is not UTF-8. Send it as UTF-8.");
  }
}

function objectOf(text: string): JsonBody {
  if (!/\S/.test(text)) return {};
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (cause) {
    throw new Refusal(400, `Cannot read the body: it is not JSON (${(cause as Error).message.slice(0, 200)}).`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as JsonBody;
  throw new Refusal(400, "Cannot read the body: it is not a JSON object.");
}
