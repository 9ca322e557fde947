/** Streams of events whose sources fail, wait for long, or go on after their end. */
import { afterEach, expect, test, vi } from "vitest";
import { eventStream, type ServerEvent } from "../../../src/chat/apis/events.ts";

afterEach(() => void vi.useRealTimers());

interface Run {
  readonly send: (event: ServerEvent) => void;
  readonly signal: AbortSignal;
}

/** A stream with one event sent, whose source does nothing further by itself. */
async function opened(signal = new AbortController().signal) {
  let run: Run | undefined;
  let [resolve, reject] = [() => {}, (_: Error) => {}];
  const promise = new Promise<void>((onEnd, onFailure) => {
    [resolve, reject] = [onEnd, onFailure];
  });
  const response = await eventStream({
    signal,
    run: (send, signal) => {
      run = { send, signal };
      send({ data: "first" });
      return promise;
    },
    failure: (error) => ({ data: (error as Error).message }),
  });
  return { response, run: run!, resolve, reject };
}

test("a source that fails gets its signal aborted, and what it still sends is dropped", async () => {
  const { response, run, reject } = await opened();
  reject(new Error("broken"));
  expect(await response.text()).toBe("data: first\n\ndata: broken\n\n");
  expect(run.signal.aborted).toBe(true);
  expect(() => run.send({ data: "late" })).not.toThrow();
});

test.each([
  ["the session's end is told", new Error("the session has ended"), "data: first\n\ndata: the session has ended\n\n"],
  ["a caller's own abort is not", new DOMException("gone", "AbortError"), "data: first\n\n"],
])("a stream that is aborted: %s", async (_, reason, expected) => {
  const controller = new AbortController();
  const { response, run, reject } = await opened(controller.signal);
  controller.abort(reason);
  expect(run.signal.aborted).toBe(true);
  reject(reason);
  expect(await response.text()).toBe(expected);
});

test("a source that fails before its first event gives no stream, and its signal aborts", async () => {
  let given: AbortSignal | undefined;
  const stream = eventStream({
    signal: new AbortController().signal,
    run: async (_, signal) => {
      given = signal;
      throw new Error("refused");
    },
    failure: () => ({ data: "" }),
  });
  await expect(stream).rejects.toThrow("refused");
  expect(given?.aborted).toBe(true);
});

test("a silent stream sends comments until it ends", async () => {
  vi.useFakeTimers();
  const { response, run, resolve } = await opened();
  vi.advanceTimersByTime(31_000);
  run.send({ data: "second" });
  resolve();
  await vi.advanceTimersByTimeAsync(0);
  expect(vi.getTimerCount()).toBe(0);
  expect(await response.text()).toBe("data: first\n\n: keep-alive\n\n: keep-alive\n\ndata: second\n\n");
});

test("a stream whose reader leaves sends no further comments", async () => {
  vi.useFakeTimers();
  const { response, run } = await opened();
  await response.body!.cancel();
  expect(vi.getTimerCount()).toBe(0);
  expect(run.signal.aborted).toBe(true);
});
