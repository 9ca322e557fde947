/**
 * The runtime's plain HTTP client behind `fetch`'s face: on loopback it takes half of `fetch`'s time
 * (docs/log/2026-11-21-tinkers-protocol-on-loopback.md).
 */
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";
import { Readable } from "node:stream";

// Connections that wait for a next request keep no process alive.
const PLAIN = new HttpAgent({ keepAlive: true });
const SECURE = new HttpsAgent({ keepAlive: true });

/** Fetches like `fetch`, of absolute addresses, with a body of text or bytes; follows no redirects. */
export function httpFetch(url: string, init: RequestInit): Promise<Response> {
  return new Promise((resolve, reject) => {
    const { method, signal } = init;
    const headers = Object.fromEntries(new Headers(init.headers));
    const options = { method, headers, ...(signal && { signal }) };
    const answer = (message: IncomingMessage) => collect(message).then(resolve, reject);
    const request = url.startsWith("https:")
      ? httpsRequest(url, { ...options, agent: SECURE }, answer)
      : httpRequest(url, { ...options, agent: PLAIN }, answer);
    request.on("error", reject);
    request.end(init.body as string | Uint8Array | undefined);
  });
}

/** How long a server may take to accept a connection, ms. */
const CONNECT_MS = 30_000;

/**
 * Fetches like `httpFetch`, with a connection of its own, no time limit once that is made, and the body as it arrives:
 * for a call that lasts as long as an attempt, to a server that is not trusted to answer in measure.
 */
export function streamFetch(url: string, init: RequestInit): Promise<Response> {
  return new Promise((resolve, reject) => {
    const { method, signal } = init;
    const send = url.startsWith("https:") ? httpsRequest : httpRequest;
    const headers = { ...Object.fromEntries(new Headers(init.headers)), connection: "close" };
    const request = send(url, { method, headers, agent: false, ...(signal && { signal }) }, (message) => {
      const body = Readable.toWeb(message) as ReadableStream<Uint8Array>;
      resolve(
        new Response(hasBody(message) ? body : null, { status: message.statusCode ?? 0, headers: headersOf(message) }),
      );
      if (!hasBody(message)) message.resume();
    });
    request.on("error", reject);
    const late = Object.assign(new Error(`no connection to ${url} within ${CONNECT_MS / 1000} s`), {
      code: "ETIMEDOUT",
      syscall: "connect",
    });
    const timer = setTimeout(() => request.destroy(late), CONNECT_MS);
    const stop = () => clearTimeout(timer);
    request.on("close", stop).on("socket", (socket) => socket.once("connect", stop));
    request.end(init.body as string | undefined);
  });
}

const WITHOUT_BODY = [204, 205, 304];

function hasBody({ statusCode = 0 }: IncomingMessage): boolean {
  return !WITHOUT_BODY.includes(statusCode);
}

function headersOf(message: IncomingMessage): Headers {
  const headers = new Headers();
  for (const [name, value] of Object.entries(message.headersDistinct))
    for (const each of value ?? []) headers.append(name, each);
  return headers;
}

async function collect(message: IncomingMessage): Promise<Response> {
  const parts: Uint8Array[] = [];
  for await (const part of message) parts.push(part);
  const status = message.statusCode ?? 0;
  const body = hasBody(message) ? new Uint8Array(Buffer.concat(parts)) : null;
  return new Response(body, { status, statusText: message.statusMessage ?? "", headers: headersOf(message) });
}
