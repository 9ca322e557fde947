/** Bodies of other servers' replies, up to a limit: one that never ends, or that unpacks to more than memory, is an error. */
import { RemoteError } from "./errors.ts";

/** Limit in bytes of an answer in JSON, after it is unpacked. */
export const MOST_REPLY_BYTES = 64 * 2 ** 20;
/** Limit in bytes of an error, whose first words are shown. */
const MOST_ERROR_BYTES = 64 * 2 ** 10;

/** @throws {RemoteError} beyond `most` bytes; what the connection throws */
export async function readReply(reply: Response, most: number = MOST_REPLY_BYTES): Promise<Uint8Array> {
  const { bytes, isWhole } = await readUpTo(reply, most);
  if (isWhole) return bytes;
  throw new RemoteError(
    `Cannot read the reply of the server: it has more than ${most} bytes${reply.url && ` (${new URL(reply.url).origin})`}. Check the address.`,
    { status: reply.status, retryable: false },
  );
}

/** @throws {RemoteError} beyond `most` bytes; what the connection throws */
export async function readReplyText(reply: Response, most?: number): Promise<string> {
  return new TextDecoder().decode(await readReply(reply, most));
}

/** @throws {RemoteError} beyond `most` bytes; SyntaxError for what is no JSON; what the connection throws */
export async function readReplyJson(reply: Response, most?: number): Promise<unknown> {
  return JSON.parse(await readReplyText(reply, most));
}

/** The beginning of an error's body. @throws what the connection throws */
export async function readErrorText(reply: Response): Promise<string> {
  return new TextDecoder().decode((await readUpTo(reply, MOST_ERROR_BYTES)).bytes);
}

async function readUpTo({ body }: Response, most: number): Promise<{ bytes: Uint8Array; isWhole: boolean }> {
  const parts: Uint8Array[] = [];
  let size = 0;
  const reader = body?.getReader();
  for (;;) {
    const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
    if (done) return { bytes: joined(parts, size), isWhole: true };
    parts.push(value);
    size += value.length;
    if (size <= most) continue;
    await reader?.cancel().catch(() => {});
    return { bytes: joined(parts, size).subarray(0, most), isWhole: false };
  }
}

function joined(parts: readonly Uint8Array[], size: number): Uint8Array {
  const [only] = parts;
  if (parts.length === 1) return only!;
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}
