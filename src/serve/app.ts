/** The service's routes, as a plain `fetch` handler: Tinker's protocol for its SDK, a status page, metrics. */
import { Hono } from "hono";
import { type Body, BodyRefusal } from "../http/body.ts";
import { type GuardOptions, guarded, pagePolicy } from "../http/guard.ts";
import type { App } from "../http/listen.ts";
import { refused } from "../http/refusal.ts";
import type { RunRecord } from "./checkpoint/record.ts";
import { metricsText } from "./page/metrics_page.ts";
import { statusPage } from "./page/status_page.ts";
import {
  type BodySettings,
  isNumbered,
  type RequestContext,
  readBodies,
  waiting,
} from "./protocol/bodies.ts";
import { decodeForwardBackward, peekAddress, rowsOf } from "./protocol/forward_backward.ts";
import type { Future } from "./protocol/futures.ts";
import { answeredOnce } from "./protocol/idempotency.ts";
import { failureOf, type Outcome, Refusal } from "./protocol/outcome.ts";
import { pageOf, promptRequestOf, readAddress, readShape, SHAPES } from "./protocol/requests.ts";
import { addRecords } from "./routes/checkpoints.ts";
import type { Sampler } from "./sample/samplers.ts";
import type { TinkerService } from "./service.ts";

export interface AppOptions extends Partial<BodySettings> {
  readonly service: TinkerService;
  /** What clients must send as X-API-Key; absent: nothing is asked. */
  readonly apiKey?: string | undefined;
  /** Address that the server listens on. Default: loopback. */
  readonly host?: string;
  /** Further names that the server is reached by. */
  readonly allowedHosts?: readonly string[];
  /** Origins of pages that may call: `https://app.example`. Default: none. */
  readonly allowedOrigins?: readonly string[];
  /** How long a request for a result is held open. Default 25 s: the SDK gives up at 45 s. */
  readonly holdMs?: number;
}

const DEFAULT_HOLD_MS = 25_000;

/** What the SDK adjusts itself to: its plain HTTP transport, chunks in order, a bounded number of samples at once. */
const CLIENT_CONFIG = {
  use_pyqwest_transport: false,
  parallel_fwdbwd_chunks: false,
  sample_max_concurrent_requests: 256,
  proto_compress_fwdbwd: false,
  create_model_via_load_weights: false,
};

export function createApp(options: AppOptions): App {
  const { service } = options;
  const app = new Hono<RequestContext>();
  app.use(async (c, next) => {
    await next();
    service.activity.answered(c.req.routePath || "unknown", c.res.status);
  });
  app.onError((error, c) => {
    if (error instanceof Refusal) {
      skipRefused(service, { path: c.req.path, body: c.get("body"), reason: error });
      return refused(error);
    }
    const { error: detail, category } = failureOf(error);
    return c.json({ detail }, category === "user" ? 400 : 500);
  });
  app.notFound((c) =>
    c.json({ detail: `There is no ${c.req.method} ${c.req.path.slice(0, 200)} here.` }, 404),
  );
  app.use("/api/v1/*", readBodies(service, options));
  app.use(answeredOnce());
  addSessions(app, service);
  addTraining(app, service);
  addSampling(app, service);
  addFutures(app, { service, holdMs: options.holdMs ?? DEFAULT_HOLD_MS });
  addRecords(app, service);
  app.get("/", (c) => {
    const nonce = crypto.randomUUID();
    c.header("Content-Security-Policy", pagePolicy(nonce));
    return c.html(statusPage(service, nonce));
  });
  app.get("/metrics", (c) => c.text(metricsText(service)));
  return { fetch: guarded((request) => app.fetch(request), guardOf(options)) };
}

/** Reached without a key: whether the server is there, and archives, whose addresses are secrets themselves. */
const OPEN = /^\/(api\/v1\/healthz$|archives\/)/;
/** Pages for people: their key may stand in the address. */
const PAGES = /^\/(metrics)?$/;

function guardOf({ service, apiKey, host, allowedHosts, allowedOrigins }: AppOptions): GuardOptions {
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

/** What the SDKs send; no client is asked for more. */
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

function told(future: Future): { request_id: string; model_id?: string } {
  return { request_id: future.id, ...(future.modelId && { model_id: future.modelId }) };
}

function addSessions(app: Hono<RequestContext>, service: TinkerService): void {
  app.get("/api/v1/healthz", (c) => c.json({ status: "ok" }));
  app.post("/api/v1/client/config", (c) => c.json(CLIENT_CONFIG));
  app.post("/api/v1/client/dynamic_config", (c) =>
    c.json({ refresh_interval_sec: 300, sample_cancel_enabled: true }),
  );
  app.post("/api/v1/create_session", (c) => {
    const request = readShape(SHAPES.createSession, c.get("body").text());
    const session = service.createSession(request.user_metadata ?? {});
    return c.json({ session_id: session.id, type: "create_session" });
  });
  app.post("/api/v1/session_heartbeat", (c) => {
    service.session(readShape(SHAPES.heartbeat, c.get("body").text()).session_id);
    return c.json({ type: "session_heartbeat" });
  });
  app.post("/api/v1/telemetry", (c) => c.json({ status: "accepted" }));
  app.post("/api/v1/sessions/:id/finish", async (c) => {
    readShape(SHAPES.finish, c.get("body").text());
    await service.endSession(c.req.param("id"), "its session was finished");
    return c.body(null, 204);
  });
  app.get("/api/v1/sessions", (c) => {
    const { offset, limit } = pageOf(c.req.query());
    return c.json({ sessions: [...service.sessions.keys()].slice(offset, offset + limit) });
  });
  app.get("/api/v1/sessions/:id", (c) => {
    const session = service.session(c.req.param("id"));
    return c.json({
      training_run_ids: [...session.runs],
      sampler_ids: [...session.samplers],
      user_metadata: session.userMetadata,
    });
  });
  app.get("/api/v1/get_server_capabilities", (c) => {
    const { contextLength } = service.engine;
    const about = { max_context_length: contextLength, trainable: true, sampleable: true };
    return c.json({ supported_models: service.modelNames.map((model_name) => ({ model_name, ...about })) });
  });
}

/** Takes note of the number of a request that is refused. */
function skipRefused(
  service: TinkerService,
  { path, body, reason }: { path: string; body: Body | undefined; reason: Refusal },
): void {
  const bytes = body?.bytes ?? (reason instanceof BodyRefusal ? reason.head : undefined);
  if (!isNumbered(path) || bytes === undefined || RETRIED.has(reason.status)) return;
  const isTraining = path.endsWith("/forward_backward");
  const addressed = isTraining ? peekAddress(bytes) : readAddress(bytes);
  if (!addressed) return;
  const kind = isTraining ? "forward_backward" : "save";
  service.skip({ ...addressed, print: body?.print ?? "" }, { kind, reason });
}

/** Statuses that clients meet with the same request again. */
const RETRIED: ReadonlySet<number> = new Set([408, 409, 429, 503]);

function addTraining(app: Hono<RequestContext>, service: TinkerService): void {
  app.post("/api/v1/create_model", (c) => {
    const body = c.get("body");
    const request = readShape(SHAPES.createModel, body.text());
    const lora = request.lora_config;
    const future = service.createModel({
      session: request.session_id,
      number: request.model_seq_id,
      baseModel: request.base_model,
      config: {
        rank: lora?.rank ?? 0,
        seed: lora?.seed ?? request.model_seq_id,
        trainUnembed: lora?.train_unembed ?? true,
        trainMlp: lora?.train_mlp ?? true,
        trainAttn: lora?.train_attn ?? true,
      },
      userMetadata: request.user_metadata ?? undefined,
      print: body.print,
    });
    return c.json(told(future));
  });
  app.post("/api/v1/get_info", (c) => {
    const { record } = service.run(readShape(SHAPES.model, c.get("body").text()).model_id);
    return c.json(infoOf(service, record));
  });
  app.post("/api/v1/forward_backward", async (c) => {
    const body = c.get("body");
    // An unknown model is refused before anything is decoded for it.
    const whose = peekAddress(body.bytes);
    const run = whose && service.run(whose.modelId);
    const message = await decodeForwardBackward(body.bytes);
    body.lease.take(message.overheadBytes);
    const of = { modelId: message.modelId, number: message.seqId, print: body.print };
    const future = waiting(service, {
      lease: body.lease,
      waitForIt: run !== undefined && run.sequence.parkedCount > 0 && run.sequence.missing === of.number,
      open: () =>
        service.forwardBackward(of, {
          rows: () => rowsOf(message.data),
          loss: { name: message.lossFn, config: message.config },
          forwardOnly: message.forwardOnly,
        }),
    });
    return c.json(told(future));
  });
  app.post("/api/v1/optim_step", (c) => {
    const body = c.get("body");
    const request = readShape(SHAPES.optimStep, body.text());
    const of = { modelId: request.model_id, number: request.seq_id, print: body.print };
    return c.json(told(service.optimStep(of, request.adam_params)));
  });
  app.post("/api/v1/save_weights", (c) => {
    const body = c.get("body");
    const request = readShape(SHAPES.saveWeights, body.text());
    const future = service.saveWeights(
      { modelId: request.model_id, number: request.seq_id, print: body.print },
      {
        kind: "weights",
        name: request.path ?? `seq-${request.seq_id}`,
        ttlSeconds: request.ttl_seconds ?? undefined,
        overwrite: request.overwrite,
        userMetadata: request.user_metadata ?? undefined,
      },
    );
    return c.json(told(future));
  });
  app.post("/api/v1/save_weights_for_sampler", (c) => {
    const body = c.get("body");
    const request = readShape(SHAPES.saveForSampler, body.text());
    const of = { modelId: request.model_id, number: request.seq_id, print: body.print };
    const samplerNumber = request.sampling_session_seq_id;
    if (typeof request.path !== "string" && typeof samplerNumber !== "number")
      throw new Refusal(422, "Cannot save without path (a name) or sampling_session_seq_id (a snapshot).");
    const future =
      typeof request.path === "string"
        ? service.saveWeights(of, {
            kind: "sampler_weights",
            name: request.path,
            ttlSeconds: request.ttl_seconds ?? undefined,
            overwrite: false,
            userMetadata: request.user_metadata ?? undefined,
          })
        : service.snapshot({ ...of, samplerNumber: samplerNumber as number });
    return c.json(told(future));
  });
  app.post("/api/v1/load_weights", (c) => c.json(told(loadWeights(service, c.get("body")))));
  app.post("/api/v1/unload_model", (c) =>
    c.json(told(service.unload(readShape(SHAPES.model, c.get("body").text()).model_id))),
  );
}

/** Into a model that is there, or one that the request makes. */
function loadWeights(service: TinkerService, body: Body): Future {
  const request = readShape(SHAPES.loadWeights, body.text());
  const { path, optimizer } = request;
  if (typeof request.model_id === "string")
    return service.loadWeights(
      { modelId: request.model_id, number: request.seq_id ?? 0n, print: body.print },
      { path, optimizer },
    );
  if (typeof request.session_id !== "string" || typeof request.model_seq_id !== "number")
    throw new Refusal(422, "Cannot load weights without model_id, or session_id and model_seq_id.");
  return service.createModelFrom({
    session: request.session_id,
    number: request.model_seq_id,
    path,
    optimizer,
    userMetadata: request.user_metadata ?? undefined,
    print: body.print,
  });
}

function infoOf(service: TinkerService, { id, config }: RunRecord) {
  const { engine, modelNames } = service;
  return {
    type: "get_info",
    model_id: id,
    model_data: { arch: engine.architecture, model_name: modelNames[0], tokenizer_id: engine.folder },
    is_lora: config.rank > 0,
    lora_rank: config.rank > 0 ? config.rank : null,
    model_name: modelNames[0],
  };
}

function addSampling(app: Hono<RequestContext>, service: TinkerService): void {
  app.post("/api/v1/create_sampling_session", (c) => {
    const body = c.get("body");
    const request = readShape(SHAPES.createSampler, body.text());
    const sampler = service.createSampler({
      session: request.session_id,
      number: request.sampling_session_seq_id,
      baseModel: request.base_model ?? undefined,
      modelPath: request.model_path ?? undefined,
      print: body.print,
    });
    return c.json({ sampling_session_id: sampler.id, type: "create_sampling_session" });
  });
  app.post("/api/v1/asample", (c) => {
    const body = c.get("body");
    const request = readShape(SHAPES.sample, body.text());
    if (typeof request.sampling_session_id !== "string")
      throw new Refusal(422, "Cannot sample without sampling_session_id: make a sampling session first.");
    const sampler = service.sampler(request.sampling_session_id);
    const order = promptRequestOf(request);
    body.lease.take(8 * order.prompt.length);
    const number = request.seq_id ?? undefined;
    let sequenceIds: readonly string[] = [];
    const future = waiting(service, {
      lease: body.lease,
      waitForIt: false,
      open: () => {
        const samples = service.sample(sampler, { number, print: body.print, order });
        sequenceIds = samples.sequenceIds;
        return samples.future;
      },
    });
    return c.json({ ...told(future), sample_sequence_ids: sequenceIds });
  });
  app.post("/api/v1/cancel_future", (c) => {
    service.cancel(readShape(SHAPES.cancel, c.get("body").text()).request_id);
    return c.body(null, 204);
  });
  app.get("/api/v1/samplers/:id", (c) => c.json(samplerInfo(service, service.sampler(c.req.param("id")))));
}

function samplerInfo({ engine }: TinkerService, { id, modelPath }: Sampler) {
  // The SDK loads the tokenizer from base_model.
  return { sampler_id: id, base_model: engine.folder, model_path: modelPath ?? null };
}

function addFutures(
  app: Hono<RequestContext>,
  { service, holdMs }: { service: TinkerService; holdMs: number },
): void {
  app.post("/api/v1/retrieve_future", async (c) => {
    const { request_id } = readShape(SHAPES.retrieve, c.get("body").text());
    const future = service.futures.find(request_id);
    const outcome = await service.futures.wait(request_id, { holdMs, signal: c.req.raw.signal });
    if (outcome) return answer(outcome);
    return c.json({ type: "try_again", request_id, ...future.state() }, 408);
  });
}

function answer(outcome: Outcome): Response {
  if (outcome.kind === "proto")
    return new Response(outcome.bytes as Uint8Array<ArrayBuffer>, {
      headers: { "Content-Type": "application/x-protobuf" },
    });
  if (outcome.kind === "json") return Response.json(outcome.body);
  return Response.json({ error: outcome.error, category: outcome.category });
}
