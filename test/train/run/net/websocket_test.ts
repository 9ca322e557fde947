/** Reading a WebSocket to its end. */
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { type WebSocket, WebSocketServer } from "ws";
import { readWebSocket } from "../../../../src/train/run/net/websocket.ts";

const servers: WebSocketServer[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) {
    for (const client of server.clients) client.terminate();
    server.close();
  }
});

async function serve(onConnection: (socket: WebSocket) => void, autoPong = true): Promise<string> {
  const made = new WebSocketServer({ port: 0, host: "127.0.0.1", autoPong, perMessageDeflate: true });
  servers.push(made);
  made.on("connection", onConnection);
  await new Promise((resolve) => made.once("listening", resolve));
  return `ws://127.0.0.1:${(made.address() as AddressInfo).port}`;
}

const request = (onText: (text: string) => void = () => {}) => ({
  headers: { authorization: "Bearer x" },
  onText,
  signal: new AbortController().signal,
});

describe("readWebSocket()", () => {
  test("gives each text and the code of the end, and offers no compression", async () => {
    let offered: string | undefined;
    const url = await serve((socket) => {
      socket.send("one");
      socket.send(Buffer.from("binary"));
      socket.send("ünï");
      socket.close(1000, "done");
    });
    servers[0]!.on("headers", (_, { headers }) => {
      offered = headers["sec-websocket-extensions"];
    });
    const texts: string[] = [];
    expect(
      await readWebSocket(
        url,
        request((text) => void texts.push(text)),
      ),
    ).toEqual({ code: 1000, reason: "done" });
    expect(texts).toEqual(["one", "ünï"]);
    expect(offered).toBeUndefined();
  });

  test("says how a connection broke, and why there was none", async () => {
    const url = await serve((socket) => socket.terminate());
    expect(await readWebSocket(url, request())).toMatchObject({ code: 1006 });
    expect(await readWebSocket("ws://127.0.0.1:9", request())).toMatchObject({
      code: 1006,
      reason: expect.stringContaining("ECONNREFUSED"),
    });
  });

  test("gives up a peer that shows no sign of life, and keeps one that answers pings", async () => {
    const url = await serve(() => {}, false);
    expect(await readWebSocket(url, request(), { silentMs: 100 })).toEqual({
      code: 1006,
      reason: "nothing was heard for 0.2 s",
    });
    const stop = new AbortController();
    const alive = await serve((socket) => setTimeout(() => socket.close(1000, "late"), 700));
    const end = await readWebSocket(alive, { ...request(), signal: stop.signal }, { silentMs: 100 });
    expect(end.reason).toBe("late");
  });

  test("ends at the signal, before and while it reads", async () => {
    const url = await serve(() => {});
    const stop = new AbortController();
    setTimeout(() => stop.abort(), 50);
    expect((await readWebSocket(url, { ...request(), signal: stop.signal })).code).toBe(1006);
    expect((await readWebSocket(url, { ...request(), signal: stop.signal })).reason).toBe("aborted");
  });
});
