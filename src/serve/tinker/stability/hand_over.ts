/**
 * Hands sequences that were recorded with copied weights on to the server that the weights came from, which trains. A request among our own
 * servers, like the copy of the weights: with the same key, and only to an address that this server has as its `--peer`.
 */
import { SYSTEM_CLOCK } from "../../../leaves/clock.ts";
import { readReplyJson } from "../../../leaves/read_reply.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { parsePath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";
import { Watch } from "../watch.ts";
import { type HandedSequences, handedMessages } from "./handed_message.ts";

export interface HandOversOptions {
  /** The servers that take sequences, and the key that they take. */
  readonly urls: readonly string[];
  readonly apiKey: string;
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
  readonly checkpoints: Pick<Checkpoints, "hasRun" | "findRun">;
  /** Ends what is under way when the server stops, with its reason. */
  readonly stop: AbortSignal;
  /** How long a server that cannot be reached or is busy is asked again, ms. Default 60 s. */
  readonly patienceMs?: number | undefined;
}

/** The route of the server that takes them. */
export const HANDED_ROUTE = "/api/v1/recorded_sequences";

/** Requests under way to all servers. What waits holds its request's memory, so that a server that is slow to take makes this one refuse more. */
const MOST_AT_ONCE = 4;
const PATIENCE_MS = 60_000;
/** Time limit of one attempt. */
const ATTEMPT_MS = 30_000;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5_000;
const RETRIED: ReadonlySet<number> = new Set([408, 429]);

/** A request that may be sent again. */
class Retryable extends Error {}

export class HandOvers {
  private readonly options: HandOversOptions;
  private running = 0;
  private readonly waiting: (() => void)[] = [];

  constructor(options: HandOversOptions) {
    this.options = options;
  }

  /** The server that trains the weights of a path; undefined for this one's own, and where its address is no peer's (any more). */
  addressFor(path: string): string | undefined {
    const { checkpoints, urls } = this.options;
    const { run } = parsePath(path);
    const from = checkpoints.hasRun(run) ? checkpoints.findRun(run).copiedFrom : undefined;
    return from !== undefined && urls.includes(from) ? from : undefined;
  }

  /**
   * Resolves when the server has them all, or says that no open session trains the weights, so that nobody there could name them.
   * @throws Refusal 503 where it cannot be reached or stays busy, 400 where it refuses
   */
  async send(url: string, of: HandedSequences): Promise<void> {
    await this.turn();
    try {
      for (const message of handedMessages(of)) await this.sendOne(url, message);
    } finally {
      this.running--;
      this.waiting.shift()?.();
    }
  }

  private async turn(): Promise<void> {
    while (this.running >= MOST_AT_ONCE) await new Promise<void>((resolve) => this.waiting.push(resolve));
    this.running++;
  }

  private async sendOne(url: string, message: Uint8Array<ArrayBuffer>): Promise<void> {
    const { stop, patienceMs = PATIENCE_MS } = this.options;
    const until = Date.now() + patienceMs;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      try {
        return await Watch.during((watch) => this.attempt(url, { message, watch }), { stop, ms: ATTEMPT_MS });
      } catch (error) {
        stop.throwIfAborted();
        if (error instanceof Refusal) throw error;
        if (Date.now() + pause > until)
          throw new Refusal(503, `${cannot(url)}: ${reasonOf(error)}. Sample again later.`);
      }
      await SYSTEM_CLOCK.sleep(pause, stop);
    }
  }

  private async attempt(url: string, { message, watch }: { message: Uint8Array<ArrayBuffer>; watch: Watch }) {
    const { fetch: peerFetch = fetch, apiKey } = this.options;
    const response = await peerFetch(`${url}${HANDED_ROUTE}`, {
      method: "POST",
      headers: { "X-API-Key": apiKey, "Content-Type": "application/x-protobuf" },
      body: message,
      // A redirect would lead to a server that is no peer.
      redirect: "error",
      signal: watch.signal,
    });
    if (response.ok) return void (await response.body?.cancel());
    const detail = await detailOf(response);
    const { status } = response;
    if (RETRIED.has(status) || status >= 500) throw new Retryable(`it answers ${status} (${detail})`);
    if (status === NOBODY_TRAINS) return;
    const advice = "Start both servers from the same release with --stable-reinforce and the same key.";
    throw new Refusal(400, `${cannot(url)}: it answers ${status} (${detail}). ${advice}`);
  }
}

/** Status of a server where no open session has the run. 404 is a server that lacks the route. */
export const NOBODY_TRAINS = 410;

function cannot(url: string): string {
  return `Cannot record the samples for stable_reinforce at ${url}, which trains their weights`;
}

async function detailOf(response: Response): Promise<string> {
  const answer: unknown = await readReplyJson(response).catch(() => undefined);
  const { detail = "no reason given" } = (answer ?? {}) as { detail?: unknown };
  return String(detail).slice(0, 500).replace(/\.$/, "");
}

/** Node's fetch says "fetch failed", and why in the cause. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? cause.message : message;
}
