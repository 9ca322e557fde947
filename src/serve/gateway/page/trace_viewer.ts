/** The page of recorded conversations as a `fetch` handler, for any server that has a trace store. */
import type { TraceStore } from "../../../engine/contract/trace.ts";
import { asJson, bundledPage } from "../../../leaves/http/bundled_page.ts";
import { type Handler, pagePolicy } from "../../../leaves/http/guard.ts";
import { Refusal } from "../../../leaves/http/refusal.ts";
import { type Decode, listSessions, type TracePageData, viewSession } from "./trace_data.ts";

export interface TraceViewerOptions {
  readonly store: Pick<TraceStore, "sessions" | "getSession" | "traces">;
  /** Text of token ids. Absent: the page shows ids. */
  readonly decode?: Decode | undefined;
  /** Address of the page that leads here, relative to this one. */
  readonly home?: string | undefined;
}

const DEFAULT_LIMIT = 100;
const MOST_SESSIONS = 1000;

/**
 * Answers `…/` with the page, `…/sessions.json?limit=` with the list, and `…/session.json?id=` with one conversation. The
 * caller decides who may ask.
 */
export function traceViewer({ store, decode, home }: TraceViewerOptions): Handler {
  const traces = store as TraceStore;
  return async ({ url, method }) => {
    if (method !== "GET")
      throw new Refusal(405, "Cannot change anything: this page only shows conversations. Send GET.");
    const { pathname, searchParams } = new URL(url);
    if (pathname.endsWith("/sessions.json")) return json(await listSessions(traces, { limit: limitOf(searchParams) }));
    if (pathname.endsWith("/session.json")) {
      const id = searchParams.get("id") ?? "";
      const view = await viewSession(traces, { id, decode });
      if (!view) throw new Refusal(404, `Cannot show the session ${id.slice(0, 100)}: the store does not hold it.`);
      return json(view);
    }
    if (!pathname.endsWith("/")) throw new Refusal(404, "There is no such page on this server.");
    const nonce = crypto.randomUUID();
    const data: TracePageData = { base: "./", home };
    const page = bundledPage({
      script: "traces/main.js",
      style: "traces/style.css",
      title: "Conversations",
      data,
      nonce,
      noscript: "The conversations of this page are drawn by its script: allow it.",
    });
    return new Response(page, {
      headers: { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": pagePolicy(nonce) },
    });
  };
}

function limitOf(query: URLSearchParams): number {
  const text = query.get("limit");
  if (text === null) return DEFAULT_LIMIT;
  const limit = Number(text);
  if (Number.isInteger(limit) && limit >= 1 && limit <= MOST_SESSIONS) return limit;
  throw new Refusal(
    400,
    `Cannot list sessions: limit takes a whole number from 1 to ${MOST_SESSIONS} (${text.slice(0, 20)}).`,
  );
}

function json(data: unknown): Response {
  return new Response(asJson(data), { headers: { "Content-Type": "application/json; charset=utf-8" } });
}
