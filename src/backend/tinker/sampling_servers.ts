/**
 * Sampling spread over several servers: each request goes to the one with the fewest in flight. A server that fails drops
 * out, its requests go to the others, and it is asked again later. Seeds decide the tokens, so that it does not matter
 * which server draws them.
 */
import { z } from "zod";
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import { RemoteError } from "../../errors.ts";
import { inParallel } from "./parallel.ts";
import { TinkerSampling } from "./sampling.ts";
import { type SessionOptions, TinkerSession } from "./session.ts";
import { Transport, type TransportOptions } from "./transport.ts";

export interface SamplingServersOptions {
  /** The server that trains; its failures are the caller's. */
  readonly first: TinkerSession;
  /** Of every server. */
  readonly transport: TransportOptions;
  readonly sessions: SessionOptions;
  /** Of the further servers. */
  readonly urls: readonly string[];
  readonly contextLength: number;
  readonly concurrency?: number | undefined;
}

/** How long a failing call of a further server is tried again, ms: the others are there. */
const PATIENCE_MS = 5_000;
/** How long a server that failed is left alone, ms. */
const AWAY_MS = 30_000;

const SAMPLER = z.object({ sampling_session_id: z.string() });

/** A server's session, and its samplers on the latest weights. */
interface Open {
  readonly session: TinkerSession;
  readonly sampling: TinkerSampling;
  nextSampler: number;
  /** By the path of their weights, the latest last. */
  readonly samplers: Map<string, Promise<string>>;
}

class SamplingServer {
  readonly url: string;
  inFlight = 0;
  failures = 0;
  awayUntil = 0;
  open: Promise<Open> | undefined;

  constructor(url: string, open?: Promise<Open>) {
    this.url = url;
    this.open = open;
  }
}

export class SamplingServers {
  private readonly options: SamplingServersOptions;
  private readonly first: SamplingServer;
  private readonly servers: readonly SamplingServer[];
  private readonly clock: Transport["clock"];
  private readonly notify: (message: string) => void;

  constructor(options: SamplingServersOptions) {
    const { first, urls, transport } = options;
    this.options = options;
    // Numbers of sampling sessions from here on are not used by the training client.
    this.first = new SamplingServer(transport.baseUrl, Promise.resolve(this.opened(first, FIRST_SAMPLER)));
    this.servers = [this.first, ...urls.map((url) => new SamplingServer(url))];
    this.clock = new Transport(transport).clock;
    this.notify = transport.notify ?? (() => {});
  }

  /** @param at.path the saved weights to sample from; results are in the order of the requests */
  draw(
    requests: readonly SampleRequest[],
    at: { path: string; version: number; signal?: AbortSignal | undefined },
  ): Promise<SampledSequence[]> {
    const { concurrency = 256 } = this.options;
    return inParallel(requests, {
      most: concurrency * this.servers.length,
      signal: at.signal,
      map: (request, signal) => this.drawOne(request, { ...at, signal }),
    });
  }

  private async drawOne(
    request: SampleRequest,
    at: { path: string; version: number; signal: AbortSignal },
  ): Promise<SampledSequence> {
    for (;;) {
      const server = this.leastBusy();
      server.inFlight++;
      try {
        return await this.drawOn(server, { request, ...at });
      } catch (error) {
        at.signal.throwIfAborted();
        if (server === this.first || !(error instanceof RemoteError)) throw error;
        this.drop(server, error);
      } finally {
        server.inFlight--;
      }
    }
  }

  private leastBusy(): SamplingServer {
    const now = this.clock.now();
    let least = this.first;
    for (const server of this.servers) if (server.awayUntil <= now && server.inFlight < least.inFlight) least = server;
    return least;
  }

  private async drawOn(
    server: SamplingServer,
    { request, path, version, signal }: { request: SampleRequest; path: string; version: number; signal: AbortSignal },
  ): Promise<SampledSequence> {
    server.open ??= this.connect(server);
    const open = await server.open;
    const samplerId = await samplerOn(open, path);
    const [drawn] = await open.sampling.draw([request], { samplerId, version, signal });
    return drawn!;
  }

  private async connect(server: SamplingServer): Promise<Open> {
    const { transport, sessions } = this.options;
    const own = new Transport({ ...transport, baseUrl: server.url, patienceMs: PATIENCE_MS });
    const opened = this.opened(await TinkerSession.open(own, sessions), 0);
    if (server.failures > 0) this.notify(`the server at ${server.url} samples again`);
    return opened;
  }

  private opened(session: TinkerSession, nextSampler: number): Open {
    const { contextLength, concurrency } = this.options;
    return {
      session,
      sampling: new TinkerSampling({ session, contextLength, concurrency }),
      nextSampler,
      samplers: new Map(),
    };
  }

  /** Counts a failure once, however many of the server's requests it ended. */
  private drop(server: SamplingServer, error: RemoteError): void {
    if (!server.open) return;
    void server.open.then(({ session }) => session.close()).catch(() => {});
    server.open = undefined;
    server.failures++;
    server.awayUntil = this.clock.now() + AWAY_MS;
    const hint = error.status === 404 ? ` It copies weights when it was started with --peer ${this.first.url}.` : "";
    this.notify(
      `the server at ${server.url} does not sample (failure ${server.failures}): ${error.message}${hint} Its requests go to the others; it is asked again after ${AWAY_MS / 1000} s.`,
    );
  }

  /** Ends the sessions on the further servers. */
  close(): void {
    for (const { open } of this.servers.slice(1)) void open?.then(({ session }) => session.close()).catch(() => {});
  }
}

const FIRST_SAMPLER = 1_000_000;
/** Weights that are sampled from by turns: the current ones and those published before. */
const MOST_SAMPLERS = 4;

/** The server's sampler on these weights; a server that lacks them copies them from the one that trains. */
function samplerOn(open: Open, path: string): Promise<string> {
  const known = open.samplers.get(path);
  if (known) return known;
  const body = {
    session_id: open.session.id,
    sampling_session_seq_id: open.nextSampler++,
    model_path: path,
    type: "create_sampling_session",
  };
  const id = open.session
    .ask("/api/v1/create_sampling_session", { body, shape: SAMPLER })
    .then(({ sampling_session_id }) => sampling_session_id);
  open.samplers.set(path, id);
  id.catch(() => open.samplers.delete(path));
  const [oldest] = open.samplers.keys();
  if (open.samplers.size > MOST_SAMPLERS) open.samplers.delete(oldest!);
  return id;
}
