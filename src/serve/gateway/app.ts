/** The gateway as a plain `fetch` handler: model calls of sessions, and the routes of rLLM's model gateway. */

import { Hono } from "hono";
import { formOf, withRequestId } from "../../chat/apis/errors.ts";
import { guardHandler, type RequestGuardOptions } from "../../leaves/http/guard.ts";
import type { App } from "../../leaves/http/listen.ts";
import { isLoopback } from "../../leaves/http/origin.ts";
import { Access, type GatewayAuth } from "./auth.ts";
import { routeError } from "./errors.ts";
import type { GatewayService } from "./gateway.ts";
import { CallLimits } from "./limits.ts";
import { addAdminRoutes } from "./routes/admin.ts";
import { callPath, callRoute } from "./routes/calls.ts";
import type { RouteContext } from "./routes/context.ts";
import { addGatewaySessionRoutes } from "./routes/sessions.ts";
import { addTraceRoutes } from "./routes/traces.ts";

export interface GatewayAppOptions {
  readonly service: GatewayService;
  readonly auth?: GatewayAuth | undefined;
  /** Address that the server listens on. Default: loopback. */
  readonly host?: string | undefined;
  /** Further host names of the server, such as that of a tunnel or a proxy. One that is not of this machine exposes it. */
  readonly allowedHosts?: readonly string[] | undefined;
  /** Origins whose pages may call the gateway: `https://app.example`. Default: none. */
  readonly allowedOrigins?: readonly string[] | undefined;
  /** Adds pages. Each route calls `routes.administrator` or answers to everybody. */
  readonly extend?: ((app: Hono, routes: RouteContext) => void) | undefined;
}

const DEFAULT_HOST = "127.0.0.1";

/** @throws {ConfigError} for a gateway that others reach without an admin token of its own */
export async function createGatewayApp(options: GatewayAppOptions): Promise<App> {
  const { service, auth = {}, host = DEFAULT_HOST, allowedHosts = [] } = options;
  const isExposed = auth.isExposed || !allowedHosts.every(isLoopback);
  const access = await Access.open({ ...auth, isExposed }, host);
  const context: RouteContext = { service, access, calls: new CallLimits(service.limits) };
  const app = new Hono();
  app.onError((error) => routeError(error, service.log));
  app.notFound((c) => c.json({ error: `There is no route ${c.req.method} ${c.req.path.slice(0, 200)}.` }, 404));
  app.get("/health", (c) => c.json({ status: "ok" }));
  addAdminRoutes(app, context);
  addTraceRoutes(app, context);
  addGatewaySessionRoutes(app, context);
  options.extend?.(app, context);
  const answerCall = callRoute(context);
  const handle = (request: Request) => {
    const path = callPath(request);
    return path ? answerCall(request, path) : app.fetch(request);
  };
  const answer = guardHandler(handle, guardOf(options, host));
  return {
    fetch: async (request) => {
      const response = await answer(request);
      return callPath(request) ? withRequestId(response, formOf(request)) : response;
    },
  };
}

function guardOf({ allowedHosts, allowedOrigins }: GatewayAppOptions, host: string): RequestGuardOptions {
  return {
    site: { host, names: allowedHosts ?? [], origins: allowedOrigins ?? [] },
    methods: ["GET", "POST", "DELETE"],
    headers: ALLOWED_HEADERS,
  };
}

/** The headers that clients of the APIs send. */
const ALLOWED_HEADERS = [
  "Accept",
  "Authorization",
  "Content-Encoding",
  "Content-Type",
  "X-API-Key",
  "X-Session-Id",
  "X-Trajectory",
  "Anthropic-Version",
  "Anthropic-Beta",
  "Anthropic-Dangerous-Direct-Browser-Access",
  "OpenAI-Organization",
  "OpenAI-Project",
  "X-Stainless-Arch",
  "X-Stainless-Lang",
  "X-Stainless-OS",
  "X-Stainless-Package-Version",
  "X-Stainless-Retry-Count",
  "X-Stainless-Runtime",
  "X-Stainless-Runtime-Version",
  "X-Stainless-Timeout",
];
