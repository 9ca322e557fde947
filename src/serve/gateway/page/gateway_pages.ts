/** The gateway's pages: its status, its metrics, and the conversations that it recorded. */
import type { Context, Hono } from "hono";
import { pagePolicy } from "../../../leaves/http/guard.ts";
import { counter, gauge, metric } from "../../../leaves/http/prometheus.ts";
import { escapeHtml, mono, refreshedPage, roughDuration, table } from "../../../leaves/http/status_html.ts";
import type { GatewayService } from "../gateway.ts";
import type { RouteContext } from "../routes/context.ts";
import type { Decode } from "./trace_data.ts";
import { traceViewer } from "./trace_viewer.ts";

export interface GatewayPages {
  /** Section of the page about the models that are served in this process, as HTML. */
  readonly status?: (() => string) | undefined;
  /** Their metrics. */
  readonly metrics?: (() => string) | undefined;
  /** Text of token ids. */
  readonly decode?: Decode | undefined;
  /** Whether conversations are recorded, so that there is a page of them. */
  readonly isRecording: boolean;
}

/** Adds `/`, `/metrics` and `/view/`: for the administrator, because they show what agents said. */
export function addPages(app: Hono, { service, access }: RouteContext, pages: GatewayPages): void {
  const administrator = (c: Context) => access.administrator(c.req.raw, { allowsQuery: true });
  app.get("/", async (c) => {
    await administrator(c);
    const nonce = crypto.randomUUID();
    c.header("Content-Security-Policy", pagePolicy(nonce));
    const key = c.req.query("key");
    return c.html(refreshedPage({ title: "grpu serve", nonce, content: content(service, { pages, key }) }));
  });
  app.get("/metrics", async (c) => {
    await administrator(c);
    return c.text(gatewayMetrics(service) + (pages.metrics?.() ?? ""));
  });
  if (!pages.isRecording) return;
  const viewer = traceViewer({ store: service.store, decode: pages.decode, home: "../" });
  app.get("/view/*", async (c) => {
    await administrator(c);
    return viewer(c.req.raw);
  });
}

function content(service: GatewayService, { pages, key }: { pages: GatewayPages; key: string | undefined }): string {
  const { models, startedAt, sessions } = service;
  const query = key === undefined ? "" : `?${new URLSearchParams({ key })}`;
  const link = pages.isRecording
    ? `<a href="view/${escapeHtml(query)}">Recorded conversations</a>`
    : "Nothing is recorded";
  const head = `<header><div><h1>${escapeHtml(models[0] ?? "gateway")}</h1><p class="soft">${link}</p></div>
<p class="soft">up ${roughDuration((Date.now() - startedAt) / 1000)}<br><span class="live">live</span></p></header>`;
  return [head, pages.status?.() ?? "", workersPart(service), sessionsPart(sessions.values())].join("\n");
}

function workersPart({ workers }: GatewayService): string {
  const rows = workers
    .list()
    .map(({ url, model_name, healthy, active_requests }) => [
      mono(url),
      escapeHtml(model_name ?? "any"),
      healthy ? "answers" : '<span class="warn">does not answer</span>',
      String(active_requests),
    ]);
  if (rows.length === 0) return "";
  return table("Workers", { head: ["Address", "Model", "State", "Running"], rows, none: "" });
}

function sessionsPart(sessions: Iterable<{ id: string; running: number }>): string {
  const rows = [...sessions]
    .reverse()
    .map(({ id, running }) => [mono(id), running > 0 ? `${running} running` : '<span class="soft">idle</span>']);
  return table("Sessions", { head: ["Session", "State"], rows, none: "None." });
}

function gatewayMetrics({ sessions, workers, recorder, bodies }: GatewayService): string {
  const listed = workers.list();
  const lines = [
    gauge("grpu_gateway_sessions", "Sessions in memory.", sessions.count),
    gauge("grpu_gateway_body_bytes", "Memory of requests that are being answered.", bodies.used),
    counter("grpu_gateway_traces_total", "Traces that were stored.", recorder.figures.stored),
    gauge("grpu_gateway_traces_unwritten", "Traces that the store has not taken yet.", recorder.figures.pending),
    counter("grpu_gateway_traces_lost_total", "Traces that were given up.", recorder.figures.lost),
    metric(
      { name: "grpu_gateway_worker_healthy", help: "Whether a worker answers.", type: "gauge" },
      listed.map(({ url, healthy }) => [{ worker: url }, healthy ? 1 : 0]),
    ),
  ];
  return `${lines.join("\n")}\n`;
}
