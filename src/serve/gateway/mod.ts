/**
 * An OpenAI-compatible gateway between agents in any process and models: sessions, keys, limits, and a record of every
 * call's tokens. Its routes are those of rLLM's model gateway, and more.
 */
import { listen, type SocketLimits } from "../../leaves/http/listen.ts";
import { createGatewayApp, type GatewayAppOptions } from "./app.ts";
import { GatewayService, type SessionRequest } from "./gateway.ts";
import type { GatewayOptions } from "./options.ts";

export type { GatewayAuth } from "./auth.ts";
export { checkAuth, PUBLISHED_TOKEN } from "./auth.ts";
export type { SessionRequest } from "./gateway.ts";
export { GatewayService } from "./gateway.ts";
export { GATEWAY_LIMITS, type GatewayLimits } from "./limits.ts";
export type { GatewayOptions } from "./options.ts";
export { CallRecorder } from "./record.ts";
export type { ModelHost } from "./sessions.ts";

export interface StartOptions extends GatewayOptions, Omit<GatewayAppOptions, "service"> {
  /** 0, the default, chooses a free one. */
  readonly port?: number | undefined;
  /** Base URL for agents, from the address that the gateway listens on, where the two differ: that of a tunnel. */
  readonly publicUrl?: ((listening: string) => string) | undefined;
  readonly socket?: Partial<SocketLimits> | undefined;
}

/** A session of a run's attempt, as its agent gets it. */
export interface AgentSession {
  readonly session_id: string;
  /** Address for OpenAI's clients: it ends in `/v1`. */
  readonly base_url: string;
  readonly api_key: string;
  /** Takes the agent's report. */
  readonly callback_url: string;
  /** The body that the agent posts to `callback_url`; never rejects. */
  readonly reported: Promise<unknown>;
  /** Writes the outcome, refuses further calls and aborts running ones. Of several calls the first counts. */
  readonly end: Awaited<ReturnType<GatewayService["openSession"]>>["end"];
}

export interface Gateway {
  /** `http://127.0.0.1:9090`. */
  readonly url: string;
  readonly service: GatewayService;
  openSession(request: SessionRequest): Promise<AgentSession>;
  /**
   * Refuses new calls, lets those that run finish for at most `graceMs` (default 0), ends the others, writes what is left,
   * closes the socket. The store stays open.
   */
  close(options?: { readonly graceMs?: number }): Promise<void>;
}

/**
 * Starts a gateway.
 * @throws {ConfigError} for a port that is taken, and for one that others reach without an admin token of its own
 */
export async function startGateway(options: StartOptions): Promise<Gateway> {
  const { host = "127.0.0.1", port = 0, socket } = options;
  const service = new GatewayService(options);
  const app = await createGatewayApp({ ...options, service, host });
  const listening = await listen(app, { host, port, limits: { ...GATEWAY_SOCKET, ...socket } });
  const base = (options.publicUrl?.(listening.url) ?? listening.url).replace(/\/+$/, "");
  return {
    url: listening.url,
    service,
    async openSession(request) {
      const { path, key, ...session } = await service.openSession(request);
      const at = `${base}${path}`;
      return { ...session, base_url: at, api_key: key, callback_url: at.replace(/\/v1$/, "/reward") };
    },
    async close(how) {
      await service.close(how);
      await listening.close({ graceMs: LAST_BYTES_MS });
    },
  };
}

/** How long the last answers may take to leave the socket, ms. */
const LAST_BYTES_MS = 1000;

/**
 * How long an agent may leave a stream unread, because it waits for a tool. A reply that waits for the device is not still:
 * there is nothing to read.
 */
const GATEWAY_SOCKET: Partial<SocketLimits> = { stillMs: 5 * 60_000 };
