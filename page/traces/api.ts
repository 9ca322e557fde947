/** What the page asks its server for. */
import type { SessionList, SessionView, TracePageData } from "../../src/serve/gateway/page/trace_data.ts";

export const data: TracePageData = JSON.parse(document.getElementById("data")?.textContent ?? "{}");

/** The page's own address may hold the key. */
const key = new URLSearchParams(location.search).get("key");

async function ask<T>(path: string, query: Record<string, string>): Promise<T> {
  const parameters = new URLSearchParams({ ...query, ...(key !== null && { key }) });
  const answer = await fetch(`${data.base}${path}?${parameters}`, { cache: "no-store" });
  const body = await answer.json();
  if (answer.ok) return body as T;
  throw new Error(String(body.detail ?? body.error ?? `the server answered ${answer.status}`));
}

export const fetchSessions = (limit: number) => ask<SessionList>("sessions.json", { limit: String(limit) });
export const fetchSession = (id: string) => ask<SessionView>("session.json", { id });

/** Address of another page of the server, with the key where this page has it. */
export const withKey = (address: string) => (key === null ? address : `${address}?${new URLSearchParams({ key })}`);
