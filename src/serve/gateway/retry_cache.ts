/**
 * Answers that were complete when their client had gone. Its SDK asks again with the same body and says so in a header: it gets
 * the answer that is there, so that a reply is neither sampled nor trained on twice.
 *
 * An answer is kept only where the connection broke before its last byte left this process. One that is lost behind a proxy
 * counts as delivered, because nothing tells it from one that the client has read: a retry of it is sampled again.
 */

/** A call as it is distinguished from others of its session. */
export interface RepeatedCall {
  /** Session by reference: one that is started again under the same id is another one. */
  readonly session: object;
  /** Path from `/v1` on. */
  readonly path: string;
  /** The body as it was sent. */
  readonly text: string;
}

interface Kept {
  readonly call: RepeatedCall;
  readonly answer: string;
  readonly headers: Headers;
}

/** OpenAI's and Anthropic's SDKs count the tries of a call in it, from 0. */
const RETRY_HEADER = "x-stainless-retry-count";

function isRetry({ headers }: Request): boolean {
  return Number(headers.get(RETRY_HEADER) ?? 0) > 0;
}

/** A call that is being answered. */
interface Running {
  readonly call: RepeatedCall;
  readonly signal: AbortSignal;
  readonly answered: Promise<unknown>;
}

const BYTES_PER_LETTER = 2;

/** Kept answers of all sessions; the oldest go first. */
export class RetryCache {
  private readonly most: number;
  private readonly kept: Kept[] = [];
  private readonly running = new Set<Running>();
  private held = 0;

  /** @param most about the bytes that requests and answers hold together */
  constructor(most: number) {
    this.most = most;
  }

  /** Approximate bytes that are held now. */
  get bytes(): number {
    return this.held;
  }

  /**
   * The answer to a call: where it is a retry, that which an earlier try left, else that of `respond`.
   * @param options.request its signal must be that of the connection: it aborts where the client leaves before it has all of the
   * answer, and not after
   */
  async once(
    call: RepeatedCall,
    { request, respond }: { readonly request: Request; readonly respond: () => Promise<Response> },
  ): Promise<Response> {
    const { signal } = request;
    if (isRetry(request)) {
      await this.leftBehind(call);
      const earlier = this.take(call);
      if (earlier) return this.watched(earlier, { signal, call });
    }
    const answered = respond().then((response) => this.watched(response, { signal, call }));
    const running = { call, signal, answered };
    this.running.add(running);
    return answered.finally(() => this.running.delete(running));
  }

  /** Resolves when earlier tries have ended whose clients have gone: one may be sampled whole already. */
  private async leftBehind(call: RepeatedCall): Promise<void> {
    const left = [...this.running].filter((run) => run.signal.aborted && isSame(run.call, call));
    await Promise.allSettled(left.map(({ answered }) => answered));
  }

  private take(call: RepeatedCall): Response | undefined {
    const at = this.kept.findIndex((entry) => isSame(entry.call, call));
    const found = at < 0 ? undefined : this.remove(at);
    return found && new Response(found.answer, { headers: found.headers });
  }

  /** Streams and errors are not kept: SDKs repeat a call only until a stream begins, and what failed has left no reply. */
  private async watched(
    response: Response,
    { signal, call }: { signal: AbortSignal; call: RepeatedCall },
  ): Promise<Response> {
    const { ok, status, headers } = response;
    if (!ok || !headers.get("content-type")?.startsWith("application/json")) return response;
    const answer = await response.text();
    const keep = () => this.put({ call, answer, headers: new Headers(headers) });
    if (signal.aborted) keep();
    else signal.addEventListener("abort", keep, { once: true });
    return new Response(answer, { status, headers });
  }

  private put(kept: Kept): void {
    this.kept.push(kept);
    this.held += sizeOf(kept);
    while (this.held > this.most) this.remove(0);
  }

  private remove(at: number): Kept {
    const [kept] = this.kept.splice(at, 1);
    this.held -= sizeOf(kept!);
    return kept!;
  }
}

function isSame(a: RepeatedCall, b: RepeatedCall): boolean {
  return a.session === b.session && a.path === b.path && a.text === b.text;
}

function sizeOf({ call, answer }: Kept): number {
  return BYTES_PER_LETTER * (call.text.length + answer.length);
}
