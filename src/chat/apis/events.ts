/** Server-sent events. */
import { stringifyJson } from "../../leaves/json.ts";
import type { ChatEngine } from "../engine.ts";

/** A route's answer. */
export interface ApiCall {
  readonly engine: ChatEngine;
  /** Aborts when the client goes away. */
  readonly signal: AbortSignal;
}

/** One event. `event` is its name, which OpenAI's chat API does not use. */
export interface ServerEvent {
  readonly event?: string;
  /** Sent as JSON, or as it is when a text. */
  readonly data: object | string;
}

export interface EventSource {
  readonly signal: AbortSignal;
  /** Sends events until it settles. Its signal aborts when the reader leaves. */
  run(send: (event: ServerEvent) => void, signal: AbortSignal): Promise<void>;
  /** The last event of a stream that fails after its first one. */
  failure(error: unknown): ServerEvent;
}

/** Proxies and clients close a connection that is silent for longer, often after a minute. */
const KEEP_ALIVE_MS = 15_000;

/**
 * A response whose events are sent while `run` makes them. It starts with the first event, so that what fails before has a
 * status of its own. A comment, which clients skip, is sent every 15 s. After a failure the signal of `run` aborts, and later
 * events are dropped.
 * @throws what `run` throws before its first event
 */
export async function eventStream(source: EventSource): Promise<Response> {
  const left = new AbortController();
  const signal = AbortSignal.any([source.signal, left.signal]);
  const { readable, writer } = openStream(() => left.abort(new DOMException("The client left.", "AbortError")));
  await new Promise<void>((started, failed) => {
    let isStarted = false;
    const send = (event: ServerEvent) => {
      isStarted = true;
      writer.write(encode(event));
      started();
    };
    source.run(send, signal).then(
      () => {
        writer.close();
        started();
      },
      (error: unknown) => {
        if (isStarted && !isCallers(signal)) writer.write(encode(source.failure(error)));
        writer.close();
        left.abort(new DOMException("The stream failed.", "AbortError"));
        failed(error);
      },
    );
  });
  return new Response(readable, {
    headers: { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" },
  });
}

/** Whether the caller ended its stream. Where a session or the server did, the caller must hear that its reply is not whole. */
function isCallers({ aborted, reason }: AbortSignal): boolean {
  const name = reason instanceof Error ? reason.name : undefined;
  return aborted && (name === "AbortError" || name === "TimeoutError");
}

interface StreamWriter {
  write(text: string): void;
  close(): void;
}

/** A stream that ignores what is written after it is closed or its reader left. */
function openStream(onLeave: () => void): { readable: ReadableStream<Uint8Array>; writer: StreamWriter } {
  const encoder = new TextEncoder();
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  const write = (text: string) => controller?.enqueue(encoder.encode(text));
  const keepAlive = setInterval(() => write(": keep-alive\n\n"), KEEP_ALIVE_MS);
  const end = () => {
    clearInterval(keepAlive);
    controller = undefined;
  };
  const readable = new ReadableStream<Uint8Array>({
    start: (choice) => {
      controller = choice;
    },
    cancel: () => {
      end();
      onLeave();
    },
  });
  const close = () => {
    controller?.close();
    end();
  };
  return { readable, writer: { write, close } };
}

function encode({ event, data }: ServerEvent): string {
  const text = typeof data === "string" ? data : stringifyJson(data);
  return `${event === undefined ? "" : `event: ${event}\n`}data: ${text}\n\n`;
}

/** Calls `use` with each value that `run` sends; for readers in the same process. */
export async function* collected<T>(run: (send: (value: T) => void) => Promise<void>): AsyncIterable<T> {
  const waiting: T[] = [];
  let wake = () => {};
  let isOver = false;
  const done = run((value) => {
    waiting.push(value);
    wake();
  }).finally(() => {
    isOver = true;
    wake();
  });
  // Its failure is thrown below, where the reader is.
  done.catch(() => {});
  for (;;) {
    yield* waiting.splice(0);
    if (isOver) break;
    await new Promise<void>((resolve) => {
      wake = resolve;
      if (waiting.length > 0 || isOver) resolve();
    });
  }
  yield* waiting.splice(0);
  await done;
}
