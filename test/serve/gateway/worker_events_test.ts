import { describe, expect, test } from "vitest";
import { forwardedEvents } from "../../../src/serve/gateway/workers/events.ts";
import { isUnsent } from "../../../src/serve/gateway/workers/send.ts";

test("a client that leaves ends the record before the source ends, which would look like a whole reply", async () => {
  const ends: (string | undefined)[] = [];
  const source = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(new TextEncoder().encode('data: {"a":1}\n\n')),
  });
  const events = forwardedEvents(source, {
    signal: new AbortController().signal,
    change: (event) => event,
    end: async (how) => void ends.push(how),
  });
  const reader = events.getReader();
  await reader.read();
  // It waits for the source: cancelling the source ends it.
  const pending = reader.read();
  await new Promise((resolve) => setTimeout(resolve));
  await reader.cancel();
  await pending;
  expect(ends).toEqual(["abort"]);
});

describe("a request that was not sent", () => {
  test.each<[string, unknown, boolean]>([
    ["a refused connection", { code: "ECONNREFUSED", syscall: "connect" }, true],
    ["fetch's error for one", new TypeError("fetch failed", { cause: { code: "ECONNREFUSED" } }), true],
    ["an unknown name", { code: "ENOTFOUND", syscall: "getaddrinfo" }, true],
    ["a connection that is not accepted", { code: "ETIMEDOUT", syscall: "connect" }, true],
    ["an answer that never comes", { code: "ETIMEDOUT", syscall: "read" }, false],
    ["a connection that breaks off", { code: "ECONNRESET", syscall: "read" }, false],
    ["fetch's limit on headers", new TypeError("fetch failed", { cause: { code: "UND_ERR_HEADERS_TIMEOUT" } }), false],
    ["nothing that is known", undefined, false],
  ])("%s: %o", (_, error, expected) => {
    expect(isUnsent(error)).toBe(expected);
  });
});
