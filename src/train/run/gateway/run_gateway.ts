/** The gateway of a run: the sessions of its attempts, for agents in other processes. */

import type { Gateway } from "../../../serve/gateway/mod.ts";
import type { RemoteSession, RemoteSessionRequest, SessionHost } from "../../task/remote/contract.ts";
import type { OpenTraceStore } from "../../trace/mod.ts";
import { streamFetch } from "../net/http.ts";
import { type GatewaySettings, publicUrl } from "./gateway_settings.ts";

/** Traces of sessions that the run keeps in memory where no file records them. */
const MEMORY_TRACES = 20_000;

interface Opened {
  readonly gateway: Gateway;
  readonly store: OpenTraceStore;
}

export class RunGateway implements SessionHost {
  private readonly settings: GatewaySettings;
  private opened: Opened | undefined;

  constructor(settings: GatewaySettings) {
    this.settings = settings;
  }

  /** Starts it. `tell` takes lines for the operator. @returns where it listens */
  async open(notify: (line: string) => void): Promise<string> {
    const { startGateway } = await import("../../../serve/gateway/mod.ts");
    const { openTraceStore } = await import("../../trace/mod.ts");
    const { host, port, adminToken, tunnel, store: file, retention } = this.settings;
    const usual = file === undefined ? { max_traces: MEMORY_TRACES } : undefined;
    const store = await openTraceStore(file ?? "memory", { retention: retention ?? usual });
    try {
      const gateway = await startGateway({
        store,
        host,
        port,
        auth: { adminToken, isExposed: tunnel !== undefined },
        allowedHosts: tunnel === undefined ? [] : [new URL(tunnel).hostname],
        publicUrl: (listening) => publicUrl(this.settings, listening),
        // Workers may be added to it; their replies may be silent for longer than the runtime's fetch waits.
        workers: { fetch: streamFetch },
        log: notify,
      });
      this.opened = { gateway, store };
      return gateway.url;
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.opened?.gateway.close();
    await this.opened?.store.close();
    this.opened = undefined;
  }

  openSession(request: RemoteSessionRequest): Promise<RemoteSession> {
    if (!this.opened) throw new Error("Cannot open a session: the run's gateway is not open.");
    return this.opened.gateway.openSession(request);
  }
}
