/**
 * A gateway that runs already (`rllm.sdk.proxy.mode: external`): agents call it, and it calls the run as its worker. The run
 * listens on an endpoint of its own, registers it, opens a session there and here for each attempt, and leaves no worker
 * behind. Works with grpu's gateway and with rLLM's, whose sessions cannot have keys.
 */

import { z } from "zod";
import { ConfigError } from "../../../leaves/errors.ts";
import { isLoopback } from "../../../leaves/http/origin.ts";
import { parseJson, stringifyJson } from "../../../leaves/json.ts";
import { readReplyText } from "../../../leaves/read_reply.ts";
import type { Gateway } from "../../../serve/gateway/mod.ts";
import type { RemoteSession, RemoteSessionRequest, SessionHost } from "../../task/remote/contract.ts";
import type { OpenTraceStore } from "../../trace/mod.ts";
import { httpFetch } from "../net/http.ts";
import { type GatewaySettings, publicUrl } from "./gateway_settings.ts";

/** Times of an external gateway, ms. */
export interface ExternalTimes {
  /** Time between two looks for an agent's callback, which goes to the gateway, and that reports it to nobody. */
  readonly pollMs: number;
  /** How long the gateway may take to answer: none of its routes that are used here waits for a model. */
  readonly answerMs: number;
}

const TIMES: ExternalTimes = { pollMs: 1000, answerMs: 30_000 };
/** Looks that fail one after the other until the attempt fails: a gateway may be restarted. */
const MOST_FAILED_POLLS = 10;

const REGISTERED = z.looseObject({ worker_id: z.string() });
const WORKERS = z.array(REGISTERED);
const CREATED = z.looseObject({ key: z.string().nullish() });
const SESSION = z.looseObject({
  outcome: z.looseObject({ report: z.unknown().optional(), ended_at: z.unknown().optional() }).nullish(),
});

interface Opened {
  readonly endpoint: Gateway;
  readonly store: OpenTraceStore;
  readonly notify: (line: string) => void;
}

/** Parts of a request besides method and path. */
interface Question {
  readonly body?: object;
  readonly signal?: AbortSignal;
  /** An answer 404 counts as an empty one, because rLLM's gateway has fewer routes. */
  readonly isOptional?: boolean;
}

export class ExternalGateway implements SessionHost {
  private readonly settings: GatewaySettings;
  private readonly url: string;
  /** The model that the calls of this run's sessions name, so that a gateway of several runs sends each its own. */
  private readonly name = `run-${crypto.randomUUID().slice(0, 8)}`;
  private opened: Opened | undefined;
  private worker: string | undefined;
  /** Body that registers the run's endpoint. */
  private registration: object = {};
  private joining: Promise<void> | undefined;
  private version: unknown;
  private pushed: Promise<unknown> = Promise.resolve();
  private readonly times: ExternalTimes;

  constructor(settings: GatewaySettings, times: Partial<ExternalTimes> = {}) {
    this.settings = settings;
    this.times = { ...TIMES, ...times };
    const { host, port } = settings;
    this.url = `http://${host.includes(":") ? `[${host}]` : host}:${port}`;
  }

  /**
   * Opens the endpoint and registers it. The run's own trace store records as well, where one is set.
   * @throws {ConfigError} where no gateway answers, or it refuses the token
   */
  async open(notify: (line: string) => void): Promise<string> {
    const workerKey = crypto.randomUUID();
    const { host, ...opened } = await this.openEndpoint(workerKey, notify);
    this.opened = opened;
    const { endpoint } = opened;
    try {
      const url = publicUrl({ ...this.settings, host, tunnel: undefined }, endpoint.url);
      this.registration = { url, api_key: workerKey, model_name: this.name, is_listed: false };
      await this.register();
      await this.ask("POST", "/admin/reload", { body: {}, isOptional: true });
    } catch (error) {
      await this.close();
      throw error;
    }
    return `${this.url} (external)`;
  }

  private async register(): Promise<void> {
    this.worker = REGISTERED.parse(await this.ask("POST", "/admin/workers", { body: this.registration })).worker_id;
  }

  /**
   * A gateway that was started again knows neither the worker nor the weights' version. Sessions that open at once share one
   * look, so that the worker is registered once.
   */
  private join(): Promise<void> {
    this.joining ??= this.joinAgain().finally(() => {
      this.joining = undefined;
    });
    return this.joining;
  }

  private async joinAgain(): Promise<void> {
    const { success, data } = WORKERS.safeParse(await this.ask("GET", "/admin/workers", { isOptional: true }));
    // A gateway that lists no workers cannot tell.
    if (!success || data.some(({ worker_id }) => worker_id === this.worker)) return;
    await this.register();
    this.version = undefined;
  }

  private async openEndpoint(workerKey: string, notify: (line: string) => void): Promise<Opened & { host: string }> {
    const { startGateway } = await import("../../../serve/gateway/mod.ts");
    const { openTraceStore } = await import("../../trace/mod.ts");
    const { store: file, retention, host: gatewayHost } = this.settings;
    // A gateway on another machine cannot reach this one's loopback.
    const host = isLoopback(gatewayHost) ? "127.0.0.1" : "0.0.0.0";
    const store = await openTraceStore(file ?? "memory", { retention });
    try {
      const auth = { adminToken: crypto.randomUUID(), apiKeys: [workerKey] };
      return { endpoint: await startGateway({ store, host, auth, log: notify }), store, notify, host };
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  /** Takes the worker out of the gateway. What that refuses is a warning, because the run has what it needs. */
  async close(): Promise<void> {
    const { opened, worker } = this;
    if (!opened) return;
    this.opened = undefined;
    const warn = (what: string) => (error: Error) => opened.notify(`warning: ${what}: ${error.message}`);
    if (worker !== undefined) {
      const flushed = this.ask("POST", "/admin/flush", { body: {}, isOptional: true });
      await flushed.catch(warn("the gateway may not have stored every trace yet"));
      const left = this.ask("DELETE", `/admin/workers/${encodeURIComponent(worker)}`, { isOptional: true });
      await left.catch(warn(`the worker ${worker} may be left in the gateway`));
    }
    await opened.endpoint.close();
    await opened.store.close();
  }

  async openSession({ session_id, engine, metadata }: RemoteSessionRequest): Promise<RemoteSession> {
    if (!this.opened) throw new Error("Cannot open a session: the run's endpoint is not open.");
    const { sessions } = this.opened.endpoint.service;
    await this.join();
    await this.push(metadata.weight_version);
    const live = await sessions.create({ session_id, engine, metadata });
    const path = `/sessions/${encodeURIComponent(session_id)}`;
    const key = await this.createSession({ session_id, metadata }).catch(async (error: unknown) => {
      await sessions.delete([session_id]);
      throw error;
    });
    const base = `${this.settings.tunnel ?? this.url}${path}`;
    let isNotified = false;
    return {
      base_url: `${base}/v1`,
      api_key: key,
      callback_url: `${base}/reward`,
      reported: new Promise(() => {}),
      poll: (signal) => this.poll(path, signal),
      end: async (outcome) => {
        if (isNotified || (live.ending.signal.aborted && !live.isEndedByRun)) return;
        await sessions.end(live, outcome);
        if (this.settings.store === undefined) await sessions.delete([session_id]);
        // Takes the place of the agent's report, where that went to the gateway. Its traces have the ids of this endpoint's.
        await this.postOutcome(path, outcome);
        isNotified = true;
      },
    };
  }

  /** A finished attempt is not lost for a gateway that is started again. */
  private async postOutcome(path: string, body: object): Promise<void> {
    for (let failed = 0; ; ) {
      try {
        return void (await this.ask("POST", `${path}/reward`, { body, isOptional: true }));
      } catch (error) {
        if (++failed >= MOST_FAILED_POLLS) throw error;
        await pause(this.times.pollMs, new AbortController().signal);
      }
    }
  }

  /** @returns the session's key */
  private async createSession(session: Pick<RemoteSessionRequest, "session_id" | "metadata">): Promise<string> {
    // A session's parameters overwrite those of its requests: these tell the gateway and the worker whose call it is.
    const sampling_params = { rllm_metadata: { session_id: session.session_id }, model: this.name };
    const body = { ...session, sampling_params, own_key: true };
    return CREATED.parse(await this.ask("POST", "/sessions", { body })).key ?? "none";
  }

  /** The weights' version, before the first call that samples from them. Sessions that open meanwhile wait for it as well. */
  private push(version: unknown): Promise<unknown> {
    if (version === this.version) return this.pushed;
    this.version = version;
    const body = { weight_version: version };
    this.pushed = this.ask("POST", "/admin/weight_version", { body, isOptional: true }).catch((error: unknown) => {
      // The next session tries again.
      this.version = undefined;
      throw error;
    });
    return this.pushed;
  }

  /** The agent's report as it posted it, unknown fields included: the run names those. */
  private async poll(path: string, signal: AbortSignal): Promise<unknown> {
    for (let failed = 0; ; ) {
      await pause(this.times.pollMs, signal);
      try {
        const { outcome } = SESSION.parse(await this.ask("GET", path, { signal }));
        failed = 0;
        if (!outcome) continue;
        const { ended_at: _, report, ...rest } = outcome;
        return report ?? rest;
      } catch (error) {
        signal.throwIfAborted();
        if (++failed >= MOST_FAILED_POLLS) throw error;
      }
    }
  }

  /** The answer's JSON. */
  private async ask(method: string, path: string, { body, signal, isOptional }: Question = {}): Promise<unknown> {
    const headers = { authorization: `Bearer ${this.settings.adminToken}`, "content-type": "application/json" };
    const { answerMs } = this.times;
    const late = AbortSignal.timeout(answerMs);
    const init = { method, headers, signal: signal ? AbortSignal.any([signal, late]) : late };
    try {
      const response = await httpFetch(this.url + path, { ...init, ...(body && { body: stringifyJson(body) }) });
      if (response.status === 404 && isOptional) return {};
      const text = await readReplyText(response);
      if (!response.ok) throw new Error(`status ${response.status}: ${text.slice(0, 200)}`);
      return text === "" ? {} : parseJson(text);
    } catch (error) {
      signal?.throwIfAborted();
      const why = late.aborted ? `no answer within ${answerMs / 1000} s` : (error as Error).message;
      throw this.failure(method, path, { why, cause: error });
    }
  }

  private failure(method: string, path: string, { why, cause }: { why: string; cause: unknown }): ConfigError {
    return new ConfigError(
      `Cannot use the gateway ${this.url}: ${method} ${path} failed (${why}). Start it, or correct rllm.sdk.proxy.host, port and admin_token.`,
      { path: "rllm.sdk.proxy.mode" },
      { cause },
    );
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal.addEventListener("abort", stop, { once: true });
  });
}
