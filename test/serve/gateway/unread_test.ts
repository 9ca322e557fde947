/** Streams that their readers leave: what they hold, for how long, and what ends with them. */
import { createConnection, type Socket } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { UnreadStreams, whenSent } from "../../../src/serve/gateway/sent.ts";
import { call, closeGateways, openGateway } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const bytes = (count: number) => new Uint8Array(count).fill(97);

/** A stream that sends `count` pieces as fast as they are taken, and says whether it was cancelled. */
function source(count: number, size: number) {
  const state = { isCancelled: false, sent: 0 };
  const body = new ReadableStream<Uint8Array>({
    pull: (controller) => {
      if (state.sent++ < count) controller.enqueue(bytes(size));
      else controller.close();
    },
    cancel: () => {
      state.isCancelled = true;
    },
  });
  return { state, response: new Response(body, { headers: { "content-type": "text/event-stream" } }) };
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 20));

describe("a stream", () => {
  test("that is read arrives whole, and holds nothing after", async () => {
    const unread = new UnreadStreams(16_000);
    let calls = 0;
    const { response } = source(500, 10);
    const sent = whenSent(response, { unread, ended: () => {}, settle: () => calls++ });
    expect((await sent.arrayBuffer()).byteLength).toBe(5000);
    expect([unread.bytes, calls]).toEqual([0, 1]);
  });

  test("of which too much stays unread ends, with its source and its call", async () => {
    const unread = new UnreadStreams(16_000);
    let calls = 0;
    const { response, state } = source(1e6, 10);
    const sent = whenSent(response, { unread, ended: () => {}, settle: () => calls++ });
    await expect.poll(() => state.isCancelled).toBe(true);
    expect(state.sent).toBeLessThan(200);
    expect([unread.bytes, calls]).toEqual([0, 1]);
    await expect(sent.text()).rejects.toThrow(/its reader leaves too much of it unread/);
  });

  test("that its reader gives up holds nothing, and settles once", async () => {
    const unread = new UnreadStreams(16_000);
    let calls = 0;
    const { response, state } = source(50, 10);
    const reader = whenSent(response, { unread, ended: () => {}, settle: () => calls++ }).body!.getReader();
    await reader.read();
    await settled();
    expect(unread.bytes).toBeGreaterThan(0);
    await reader.cancel();
    await settled();
    expect([unread.bytes, calls]).toEqual([0, 1]);
    expect(state.sent).toBeGreaterThan(0);
  });

  test("has ended with its source, whether or not it is read", async () => {
    const unread = new UnreadStreams(16_000);
    const events: string[] = [];
    const how = { unread, ended: () => events.push("ended"), settle: () => events.push("settled") };
    const sent = whenSent(source(50, 10).response, how);
    await expect.poll(() => events).toEqual(["ended"]);
    expect(unread.bytes).toBe(500);
    expect(await sent.text()).toHaveLength(500);
    expect(events).toEqual(["ended", "settled"]);
  });

  test("that its reader leaves has ended when its source has recorded what came", async () => {
    const events: string[] = [];
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(bytes(3)),
      cancel: async () => {
        await settled();
        events.push("recorded");
      },
    });
    const response = new Response(body, { headers: { "content-type": "text/event-stream" } });
    const how = { unread: new UnreadStreams(99), ended: () => events.push("ended"), settle: () => {} };
    await whenSent(response, how).body!.cancel();
    expect(events).toEqual(["recorded", "ended"]);
  });

  test("that fails tells its reader after what came before", async () => {
    const unread = new UnreadStreams(16_000);
    let isFirst = true;
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) => {
        if (isFirst) controller.enqueue(bytes(3));
        else controller.error(new Error("broke off"));
        isFirst = false;
      },
    });
    const response = new Response(body, { headers: { "content-type": "text/event-stream" } });
    const reader = whenSent(response, { unread, ended: () => {}, settle: () => {} }).body!.getReader();
    expect((await reader.read()).value).toHaveLength(3);
    await expect(reader.read()).rejects.toThrow("broke off");
    expect(unread.bytes).toBe(0);
  });
});

test("of all streams together the one that holds most ends first", async () => {
  const unread = new UnreadStreams(1600);
  const ended: string[] = [];
  const enter = (name: string) => unread.enter(() => ended.push(name));
  const streams = Array.from({ length: 18 }, (_, i) => enter(`s${i}`));
  for (const [i, stream] of streams.entries()) stream.add(i === 5 ? 99 : 90);
  expect(ended).toEqual(["s5"]);
  expect(unread.bytes).toBe(17 * 90);
  streams[0]!.add(11);
  expect(ended).toEqual(["s5", "s0"]);
  for (const stream of streams) stream.end();
  expect(unread.bytes).toBe(0);
});

/** Asks for a long stream and never reads it. */
function neverRead(url: string): Socket {
  const { hostname, port } = new URL(url);
  const body = JSON.stringify({
    model: "scripted",
    messages: [{ role: "user", content: "in" }],
    stream: true,
    max_tokens: 20_000,
    logprobs: true,
    // Many choices fill the kernel's buffers sooner.
    n: 32,
  });
  const socket = createConnection(Number(port), hostname);
  socket.on("error", () => {});
  socket.pause();
  socket.write(
    `POST /sessions/s/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
  );
  return socket;
}

test.skipIf("Deno" in globalThis)(
  "a connection that leaves its stream unread is ended, and its place is free",
  async () => {
    const script = () => undefined;
    const gateway = await openGateway({ script, limits: { concurrency: 1, unreadBytes: 16 * 20_000 } });
    const socket = neverRead(gateway.url);
    const { service, url } = gateway;
    await expect.poll(() => service.sessions.get("s")?.running).toBe(1);
    // The kernel takes some; what is beyond stays in the gateway, up to its limit.
    await expect.poll(() => service.sessions.get("s")?.running, { timeout: 60_000 }).toBe(0);
    expect(service.unread.bytes).toBe(0);
    const body = { model: "scripted", messages: [{ role: "user", content: "in" }], max_tokens: 1 };
    expect((await call(`${url}/v1/chat/completions`, { body })).status).toBe(200);
    socket.destroy();
  },
  90_000,
);
