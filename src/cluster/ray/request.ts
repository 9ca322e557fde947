/** Calls to the Jobs API: headers, repeated tries, and what a refusal means in our words. */
import { type Clock, SYSTEM_CLOCK } from "../../leaves/clock.ts";
import { ConfigError, RemoteError } from "../../leaves/errors.ts";
import { readErrorText } from "../../leaves/read_reply.ts";
import { rayAddress } from "./address.ts";
import type { RayOptions } from "./contract.ts";

export interface RayCall {
  /** Act, for the message of an error: `submit the job sum-1`. */
  readonly act: string;
  readonly method?: "GET" | "POST" | "PUT" | "DELETE";
  /** Sent as JSON; bytes as they are. */
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
  /** Statuses that the caller handles. */
  readonly expects?: readonly number[];
  /** How long one try may take, ms. */
  readonly timeoutMs?: number;
  /** Whether a failed try is repeated. Default true. */
  readonly repeats?: boolean;
}

const TIMEOUT_MS = 30_000;
/** Pauses between tries; a try that got no answer in time is the last. All calls may be repeated: jobs have ids of ours, packages the hash of their content. */
const PAUSES_MS = [1_000, 2_000, 4_000];
/** Statuses of a server that is starting, ending or behind a proxy. */
const PASSING = [502, 503, 504];

/** The connection stands, but no answer comes. */
class LateError extends RemoteError {
  override readonly name = "LateError";
}

export class RayHttp {
  readonly address: string;
  readonly clock: Clock;
  private readonly options: RayOptions;

  constructor(options: RayOptions) {
    this.address = rayAddress(options.address);
    this.clock = options.clock ?? SYSTEM_CLOCK;
    this.options = options;
  }

  get headers(): Record<string, string> {
    const { token, headers } = this.options;
    return { "user-agent": "grpu", ...headers, ...(token && { authorization: `Bearer ${token}` }) };
  }

  /** The text without the cluster's token. */
  masked(text: string): string {
    const { token } = this.options;
    return token ? text.replaceAll(token, "***") : text;
  }

  /** @throws {RemoteError} for a refusal that the caller does not expect, and for a cluster that does not answer. */
  async call(path: string, call: RayCall): Promise<Response> {
    const pauses = call.repeats === false ? [] : PAUSES_MS;
    for (let tries = 0; ; tries++) {
      const pauseMs = pauses[tries];
      const response = await this.once(path, call).catch((error) => {
        if (call.signal?.aborted || pauseMs === undefined || error instanceof LateError) throw error;
        return undefined;
      });
      if (response && (pauseMs === undefined || !PASSING.includes(response.status))) {
        if (response.ok || call.expects?.includes(response.status)) return response;
        throw this.refusal(call, response.status, await readErrorText(response));
      }
      await this.clock.sleep(pauseMs ?? 0, call.signal);
    }
  }

  private async once(path: string, call: RayCall): Promise<Response> {
    const { method = "GET", body, signal, timeoutMs = TIMEOUT_MS } = call;
    const late = AbortSignal.timeout(timeoutMs);
    const isBytes = body instanceof Uint8Array;
    try {
      return await this.options.request(this.address + path, {
        method,
        headers: {
          ...this.headers,
          ...(body !== undefined && { "content-type": isBytes ? BYTES : "application/json" }),
        },
        signal: signal ? AbortSignal.any([signal, late]) : late,
        ...(body !== undefined && { body: isBytes ? (body as Uint8Array<ArrayBuffer>) : JSON.stringify(body) }),
      });
    } catch (cause) {
      signal?.throwIfAborted();
      if (late.aborted) throw this.unreachable(call.act, `no answer within ${timeoutMs / 1000} s`, LateError);
      throw this.unreachable(call.act, reasonOf(cause));
    }
  }

  /** The error of a cluster that cannot be reached. @param act `submit the job sum-1` */
  unreachable(act: string, why: string, Kind = RemoteError): RemoteError {
    return new Kind(
      `Cannot ${act}: the Ray cluster at ${this.address} does not answer (${this.masked(why)}). Check the address and that the cluster's head runs; from another machine its dashboard must listen beyond loopback (ray start --dashboard-host).`,
      { retryable: true },
    );
  }

  /** The error of a request that the cluster refused. */
  refusal({ act }: Pick<RayCall, "act">, status: number, body: string): RemoteError {
    const described = KNOWN[status]?.({ hasToken: this.options.token !== undefined, body });
    const [what, todo] = described ?? [`it answered ${status}: ${lastLine(body)}`, status >= 500 ? SEE_LOGS : SEE_API];
    const message = `Cannot ${act}: ${what} (${this.address}). ${todo}.`;
    return new RemoteError(this.masked(message), { status, retryable: status >= 500 });
  }
}

const BYTES = "application/octet-stream";
const SEE_LOGS = "The logs of the cluster's dashboard (dashboard*.log on its head node) tell more";
const SEE_API = "Check that this is the dashboard of a Ray cluster of version 2.9 or newer";

/** Causes and remedies, by status. */
const KNOWN: Readonly<Record<number, (of: { hasToken: boolean; body: string }) => readonly [string, string]>> = {
  401: ({ hasToken }) =>
    hasToken
      ? ["the Ray cluster does not accept the token", "Set RAY_AUTH_TOKEN to the cluster's token"]
      : ["the Ray cluster asks for a token", "Set RAY_AUTH_TOKEN to the cluster's token"],
  403: () => [
    "the Ray cluster refuses the token",
    "Set RAY_AUTH_TOKEN to the token with which the cluster was started",
  ],
  404: ({ body }) =>
    body.includes("does not exist")
      ? ["the Ray cluster does not know such a job", "See grpu jobs list for those that it knows"]
      : ["there is no Ray dashboard at this address", SEE_API],
  405: () => [
    "the Ray cluster takes the request for a browser's",
    "Leave out headers such as Origin, Referer and Sec-Fetch-*, which a setting or a proxy adds",
  ],
};

/** @throws {ConfigError} for an id that would change the path of a request. */
export function checkId(id: string): string {
  if (/^[\w.-]*[\w-][\w.-]*$/.test(id)) return id;
  throw new ConfigError(
    `Cannot use ${JSON.stringify(id)} as the id of a Ray job: it holds other characters than letters, digits, "_", "-" and ".". Choose another.`,
  );
}

/** The last line of a Python traceback says what is wrong. */
function lastLine(text: string): string {
  return (text.trim().split("\n").at(-1) ?? "").slice(0, 500).replace(/\.$/, "") || "nothing";
}

/** Returns the reason in the words of the operating system: `connect ECONNREFUSED 127.0.0.1:8265`. */
function reasonOf(cause: unknown): string {
  const { message, code, cause: deeper } = cause as { message?: string; code?: string; cause?: unknown };
  if (deeper instanceof Error) return reasonOf(deeper);
  return message || code || String(cause);
}
