/** Model files from an HTTP server, read in ranges: for pages, and for programs without a local copy. */
import { ConfigError, RemoteError } from "../../../leaves/errors.ts";
import type { ByteReader, FolderReader } from "./reader.ts";

/** How {@link httpFolder} fetches. */
export interface HttpFolderOptions {
  /** Default: the global `fetch`. */
  readonly fetch?: typeof fetch;
  /** Sent with every request, for example `authorization`. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** Bytes of the first request for a file: configurations and small headers need no second one. */
const FIRST_BYTES = 2 ** 16;

/**
 * Reads a model folder at a URL, for {@link openModelFolder}. A server without range requests works too, but then
 * each file is in memory whole.
 * @param url of the folder, absolute: `https://huggingface.co/Qwen/Qwen3-0.6B/resolve/main`.
 * @returns a reader that throws RemoteError, naming the URL, when a request fails.
 * @throws ConfigError for a URL that is relative, or not http(s).
 */
export function httpFolder(url: string | URL, options: HttpFolderOptions = {}): FolderReader {
  const base = folderUrl(url);
  return { name: base.href.replace(/\/$/, ""), open: (file) => openFile(new URL(file, base), options) };
}

function folderUrl(url: string | URL): URL {
  const base = URL.canParse(String(url)) ? new URL(url) : undefined;
  if (base?.protocol !== "http:" && base?.protocol !== "https:")
    throw new ConfigError(`Cannot open the model folder: its URL must start with http:// or https:// (${url}).`);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}

async function openFile(url: URL, options: HttpFolderOptions): Promise<ByteReader | undefined> {
  const response = await request(url, { options, offset: 0, length: FIRST_BYTES });
  if (!response) return undefined;
  const head = await bytesOf(url, response);
  const size = response.status === 206 ? sizeOf(url, response) : head.length;
  return {
    name: url.href,
    size,
    async read(offset, length) {
      if (length === 0 || offset + length <= head.length) return head.slice(offset, offset + length);
      const answer = await request(url, { options, offset, length });
      const bytes = answer?.status === 206 ? await bytesOf(url, answer) : undefined;
      if (bytes?.length === length) return bytes;
      const status = answer?.status ?? 404;
      const rule = `bytes ${offset} to ${offset + length} are not available (status ${status})`;
      throw failed(url, rule, { status, retryable: false });
    },
  };
}

/** `undefined` for a file that does not exist. */
async function request(
  url: URL,
  { options, offset, length }: { options: HttpFolderOptions; offset: number; length: number },
): Promise<Response | undefined> {
  const call = options.fetch ?? fetch;
  const headers = { ...options.headers, range: `bytes=${offset}-${offset + length - 1}` };
  const response = await call(url, { headers, ...(options.signal && { signal: options.signal }) }).catch((cause) => {
    options.signal?.throwIfAborted();
    throw failed(url, `the server cannot be reached (${(cause as Error).message})`, { retryable: true });
  });
  // Development servers answer with their page for a file that does not exist.
  const isPage = response.headers.get("content-type")?.startsWith("text/html");
  if (response.ok && !isPage) return response;
  await response.body?.cancel();
  if (response.ok || response.status === 404 || response.status === 410) return undefined;
  // The range of an empty file cannot be satisfied.
  if (response.status === 416 && offset === 0) return new Response(new Uint8Array(0));
  const { status } = response;
  throw failed(url, `the server answers with status ${status}`, { status, retryable: status >= 500 });
}

async function bytesOf(url: URL, response: Response): Promise<Uint8Array> {
  return new Uint8Array(
    await response.arrayBuffer().catch((cause) => {
      throw failed(url, `the connection ended (${(cause as Error).message})`, { retryable: true });
    }),
  );
}

/** Size of the whole file, from `content-range: bytes 0-65535/1234567`. */
function sizeOf(url: URL, { headers }: Response): number {
  const size = Number(/\/(\d+)$/.exec(headers.get("content-range") ?? "")?.[1] ?? Number.NaN);
  if (Number.isSafeInteger(size)) return size;
  const rule = "the server does not show the header content-range (access-control-expose-headers)";
  throw failed(url, rule, { retryable: false });
}

function failed(url: URL, rule: string, about: { status?: number; retryable: boolean }): RemoteError {
  return new RemoteError(`Cannot read the model file ${url.href}: ${rule}.`, about);
}
