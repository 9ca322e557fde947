/** Routes of the trainer: workers, weight version, flush, reload. */
import type { Hono } from "hono";
import { z } from "zod";
import { Refusal } from "../../../leaves/http/refusal.ts";
import { bodyOf, type RouteContext } from "./context.ts";
import { checked } from "./read.ts";

const WORKER = z.looseObject({
  url: z.url({ protocol: /^https?$/, error: "it must be an address such as http://host:8000" }),
  worker_id: z.string().min(1).nullish(),
  api_path: z.string().nullish(),
  model_name: z.string().nullish(),
  weight: z.number().positive().nullish(),
  is_listed: z.boolean().nullish(),
  api_key: z.string().nullish(),
});

const VERSION = z.looseObject({ weight_version: z.coerce.number().int().min(0) });

export function addAdminRoutes(app: Hono, context: RouteContext): void {
  const { service, access } = context;
  app.use("/admin/*", async (c, next) => {
    await access.administrator(c.req.raw);
    await next();
  });
  app.get("/health/workers", async (c) => {
    await access.administrator(c.req.raw);
    const workers = service.workers.list();
    return c.json({ workers, healthy: workers.filter(({ healthy }) => healthy).length, total: workers.length });
  });
  app.get("/admin/workers", (c) => c.json(service.workers.list()));
  app.post("/admin/workers", async (c) => {
    const { body, lease } = await bodyOf(c.req.raw, context);
    lease.release();
    const worker = checked(WORKER, body, "url");
    const entries = Object.entries(worker).filter(([, value]) => value !== null && value !== undefined);
    const { worker_id, url, api_path } = service.workers.add({ ...Object.fromEntries(entries), url: worker.url });
    return c.json({ worker_id, url, api_path });
  });
  app.delete("/admin/workers/:id", (c) => {
    const id = c.req.param("id");
    if (!service.workers.remove(id)) throw new Refusal(404, `Cannot remove the worker ${id}: there is none.`);
    return c.json({ removed: id });
  });
  app.get("/admin/weight_version", (c) => c.json({ weight_version: service.weightVersion }));
  app.post("/admin/weight_version", async (c) => {
    const { body, lease } = await bodyOf(c.req.raw, context);
    lease.release();
    if (body.weight_version === undefined || body.weight_version === null)
      throw new Refusal(400, "Cannot set the weight version: weight_version is missing.");
    service.weightVersion = checked(VERSION, body, "weight_version").weight_version;
    return c.json({ weight_version: service.weightVersion });
  });
  const flush = async () => {
    await service.recorder.flush();
    return Response.json({ status: "flushed" });
  };
  app.post("/admin/flush", flush);
  // The name of rLLM's older proxy.
  app.post("/admin/flush-tracer", flush);
  app.post("/admin/reload", async (c) => {
    await service.reload().catch((error: Error) => {
      throw new Refusal(500, `Cannot reload: ${error.message}. Correct the checkpoint, or wait for the next.`);
    });
    return c.json({ status: "ok" });
  });
}
