/**
 * A gateway that runs already (`rllm.sdk.proxy.mode: external`): agents call it, and it calls the run as its worker. The run
 * listens on an endpoint of its own, registers it, opens a session there and here for each attempt, and leaves no worker
 * behind. Works with grpu's gateway and with rLLM's, whose sessions cannot have keys.
 */
import { z } from "zod";
import { ConfigError } from "../../errors.ts";
import type { Gateway } from "../../gateway/mod.ts";
import { isLoopback } from "../../http/origin.ts";
import type { OpenSession, SessionHost, SessionRequest } from "../../task/remote/contract.ts";
import { MemoryTraceStore } from "../../trace/mod.ts";
import { httpFetch } from "../process/http.ts";
import { type GatewaySettings, publicUrl } from "./gateway_settings.ts";

/** How often an agent's callback is looked for, ms: it goes to the gateway, which tells nobody. */
const POLL_MS = 1000;

const REGISTERED = z.looseObject({ worker_id: z.string() });
const CREATED = z.looseObject({ key: z.string().nullish() });
const SESSION = z.looseObject({ outcome: z.unknown().optional() });

export class ExternalGateway implements SessionHost {
  private readonly settings: GatewaySettings;
  private readonly url: string;
  private endpoint: Gateway | undefined;
  private worker = "";
  private version: unknown;

  constructor(settings: GatewaySettings) {
    this.settings = settings;
    const { host, port } = settings;
    this.url = `http://${host.includes(":") ? `[${host}]` : host}:${port}`;
  }

  /** Opens the endpoint and registers it. @throws {ConfigError} where no gateway answers, or it refuses the token */
  async open(tell: (line: string) => void): Promise<string> {
    const { startGateway } = await import("../../gateway/mod.ts");
    const [adminToken, workerKey] = [crypto.randomUUID(), crypto.randomUUID()];
    // A gateway on another machine cannot reach this one's loopback.
    const host = isLoopback(this.settings.host) ? "127.0.0.1" : "0.0.0.0";
    this.endpoint = await startGateway({
      // The gateway in front records.
      store: new MemoryTraceStore(),
      host,
      auth: { adminToken, apiKeys: [workerKey] },
      log: tell,
    });
    const url = publicUrl({ ...this.settings, host, tunnel: undefined }, this.endpoint.url);
    try {
      const answer = await this.ask("POST", "/admin/workers", { url, api_key: workerKey });
      this.worker = REGISTERED.parse(answer).worker_id;
      await this.ask("POST", "/admin/reload", {});
    } catch (error) {
      await this.endpoint.close();
      throw error;
    }
    return `${this.url} (external)`;
  }

  async close(): Promise<void> {
    if (!this.endpoint) return;
    try {
      await this.ask("POST", "/admin/flush", {});
      await this.ask("DELETE", `/admin/workers/${encodeURIComponent(this.worker)}`);
    } finally {
      await this.endpoint.close();
      this.endpoint = undefined;
    }
  }

  async openSession({ session_id, engine, metadata }: SessionRequest): Promise<OpenSession> {
    const { sessions, store } = this.endpoint!.service;
    await this.push(metadata.weight_version);
    const own = await sessions.create({ session_id, engine, metadata });
    const path = `/sessions/${encodeURIComponent(session_id)}`;
    // A session's parameters overwrite those of its requests: this one tells the worker whose call it is.
    const sampling_params = { rllm_metadata: { session_id } };
    const created = await this.ask("POST", "/sessions", { session_id, metadata, sampling_params, own_key: true });
    const key = CREATED.parse(created).key ?? "none";
    const base = `${this.settings.tunnel ?? this.url}${path}`;
    return {
      base_url: `${base}/v1`,
      api_key: key,
      callback_url: `${base}/reward`,
      reported: new Promise(() => {}),
      poll: (signal) => this.poll(path, signal),
      end: async (outcome) => {
        if (own.ending.signal.aborted) return;
        await sessions.end(own, outcome);
        await store.deleteSessions([session_id]);
        // Takes the place of the agent's report, where that went to the gateway.
        await this.ask("POST", `${path}/reward`, outcome);
      },
    };
  }

  /** The weights' version, before the first call that samples from them. */
  private async push(version: unknown): Promise<void> {
    if (version === this.version) return;
    this.version = version;
    await this.ask("POST", "/admin/weight_version", { weight_version: version });
  }

  private async poll(path: string, signal: AbortSignal): Promise<unknown> {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      signal.throwIfAborted();
      const { outcome } = SESSION.parse(await this.ask("GET", path));
      if (outcome) {
        const { ended_at: _, ...report } = outcome as Record<string, unknown>;
        return report;
      }
    }
  }

  /** The answer's JSON. A route that the gateway does not have is left out, because rLLM's has fewer. */
  private async ask(method: string, path: string, body?: object): Promise<unknown> {
    const headers = { authorization: `Bearer ${this.settings.adminToken}`, "content-type": "application/json" };
    const init = { method, headers, ...(body && { body: JSON.stringify(body) }) };
    const response = await httpFetch(this.url + path, init).catch((cause: Error) => {
      throw this.failure(method, path, { why: cause.message, cause });
    });
    if (response.status === 404) return {};
    const text = await response.text();
    if (response.ok) return text === "" ? {} : JSON.parse(text);
    throw this.failure(method, path, { why: `status ${response.status}: ${text.slice(0, 200)}` });
  }

  private failure(method: string, path: string, { why, cause }: { why: string; cause?: unknown }): ConfigError {
    return new ConfigError(
      `Cannot use the gateway ${this.url}: ${method} ${path} failed (${why}). Start it, or correct rllm.sdk.proxy.host, port and admin_token.`,
      { path: "rllm.sdk.proxy.mode" },
      { cause },
    );
  }
}
