/** The routes that list, publish, expire, delete and export checkpoints. */
import type { Context } from "hono";
import { archive, content, publicFiles, publicSizes } from "../checkpoint/archive.ts";
import { type CheckpointPath, parsePath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";
import { pageOf, SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import { type RequestContext, type Routes, readRequest } from "./bodies.ts";
import { checkpointInfo } from "./training_runs.ts";

const CHECKPOINT = "/api/v1/training_runs/:run/checkpoints/:kind/:name";
/** Clients also name checkpoints without their kind. */
const BARE = "/api/v1/training_runs/:run/checkpoints/:name";
const ARCHIVE_URL_MS = 3600_000;

export function addCheckpointRoutes(app: Routes, service: TinkerService): void {
  const { checkpoints } = service;
  app.get("/api/v1/training_runs/:run/checkpoints", (c) => {
    const run = c.req.param("run");
    if (!service.runs.get(run)) checkpoints.findRun(run);
    return c.json({ checkpoints: checkpoints.list(run).map(checkpointInfo) });
  });
  app.get("/api/v1/checkpoints", (c) => {
    const { offset, limit } = pageOf(c.req.query());
    const listed = checkpoints.list();
    return c.json({
      checkpoints: listed.slice(offset, offset + limit).map(checkpointInfo),
      cursor: { offset, limit, total_count: listed.length },
    });
  });
  app.delete(CHECKPOINT, async (c) => {
    await checkpoints.remove(pathOf(c));
    return c.body(null, 204);
  });
  app.delete(BARE, async (c) => {
    await checkpoints.remove(checkpoints.named(c.req.param("run"), c.req.param("name")));
    return c.body(null, 204);
  });
  app.post(`${CHECKPOINT}/publish`, async (c) => {
    await checkpoints.change(pathOf(c), { isPublic: true });
    return c.body(null, 204);
  });
  app.delete(`${CHECKPOINT}/publish`, async (c) => {
    await checkpoints.change(pathOf(c), { isPublic: false });
    return c.body(null, 204);
  });
  app.put(`${CHECKPOINT}/ttl`, async (c) => {
    const { ttl_seconds } = readRequest(c, SHAPES.ttl);
    await checkpoints.change(pathOf(c), { ttlSeconds: ttl_seconds ?? null });
    return c.body(null, 204);
  });
  addArchives(app, service);
}

/** Archives, and the files of external weights, are downloaded from secret, temporary URLs, without a key. */
function addArchives(app: Routes, { checkpoints }: TinkerService): void {
  const archives = new Map<string, { path: CheckpointPath; until: number; time: string | undefined }>();
  /** @param time of the checkpoint, for a token that does not hold for one that overwrites it */
  const tokenOf = (path: CheckpointPath, time?: string) => {
    const now = Date.now();
    for (const [token, { until }] of archives) if (until < now) archives.delete(token);
    const token = crypto.randomUUID();
    archives.set(token, { path, until: now + ARCHIVE_URL_MS, time });
    return { token, expires: new Date(now + ARCHIVE_URL_MS).toISOString() };
  };
  const share = (path: CheckpointPath, base: string) => {
    const { token, expires } = tokenOf(path);
    return { url: new URL(`/archives/${token}`, base).href, expires };
  };
  const shared = (token: string) => {
    const archive = archives.get(token);
    if (!archive || archive.until < Date.now())
      throw new Refusal(404, "Cannot find the archive: its URL is wrong or has expired. Request a new one.");
    const found = checkpoints.find(archive.path);
    if (archive.time !== undefined && archive.time !== found.record.time)
      throw new Refusal(410, `Cannot copy ${archive.path.name}: it has been overwritten. Request it again.`);
    return { name: archive.path.name, ...found };
  };
  app.get(`${CHECKPOINT}/archive`, (c) => {
    const path = pathOf(c);
    checkpoints.find(path);
    return c.json(share(path, c.req.url));
  });
  app.get(`${CHECKPOINT}/external_weights_urls`, async (c) => {
    const path = pathOf(c);
    const files = await publicFiles(checkpoints.find(path).dir);
    const { url, expires } = share(path, c.req.url);
    return c.json({
      urls: Object.fromEntries(files.map((file) => [file, `${url}/${encodeURIComponent(file)}`])),
      expires,
    });
  });
  // Not of the protocol: another server asks for what it copies.
  app.get(`${CHECKPOINT}/copy`, async (c) => {
    const path = pathOf(c);
    const { dir, record } = checkpoints.find(path);
    return c.json({
      run: JSON.stringify(checkpoints.findRun(path.run)),
      checkpoint: JSON.stringify(record),
      archive: tokenOf(path, record.time).token,
      files: await publicSizes(dir),
    });
  });
  app.get("/archives/:token", (c) => {
    const { dir, name } = shared(c.req.param("token"));
    return download(archive(dir), { type: "application/x-tar", name: `${name}.tar` });
  });
  app.get("/archives/:token/:file", async (c) => {
    const { dir } = shared(c.req.param("token"));
    const name = c.req.param("file");
    if (!(await publicFiles(dir)).includes(name))
      throw new Refusal(404, `Cannot find ${name.slice(0, 200)}: the checkpoint has no such file.`);
    const check = () => void shared(c.req.param("token"));
    return download(content(dir, { name, check }), { type: "application/octet-stream", name });
  });
}

function download(chunks: AsyncGenerator<Uint8Array>, { type, name }: { type: string; name: string }): Response {
  const headers = { "Content-Type": type, "Content-Disposition": `attachment; filename="${name}"` };
  return new Response(streamOf(chunks), { headers });
}

function pathOf(c: Context<RequestContext, typeof CHECKPOINT>): CheckpointPath {
  return parsePath(`tinker://${c.req.param("run")}/${c.req.param("kind")}/${c.req.param("name")}`);
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
