/**
 * Reads the log of a job while it is written. The cluster sends it from the start on every connection, so what was delivered is
 * counted and skipped. Nothing but an unfinished line is kept.
 */
import type { Clock } from "../../leaves/clock.ts";
import { RemoteError } from "../../leaves/errors.ts";
import type { JobDetails, LineListener, RayOptions, TailEnd } from "./contract.ts";
import { isTerminal } from "./details.ts";
import { LineSplitter } from "./lines.ts";
import type { RayHttp } from "./request.ts";

interface FollowerOptions {
  readonly id: string;
  readonly http: RayHttp;
  readonly options: Pick<RayOptions, "tail" | "notify" | "patienceMs">;
  readonly listener: LineListener;
  /** One request each. */
  readonly read: {
    details(signal: AbortSignal | undefined): Promise<JobDetails>;
    logs(signal: AbortSignal | undefined): Promise<string>;
  };
}

const PATIENCE_MS = 2 * 60_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
/**
 * Every connection ends with the code 1000, whether the log is over or could not be read: Ray gives up at a line of more than 4
 * MiB, at text that is not UTF-8, and when the process that reads the file ends. At the end of a log it looks for more twice, a
 * second apart, so that a connection which ends sooner after its latest message, or without one, is not taken for the log's end.
 */
const SILENCE_MS = 1_900;
/** Connections that end in this way without anything new, before the log is fetched as a whole. */
const FAILED_TAILS = 2;

/** One connection's end. */
interface Ended extends TailEnd {
  /** The end of the log was reached: nothing more was written so far. */
  readonly isProper: boolean;
}

export class Follower {
  private readonly it: FollowerOptions;
  private readonly splitter: LineSplitter;
  /** UTF-16 units of the log that the splitter has. */
  private delivered = 0;
  private failedTails = 0;
  private failures = 0;
  private lastAnswer: number;
  private hasAnswered = false;
  private isCut = false;

  constructor(options: FollowerOptions) {
    this.it = options;
    this.splitter = new LineSplitter(options.listener);
    this.lastAnswer = this.clock.now();
  }

  private get clock(): Clock {
    return this.it.http.clock;
  }

  async run(signal?: AbortSignal): Promise<JobDetails> {
    for (;;) {
      const before = this.delivered;
      const ended = await this.tail(signal);
      const details = await this.details(ended, signal);
      if (ended.isProper || this.delivered > before) this.failedTails = 0;
      else if (details) this.failedTails++;
      const isWhole = ended.isProper || (this.failedTails >= FAILED_TAILS && (await this.fetchWhole(signal)));
      if (details && isTerminal(details) && isWhole) {
        this.splitter.end();
        return details;
      }
      const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** Math.max(this.failures, this.failedTails), LONGEST_PAUSE_MS);
      await this.clock.sleep(pauseMs, signal);
    }
  }

  /** Reads one connection to its end. @throws what the listener throws */
  private async tail(signal?: AbortSignal): Promise<Ended> {
    const { id, http, options } = this.it;
    const stop = new AbortController();
    let skip = this.delivered;
    let latest = Number.POSITIVE_INFINITY;
    const onText = (text: string) => {
      if (stop.signal.aborted) return;
      latest = this.answered();
      const fresh = text.slice(skip);
      skip -= text.length - fresh.length;
      try {
        this.deliver(fresh);
      } catch (error) {
        stop.abort(error);
      }
    };
    const url = `${http.address.replace("http", "ws")}/api/jobs/${id}/logs/tail`;
    const either = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
    const end = await options.tail(url, { headers: http.headers, onText, signal: either });
    either.throwIfAborted();
    return { ...end, isProper: end.code === 1000 && this.clock.now() - latest >= SILENCE_MS };
  }

  private deliver(text: string): void {
    this.delivered += text.length;
    this.splitter.feed(text);
  }

  private answered(): number {
    this.failures = 0;
    this.hasAnswered = true;
    this.lastAnswer = this.clock.now();
    return this.lastAnswer;
  }

  /** Undefined while the cluster does not answer. @throws {RemoteError} when that lasts too long, and for a refusal. */
  private async details(ended: Ended, signal?: AbortSignal): Promise<JobDetails | undefined> {
    try {
      const details = await this.it.read.details(signal);
      this.answered();
      return details;
    } catch (error) {
      // A defect has neither.
      const { status, retryable } = error as Partial<RemoteError>;
      if (status === 404 && this.hasAnswered) throw this.forgotten();
      if (!retryable) throw error;
      this.failed(ended);
      return undefined;
    }
  }

  private failed({ reason }: Ended): void {
    const { id, options, http } = this.it;
    const silentMs = this.clock.now() - this.lastAnswer;
    const why = reason === "" ? "the connection broke" : reason;
    if (silentMs >= (options.patienceMs ?? PATIENCE_MS))
      throw http.unreachable(`follow the job ${id}`, `for ${Math.round(silentMs / 1000)} s: ${why}`);
    if (this.failures === 0)
      options.notify?.(http.masked(`lost the connection to ${http.address}: ${why}; trying again`));
    this.failures++;
  }

  private forgotten(): RemoteError {
    const { id, http } = this.it;
    return new RemoteError(
      `Cannot follow the job ${id}: the Ray cluster does not know it any more (${http.address}). Its head was started again, or someone deleted the job; start the run again, which resumes from its last checkpoint.`,
      { status: 404, retryable: false },
    );
  }

  /**
   * Fetches a log that the tail cannot read: all of it at once, which takes memory for all of it. True if nothing more
   * can be read.
   */
  private async fetchWhole(signal?: AbortSignal): Promise<boolean> {
    const { id, read, options } = this.it;
    const log = await read.logs(signal).catch((error) => {
      if (!(error instanceof RemoteError) || !error.retryable) throw error;
      return error;
    });
    if (typeof log === "string") {
      this.answered();
      this.deliver(log.slice(this.delivered));
      return true;
    }
    if (log.status === undefined) return false;
    if (!this.isCut) options.notify?.(`the log of ${id} cannot be read to its end, lines are missing: ${log.message}`);
    this.isCut = true;
    return true;
  }
}
