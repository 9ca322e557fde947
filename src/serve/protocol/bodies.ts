/** The bodies of the protocol's requests: what each route takes, and the memory that all of them share. */
import type { MiddlewareHandler } from "hono";
import { type Body, readBody } from "../../http/body.ts";
import { Budget, type Lease } from "../../http/budget.ts";
import { checkJson } from "../../http/json.ts";
import type { TinkerService } from "../service.ts";
import type { Future } from "./futures.ts";

/** What a route finds in its context; `body` is absent for GET. */
export type RequestContext = { Variables: { body: Body } };

export interface BodySettings {
  /** Largest batch to train on, before and after decompression, bytes. */
  readonly bodyBytes: number;
  /** All bodies together, while they are read and while their work waits for the device, bytes. */
  readonly bodiesBytes: number;
  /** Longest time without a byte of a body that is not whole, ms. */
  readonly bodyIdleMs: number;
}

export const BODY_SETTINGS: BodySettings = {
  // The SDK cuts batches at 5 MB; one sequence of a million tokens takes 24 MB.
  bodyBytes: 32 * 2 ** 20,
  bodiesBytes: 512 * 2 ** 20,
  bodyIdleMs: 30_000,
};

/** Of JSON, without a prompt's tokens. */
export const JSON_LIMITS = { bytes: 2 ** 20, depth: 64, values: 16_384 } as const;
/** Up to 100 events, which nobody reads here. */
const TELEMETRY_BYTES = 4 * 2 ** 20;
/** Of a prompt's token in JSON: up to seven digits, a comma, and the spaces of a generous encoder. */
const TOKEN_BYTES = 16;

/** The routes whose requests carry a number of their model's. */
const NUMBERED =
  /^\/api\/v1\/(forward_backward|optim_step|save_weights|save_weights_for_sampler|load_weights)$/;

export function isNumbered(path: string): boolean {
  return NUMBERED.test(path);
}

/** Reads the bodies of all requests but GET. */
export function readBodies(
  service: TinkerService,
  options: Partial<BodySettings>,
): MiddlewareHandler<RequestContext> {
  const settings = { ...BODY_SETTINGS, ...definedOf(options) };
  const budget = new Budget(settings.bodiesBytes);
  const { contextLength } = service.engine;
  return async (c, next) => {
    if (c.req.method === "GET" || c.req.method === "HEAD") return next();
    const { path } = c.req;
    const isTraining = path === "/api/v1/forward_backward";
    const isSampling = path === "/api/v1/asample";
    const body = await readBody(c.req.raw, {
      type: isTraining ? "application/x-protobuf" : "application/json",
      bytes: Math.min(settings.bodyBytes, isTraining ? settings.bodyBytes : jsonBytes(path, contextLength)),
      budget,
      idleMs: settings.bodyIdleMs,
    });
    try {
      c.set("body", body);
      const values = JSON_LIMITS.values + (isSampling ? contextLength : 0);
      if (!isTraining) checkJson(body.bytes, { depth: JSON_LIMITS.depth, values });
      await next();
    } finally {
      body.lease.answered();
    }
  };
}

function jsonBytes(path: string, contextLength: number): number {
  if (path === "/api/v1/asample") return JSON_LIMITS.bytes + TOKEN_BYTES * contextLength;
  return path === "/api/v1/telemetry" ? TELEMETRY_BYTES : JSON_LIMITS.bytes;
}

function definedOf(options: Partial<BodySettings>): Partial<BodySettings> {
  const names = ["bodyBytes", "bodiesBytes", "bodyIdleMs"] as const;
  return Object.fromEntries(
    names.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]),
  );
}

/** Opens work that waits for the device, and holds its body's memory until it is done. @throws Refusal 429 */
export function waiting(
  service: TinkerService,
  of: { readonly lease: Lease; readonly waitForIt: boolean; readonly open: () => Future },
): Future {
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
