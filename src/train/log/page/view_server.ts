/** Serves the page of runs while they are written, to this machine's browser. */
import { asJson } from "../../../leaves/http/bundled_page.ts";
import { guardHandler, type Handler, pagePolicy } from "../../../leaves/http/guard.ts";
import { type Listening, listen, type SocketLimits } from "../../../leaves/http/listen.ts";
import { Refusal } from "../../../leaves/http/refusal.ts";
import type { PageData } from "./page_data.ts";
import { renderPage } from "./render.ts";
import type { RunFolder } from "./run_folder.ts";

/** How often files are polled: pages get news at most this often. */
const POLL_MS = 1000;
/** Pages that follow at the same time (server-sent events). */
const MOST_PAGES = 256;

export interface ViewOptions {
  readonly host: string;
  /** 0 takes any free port. */
  readonly port: number;
  /** Further names (without a port) that the server is reached by. */
  readonly allowedHosts?: readonly string[];
  readonly limits?: Partial<SocketLimits>;
  /** Answers what lies below `/traces/`: the page of recorded conversations, which the page of runs then links. */
  readonly traces?: Handler | undefined;
}

export interface ViewServer {
  /** `http://127.0.0.1:7007/`. */
  readonly url: string;
  /** Ends every connection and stops looking at the files. */
  close(): Promise<void>;
}

/** @throws {ConfigError} when the port is taken or the host is not this machine's. */
export async function serveRuns(runs: readonly RunFolder[], options: ViewOptions): Promise<ViewServer> {
  const { host, port, limits, allowedHosts = [] } = options;
  const pages = new Pages(runs);
  const site = { host, names: allowedHosts, origins: [] };
  const fetch = guardHandler(routes(runs, { pages, traces: options.traces }), { site, methods: [], headers: [] });
  let listening: Listening;
  try {
    listening = await listen({ fetch }, { host, port, limits });
  } catch (error) {
    pages.close();
    throw error;
  }
  const close = async () => {
    pages.close();
    await listening.close();
  };
  return { url: `${listening.url}/`, close };
}

function routes(runs: readonly RunFolder[], { pages, traces }: { pages: Pages; traces: Handler | undefined }): Handler {
  const link = traces && { traces: "traces/" };
  const data = () => {
    pollAll(runs);
    return runs.map((run) => run.data());
  };
  return (request) => {
    const { method, url } = request;
    if (method !== "GET") throw new Refusal(405, "Cannot change anything: this server only shows runs. Send GET.");
    const { pathname } = new URL(url);
    if (pathname === "/events") return pages.open();
    if (traces && pathname.startsWith("/traces/")) return traces(request);
    if (pathname === "/data.json") {
      const body: PageData = { runs: data(), made: Date.now(), live: true, ...link };
      return answer("application/json", { body: asJson(body) });
    }
    if (pathname !== "/") throw new Refusal(404, "There is no such page on this server.");
    const nonce = crypto.randomUUID();
    return answer("text/html", {
      body: renderPage(data(), { isLive: true, nonce, ...link }),
      policy: pagePolicy(nonce),
    });
  };
}

function answer(type: string, { body, policy }: { body: string; policy?: string }): Response {
  const headers = new Headers({ "Content-Type": `${type}; charset=utf-8` });
  if (policy !== undefined) headers.set("Content-Security-Policy", policy);
  return new Response(body, { headers });
}

/** The pages that are open, each with a stream of events. */
class Pages {
  private readonly streams = new Set<ReadableStreamDefaultController<Uint8Array>>();
  private readonly timer: NodeJS.Timeout;
  private readonly runs: readonly RunFolder[];
  private version: number;

  constructor(runs: readonly RunFolder[]) {
    this.runs = runs;
    this.version = pollAll(runs);
    this.timer = setInterval(() => this.notifyClients(), POLL_MS);
  }

  open(): Response {
    if (this.streams.size >= MOST_PAGES)
      throw new Refusal(503, `Cannot follow from another page: ${MOST_PAGES} are open. Close one.`);
    let streamController: ReadableStreamDefaultController<Uint8Array>;
    const stream = new ReadableStream<Uint8Array>({
      start: (controller) => {
        streamController = controller;
        this.streams.add(streamController);
        // What changed between the page and this connection.
        streamController.enqueue(encoded("data: 0\n\n"));
      },
      cancel: () => void this.streams.delete(streamController),
    });
    return new Response(stream, { headers: { "Content-Type": "text/event-stream; charset=utf-8" } });
  }

  private notifyClients(): void {
    if (this.streams.size === 0) return;
    const now = pollAll(this.runs);
    // A comment keeps the connection from being thought dead.
    const line = encoded(now === this.version ? ": nothing new\n\n" : `data: ${now}\n\n`);
    this.version = now;
    for (const page of this.streams) {
      // A page that reads nothing asks again when it does.
      if ((page.desiredSize ?? 0) > -MOST_UNREAD) page.enqueue(line);
      else this.end(page);
    }
  }

  private end(page: ReadableStreamDefaultController<Uint8Array>): void {
    this.streams.delete(page);
    page.close();
  }

  close(): void {
    clearInterval(this.timer);
    for (const page of this.streams) this.end(page);
  }
}

function pollAll(runs: readonly RunFolder[]): number {
  return runs.reduce((sum, run) => sum + run.poll(), 0);
}

/** Events that a page may leave unread. */
const MOST_UNREAD = 16;

function encoded(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}
