/** Routes of sessions: create, list, read, end with a reward, delete. */

import type { Context, Hono } from "hono";
import { z } from "zod";
import type { SessionOutcome } from "../../../engine/contract/trace.ts";
import { Refusal } from "../../../leaves/http/refusal.ts";
import { jsonResponse, stringifyJson } from "../../../leaves/json.ts";
import { anyObject } from "../../../leaves/shape.ts";
import type { GuardedSession } from "../auth.ts";
import { checkedId, pathOf } from "../session_id.ts";
import { withoutKey } from "../sessions.ts";
import { bodyOf, type RouteContext } from "./context.ts";
import { checked } from "./read.ts";

const object = anyObject().nullish();
const NEW_SESSION = z.looseObject({
  session_id: z.string().nullish(),
  metadata: object,
  sampling_params: object,
  /** Gives the session a key that opens it alone, for an administrator. */
  own_key: z.boolean().nullish(),
});
const IDS = z.looseObject({ session_ids: z.array(z.string()).default([]) });
export const RANGE = z.object({
  since: z.coerce.number().optional(),
  limit: z.coerce.number().int().min(0).optional(),
});
const numbers = z.record(z.string(), z.number()).nullish();
const OUTCOME = z.looseObject({
  reward: z.number().nullish(),
  is_correct: z.boolean().nullish(),
  termination_reason: z.string().nullish(),
  metrics: numbers,
  signals: numbers,
  trajectory_rewards: numbers,
});

/** Trajectories that a run trained on: only administrators may send them. */
const TRAJECTORIES = z
  .array(
    z.strictObject({
      name: z.string(),
      label: z.string(),
      reward: z.number().nullable(),
      signals: z.record(z.string(), z.number()).optional(),
      calls: z.array(
        z.strictObject({
          trace_id: z.string(),
          reward: z.number(),
          advantage: z.union([z.number(), z.array(z.number())]).optional(),
        }),
      ),
    }),
  )
  .nullish();
const RUN_OUTCOME = OUTCOME.extend({ trajectories: TRAJECTORIES });

export function addGatewaySessionRoutes(app: Hono, context: RouteContext): void {
  const { service, access } = context;
  const administrator = (c: Context) => access.administrator(c.req.raw);
  app.post("/sessions", (c) => create(c.req.raw, context));
  app.get("/sessions", async (c) => {
    await administrator(c);
    const found = await service.store.sessions(checked(RANGE, c.req.query(), "the query"));
    return jsonResponse(found.map(withoutKey));
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
    return jsonResponse(await service.store.traces({ session_id: c.req.param("id"), ...range }));
  });
  app.get("/sessions/:id{.+}", async (c) => {
    await administrator(c);
    const id = c.req.param("id");
    const session = await service.store.getSession(id);
    if (!session) throw new Refusal(404, `Session ${id} not found`);
    return jsonResponse(withoutKey(session));
  });
  app.delete("/sessions/:id{.+}", async (c) => {
    await administrator(c);
    return c.json({ deleted: await service.sessions.delete([c.req.param("id")]) });
  });
}

async function create(request: Request, context: RouteContext): Promise<Response> {
  const { service, access } = context;
  const { isAdministrator, leave } = await entered(request, context);
  try {
    const { body, lease } = await bodyOf(request, context);
    lease.release();
    const { session_id, metadata, sampling_params, own_key } = checked(NEW_SESSION, body, "the body");
    // It names a session of the worker's, which the worker opens for the gateway.
    const namesAnother = sampling_params?.rllm_metadata !== undefined;
    if (own_key || namesAnother) await access.administrator(request);
    checkSize({ metadata, sampling_params }, { most: service.limits.metadataLetters, what: "create" });
    const id = session_id == null ? crypto.randomUUID() : checkedId(session_id);
    const key = own_key ? `grpu-${crypto.randomUUID()}` : undefined;
    await service.sessions.create({
      session_id: id,
      metadata: metadata ?? undefined,
      sampling_params: sampling_params ?? undefined,
      key,
      mayReplace: isAdministrator,
    });
    return Response.json({ session_id: id, url: `${pathOf(id)}/v1`, ...(key !== undefined && { key }) });
  } finally {
    leave();
  }
}

/** Checks the size of the metadata, which every trace of a session repeats and its listing shows. */
function checkSize(fields: object, { most, what }: { readonly most: number; readonly what: "create" | "end" }): void {
  for (const [name, value] of Object.entries(fields))
    if (value && stringifyJson(value).length > most)
      throw new Refusal(
        413,
        `Cannot ${what} the session: its ${name} has more than ${most} letters as JSON. Shorten it.`,
      );
}

/** The end of an attempt, from its agent: to the run that waits for it, or to the store. */
async function report(id: string, request: Request, context: RouteContext): Promise<Response> {
  const { service } = context;
  const { sessions } = service;
  const guard = await sessions.guardOf(id);
  const { isAdministrator, leave } = await entered(request, context, guard);
  try {
    const { body, lease } = await bodyOf(request, context);
    lease.release();
    const session = sessions.get(id);
    // A run may have opened it while the body arrived.
    if (session?.key) await context.access.agentOrAdministrator(request, session);
    if (session?.onReport) {
      sessions.hand(session, body);
      return Response.json({ session_id: id, status: "reported" });
    }
    // A run that opened the session elsewhere names what its agent got wrong, and fails the attempt without a wait.
    const isAgents = guard.key !== undefined && !isAdministrator;
    const isWrong = isAgents && !OUTCOME.safeParse(body).success;
    const form = isAdministrator ? RUN_OUTCOME : OUTCOME;
    const fields: z.infer<typeof RUN_OUTCOME> = isWrong ? {} : checked(form, body, "the body");
    const isKept = isWrong || (guard.key && Object.keys(body).some((field) => !(field in form.shape)));
    if (isKept) checkSize({ report: body }, { most: service.limits.metadataLetters, what: "end" });
    const trajectories = isAdministrator && fields.trajectories ? { trajectories: fields.trajectories } : {};
    const outcome = {
      ...known(fields),
      ...trajectories,
      reward: fields.reward ?? null,
      ...(isKept && { report: body }),
    };
    await sessions.report(id, { outcome, mayReplace: isAdministrator });
    return Response.json({ session_id: id, status: "ended" });
  } finally {
    leave();
  }
}

/** Lets an agent in within its limits, and the administrator without. */
async function entered(request: Request, { access, calls }: RouteContext, session?: GuardedSession) {
  const { id, isAdministrator } = await access.agentOrAdministrator(request, session);
  return { isAdministrator, leave: isAdministrator ? () => {} : calls.enter(id) };
}

/** The fields that an outcome has; null stands for an absent one. */
function known(outcome: z.infer<typeof OUTCOME>): Partial<SessionOutcome> {
  const { is_correct, termination_reason, metrics, signals, trajectory_rewards } = outcome;
  return {
    ...(is_correct != null && { is_correct }),
    ...(termination_reason != null && { termination_reason }),
    ...(metrics && { metrics }),
    ...(signals && { signals }),
    ...(trajectory_rewards && { trajectory_rewards }),
  };
}
