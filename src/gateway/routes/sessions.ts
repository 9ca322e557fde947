/** Routes of sessions: create, list, read, end with a reward, delete. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { SessionOutcome } from "../../contract/trace.ts";
import { Refusal } from "../../http/refusal.ts";
import { bodyOf, type RouteContext } from "./context.ts";
import { checked } from "./read.ts";

const object = z.record(z.string(), z.unknown()).nullish();
const NEW_SESSION = z.looseObject({
  session_id: z.string().min(1).max(1024).nullish(),
  metadata: object,
  sampling_params: object,
  /** For an administrator: give the session a key that opens it alone. */
  own_key: z.boolean().nullish(),
});
const IDS = z.looseObject({ session_ids: z.array(z.string()).default([]) });
export const RANGE = z.object({
  since: z.coerce.number().optional(),
  limit: z.coerce.number().int().min(0).optional(),
});
const numbers = z.record(z.string(), z.number()).optional();
const OUTCOME = z.looseObject({
  reward: z.number().nullish(),
  is_correct: z.boolean().optional(),
  termination_reason: z.string().optional(),
  metrics: numbers,
  signals: numbers,
  trajectory_rewards: numbers,
});

export function addSessionRoutes(app: Hono, context: RouteContext): void {
  const { service, access } = context;
  const administrator = (c: Context) => access.administrator(c.req.raw);
  app.post("/sessions", async (c) => {
    await access.agent(c.req.raw).catch(() => administrator(c));
    const { body, lease } = await bodyOf(c.req.raw, context);
    lease.release();
    const { session_id, metadata, sampling_params, own_key } = checked(NEW_SESSION, body, "the body");
    if (own_key) await administrator(c);
    const id = session_id ?? crypto.randomUUID();
    const key = own_key ? `grpu-${crypto.randomUUID()}` : undefined;
    await service.sessions.create({
      session_id: id,
      metadata: metadata ?? undefined,
      sampling_params: sampling_params ?? undefined,
      key,
    });
    return c.json({ session_id: id, url: `/sessions/${id}/v1`, ...(key !== undefined && { key }) });
  });
  app.get("/sessions", async (c) => {
    await administrator(c);
    return c.json(await service.store.sessions(checked(RANGE, c.req.query(), "the query")));
  });
  app.post("/sessions/batch_delete", async (c) => {
    await administrator(c);
    const { body, lease } = await bodyOf(c.req.raw, context);
    lease.release();
    return c.json({ deleted: await service.sessions.delete(checked(IDS, body, "session_ids").session_ids) });
  });
  // The ids of sessions may contain slashes, so that the longer paths come first.
  app.post("/sessions/:id{.+}/reward", (c) => report(c.req.param("id"), c.req.raw, context));
  app.get("/sessions/:id{.+}/traces", async (c) => {
    await administrator(c);
    const range = checked(RANGE, c.req.query(), "the query");
    return c.json(await service.store.traces({ session_id: c.req.param("id"), ...range }));
  });
  app.get("/sessions/:id{.+}", async (c) => {
    await administrator(c);
    const id = c.req.param("id");
    const session = await service.store.getSession(id);
    if (!session) throw new Refusal(404, `Session ${id} not found`);
    return c.json(session);
  });
  app.delete("/sessions/:id{.+}", async (c) => {
    await administrator(c);
    return c.json({ deleted: await service.sessions.delete([c.req.param("id")]) });
  });
}

/** The end of an attempt, from its agent: to the run that waits for it, or to the store. */
async function report(id: string, request: Request, context: RouteContext): Promise<Response> {
  const { service, access } = context;
  const session = service.sessions.get(id);
  await access.agent(request, session).catch((refused) => {
    // An evaluator of the trainer's side reports with the admin token, for sessions without a key of their own.
    if (session?.key) throw refused;
    return access.administrator(request);
  });
  const { body, lease } = await bodyOf(request, context);
  lease.release();
  if (session?.onReport) {
    session.onReport(body);
    return Response.json({ session_id: id, status: "reported" });
  }
  const outcome = checked(OUTCOME, body, "the body") as Partial<SessionOutcome>;
  const record = session?.record ?? (await service.store.getSession(id));
  if (!record) throw new Refusal(404, `Cannot reward the session ${id}: it does not exist.`);
  await service.sessions.report(id, record, { ...known(outcome), reward: outcome.reward ?? null });
  return Response.json({ session_id: id, status: "ended" });
}

/** The fields that an outcome has. */
function known({ is_correct, termination_reason, metrics, signals, trajectory_rewards }: Partial<SessionOutcome>) {
  return {
    ...(is_correct !== undefined && { is_correct }),
    ...(termination_reason !== undefined && { termination_reason }),
    ...(metrics && { metrics }),
    ...(signals && { signals }),
    ...(trajectory_rewards && { trajectory_rewards }),
  };
}
