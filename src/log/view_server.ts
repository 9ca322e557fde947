/** Serves the page of runs while they are written, to this machine's browser. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { ConfigError } from "../errors.ts";
import { asJson, type PageData, renderPage } from "./report.ts";
import type { RunFolder } from "./run_folder.ts";

/** How often files are looked at, and so the most often that a page is told of news. */
const POLL_MS = 1000;

const LOOPBACK = ["127.0.0.1", "::1", "localhost"];

export interface ViewOptions {
  readonly host: string;
  /** 0 takes any free port. */
  readonly port: number;
}

export interface ViewServer {
  /** `http://127.0.0.1:7007/`. */
  readonly url: string;
  /** Ends every connection and stops looking at the files. */
  close(): Promise<void>;
}

/** @throws {ConfigError} when the port is taken or the host is not this machine's. */
export async function serveRuns(runs: readonly RunFolder[], options: ViewOptions): Promise<ViewServer> {
  const pages = new Set<ServerResponse>();
  const poll = () => runs.reduce((sum, run) => sum + run.poll(), 0);
  const data = () => runs.map((run) => run.data());
  let version = poll();
  const server = createServer((request, response) => {
    if (!isMeant(request, options.host)) return answer(response, { status: 403, body: "not this host" });
    const path = new URL(request.url ?? "/", "http://page").pathname;
    if (request.method !== "GET") return answer(response, { status: 405, body: "only GET" });
    if (path === "/events") return stream(response, pages);
    poll();
    if (path === "/")
      return answer(response, { type: "text/html", body: renderPage(data(), { isLive: true }) });
    if (path !== "/data.json") return answer(response, { status: 404, body: "no such page" });
    const body: PageData = { runs: data(), made: Date.now(), live: true };
    answer(response, { type: "application/json", body: asJson(body) });
  });
  const timer = setInterval(() => {
    if (pages.size === 0) return;
    const now = poll();
    // A comment keeps the connection from being thought dead.
    for (const page of pages) page.write(now === version ? ": nothing new\n\n" : `data: ${now}\n\n`);
    version = now;
  }, POLL_MS);
  const url = await listen(server, options).catch((error) => {
    clearInterval(timer);
    throw error;
  });
  return { url, close: () => close(server, timer) };
}

/** A page of another site must not read this one through a name that it points at the loopback address. */
function isMeant({ headers }: IncomingMessage, host: string): boolean {
  if (!LOOPBACK.includes(host)) return true;
  const name = (headers.host ?? "").replace(/:\d+$/, "").replace(/^\[|\]$/g, "");
  return LOOPBACK.includes(name);
}

function answer(
  response: ServerResponse,
  { status = 200, type = "text/plain", body }: { status?: number; type?: string; body: string },
): void {
  response.writeHead(status, { "content-type": `${type}; charset=utf-8`, "cache-control": "no-store" });
  response.end(body);
}

function stream(response: ServerResponse, pages: Set<ServerResponse>): void {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  // What changed between the page and this connection.
  response.write("data: 0\n\n");
  pages.add(response);
  response.on("close", () => pages.delete(response));
}

function listen(server: Server, { host, port }: ViewOptions): Promise<string> {
  return new Promise((resolve, reject) => {
    server.on("error", (cause: NodeJS.ErrnoException) => {
      const reason = cause.code === "EADDRINUSE" ? "another program does" : cause.message;
      reject(
        new ConfigError(`Cannot listen on ${host}:${port} as ${reason}: choose another --port or --host.`),
      );
    });
    server.listen(port, host, () => {
      const { address, family, port: bound } = server.address() as AddressInfo;
      resolve(`http://${family === "IPv6" ? `[${address}]` : address}:${bound}/`);
    });
  });
}

function close(server: Server, timer: NodeJS.Timeout): Promise<void> {
  clearInterval(timer);
  return new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
}
