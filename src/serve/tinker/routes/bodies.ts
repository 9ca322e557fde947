/** Request bodies: the limits of each route, and the memory that all of them share. */
import type { Context, Hono, MiddlewareHandler } from "hono";
import type { z } from "zod";
import { type Body, readBody } from "../../../leaves/http/body.ts";
import { ByteBudget, type Lease } from "../../../leaves/http/budget.ts";
import { checkJson } from "../../../leaves/http/json.ts";
import type { Future } from "../protocol/futures.ts";
import { MOST_PROMPT_CELLS } from "../protocol/prompt_targets.ts";
import { readShape } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import { HANDED_ROUTE } from "../stability/hand_over.ts";

/** The context of a route; `body` is absent for GET. */
export type RequestContext = { Variables: { body: Body } };

export type Routes = Hono<RequestContext>;

/** The JSON body of a request. @throws Refusal 422 for one of another shape. */
export function readRequest<S extends z.ZodObject>(c: Context<RequestContext>, shape: S): z.output<S> {
  return readShape(shape, c.get("body").text());
}

export interface BodySettings {
  /** Largest training batch, before and after decompression, bytes. */
  readonly bodyBytes: number;
  /** All bodies together, from their first byte until their work has run, bytes. */
  readonly bodiesBytes: number;
  /** Longest pause within a body, ms. */
  readonly bodyIdleMs: number;
}

export const BODY_SETTINGS: BodySettings = {
  // The SDK cuts batches at 5 MB; one sequence of a million tokens takes 24 MB.
  bodyBytes: 32 * 2 ** 20,
  bodiesBytes: 512 * 2 ** 20,
  bodyIdleMs: 30_000,
};

/** Limits of JSON, without a prompt's tokens. */
export const JSON_LIMITS = { bytes: 2 ** 20, depth: 64, values: 16_384 } as const;
/** Up to 100 events, which this server ignores. */
const TELEMETRY_BYTES = 4 * 2 ** 20;
/** A token in JSON: up to seven digits, a comma, and spaces. */
const TOKEN_BYTES = 16;

/** Reads the bodies of all requests except GET and HEAD. */
export function readBodies(service: TinkerService, options: Partial<BodySettings>): MiddlewareHandler<RequestContext> {
  const settings = { ...BODY_SETTINGS, ...definedOf(options) };
  const budget = new ByteBudget(settings.bodiesBytes);
  const { contextLength } = service.models;
  return async (c, next) => {
    if (c.req.method === "GET" || c.req.method === "HEAD") return next();
    const { path } = c.req;
    const isBinary = path === "/api/v1/forward_backward" || path === HANDED_ROUTE;
    const isSampling = path === "/api/v1/asample";
    const body = await readBody(c.req.raw, {
      type: isBinary ? "application/x-protobuf" : "application/json",
      bytes: Math.min(settings.bodyBytes, isBinary ? settings.bodyBytes : jsonBytes(path, contextLength)),
      budget,
      idleMs: settings.bodyIdleMs,
    });
    try {
      c.set("body", body);
      const values = JSON_LIMITS.values + (isSampling ? promptValues(contextLength) : 0);
      if (!isBinary) checkJson(body.bytes, { depth: JSON_LIMITS.depth, values });
      await next();
    } finally {
      body.lease.answered();
    }
  };
}

/** Numbers that a request to sample may have: a prompt, and of the targets in it a row start per token, ids and columns. */
function promptValues(contextLength: number): number {
  return 2 * contextLength + 2 * MOST_PROMPT_CELLS;
}

function jsonBytes(path: string, contextLength: number): number {
  if (path === "/api/v1/asample") return JSON_LIMITS.bytes + TOKEN_BYTES * promptValues(contextLength);
  return path === "/api/v1/telemetry" ? TELEMETRY_BYTES : JSON_LIMITS.bytes;
}

function definedOf(options: Partial<BodySettings>): Partial<BodySettings> {
  const names = ["bodyBytes", "bodiesBytes", "bodyIdleMs"] as const;
  return Object.fromEntries(names.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));
}

/** Opens work that waits for the device, and holds its body's memory until that work has run. @throws Refusal 429, 503 */
export function waiting(
  service: TinkerService,
  of: { readonly lease: Lease; readonly waitForIt: boolean; readonly open: () => Future },
): Future {
  // The server may have begun to stop while the body was decoded.
  service.refuseWhileStopping();
  of.lease.wait(of);
  try {
    const future = of.open();
    service.futures.whenSettled(future, () => of.lease.release());
    return future;
  } catch (error) {
    of.lease.release();
    throw error;
  }
}
