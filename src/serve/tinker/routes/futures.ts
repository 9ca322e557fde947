/** The routes that retrieve and cancel the results of accepted requests. */

import type { RequestOutcome } from "../protocol/outcome.ts";
import { SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import { type Routes, readRequest } from "./bodies.ts";

export interface FutureRouteOptions {
  /** How long a request for a result is held open, ms. */
  readonly holdMs: number;
}

export function addFutureRoutes(app: Routes, service: TinkerService, { holdMs }: FutureRouteOptions): void {
  const { futures, samplers } = service;
  app.post("/api/v1/retrieve_future", async (c) => {
    const { request_id } = readRequest(c, SHAPES.retrieve);
    const future = futures.find(request_id);
    const outcome = await futures.wait(request_id, { holdMs, signal: c.req.raw.signal });
    if (outcome) return answer(outcome);
    return c.json({ type: "try_again", request_id, ...future.state() }, 408);
  });
  app.post("/api/v1/cancel_future", (c) => {
    samplers.cancel(readRequest(c, SHAPES.cancel).request_id);
    return c.body(null, 204);
  });
}

function answer(outcome: RequestOutcome): Response {
  if (outcome.kind === "proto")
    return new Response(outcome.bytes as Uint8Array<ArrayBuffer>, {
      headers: { "Content-Type": "application/x-protobuf" },
    });
  if (outcome.kind === "json") return Response.json(outcome.body);
  return Response.json({ error: outcome.error, category: outcome.category });
}
