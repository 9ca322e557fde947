/** A client's session with the service: opened, kept alive, and the way from a request to its result. */
import { z } from "zod";
import { RemoteError } from "../../errors.ts";
import { type Call, detailOf, type Reply, type Transport } from "./transport.ts";

export interface SessionOptions {
  /** How requests to train and results are written. Default protobuf; `json` for servers that know no other. */
  readonly wire?: WireName;
  /** The official SDK's version that the service takes this client for: it refuses old ones. */
  readonly sdkVersion: string;
  /** How long a result is waited for, ms. Default 1 hour; a paused queue does not count. */
  readonly resultPatienceMs?: number;
}

/** The service's own adjustments of its clients. */
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
const FUTURE = z.object({ request_id: z.string() });
const PENDING = z.object({ queue_state: z.string().nullish(), queue_state_reason: z.string().nullish() });
const FAILURE = z.object({ error: z.string(), category: z.string().nullish() });

const HEARTBEAT_MS = 10_000;
const HEARTBEAT_TIMEOUT_MS = 10_000;
/** The service holds a request for a result open for up to this. */
const RESULT_TIMEOUT_MS = 45_000;
const RESULT_PATIENCE_MS = 60 * 60_000;
/** A result that takes longer is told of. */
const SILENT_MS = 5 * 60_000;
/** Between two requests for one result that came back at once. */
const FLOOR_MS = 100;
const MOST_REFUSALS = 3;
const [BAD_REQUEST, TIMEOUT, GONE] = [400, 408, 410];

export type WireName = "protobuf" | "json";

/** What the official SDK calls the kinds of results. */
export type ResultType =
  | "CreateModel"
  | "ForwardBackward"
  | "Forward"
  | "OptimStep"
  | "Sample"
  | "SaveWeights"
  | "SaveWeightsForSampler"
  | "LoadWeights";

const BINARY_RESULTS: ReadonlySet<ResultType> = new Set(["ForwardBackward", "Forward", "Sample"]);

/** A result that the service no longer has: the request may be sent anew. */
export class ResultGone extends RemoteError {}

export class TinkerSession {
  readonly id: string;
  readonly flags: Flags;
  readonly wire: WireName;
  private readonly transport: Transport;
  private readonly patienceMs: number;
  private readonly heart: ReturnType<typeof setInterval>;
  private isBeating = false;

  private constructor(
    transport: Transport,
    of: { id: string; flags: Flags; patienceMs: number; wire: WireName },
  ) {
    this.transport = transport;
    this.wire = of.wire;
    this.id = of.id;
    this.flags = of.flags;
    this.patienceMs = of.patienceMs;
    this.heart = setInterval(() => void this.beat(), HEARTBEAT_MS);
    // A pulse alone keeps no process alive; browsers' timers are numbers.
    if (typeof this.heart === "object") this.heart.unref();
  }

  /** @throws {RemoteError} for a service that cannot be reached or refuses the client. */
  static async open(transport: Transport, options: SessionOptions): Promise<TinkerSession> {
    const { sdkVersion, resultPatienceMs = RESULT_PATIENCE_MS, wire = "protobuf" } = options;
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
    });
  }

  /** Sends a request that is answered at once. */
  ask<S extends z.ZodType>(path: string, it: { body: object; shape: S }): Promise<z.output<S>> {
    return send(this.transport, path, it);
  }

  async get<S extends z.ZodType>(path: string, shape: S): Promise<z.output<S>> {
    return check(path, { reply: await this.transport.call(path, { method: "GET" }), shape });
  }

  /** Sends a request whose result comes later. @returns what {@link result} takes. */
  async submit(path: string, call: Call): Promise<string> {
    const reply = await this.transport.call(path, call);
    return check(path, { reply, shape: FUTURE }).request_id;
  }

  /**
   * Waits for a result.
   * @throws {RemoteError} with what the service says of a failure, {@link ResultGone} where it has dropped the result.
   */
  async result(
    requestId: string,
    of: { type: ResultType; signal?: AbortSignal | undefined },
  ): Promise<Reply> {
    const { clock } = this.transport;
    const began = clock.now();
    let deadline = began + this.patienceMs;
    for (let [iteration, refusals] = [0, 0]; ; iteration++) {
      const asked = clock.now();
      const reply = await this.poll(requestId, { ...of, iteration });
      if (reply.status === GONE) throw new ResultGone(gone(of.type), { status: GONE, retryable: true });
      const isForgiven = reply.status === BAD_REQUEST && ++refusals < MOST_REFUSALS;
      if (!isForgiven && !isPending(reply)) return this.withoutFailure(reply, of.type);
      const { queue_state, queue_state_reason } = PENDING.safeParse(reply.json).data ?? {};
      if (queue_state?.startsWith("paused")) {
        deadline = clock.now() + this.patienceMs;
        const why = queue_state_reason ?? "no reason given";
        this.transport.notify(`the service has paused the queue (${queue_state}): ${why}`);
      } else if (clock.now() - began > SILENT_MS) {
        this.transport.notify(`the service is still at work on ${of.type}`);
      }
      if (clock.now() > deadline) throw new RemoteError(late(of.type, this.patienceMs), { retryable: true });
      await clock.sleep(Math.max(0, asked + FLOOR_MS - clock.now()), of.signal);
    }
  }

  private poll(
    requestId: string,
    { type, iteration, signal }: { type: ResultType; iteration: number; signal?: AbortSignal | undefined },
  ): Promise<Reply> {
    return this.transport.call("/api/v1/retrieve_future", {
      body: { request_id: requestId, allow_metadata_only: false },
      headers: {
        "X-Tinker-Request-Iteration": String(iteration),
        "X-Tinker-Request-Type": type,
        ...(this.isBinary(type) && { Accept: "application/x-protobuf" }),
      },
      timeoutMs: RESULT_TIMEOUT_MS,
      answers: [BAD_REQUEST, TIMEOUT, GONE],
      signal,
    });
  }

  private isBinary(type: ResultType): boolean {
    return this.wire === "protobuf" && BINARY_RESULTS.has(type);
  }

  /** @throws {RemoteError} for an answer that tells of a failure. */
  private withoutFailure(reply: Reply, type: ResultType): Reply {
    if (reply.status === BAD_REQUEST) throw failed(type, detailOf(reply.bytes));
    if (this.isBinary(type) && reply.json === undefined) return reply;
    const { data: failure } = FAILURE.safeParse(reply.json);
    if (failure) throw failed(type, `${failure.error} (${failure.category ?? "unknown"} error)`);
    if (!this.isBinary(type)) return reply;
    throw failed(
      type,
      "the result came as JSON, where this client reads protobuf (tinker_wire=json for servers that know no other)",
    );
  }

  private async beat(): Promise<void> {
    // While the service is away, one beat is on its way and not one more every ten seconds.
    if (this.isBeating) return;
    this.isBeating = true;
    const call = {
      body: { session_id: this.id, type: "session_heartbeat" },
      timeoutMs: HEARTBEAT_TIMEOUT_MS,
    };
    // A missed beat is nothing yet: if the session has died of it, the next request says so.
    await this.transport.call("/api/v1/session_heartbeat", call).catch(() => {});
    this.isBeating = false;
  }

  /** Stops the pulse; the service ends the session when it hears no more of it. */
  close(): void {
    clearInterval(this.heart);
  }
}

async function send<S extends z.ZodType>(
  transport: Transport,
  path: string,
  { body, shape }: { body: object; shape: S },
): Promise<z.output<S>> {
  return check(path, { reply: await transport.call(path, { body }), shape });
}

/** The JSON of an answer in the shape that it must have. */
export function check<S extends z.ZodType>(
  what: string,
  { reply, shape }: { reply: Reply; shape: S },
): z.output<S> {
  const read = shape.safeParse(reply.json);
  if (read.success) return read.data;
  const { path, message } = read.error.issues[0]!;
  const where = path.length > 0 ? path.join(".") : "its top";
  throw new RemoteError(`Cannot read the service's answer to ${what} at ${where}: ${message}`, {
    retryable: false,
  });
}

function isPending({ status, json }: Reply): boolean {
  return status === TIMEOUT || (json as { type?: unknown } | undefined)?.type === "try_again";
}

function failed(type: ResultType, why: string): RemoteError {
  return new RemoteError(`The service could not finish ${type}: ${why}`, { retryable: false });
}

function gone(type: ResultType): string {
  return `The service no longer has the result of ${type}: it answered ${GONE}.`;
}

function late(type: ResultType, patienceMs: number): string {
  return `The service has not finished ${type} in ${Math.round(patienceMs / 60_000)} minutes, and gives no reason.`;
}
