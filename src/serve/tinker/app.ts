/** The server as a plain `fetch` handler: Tinker's protocol for its SDK, a status page, and metrics. */
import { type Context, Hono } from "hono";
import { type Body, BodyRefusal } from "../../leaves/http/body.ts";
import { guardHandler, pagePolicy, type RequestGuardOptions } from "../../leaves/http/guard.ts";
import type { App } from "../../leaves/http/listen.ts";
import { refusalResponse } from "../../leaves/http/refusal.ts";
import { tinkerMetricsText } from "./page/metrics_page.ts";
import { statusPage } from "./page/status_page.ts";
import { peekAddress } from "./protocol/forward_backward.ts";
import { answerRepeats } from "./protocol/idempotency.ts";
import { Refusal, requestFailure } from "./protocol/outcome.ts";
import { readAddress } from "./protocol/requests.ts";
import { type BodySettings, type RequestContext, readBodies } from "./routes/bodies.ts";
import { addCheckpointRoutes } from "./routes/checkpoints.ts";
import { addFutureRoutes } from "./routes/futures.ts";
import { addRecordedSequencesRoute } from "./routes/recorded_sequences.ts";
import { addSamplingRoutes } from "./routes/sampling.ts";
import { addTinkerSessionRoutes } from "./routes/sessions.ts";
import { addTrainingRoutes } from "./routes/training.ts";
import { addTrainingRunRoutes } from "./routes/training_runs.ts";
import { addUnsupportedRoutes } from "./routes/unsupported.ts";
import type { TinkerService } from "./service.ts";

export interface AppOptions extends Partial<BodySettings> {
  readonly service: TinkerService;
  /** The key that clients must send as X-API-Key; absent: none. */
  readonly apiKey?: string | undefined;
  /** Address that the server listens on. Default: loopback. */
  readonly host?: string | undefined;
  /** Further host names of the server. */
  readonly allowedHosts?: readonly string[] | undefined;
  /** Origins whose pages may call the server: `https://app.example`. Default: none. */
  readonly allowedOrigins?: readonly string[] | undefined;
  /** How long a request for a result is held open. Default 25 s: the SDK gives up after 45 s. */
  readonly holdMs?: number | undefined;
}

const DEFAULT_HOLD_MS = 25_000;
/** Routes that accept new work: closed while the server stops. */
const WORK =
  /^\/api\/v1\/(create_(session|model|sampling_session)|forward_backward|optim_step|(save|load)_weights|save_weights_(for_sampler|external)|unload_model|asample|recorded_sequences)$/;

export function createApp(options: AppOptions): App {
  const { service } = options;
  const app = new Hono<RequestContext>();
  app.use(async (c, next) => {
    await next();
    service.activity.answered(c.req.routePath || "unknown", c.res.status);
  });
  app.onError((error, c) => {
    const { error: text, category } = requestFailure(error);
    const reason = error instanceof Refusal ? error : new Refusal(category === "user" ? 400 : 500, text);
    skipRefused(service, c, reason);
    return refusalResponse(reason);
  });
  app.notFound((c) => {
    const reason = new Refusal(404, `There is no route ${c.req.method} ${c.req.path.slice(0, 200)}.`);
    skipRefused(service, c, reason);
    return refusalResponse(reason);
  });
  app.use("/api/v1/*", readBodies(service, options));
  app.use("/api/v1/*", async (c, next) => {
    if (WORK.test(c.req.path)) service.refuseWhileStopping();
    await next();
  });
  app.use(answerRepeats());
  addTinkerSessionRoutes(app, service);
  addTrainingRoutes(app, service);
  addSamplingRoutes(app, service);
  addRecordedSequencesRoute(app, service);
  addFutureRoutes(app, service, { holdMs: options.holdMs ?? DEFAULT_HOLD_MS });
  addTrainingRunRoutes(app, service);
  addCheckpointRoutes(app, service);
  addUnsupportedRoutes(app);
  app.get("/", (c) => {
    const nonce = crypto.randomUUID();
    c.header("Content-Security-Policy", pagePolicy(nonce));
    return c.html(statusPage(service, nonce));
  });
  app.get("/metrics", (c) => c.text(tinkerMetricsText(service)));
  return { fetch: guardHandler((request) => app.fetch(request), guardOf(options)) };
}

/** Statuses after which clients send the same request again; so are those from 500 on. */
const RETRIED: ReadonlySet<number> = new Set([408, 409, 429]);
/** Large bodies without a number in a model's sequence. */
const UNNUMBERED = /^\/api\/v1\/(asample|telemetry|recorded_sequences)$/;

/**
 * Marks the number of a refused request as used: its client does not send it again. Also on a route that the server
 * lacks: a newer client counts it like any other.
 */
function skipRefused(service: TinkerService, c: Context<RequestContext>, reason: Refusal): void {
  const body: Body | undefined = c.get("body");
  const bytes = body?.bytes ?? (reason instanceof BodyRefusal ? reason.head : undefined);
  if (bytes === undefined || UNNUMBERED.test(c.req.path) || reason.status >= 500 || RETRIED.has(reason.status)) return;
  const isTraining = c.req.path.endsWith("/forward_backward");
  const isBinary = isTraining || (c.req.header("content-type") ?? "").includes("protobuf");
  const address = isBinary ? peekAddress(bytes) : readAddress(bytes);
  if (!address || service.isStopping) return;
  const kind = isTraining ? "forward_backward" : "save";
  service.training.skip({ ...address, print: body?.print ?? "" }, { kind, reason });
}

/** Needs no key: the health check, and archives, whose URLs are secret. */
const OPEN = /^\/(api\/v1\/healthz$|archives\/)/;
/** Pages for browsers, which may have the key in their URL. */
const PAGES = /^\/(metrics)?$/;

function guardOf({ service, apiKey, host, allowedHosts, allowedOrigins }: AppOptions): RequestGuardOptions {
  return {
    site: { host: host ?? "127.0.0.1", names: allowedHosts ?? [], origins: allowedOrigins ?? [] },
    apiKey,
    open: OPEN,
    queryKey: PAGES,
    methods: ["GET", "POST", "PUT", "DELETE"],
    headers: ALLOWED_HEADERS,
    onRefused: (status) => service.activity.answered("refused", status),
  };
}

/** The headers that the SDKs send. */
const ALLOWED_HEADERS = [
  "Accept",
  "Authorization",
  "Content-Encoding",
  "Content-Type",
  "X-API-Key",
  "X-Idempotency-Key",
  "X-Stainless-Arch",
  "X-Stainless-Async",
  "X-Stainless-Lang",
  "X-Stainless-OS",
  "X-Stainless-Package-Version",
  "X-Stainless-Read-Timeout",
  "X-Stainless-Retry-Count",
  "X-Stainless-Runtime",
  "X-Stainless-Runtime-Version",
  "X-Tinker-Create-Promise-Roundtrip-Time",
  "X-Tinker-Request-Iteration",
  "X-Tinker-Request-Type",
  "X-Tinker-Sampling-Backpressure",
];
