/** Context that routes share. */

import { type ReadJson, readJsonBody } from "../../../leaves/http/json_body.ts";
import type { Access } from "../auth.ts";
import type { GatewayService } from "../gateway.ts";
import type { CallLimits } from "../limits.ts";

export interface RouteContext {
  readonly service: GatewayService;
  readonly access: Access;
  readonly calls: CallLimits;
}

/** The body of a request within the gateway's limits. */
export function bodyOf(request: Request, { service }: RouteContext): Promise<ReadJson> {
  return readJsonBody(request, { budget: service.bodies, bytes: service.limits.bodyBytes });
}
