/**
 * Models served from a program: for many callers in the process, or behind the APIs of OpenAI and Anthropic on a socket; and
 * rewards and agents served to a cluster that trains. It needs Node or Deno.
 * @module
 */

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
} from "./cluster/rewards/service.ts";
export type { GatewayAuth, GatewayLimits } from "./serve/gateway/mod.ts";
export { servedEngine } from "./serve/openai/engine.ts";
export type { Serving } from "./serve/openai/serving.ts";
export { openServedGateway, type ServedGateway, type ServedGatewayOptions } from "./train/run/serve/served_gateway.ts";
export { type OpenedServing, type OpenServingOptions, openServing } from "./train/run/serve/serving.ts";
