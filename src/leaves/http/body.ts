/** Reads and decompresses a request's body, with limits that are checked while it arrives. */

import type { ByteBudget, Lease } from "./budget.ts";
import { SLICE_BYTES, yieldToEventLoop } from "./event_loop.ts";
import { Fingerprint } from "./print.ts";
import { Refusal } from "./refusal.ts";
import { decompress } from "./zstd.ts";

export interface Body {
  readonly bytes: Uint8Array;
  text(): string;
  /** A fingerprint of the content: equal for equal bodies. */
  readonly print: string;
  /** Its share of the server's memory for bodies. */
  readonly lease: Lease;
}

export interface BodyLimits {
  /** The required content type: `application/json`. An empty body needs none. */
  readonly type: string;
  /** Largest body, before and after decompression, bytes. */
  readonly bytes: number;
  readonly budget: ByteBudget;
  /** Longest time without a byte, ms. */
  readonly idleMs: number;
}

/** A refused body with its first bytes, which may name the client. */
export class BodyRefusal extends Refusal {
  readonly head: Uint8Array;
  constructor(refusal: Refusal, head: Uint8Array) {
    super(refusal.status, refusal.message, refusal);
    this.head = head;
  }
}

const HEAD_BYTES = 4096;

/**
 * @throws BodyRefusal 408 when the body stops arriving, 413 beyond the limit, 415 for another type or encoding, 422 for
 * damaged zstd, 429 when the server holds too many bodies.
 */
export async function readBody(request: Request, limits: BodyLimits): Promise<Body> {
  const lease = limits.budget.lease();
  const arrived = new Gathered(lease, limits.bytes);
  try {
    const isZstd = checkEncoding(request);
    checkDeclared(request, limits);
    for await (const chunk of arriving(request, limits.idleMs)) {
      const isFirst = arrived.size === 0;
      arrived.add(chunk);
      if (isFirst) checkType(request, limits.type);
    }
    const content = isZstd ? await decompressed(arrived, { lease, limit: limits.bytes }) : arrived;
    const { bytes } = content;
    return { bytes, text: () => new TextDecoder().decode(bytes), print: await printOf(bytes), lease };
  } catch (error) {
    lease.release();
    if (error instanceof Refusal) throw new BodyRefusal(error, arrived.bytes.slice(0, HEAD_BYTES));
    throw error;
  }
}

async function decompressed(arrived: Gathered, { lease, limit }: { lease: Lease; limit: number }) {
  const content = new Gathered(lease, limit);
  const tooLarge = () => refusalBeyond(limit);
  await decompress(arrived.bytes, { limit, tooLarge, take: (piece) => content.add(piece) });
  lease.give(arrived.capacity);
  return content;
}

async function printOf(bytes: Uint8Array): Promise<string> {
  const print = new Fingerprint();
  for (let at = 0; at < bytes.length; at += SLICE_BYTES) {
    if (at > 0) await yieldToEventLoop();
    print.add(bytes.subarray(at, at + SLICE_BYTES));
  }
  return print.text();
}

/** Joins pieces of any size in one growing buffer, so that many tiny pieces cost no more than their bytes. */
class Gathered {
  size = 0;
  private buffer = new Uint8Array();
  private readonly lease: Lease;
  private readonly limit: number;

  constructor(lease: Lease, limit: number) {
    this.lease = lease;
    this.limit = limit;
  }

  get capacity(): number {
    return this.buffer.length;
  }

  get bytes(): Uint8Array {
    return this.buffer.subarray(0, this.size);
  }

  /** Keeps what fits before it throws. @throws Refusal 413, 429 */
  add(piece: Uint8Array): void {
    const room = this.limit - this.size;
    const taken = piece.length > room ? piece.subarray(0, room) : piece;
    if (this.size + taken.length > this.capacity) this.grow(this.size + taken.length);
    this.buffer.set(taken, this.size);
    this.size += taken.length;
    if (piece.length > room) throw refusalBeyond(this.limit);
  }

  private grow(least: number): void {
    const capacity = Math.min(Math.max(least, 2 * this.capacity, HEAD_BYTES), this.limit);
    this.lease.take(capacity - this.capacity);
    const grown = new Uint8Array(capacity);
    grown.set(this.bytes);
    this.buffer = grown;
  }
}

/** True for zstd. */
function checkEncoding({ headers }: Request): boolean {
  const encoding = headers.get("content-encoding")?.toLowerCase() ?? "identity";
  if (encoding === "identity" || encoding === "zstd") return encoding === "zstd";
  throw new Refusal(415, `Cannot read a body in the encoding ${encoding.slice(0, 50)}: send it plain or as zstd.`);
}

/**
 * Refuses the types that a form of another site's page can send (text/plain, form data): browsers send those without a
 * preflight.
 */
function checkType({ headers }: Request, type: string): void {
  const sentType = headers.get("content-type")?.split(";")[0]?.trim().toLowerCase();
  if (sentType === type) return;
  throw new Refusal(415, `Cannot read a body of the type ${(sentType ?? "none").slice(0, 100)}: send it as ${type}.`);
}

function checkDeclared({ headers }: Request, { bytes, budget }: BodyLimits): void {
  const declared = Number(headers.get("content-length") ?? 0);
  // A body that is too large is still read up to the limit, because its first bytes name the client.
  if (declared <= bytes) budget.check(declared);
}

async function* arriving(request: Request, idleMs: number): AsyncGenerator<Uint8Array> {
  const reader = request.body?.getReader();
  if (!reader) return;
  try {
    for (;;) {
      const { value, done } = await inTime(reader.read(), idleMs);
      if (done) return;
      if (value.byteLength > 0) yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function inTime<T>(wanted: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () =>
      reject(new Refusal(408, `Cannot read the body: no byte arrived for ${ms / 1000} s. Send it again.`));
    // In two halves, so that bytes that arrived while the process was busy are read before the second ends.
    let timer = setTimeout(() => {
      timer = setTimeout(late, ms / 2);
    }, ms / 2);
    wanted
      .then(resolve, () => reject(new Refusal(408, "Cannot read the body: the connection broke off.")))
      .finally(() => clearTimeout(timer));
  });
}

function refusalBeyond(limit: number): Refusal {
  return new Refusal(413, `Cannot take a body of more than ${limit} bytes: send the batch in smaller parts.`);
}
