/** Requests to a hub: retries after refusals that pass, and errors that say what to do. */
import { setTimeout as sleep } from "node:timers/promises";
import { RemoteError } from "../../leaves/errors.ts";
import { readErrorText, readReply } from "../../leaves/read_reply.ts";

export interface RequestOptions {
  readonly hubUrl: string;
  readonly token: string | undefined;
  readonly signal: AbortSignal;
  /** Takes a line for each wait. */
  readonly notify: (text: string) => void;
}

const ATTEMPTS = 5;
const FIRST_WAIT_MS = 500;
/** A hub that asks for more is not waited for. */
const LONGEST_WAIT_MS = 300_000;
const PASSING = [408, 429, 500, 502, 503, 504];
/** 409: it exists already. 416: the whole file is here already. Callers decide what these mean. */
const FOR_CALLERS = [409, 416];

/** Most bytes of an answer about files and commits, unpacked. */
const MOST_BYTES = 64 * 2 ** 20;
/** Answers that a command asks for: lists of files come in pages of a thousand, and each names the next. */
const MOST_PAGES = 1000;

/**
 * Returns a `fetch` with retries; replies other than successes and {@link FOR_CALLERS} are errors.
 * @param options.isFile replies are files, which their readers bound
 */
export function hubFetch(options: RequestOptions & { readonly isFile?: boolean }): typeof fetch {
  return options.isFile ? fileFetch(options) : boundedFetch(options);
}

/** Reads each reply whole, because the package asks for its JSON or its text. */
function boundedFetch(options: RequestOptions): typeof fetch {
  const ask = fileFetch(options);
  let pages = 0;
  return async (input, init) => {
    const url = String(input instanceof Request ? input.url : input);
    if ((init?.method ?? "GET") === "GET" && ++pages > MOST_PAGES)
      throw new RemoteError(
        `Cannot use the repository: its lists have more than ${MOST_PAGES} pages (${new URL(url).origin}). Check HF_ENDPOINT.`,
        { retryable: false },
      );
    const reply = await ask(input, init);
    if (!reply.body) return reply;
    const { status, statusText, headers } = reply;
    const whole = new Response((await readReply(reply, MOST_BYTES)) as Uint8Array<ArrayBuffer>, {
      status,
      statusText,
      headers,
    });
    return Object.defineProperty(whole, "url", { value: reply.url });
  };
}

function fileFetch(options: RequestOptions): typeof fetch {
  return async (input, init = {}) => {
    const url = String(input instanceof Request ? input.url : input);
    for (let attempt = 1; ; attempt++) {
      const reply = await send(url, init, options);
      if (reply instanceof Response && (reply.ok || FOR_CALLERS.includes(reply.status))) return reply;
      const status = reply instanceof Response ? reply.status : undefined;
      const wait = waitOf(reply, attempt);
      if (attempt === ATTEMPTS || wait > LONGEST_WAIT_MS || (status !== undefined && !PASSING.includes(status)))
        throw await refusal(url, reply, options);
      if (reply instanceof Response) await reply.body?.cancel();
      const what = status === undefined ? "did not answer" : `answered ${status}`;
      options.notify(`the hub ${what}; trying again in ${(wait / 1000).toFixed(1)} s\n`);
      await sleep(wait, undefined, { signal: options.signal });
    }
  };
}

/** The reply, or the network's error. */
async function send(
  url: string,
  init: RequestInit,
  { hubUrl, token, signal }: RequestOptions,
): Promise<Response | Error> {
  const headers = new Headers(init.headers);
  const isForHub = new URL(url).origin === new URL(hubUrl).origin;
  if (!isForHub && token && headers.get("authorization")?.includes(token)) headers.delete("authorization");
  try {
    return await fetch(url, {
      ...init,
      headers,
      signal: init.signal ? AbortSignal.any([init.signal, signal]) : signal,
    });
  } catch (error) {
    signal.throwIfAborted();
    init.signal?.throwIfAborted();
    return error as Error;
  }
}

/** `Retry-After` in seconds or as a date, else twice as long each time. */
function waitOf(reply: Response | Error, attempt: number): number {
  const asked = reply instanceof Response ? reply.headers.get("retry-after") : null;
  if (asked !== null && /^\d+$/.test(asked)) return Number(asked) * 1000;
  const date = asked === null ? Number.NaN : Date.parse(asked);
  return Number.isNaN(date) ? FIRST_WAIT_MS * 2 ** (attempt - 1) : Math.max(0, date - Date.now());
}

async function refusal(url: string, reply: Response | Error, { hubUrl, token }: RequestOptions): Promise<RemoteError> {
  const { origin, pathname } = new URL(url);
  const masked = (text: string) => (token ? text.replaceAll(token, "***") : text);
  const place = `${origin}${masked(pathname)}`;
  if (!(reply instanceof Response)) {
    const { code, message } = (reply.cause ?? reply) as { code?: string; message?: string };
    return new RemoteError(
      `Cannot reach the hub: ${masked(code ?? message ?? "no connection")} (${place}). Check HF_ENDPOINT and the network, and run the command again.`,
      { retryable: true },
    );
  }
  const { status } = reply;
  const said = masked(await reasonOf(reply));
  const what = `the hub answered ${status}${said && `, "${said}"`}`;
  return new RemoteError(`Cannot use the repository: ${what} (${place}). ${adviceOf(status, { hubUrl, token })}`, {
    status,
    retryable: PASSING.includes(status),
  });
}

/** The hub's own words: of its JSON, or in a header. */
async function reasonOf(reply: Response): Promise<string> {
  const text = await readErrorText(reply).catch(() => "");
  const words = reply.headers.get("x-error-message");
  try {
    const { error, message } = JSON.parse(text) as { error?: unknown; message?: unknown };
    return String(words ?? error ?? message ?? "").slice(0, 300);
  } catch {
    return words ?? "";
  }
}

function adviceOf(status: number, { hubUrl, token }: { hubUrl: string; token: string | undefined }): string {
  const tokens = `${hubUrl}/settings/tokens`;
  if (status === 401)
    return token
      ? `HF_TOKEN is not valid, or there is no such repository. Check the name, and make a token at ${tokens}.`
      : `Without HF_TOKEN only public repositories are seen. Check the name, or set a token of ${tokens}.`;
  if (status === 403)
    return `The token may not do this. Use one that may (${tokens}), or ask for access on the repository's page.`;
  if (status === 404) return "Check the repository's name and --revision; a private repository needs HF_TOKEN.";
  if (PASSING.includes(status)) return "Run the command again later: it continues where it stopped.";
  return "Check the command line and the repository.";
}
