/** Answers on their way: what belongs to a call is released when its answer is sent, and streams that nobody reads end. */

import { yieldToEventLoop } from "../../leaves/http/event_loop.ts";

/** Events of one stream that its reader has not taken. */
interface Unread {
  bytes: number;
  /** Ends the stream. */
  fail(): void;
}

/** The memory of all streams whose readers are slow. Beyond its limit the one that holds most ends. */
export class UnreadStreams {
  private readonly streams = new Set<Unread>();
  private readonly most: number;
  private held = 0;

  /** @param most bytes of all streams together; one alone may hold a sixteenth */
  constructor(most: number) {
    this.most = most;
  }

  /** Approximate bytes that are held now. */
  get bytes(): number {
    return this.held;
  }

  /** Counts a stream's bytes: `add` those that came, negative those that were read; `end` when it is over. */
  enter(fail: () => void): { add(bytes: number): void; end(): void } {
    const entry: Unread = { bytes: 0, fail };
    this.streams.add(entry);
    return {
      add: (bytes) => {
        if (!this.streams.has(entry)) return;
        entry.bytes += bytes;
        this.held += bytes;
        if (entry.bytes > this.most / 16) this.give(entry);
        else if (this.held > this.most) this.give(this.largest());
      },
      end: () => {
        if (this.streams.delete(entry)) this.held -= entry.bytes;
      },
    };
  }

  private give(stream: Unread): void {
    if (this.streams.delete(stream)) this.held -= stream.bytes;
    stream.fail();
  }

  private largest(): Unread {
    return [...this.streams].reduce((a, b) => (b.bytes > a.bytes ? b : a));
  }
}

export interface Sending {
  readonly unread: UnreadStreams;
  /** The source has ended, or what it had sampled is recorded: nothing is lost when the process stops now. */
  ended(): void;
  /** The answer is sent or given up. */
  settle(): void;
}

/**
 * Calls `ended` and `settle` once each; at once for an answer that is no stream. A stream is taken from its source as fast as
 * it comes, so that what its reader leaves is counted.
 */
export function whenSent(response: Response, sending: Sending): Response {
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
  if (!isStream || !response.body) {
    sending.ended();
    sending.settle();
    return response;
  }
  return new Response(forwarded(response.body, sending), response);
}

/** Pieces that may wait before the reader gets a turn. */
const READ_AHEAD = 16;

function forwarded(source: ReadableStream<Uint8Array>, { unread, ended, settle }: Sending): ReadableStream<Uint8Array> {
  const reader = source.getReader();
  const waiting: Uint8Array[] = [];
  let isOver = false;
  let wake = () => {};
  let failure: unknown;
  let hasEnded = false;
  let isSettled = false;
  const end = () => {
    if (!hasEnded) ended();
    hasEnded = true;
  };
  const leave = (reason: unknown) => {
    waiting.length = 0;
    counted.end();
    // What the caller leaves is recorded first.
    return reader.cancel(reason).finally(done);
  };
  const done = () => {
    counted.end();
    end();
    if (!isSettled) settle();
    isSettled = true;
  };
  const counted = unread.enter(() => {
    failure = new Error("Cannot send the stream: its reader leaves too much of it unread.");
    isOver = true;
    void leave(failure).catch(() => {});
    wake();
  });
  const pump = async () => {
    try {
      for (let next = await reader.read(); !next.done && !isOver; next = await reader.read()) {
        waiting.push(next.value);
        counted.add(next.value.byteLength);
        wake();
        // A source that has everything at hand would otherwise run ahead of a reader that is quick enough.
        if (waiting.length > READ_AHEAD) await yieldToEventLoop();
      }
    } catch (error) {
      failure ??= error;
    }
    // Of a reader that left, the source ends when it has recorded what came.
    if (!isOver) end();
    isOver = true;
    wake();
  };
  void pump();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        while (waiting.length === 0 && !isOver)
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        const chunk = waiting.shift();
        if (chunk) {
          counted.add(-chunk.byteLength);
          return controller.enqueue(chunk);
        }
        done();
        if (failure === undefined) controller.close();
        else controller.error(failure);
      },
      cancel: (reason) => {
        isOver = true;
        wake();
        return leave(reason);
      },
    },
    // Nothing is taken before the reader asks.
    { highWaterMark: 0 },
  );
}
