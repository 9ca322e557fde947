/**
 * Models served from a program: for many callers in the process, or behind the APIs of OpenAI and Anthropic on a socket; and
 * rewards and agents served to a cluster that trains. It needs Node or Deno.
 * @module
 */

export type { GatewayAuth, GatewayLimits } from "./gateway/mod.ts";
export { openServedGateway, type ServedGateway, type ServedGatewayOptions } from "./run/serve/served_gateway.ts";
export { type OpenedServing, type OpenServingOptions, openServing } from "./run/serve/serving.ts";
export { servedEngine } from "./serve/openai/engine.ts";
export type { Serving } from "./serve/openai/serving.ts";
export {
  type EpisodePlace,
  type FailureKind,
  openService,
  type RolloutEnd,
  type ServedRun,
  type Service,
  type ServiceFailure,
  type ServiceLimits,
  type ServiceOptions,
  type ServiceStats,
  type ServiceTimeouts,
} from "./service/service.ts";
