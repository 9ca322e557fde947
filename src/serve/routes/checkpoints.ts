/** What the SDK's REST client asks for: training runs, and the checkpoints on disk. */
import type { Hono } from "hono";
import { type CheckpointRecord, formatPath, parsePath, type RunRecord } from "../checkpoint/record.ts";
import type { RequestContext } from "../protocol/bodies.ts";
import { Refusal } from "../protocol/outcome.ts";
import { pageOf, readShape, SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";

const ARCHIVE_URL_MS = 3600_000;

/** Adds the routes that list training runs and keep, publish and hand out checkpoints. */
export function addRecords(app: Hono<RequestContext>, service: TinkerService): void {
  addRuns(app, service);
  addCheckpoints(app, service);
}

function addRuns(app: Hono<RequestContext>, service: TinkerService): void {
  const { checkpoints } = service;
  app.post("/api/v1/weights_info", (c) => {
    const { tinker_path } = readShape(SHAPES.weightsInfo, c.get("body").text());
    const { record } = checkpoints.find(parsePath(tinker_path));
    const { baseModel, config } = checkpoints.findRun(record.run);
    return c.json({
      base_model: baseModel,
      is_lora: config.rank > 0,
      lora_rank: config.rank > 0 ? config.rank : null,
      train_unembed: config.trainUnembed,
      train_mlp: config.trainMlp,
      train_attn: config.trainAttn,
    });
  });
  app.get("/api/v1/training_runs", (c) => {
    const { offset, limit } = pageOf(c.req.query());
    const rows = [
      ...allRuns(service).map((run) => () => runInfo(service, run)),
      ...checkpoints.damage.flatMap(({ run }) => (run === undefined ? [] : () => damagedInfo(service, run))),
    ];
    return c.json({
      training_runs: rows.slice(offset, offset + limit).map((row) => row()),
      cursor: { offset, limit, total_count: rows.length },
    });
  });
  app.get("/api/v1/training_runs/:id", (c) => {
    const id = c.req.param("id");
    const run = service.runs.get(id)?.record;
    if (!run && checkpoints.damage.some((it) => it.run === id)) return c.json(damagedInfo(service, id));
    return c.json(runInfo(service, run ?? checkpoints.findRun(id)));
  });
}

/** Those in memory have newer records than the disk. */
function allRuns({ checkpoints, runs }: TinkerService): RunRecord[] {
  return checkpoints.allRuns().map((run) => runs.get(run.id)?.record ?? run);
}

function runInfo(service: TinkerService, run: RunRecord) {
  return {
    training_run_id: run.id,
    base_model: run.baseModel,
    model_owner: "local",
    is_lora: run.config.rank > 0,
    corrupted: false,
    lora_rank: run.config.rank > 0 ? run.config.rank : null,
    last_request_time: run.lastRequest,
    ...lastCheckpoints(service, run.id),
    user_metadata: run.userMetadata ?? null,
  };
}

/** Of a run whose record cannot be read: what the protocol wants besides is not known. */
function damagedInfo(service: TinkerService, run: string) {
  const last = service.checkpoints.list(run)[0];
  return {
    training_run_id: run,
    base_model: "unknown",
    model_owner: "local",
    is_lora: false,
    corrupted: true,
    lora_rank: null,
    last_request_time: last?.time ?? new Date(0).toISOString(),
    ...lastCheckpoints(service, run),
    user_metadata: null,
  };
}

function lastCheckpoints({ checkpoints }: TinkerService, run: string) {
  const saved = checkpoints.list(run);
  const last = (kind: CheckpointRecord["kind"]) => {
    const record = saved.find((it) => it.kind === kind);
    return record ? checkpointInfo(record) : null;
  };
  return { last_checkpoint: last("weights"), last_sampler_checkpoint: last("sampler_weights") };
}

function checkpointInfo(record: CheckpointRecord) {
  return {
    checkpoint_id: `${record.kind}/${record.name}`,
    checkpoint_type: record.kind === "weights" ? "training" : "sampler",
    time: record.time,
    tinker_path: formatPath(record),
    size_bytes: record.bytes,
    public: record.isPublic,
    expires_at: record.expiresAt ?? null,
    user_metadata: record.userMetadata ?? null,
  };
}

function addCheckpoints(app: Hono<RequestContext>, service: TinkerService): void {
  const { checkpoints } = service;
  /** One-time addresses of archives: whoever follows them sends no key. */
  const archives = new Map<string, { path: ReturnType<typeof parsePath>; until: number }>();
  const ROUTE = "/api/v1/training_runs/:run/checkpoints/:kind/:name";
  const pathOf = (param: (name: string) => string) =>
    parsePath(`tinker://${param("run")}/${param("kind")}/${param("name")}`);
  app.get("/api/v1/training_runs/:run/checkpoints", (c) => {
    const run = c.req.param("run");
    if (!service.runs.has(run)) checkpoints.findRun(run);
    return c.json({ checkpoints: checkpoints.list(run).map(checkpointInfo) });
  });
  app.get("/api/v1/checkpoints", (c) => {
    const { offset, limit } = pageOf(c.req.query());
    const all = checkpoints.list();
    return c.json({
      checkpoints: all.slice(offset, offset + limit).map(checkpointInfo),
      cursor: { offset, limit, total_count: all.length },
    });
  });
  app.delete(ROUTE, async (c) => {
    await checkpoints.remove(pathOf((name) => c.req.param(name as "run")));
    return c.body(null, 204);
  });
  for (const [method, isPublic] of [
    ["POST", true],
    ["DELETE", false],
  ] as const)
    app.on(method, `${ROUTE}/publish`, async (c) => {
      await checkpoints.change(
        pathOf((name) => c.req.param(name) as string),
        { isPublic },
      );
      return c.body(null, 204);
    });
  app.put(`${ROUTE}/ttl`, async (c) => {
    const { ttl_seconds } = readShape(SHAPES.ttl, c.get("body").text());
    await checkpoints.change(
      pathOf((name) => c.req.param(name as "run")),
      { ttlSeconds: ttl_seconds ?? null },
    );
    return c.body(null, 204);
  });
  app.get(`${ROUTE}/archive`, (c) => {
    const path = pathOf((name) => c.req.param(name as "run"));
    checkpoints.find(path);
    const now = Date.now();
    for (const [token, { until }] of archives) if (until < now) archives.delete(token);
    const token = crypto.randomUUID();
    archives.set(token, { path, until: now + ARCHIVE_URL_MS });
    const url = new URL(`/archives/${token}`, c.req.url).href;
    return c.json({ url, expires: new Date(now + ARCHIVE_URL_MS).toISOString() });
  });
  app.get("/archives/:token", (c) => {
    const known = archives.get(c.req.param("token"));
    if (!known || known.until < Date.now()) throw new Refusal(404, "There is no such archive (any more).");
    checkpoints.find(known.path);
    const headers = {
      "Content-Type": "application/x-tar",
      "Content-Disposition": `attachment; filename="${known.path.name}.tar"`,
    };
    return new Response(streamOf(checkpoints.archive(known.path)), { headers });
  });
}

function streamOf(chunks: AsyncGenerator<Uint8Array>): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller) {
      const { value, done } = await chunks.next();
      if (done) controller.close();
      else if (value.byteLength > 0) controller.enqueue(value);
    },
    async cancel() {
      await chunks.return(undefined);
    },
  });
}
