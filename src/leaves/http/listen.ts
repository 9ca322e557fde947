/** A server's socket in Node and Deno, with limits on each connection. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { getRequestListener } from "@hono/node-server";
import { ConfigError } from "../errors.ts";
import type { Handler } from "./guard.ts";

export interface App {
  readonly fetch: Handler;
}

export interface Listening {
  /** `http://127.0.0.1:8000`. */
  readonly url: string;
  /** Closes the socket and its connections; those that still send an answer after `graceMs` (default 0). */
  close(options?: { readonly graceMs?: number }): Promise<void>;
}

export interface SocketLimits {
  /** Connections at once; further ones are closed. */
  readonly connections: number;
  /** The request line and headers together, bytes. */
  readonly headerBytes: number;
  /** How long headers may take to arrive, ms. */
  readonly headersMs: number;
  /** How long a whole request may take to arrive, ms. */
  readonly requestMs: number;
  /** How long a connection may be silent while it sends a request, or leaves a ready part of an answer unread, ms. */
  readonly stillMs: number;
}

export const SOCKET_LIMITS: SocketLimits = {
  // One SDK client opens up to 1000.
  connections: 4096,
  headerBytes: 16 * 2 ** 10,
  headersMs: 10_000,
  requestMs: 5 * 60_000,
  stillMs: 120_000,
};

/** Longer than clients keep an idle connection, so that the server does not close one that a client is about to use. */
const KEEP_ALIVE_MS = 65_000;

export interface ListenOptions {
  readonly host: string;
  /** 0 chooses a free one. */
  readonly port: number;
  readonly limits?: Partial<SocketLimits> | undefined;
}

/** @throws ConfigError for a port that is taken or an address that this machine does not have. */
export function listen(app: App, options: ListenOptions): Promise<Listening> {
  const { host, port } = options;
  const server = openServer(app, { ...SOCKET_LIMITS, ...options.limits });
  return new Promise((resolve, reject) => {
    server.once("error", (cause: NodeJS.ErrnoException) => reject(explain(cause, options)));
    server.listen(port, host, () => {
      // Later errors belong to single connections.
      server.on("error", () => {});
      const { address, family, port: bound } = server.address() as AddressInfo;
      const name = family === "IPv6" ? `[${address}]` : address;
      resolve({ url: `http://${name}:${bound}`, close: (how) => closed(server, how?.graceMs ?? 0) });
    });
  });
}

function openServer({ fetch }: App, limits: SocketLimits): Server {
  const handle = getRequestListener((request) => fetch(request), { errorHandler: unreadable });
  const server = createServer(
    {
      maxHeaderSize: limits.headerBytes,
      headersTimeout: limits.headersMs,
      requestTimeout: limits.requestMs,
      connectionsCheckingInterval: Math.min(limits.headersMs / 2, 5000),
      keepAliveTimeout: KEEP_ALIVE_MS,
    },
    (incoming, outgoing) => {
      outgoing.on("timeout", () => endIfStill(incoming, outgoing));
      const fault = faultOf(incoming);
      if (fault !== undefined) return refuse(outgoing, fault);
      // A failed answer ends its connection, never the process.
      Promise.resolve(handle(incoming, outgoing)).catch(() => outgoing.destroy());
    },
  );
  server.maxConnections = limits.connections;
  server.timeout = limits.stillMs;
  return server;
}

/** A client that has sent its request and has read what there is waits for us: its connection stays, however long an answer takes. */
function endIfStill(incoming: IncomingMessage, outgoing: ServerResponse): void {
  const { socket } = incoming;
  const isWaiting = incoming.complete && outgoing.writableLength === 0 && socket.writableLength === 0;
  // A socket reports its silence once; set again, it reports the next.
  if (isWaiting) socket.setTimeout(socket.timeout ?? 0);
  else socket.destroy();
}

/** Finds requests that are valid HTTP but that no client sends; they are refused before their URL is parsed. */
function faultOf({ url = "", rawHeaders }: IncomingMessage): string | undefined {
  const isHost = (name: string, i: number) => i % 2 === 0 && name.toLowerCase() === "host";
  if (rawHeaders.filter(isHost).length !== 1) return "it must name one Host";
  if (!url.startsWith("/")) return "its target must be a path";
  return /[^\x21-\x7e]/.test(url) || !URL.canParse(`http://host${url}`) ? "its target is not a path" : undefined;
}

/** The answer to a request that no `Request` can be made of: its Host or its target is no part of a URL. */
function unreadable(error: unknown): Response {
  const isRequest = (error as Error).name === "RequestError";
  return isRequest
    ? Response.json({ detail: "Cannot read the request: its Host or its target is not valid." }, { status: 400 })
    : Response.json({ detail: "Cannot answer: the server failed." }, { status: 500 });
}

function refuse(outgoing: ServerResponse, why: string): void {
  outgoing.writeHead(400, { "content-type": "application/json", connection: "close" });
  outgoing.end(JSON.stringify({ detail: `Cannot read the request: ${why}.` }));
}

function closed(server: Server, graceMs: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => server.closeAllConnections(), graceMs);
    // Closes idle connections, too.
    server.close(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}

function explain(cause: NodeJS.ErrnoException, { host, port }: ListenOptions): Error {
  if (cause.code === "EADDRINUSE")
    return new ConfigError(
      `Cannot listen on ${host}:${port}: another program uses the port. Choose another --port or --host.`,
    );
  if (cause.code === "EADDRNOTAVAIL" || cause.code === "ENOTFOUND")
    return new ConfigError(`Cannot listen on ${host}: this machine has no such address. Choose another --host.`);
  if (cause.code === "EACCES")
    return new ConfigError(`Cannot listen on port ${port}: this user may not use it. Choose a port from 1024 on.`);
  return cause;
}
