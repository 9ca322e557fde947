/** Model files over HTTP: for a page, or a machine without a copy. */
import { ConfigError } from "../../errors.ts";
import type { FolderReader } from "./folder.ts";
import type { ByteReader } from "./safetensors.ts";

export interface HttpFolderOptions {
  /** Default: the runtime's `fetch`. One of your own can add headers or a cache. */
  readonly fetch?: typeof fetch;
}

/**
 * Reads a model folder from a server that answers range requests, such as
 * `https://huggingface.co/OWNER/NAME/resolve/main`.
 * @param url of the folder, with or without a slash at the end
 * @throws {ConfigError} from its reads, where the server refuses a request or ignores the range of one
 */
export function httpFolder(url: string | URL, { fetch: get = fetch }: HttpFolderOptions = {}): FolderReader {
  const base = `${url}`.replace(/\/*$/, "/");
  return { name: base, open: (file) => openFile(new URL(file, base).href, get) };
}

/** `undefined` for a file that the server does not have. */
async function openFile(url: string, get: typeof fetch): Promise<ByteReader | undefined> {
  const head = await get(url, { method: "HEAD" });
  if (head.status === 404) return undefined;
  if (!head.ok) throw new ConfigError(`Cannot open the file: HTTP ${head.status}.`, { file: url });
  const size = head.headers.get("content-length");
  if (size === null)
    throw new ConfigError("Cannot open the file: the server does not tell its length (content-length).", {
      file: url,
    });
  return { name: url, size: Number(size), read: (offset, length) => readRange(url, { offset, length, get }) };
}

async function readRange(
  url: string,
  { offset, length, get }: { offset: number; length: number; get: typeof fetch },
): Promise<Uint8Array> {
  if (length === 0) return new Uint8Array(0);
  const reply = await get(url, { headers: { range: `bytes=${offset}-${offset + length - 1}` } });
  const bytes = new Uint8Array(await reply.arrayBuffer());
  // A server without range requests answers 200 with the whole file.
  const part = reply.status === 200 ? bytes.slice(offset, offset + length) : bytes;
  if (reply.ok && part.length === length) return part;
  throw new ConfigError(
    `Cannot read bytes ${offset} to ${offset + length}: HTTP ${reply.status} with ${bytes.length} bytes.`,
    { file: url },
  );
}
