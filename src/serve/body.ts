/** A request's body: whole, within a limit, decompressed. */
import { Decompress } from "fzstd";
import { Refusal } from "./problem.ts";

export interface Body {
  readonly bytes: Uint8Array;
  text(): string;
  /** Stands for the content: equal for equal bodies. */
  readonly print: string;
}

/** What a route finds in its context. */
export type RequestContext = { Variables: { body: Body } };

/** @throws Refusal 413 for a body beyond the limit, 415 for an encoding other than zstd, 422 for damaged zstd. */
export async function readBody(request: Request, { limit }: { limit: number }): Promise<Body> {
  const encoding = request.headers.get("content-encoding") ?? "identity";
  if (encoding !== "identity" && encoding !== "zstd")
    throw new Refusal(415, `Cannot read a body in the encoding ${encoding}: send it plain or as zstd.`);
  const declared = Number(request.headers.get("content-length") ?? 0);
  if (declared > limit) throw tooLarge(limit);
  const raw = await collect(request, limit);
  const bytes = encoding === "zstd" ? decompress(raw, limit) : raw;
  return { bytes, text: () => new TextDecoder().decode(bytes), print: fingerprint(bytes) };
}

async function collect(request: Request, limit: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of request.body ?? []) {
    size += chunk.byteLength;
    if (size > limit) throw tooLarge(limit);
    chunks.push(chunk);
  }
  return chunks.length === 1 ? chunks[0] : join(chunks, size);
}

function decompress(raw: Uint8Array, limit: number): Uint8Array {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const stream = new Decompress((chunk) => {
    size += chunk.byteLength;
    if (size > limit) throw tooLarge(limit);
    chunks.push(chunk.slice());
  });
  try {
    stream.push(raw, true);
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal(422, `Cannot read the body as it must be zstd: ${(error as Error).message}`);
  }
  return join(chunks, size);
}

function join(chunks: readonly Uint8Array[], size: number): Uint8Array {
  const joined = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    joined.set(chunk, at);
    at += chunk.byteLength;
  }
  return joined;
}

function tooLarge(limit: number): Refusal {
  return new Refusal(413, `Cannot take a body of more than ${limit} bytes: send the batch in smaller parts.`);
}

/** Two FNV-1a sums, over words and what is left, and the length. For telling a repeat from a mistake, not for safety. */
function fingerprint(bytes: Uint8Array): string {
  let [a, b] = [0x811c9dc5, 0x01000193];
  const mix = (word: number) => {
    a = Math.imul(a ^ word, 0x01000193);
    b = Math.imul(b ^ word, 0x85ebca6b) + 1;
    // A word's high bits would reach no lower ones.
    a ^= a >>> 15;
    b ^= b >>> 13;
  };
  const words = bytes.length >>> 2;
  const whole = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice();
  for (const word of new Uint32Array(whole.buffer, whole.byteOffset, words)) mix(word);
  for (let i = 4 * words; i < bytes.length; i++) mix(bytes[i]);
  return `${bytes.length}:${(a >>> 0).toString(36)}:${(b >>> 0).toString(36)}`;
}
