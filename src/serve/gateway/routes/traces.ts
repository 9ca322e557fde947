/** Routes of traces, for the trainer. */
import type { Hono } from "hono";
import { z } from "zod";
import { Refusal } from "../../../leaves/http/refusal.ts";
import { jsonResponse } from "../../../leaves/json.ts";
import { bodyOf, type RouteContext } from "./context.ts";
import { checked } from "./read.ts";

const QUERY = z.looseObject({
  session_ids: z.array(z.string()).default([]),
  since: z.number().nullish(),
  limit: z.number().int().min(0).nullish(),
});

export function addTraceRoutes(app: Hono, context: RouteContext): void {
  const { service, access } = context;
  app.use("/traces/*", async (c, next) => {
    await access.administrator(c.req.raw);
    await next();
  });
  app.post("/traces/query", async (c) => {
    const { body, lease } = await bodyOf(c.req.raw, context);
    lease.release();
    const { session_ids, since, limit } = checked(QUERY, body, "the body");
    const range = { since: since ?? undefined, limit: limit ?? undefined };
    const found = await Promise.all(session_ids.map((session_id) => service.store.traces({ session_id, ...range })));
    return jsonResponse(found.flat());
  });
  app.get("/traces/:id", async (c) => {
    const trace = await service.store.getTrace(c.req.param("id"));
    if (!trace) throw new Refusal(404, `Trace ${c.req.param("id")} not found`);
    return jsonResponse(trace);
  });
}
