/**
 * Sampling spread over several servers: each request goes to the one with the fewest in flight, within each server's limit.
 * A server that fails drops out, its requests go to the others, and it is asked again later. Seeds decide the tokens, so
 * that it does not matter which server draws them.
 */
import { z } from "zod";
import type { SampledSequence, SampleRequest } from "../../../engine/contract/backend.ts";
import { RemoteError } from "../../../leaves/errors.ts";
import type { SampledRecords } from "../stable/sampled_records.ts";
import { Calls, inParallel } from "./parallel.ts";
import { TinkerSampling } from "./sampling.ts";
import { TinkerSession, type TinkerSessionOptions } from "./session.ts";
import { Transport, type TransportOptions } from "./transport.ts";

export interface SamplingServersOptions {
  /** The server that trains; its failures are the caller's. */
  readonly first: TinkerSession;
  /** Transport options of every server. */
  readonly transport: TransportOptions;
  readonly sessions: TinkerSessionOptions;
  /** Addresses of the further servers. */
  readonly urls: readonly string[];
  readonly contextLength: number;
  /** The most requests in flight on each server; a server may allow fewer. Default 256. */
  readonly concurrency?: number | undefined;
  /** Present where the samples are to be trained on with `stable_reinforce`: the first server has what the others record. */
  readonly records?: SampledRecords | undefined;
}

/** How long a failing call of a further server is tried again, ms: the others are there. */
const PATIENCE_MS = 5_000;
/** The same while it is busy (429). */
const BUSY_PATIENCE_MS = 30_000;
/** Time limit of one attempt of a call that a further server answers at once, ms. */
const TIMEOUT_MS = 10_000;
/** The same where it copies weights first. */
const COPY_TIMEOUT_MS = 60_000;
/** How long a server that failed is left alone, ms. */
const AWAY_MS = 30_000;
/** How long new requests wait for a server that may be back, ms. */
const PROBE_MS = 2_000;
const CONCURRENCY = 256;

const SAMPLER = z.object({ sampling_session_id: z.string() });

/** A server's session, and its samplers on the latest weights. */
interface Open {
  readonly session: TinkerSession;
  readonly sampling: TinkerSampling;
  nextSampler: number;
  /** Samplers by the path of their weights, the latest last. */
  readonly samplers: Map<string, Promise<string>>;
  /** The requests in flight. They end, and go to the others, when the server drops out. */
  readonly calls: Calls;
  /** Ends the calls of the session itself. */
  readonly stopped: AbortController;
}

class SamplingServer {
  readonly url: string;
  /** The most requests in flight; the server's own limit is known once its session is open. */
  most: number;
  inFlight = 0;
  failures = 0;
  awayUntil = 0;
  /** Whether it takes requests: after a failure, not before it has opened the weights again. */
  isReady = true;
  open: Promise<Open> | undefined;

  constructor(url: string, most: number) {
    this.url = url;
    this.most = most;
  }
}

/** The weights to sample from. */
interface Weights {
  readonly path: string;
  readonly version: number;
}

export class SamplingServers {
  private readonly options: SamplingServersOptions;
  private readonly first: SamplingServer;
  private readonly servers: readonly SamplingServer[];
  private readonly clock: Transport["clock"];
  private readonly notify: (message: string) => void;
  /** Requests that wait because every server is at its limit. */
  private readonly waiting = new Set<() => void>();

  constructor(options: SamplingServersOptions) {
    const { first, urls, transport, concurrency = CONCURRENCY } = options;
    this.options = options;
    this.servers = [transport.baseUrl, ...urls].map((url) => new SamplingServer(url, concurrency));
    this.first = this.servers[0]!;
    // Numbers of sampling sessions from here on are not used by the training client.
    this.first.open = Promise.resolve(this.opened(this.first, first, { nextSampler: FIRST_SAMPLER }));
    this.clock = new Transport(transport).clock;
    this.notify = transport.notify ?? (() => {});
  }

  /** @param at.path the saved weights to sample from; results are in the order of the requests */
  async draw(
    requests: readonly SampleRequest[],
    at: Weights & { signal?: AbortSignal | undefined },
  ): Promise<SampledSequence[]> {
    const { concurrency = CONCURRENCY } = this.options;
    await this.probe(at);
    return inParallel(requests, {
      most: concurrency * this.servers.length,
      signal: at.signal,
      map: (request, signal) => this.drawOne(request, { ...at, signal }),
    });
  }

  private async drawOne(request: SampleRequest, at: Weights & { signal: AbortSignal }): Promise<SampledSequence> {
    for (;;) {
      const server = await this.take(at);
      server.open ??= this.connect(server);
      const { open } = server;
      try {
        const opened = await open;
        // Its limit may have become known only now.
        if (server.inFlight <= server.most)
          return await opened.calls.run((signal) => drawOn(opened, { ...at, request, signal }), at.signal);
      } catch (error) {
        at.signal.throwIfAborted();
        if (server === this.first || !(error instanceof RemoteError)) throw error;
        this.drop(server, { open, error });
      } finally {
        server.inFlight--;
        this.wakeOne();
      }
    }
  }

  /** Takes a place on the server with the fewest requests in flight, once one has a place. */
  private async take(at: Weights & { signal: AbortSignal }): Promise<SamplingServer> {
    for (;;) {
      at.signal.throwIfAborted();
      void this.probe(at);
      const server = this.leastBusy();
      if (server) {
        server.inFlight++;
        return server;
      }
      await this.aPlace(at.signal);
    }
  }

  private leastBusy(): SamplingServer | undefined {
    let least: SamplingServer | undefined;
    for (const server of this.servers)
      if (server.isReady && server.inFlight < server.most && (!least || server.inFlight < least.inFlight))
        least = server;
    return least;
  }

  /** Resolves when a request has ended. All wait only while the first server, which never drops out, has requests in flight. */
  private async aPlace(signal: AbortSignal): Promise<void> {
    let wake = () => {};
    const wakened = new Promise<void>((resolve) => {
      wake = resolve;
    });
    this.waiting.add(wake);
    signal.addEventListener("abort", wake);
    await wakened;
    this.waiting.delete(wake);
    signal.removeEventListener("abort", wake);
  }

  private wakeOne(): void {
    const [wake] = this.waiting;
    if (!wake) return;
    this.waiting.delete(wake);
    wake();
  }

  /** Opens the weights on servers whose time away is over. @returns after a short time at most */
  private async probe({ path }: Weights): Promise<void> {
    const now = this.clock.now();
    const back = this.servers.filter((server) => !server.isReady && !server.open && server.awayUntil <= now);
    if (back.length === 0) return;
    const stop = new AbortController();
    const late = this.clock.sleep(PROBE_MS, stop.signal).catch(() => {});
    await Promise.race([Promise.all(back.map((server) => this.probeOne(server, path))), late]);
    stop.abort();
  }

  private async probeOne(server: SamplingServer, path: string): Promise<void> {
    const open = this.connect(server);
    server.open = open;
    try {
      await samplerOn(await open, path);
      if (server.open !== open) return;
      server.isReady = true;
      this.notify(`the server at ${server.url} samples again`);
      for (let places = server.most; places > 0; places--) this.wakeOne();
    } catch (error) {
      this.drop(server, { open, error: error as Error });
    }
  }

  private connect(server: SamplingServer): Promise<Open> {
    const { transport, sessions } = this.options;
    const ownTransport = new Transport({
      ...transport,
      baseUrl: server.url,
      timeoutMs: TIMEOUT_MS,
      patienceMs: Math.min(transport.patienceMs ?? PATIENCE_MS, PATIENCE_MS),
      pausePatienceMs: BUSY_PATIENCE_MS,
    });
    const stopped = new AbortController();
    ownTransport.stop = stopped.signal;
    // A server that is silent holds requests for results open for long; its heartbeat fails sooner.
    const onMissed = (error: unknown) => this.drop(server, { open, error: error as Error });
    const open: Promise<Open> = TinkerSession.open(ownTransport, { ...sessions, onMissed }).then((session) =>
      this.opened(server, session, { stopped }),
    );
    return open;
  }

  private opened(
    server: SamplingServer,
    session: TinkerSession,
    { nextSampler = 0, stopped = new AbortController() },
  ): Open {
    const { contextLength, concurrency = CONCURRENCY, records } = this.options;
    server.most = Math.min(concurrency, session.flags.sample_max_concurrent_requests);
    const sampling = new TinkerSampling({ session, contextLength, concurrency, records });
    return { session, sampling, nextSampler, samplers: new Map(), calls: new Calls(), stopped };
  }

  /**
   * Ends the session and its requests in flight. Counts a failure once, however many requests it ended; a failure of a
   * session from before the current one changes nothing.
   */
  private drop(server: SamplingServer, { open, error }: { open: Promise<Open>; error: Error }): void {
    if (server.open !== open) return;
    void open.then((opened) => end(opened, error)).catch(() => {});
    server.open = undefined;
    server.isReady = false;
    server.failures++;
    server.awayUntil = this.clock.now() + AWAY_MS;
    const isUnknown = error instanceof RemoteError && error.status === 404;
    const hint = isUnknown ? ` It copies weights when it was started with --peer ${this.first.url}.` : "";
    this.notify(
      `the server at ${server.url} does not sample (failure ${server.failures}): ${error.message}${hint} Its requests go to the others; it is asked again after ${AWAY_MS / 1000} s.`,
    );
  }

  /** Ends the sessions on the further servers. */
  close(): void {
    for (const server of this.servers.slice(1)) {
      void server.open?.then(({ session }) => session.close()).catch(() => {});
      // What fails from now on belongs to no session, and is not reported.
      server.open = undefined;
    }
  }
}

const FIRST_SAMPLER = 1_000_000;
/** Weights that are sampled from by turns: the current ones and those published before. */
const MOST_SAMPLERS = 4;

function end({ session, calls, stopped }: Open, reason: Error): void {
  session.close();
  calls.end(reason);
  stopped.abort(reason);
}

async function drawOn(
  open: Open,
  { request, path, version, signal }: Weights & { request: SampleRequest; signal: AbortSignal },
): Promise<SampledSequence> {
  const samplerId = await samplerOn(open, path);
  const [drawn] = await open.sampling.draw([request], { samplerId, version, signal });
  return drawn!;
}

/** The server's sampler on these weights; a server that lacks them copies them from the one that trains. */
function samplerOn(open: Open, path: string): Promise<string> {
  const sampler = open.samplers.get(path);
  if (sampler) return sampler;
  const body = {
    session_id: open.session.id,
    sampling_session_seq_id: open.nextSampler++,
    model_path: path,
    type: "create_sampling_session",
  };
  const id = open.session
    .ask("/api/v1/create_sampling_session", { body, shape: SAMPLER, timeoutMs: COPY_TIMEOUT_MS })
    .then(({ sampling_session_id }) => sampling_session_id);
  open.samplers.set(path, id);
  id.catch(() => open.samplers.delete(path));
  const [oldest] = open.samplers.keys();
  if (open.samplers.size > MOST_SAMPLERS) open.samplers.delete(oldest!);
  return id;
}
