/** A session with the service: opened, kept alive, and its requests. */
import { z } from "zod";
import type { TinkerCall } from "./attempt.ts";
import { checkReply, type HttpReply } from "./reply.ts";
import { Results, type ResultType, type WireName } from "./results.ts";
import type { Transport } from "./transport.ts";

export interface TinkerSessionOptions {
  /** Encoding of training requests and results. Default protobuf; `json` for servers without it. */
  readonly wire?: WireName | undefined;
  /** The version of the official SDK to present to the service, which refuses old ones. */
  readonly sdkVersion: string;
  /** How long to wait for a result, ms. Default 1 hour; time in a paused queue does not count. */
  readonly resultPatienceMs?: number | undefined;
  /** Called when a heartbeat failed for as long as the transport tries. */
  readonly onMissed?: ((error: unknown) => void) | undefined;
}

/** The service's settings for its clients. */
const FLAGS = z.object({
  fwdbwd_max_chunk_len: z.number().int().min(1).catch(1024),
  fwdbwd_max_chunk_bytes_count: z.number().min(1).catch(5_000_000),
  sample_max_concurrent_requests: z.number().int().min(1).catch(2000),
});

export type Flags = z.output<typeof FLAGS>;

const SESSION = z.object({
  session_id: z.string(),
  info_message: z.string().nullish(),
  warning_message: z.string().nullish(),
  error_message: z.string().nullish(),
});
const FUTURE = z.object({ request_id: z.string(), sample_sequence_ids: z.array(z.string()).nullish() });

/** An accepted request. */
type Accepted = z.output<typeof FUTURE>;

const HEARTBEAT_MS = 10_000;
const HEARTBEAT_TIMEOUT_MS = 10_000;
const RESULT_PATIENCE_MS = 60 * 60_000;

export class TinkerSession {
  readonly id: string;
  readonly flags: Flags;
  readonly wire: WireName;
  private readonly transport: Transport;
  private readonly results: Results;
  private readonly heart: ReturnType<typeof setInterval>;
  private readonly onMissed: (error: unknown) => void;
  private isBeating = false;

  private constructor(
    transport: Transport,
    of: { id: string; flags: Flags; patienceMs: number; wire: WireName; onMissed: (error: unknown) => void },
  ) {
    this.transport = transport;
    this.onMissed = of.onMissed;
    this.id = of.id;
    this.flags = of.flags;
    this.wire = of.wire;
    this.results = new Results(transport, of);
    this.heart = setInterval(() => void this.beat(), HEARTBEAT_MS);
    // The heartbeat must not keep the process alive. In browsers a timer is a number.
    if (typeof this.heart === "object") this.heart.unref();
  }

  /** @throws {RemoteError} for a service that cannot be reached or refuses the client. */
  static async open(transport: Transport, options: TinkerSessionOptions): Promise<TinkerSession> {
    const { sdkVersion, resultPatienceMs = RESULT_PATIENCE_MS, wire = "protobuf", onMissed = () => {} } = options;
    const flags = await send(transport, "/api/v1/client/config", {
      body: { sdk_version: sdkVersion },
      shape: FLAGS,
    });
    const body = { tags: [], user_metadata: {}, sdk_version: sdkVersion, type: "create_session" };
    const session = await send(transport, "/api/v1/create_session", { body, shape: SESSION });
    for (const message of [session.error_message, session.warning_message, session.info_message])
      if (message) transport.notify(message);
    return new TinkerSession(transport, {
      id: session.session_id,
      flags,
      wire,
      patienceMs: resultPatienceMs,
      onMissed,
    });
  }

  /** Sends a request without a result to wait for. */
  ask<S extends z.ZodType>(path: string, question: Asked<S>): Promise<z.output<S>> {
    return send(this.transport, path, question);
  }

  async get<S extends z.ZodType>(path: string, shape: S): Promise<z.output<S>> {
    return checkReply(path, { reply: await this.transport.call(path, { method: "GET" }), shape });
  }

  /** Sends a request whose result comes later. @returns the id for {@link result}. */
  async submit(path: string, call: TinkerCall): Promise<string> {
    return (await this.accept(path, call)).request_id;
  }

  /** The same, with the ids of the sequences that a request to sample will return. */
  async accept(path: string, call: TinkerCall): Promise<Accepted> {
    return checkReply(path, { reply: await this.transport.call(path, call), shape: FUTURE });
  }

  /** Waits for a result. @see {@link Results.wait} */
  result(requestId: string, of: { type: ResultType; signal?: AbortSignal | undefined }): Promise<HttpReply> {
    return this.results.wait(requestId, of);
  }

  private async beat(): Promise<void> {
    // One at a time: while the service is unreachable, a heartbeat outlasts the interval.
    if (this.isBeating) return;
    this.isBeating = true;
    const call = {
      body: { session_id: this.id, type: "session_heartbeat" },
      timeoutMs: HEARTBEAT_TIMEOUT_MS,
    };
    // With one server a missed heartbeat is harmless; if the session has ended, the next request reports it.
    await this.transport.call("/api/v1/session_heartbeat", call).catch(this.onMissed);
    this.isBeating = false;
  }

  /** Stops the heartbeat; the service then ends the session. */
  close(): void {
    clearInterval(this.heart);
  }
}

interface Asked<S extends z.ZodType> {
  readonly body: object;
  readonly shape: S;
  /** Time limit of one attempt. Default: the transport's. */
  readonly timeoutMs?: number;
}

async function send<S extends z.ZodType>(
  transport: Transport,
  path: string,
  { shape, ...call }: Asked<S>,
): Promise<z.output<S>> {
  return checkReply(path, { reply: await transport.call(path, call), shape });
}
