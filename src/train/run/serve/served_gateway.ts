/** A gateway in front of models of this process, of workers, or of both: what `grpu serve` and programs open. */
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { GatewayAuth, GatewayLimits } from "../../../serve/gateway/mod.ts";
import { startGateway } from "../../../serve/gateway/mod.ts";
import { addPages } from "../../../serve/gateway/page/gateway_pages.ts";
import { servedHost } from "../../../serve/openai/engine.ts";
import { servingMetrics } from "../../../serve/openai/metrics.ts";
import type { Serving } from "../../../serve/openai/serving.ts";
import { servingStatus } from "../../../serve/openai/status.ts";
import { type OpenTraceStore, openTraceStore, type Retention, UnrecordedStore } from "../../trace/mod.ts";
import { withTemplate } from "../model/chat_template.ts";
import { streamFetch } from "../net/http.ts";
import { type OpenedServing, type OpenServingOptions, openServing } from "./serving.ts";
import { openTextThread } from "./text_thread.ts";

/** Models that {@link openServedGateway} serves, and their callers. */
export interface ServedGatewayOptions {
  readonly model?: OpenServingOptions | undefined;
  /** Models that are open already; the gateway closes them. */
  readonly opened?: OpenedServing | undefined;
  /** Addresses of inference servers. */
  readonly workers?: readonly string[] | undefined;
  /**
   * Folder of the workers' model, and a Jinja file (or `plain`) in place of its chat template: sessions then continue on exact
   * tokens there. Absent: workers render prompts.
   */
  readonly workerTokenizer?: { readonly folder: string; readonly template?: string | undefined } | undefined;
  /** Store of recorded calls: the path of a database, or `memory`. Absent: nowhere. */
  readonly store?: string | undefined;
  /** Bounds of what the store keeps. Default: everything. */
  readonly retention?: Retention | undefined;
  /** Answers wait until their trace is stored, so that none is lost when the process is killed. Default false. */
  readonly syncTraces?: boolean | undefined;
  /** Default 127.0.0.1. */
  readonly host?: string | undefined;
  /** 0, the default, takes a free one. */
  readonly port?: number | undefined;
  readonly auth?: GatewayAuth | undefined;
  readonly limits?: Partial<GatewayLimits> | undefined;
  readonly allowedHosts?: readonly string[] | undefined;
  readonly allowedOrigins?: readonly string[] | undefined;
  /** Takes one line for the operator. */
  readonly log?: ((line: string) => void) | undefined;
}

/** A gateway that listens. */
export interface ServedGateway {
  /** `http://127.0.0.1:8000`. */
  readonly url: string;
  readonly models: readonly string[];
  /** One line for display; undefined where only workers answer. */
  readonly device: string | undefined;
  /** Calls that are not answered yet, those of workers included. */
  readonly pending: number;
  readonly serving: Serving | undefined;
  /** Refuses new requests, lets running replies finish for at most `graceMs`, writes what is left, and frees the device. */
  close(options?: { readonly graceMs?: number }): Promise<void>;
}

/**
 * Opens models and a gateway in front of them.
 * @throws {ConfigError} for a folder that cannot be opened, a port that is taken, and an address that others reach without
 * an admin token
 */
export async function openServedGateway(options: ServedGatewayOptions): Promise<ServedGateway> {
  const held: Held = { opened: options.opened, store: undefined };
  try {
    return await openWith(options, held);
  } catch (error) {
    await held.opened?.close();
    await held.store?.close();
    throw error;
  }
}

/** Resources that an opening which fails closes again. */
interface Held {
  opened: OpenedServing | undefined;
  store: OpenTraceStore | undefined;
}

async function openWith(options: ServedGatewayOptions, held: Held): Promise<ServedGateway> {
  const { log, workers = [], retention } = options;
  const tokenizer = options.workerTokenizer === undefined ? undefined : await workerTokenizer(options.workerTokenizer);
  const thread = tokenizer && openTextThread(tokenizer);
  const store =
    options.store === undefined ? new UnrecordedStore() : await openTraceStore(options.store, { retention });
  held.store = store;
  held.opened ??= options.model && (await openServing({ log, ...options.model }));
  const { opened } = held;
  const serving = opened?.serving;
  const gateway = await startGateway({
    engines: serving && servedHost(serving),
    reload: opened?.reload,
    // Replies may be silent for longer than the runtime's fetch waits.
    workers: { fetch: streamFetch, tokenizer, thread },
    store,
    syncTraces: options.syncTraces,
    host: options.host,
    port: options.port,
    auth: options.auth,
    limits: options.limits,
    allowedHosts: options.allowedHosts,
    allowedOrigins: options.allowedOrigins,
    log,
    extend: (app, routes) =>
      addPages(app, routes, {
        isRecording: options.store !== undefined,
        ...(serving && pagesOf(serving, () => routes.service.sessions.count)),
      }),
  });
  for (const url of workers) gateway.service.workers.add({ url });
  return {
    url: gateway.url,
    models: serving?.names ?? [],
    device: serving?.engine.device,
    serving,
    get pending() {
      return gateway.service.running.count;
    },
    async close(how = {}) {
      // Running replies are sent before the models go.
      await gateway.close(how);
      thread?.close();
      await opened?.close();
      await store.close();
    },
  };
}

/** @throws {ConfigError} for a folder without a tokenizer or a chat template */
async function workerTokenizer({
  folder,
  template,
}: NonNullable<ServedGatewayOptions["workerTokenizer"]>): Promise<TextTokenizer> {
  const found = await openTokenizer(folder);
  const tokenizer = found && withTemplate(found, template);
  if (tokenizer?.chatTemplate !== undefined) return tokenizer;
  throw new ConfigError(
    `Cannot continue the workers' sessions on exact tokens: the folder has no ${found ? "chat template" : "tokenizer.json"}. Give the folder of their model, or leave out --tokenizer.`,
    { file: folder },
  );
}

function pagesOf(serving: Serving, sessions: () => number) {
  return {
    status: () => servingStatus(serving, { sessions: sessions() }),
    metrics: () => servingMetrics(serving),
    decode: decoder(serving.tokenizer),
  };
}

/** The text of one token, end tokens included. */
export function decoder(tokenizer: Tokenizer): (id: number) => string {
  return (id) => tokenizer.decode([id], { skipSpecialTokens: false });
}
