/** The socket's limit on silence: clients that wait for an answer, and clients that keep a request from being whole. */
import { connect } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { listen } from "../../../src/leaves/http/listen.ts";

const STILL_MS = 100;

async function opened(fetch: (request: Request) => Promise<Response>): Promise<string> {
  const server = await listen({ fetch }, { host: "127.0.0.1", port: 0, limits: { stillMs: STILL_MS } });
  onTestFinished(() => server.close());
  return server.url;
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test.each([
  ["GET", undefined],
  ["POST", "x".repeat(1000)],
])("an answer to %s may take longer than a connection may be silent", async (method, body) => {
  const url = await opened(async (request) => {
    const { length } = await request.text();
    await pause(5 * STILL_MS);
    return new Response(String(length));
  });
  const answer = await fetch(url, { method, ...(body !== undefined && { body }) });
  expect(await answer.text()).toBe(String(body?.length ?? 0));
});

test("a connection that stops within its request is closed", async () => {
  const url = await opened(async (request) => new Response(await request.text()));
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  socket.on("error", () => {});
  socket.write("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc");
  const started = performance.now();
  await new Promise((resolve) => socket.once("close", resolve).resume());
  expect(performance.now() - started).toBeGreaterThanOrEqual(0.9 * STILL_MS);
});

test("a connection that leaves an answer unread is closed", async () => {
  let cancelled = false;
  const url = await opened(async () => {
    const pull = async (controller: ReadableStreamDefaultController<Uint8Array>) => {
      controller.enqueue(new Uint8Array(2 ** 20));
    };
    const cancel = () => {
      cancelled = true;
    };
    return new Response(new ReadableStream({ pull, cancel }));
  });
  const socket = connect(Number(new URL(url).port), "127.0.0.1").pause();
  onTestFinished(() => void socket.destroy());
  socket.on("error", () => {});
  socket.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
  await expect.poll(() => cancelled, { timeout: 5000 }).toBe(true);
});
