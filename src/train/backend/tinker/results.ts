/** Retrieves the results of accepted requests by long polling. */
import { z } from "zod";
import { RemoteError } from "../../../leaves/errors.ts";
import { detailOf, type HttpReply } from "./reply.ts";
import type { Transport } from "./transport.ts";

/** The official SDK's names for the kinds of results. */
export type ResultType =
  | "CreateModel"
  | "ForwardBackward"
  | "Forward"
  | "OptimStep"
  | "Sample"
  | "SaveWeights"
  | "SaveWeightsForSampler"
  | "LoadWeights";

export type WireName = "protobuf" | "json";

export interface ResultsOptions {
  readonly wire: WireName;
  readonly patienceMs: number;
}

/** The service no longer has a result: the request may be sent again. */
export class ResultGone extends RemoteError {}

const PENDING = z.object({ queue_state: z.string().nullish(), queue_state_reason: z.string().nullish() });
const FAILURE = z.object({ error: z.string(), category: z.string().nullish() });
const BINARY_RESULTS: ReadonlySet<ResultType> = new Set(["ForwardBackward", "Forward", "Sample"]);
/** The service holds a request for a result open for up to this. */
const RESULT_TIMEOUT_MS = 45_000;
/** A result that takes longer is reported. */
const SILENT_MS = 5 * 60_000;
/** Shortest time between two requests for one result. */
const FLOOR_MS = 100;
/** Consecutive 400s after which a result has failed. */
const MOST_REFUSALS = 3;
const [BAD_REQUEST, TIMEOUT, GONE] = [400, 408, 410];

export class Results {
  private readonly transport: Transport;
  private readonly options: ResultsOptions;

  constructor(transport: Transport, options: ResultsOptions) {
    this.transport = transport;
    this.options = options;
  }

  /**
   * Waits for a result; time in a paused queue does not count.
   * @throws {RemoteError} for a failure that the service reports, {@link ResultGone} if it has dropped the result.
   */
  async wait(requestId: string, of: { type: ResultType; signal?: AbortSignal | undefined }): Promise<HttpReply> {
    const { clock } = this.transport;
    const { patienceMs } = this.options;
    const began = clock.now();
    let deadline = began + patienceMs;
    for (let [iteration, refusals] = [0, 0]; ; iteration++) {
      const asked = clock.now();
      const reply = await this.poll(requestId, { ...of, iteration });
      if (reply.status === GONE) throw gone(of.type);
      const isTolerated = reply.status === BAD_REQUEST && ++refusals < MOST_REFUSALS;
      if (!isTolerated && !isPending(reply)) return this.withoutFailure(reply, of.type);
      if (this.reportPending(reply, { type: of.type, waitedMs: clock.now() - began }) === "paused")
        deadline = clock.now() + patienceMs;
      if (clock.now() > deadline) throw late(of.type, patienceMs);
      await clock.sleep(Math.max(0, asked + FLOOR_MS - clock.now()), of.signal);
    }
  }

  private reportPending(reply: HttpReply, of: { type: ResultType; waitedMs: number }): "paused" | "active" {
    const { queue_state, queue_state_reason } = PENDING.safeParse(reply.json).data ?? {};
    if (queue_state?.startsWith("paused")) {
      const why = queue_state_reason ?? "no reason given";
      this.transport.notify(`the service has paused the queue (${queue_state}): ${why}`);
      return "paused";
    }
    if (of.waitedMs > SILENT_MS) this.transport.notify(`the service is still working on ${of.type}`);
    return "active";
  }

  private poll(
    requestId: string,
    { type, iteration, signal }: { type: ResultType; iteration: number; signal?: AbortSignal | undefined },
  ): Promise<HttpReply> {
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
    return this.options.wire === "protobuf" && BINARY_RESULTS.has(type);
  }

  private withoutFailure(reply: HttpReply, type: ResultType): HttpReply {
    if (reply.status === BAD_REQUEST) throw failed(type, detailOf(reply.bytes));
    if (this.isBinary(type) && reply.json === undefined) return reply;
    const { data: failure } = FAILURE.safeParse(reply.json);
    if (failure) throw failed(type, `${failure.error} (${failure.category ?? "unknown"} error)`);
    if (!this.isBinary(type)) return reply;
    throw failed(type, "the result is JSON instead of protobuf. Set tinker_wire=json for a server without protobuf");
  }
}

function isPending({ status, json }: HttpReply): boolean {
  return status === TIMEOUT || (json as { type?: unknown } | undefined)?.type === "try_again";
}

function failed(type: ResultType, why: string): RemoteError {
  return new RemoteError(`Cannot finish ${type} on the service: ${why.replace(/\.$/, "")}.`, {
    retryable: false,
  });
}

function gone(type: ResultType): ResultGone {
  return new ResultGone(`Cannot get the result of ${type}: the service no longer has it (${GONE}).`, {
    status: GONE,
    retryable: true,
  });
}

function late(type: ResultType, patienceMs: number): RemoteError {
  const minutes = Math.round(patienceMs / 60_000);
  return new RemoteError(
    `Cannot get the result of ${type}: the service has not finished it in ${minutes} minutes and gives no reason.`,
    { retryable: true },
  );
}
