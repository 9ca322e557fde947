/** The client over a socket against servers that neither work nor go away: each call ends with an error within its limits. */
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import { z } from "zod";
import { RemoteError } from "../../../src/leaves/errors.ts";
import { TinkerSession } from "../../../src/train/backend/tinker/session.ts";
import { Transport, type TransportOptions } from "../../../src/train/backend/tinker/transport.ts";
import { httpFetch } from "../../../src/train/run/net/http.ts";

const TRICKLE_MS = 20;
const FETCHES: readonly [string, TransportOptions["fetch"]][] = [
  ["fetch", undefined],
  ["httpFetch", httpFetch],
];

let server: Server;
let calls: string[];

afterEach(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

async function serve(answer: (path: string, response: ServerResponse) => void): Promise<string> {
  calls = [];
  server = createServer((request, response) => {
    request.resume();
    calls.push(request.url!);
    answer(request.url!, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** A byte of the body at a time, without end. */
function trickle(response: ServerResponse): void {
  response.writeHead(200, { "content-type": "application/json" });
  response.write("[");
  const drip = setInterval(() => response.write(" "), TRICKLE_MS);
  response.on("close", () => clearInterval(drip));
}

function json(response: ServerResponse, body: object, status = 200): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

/** Everything but results. */
function accept(path: string, response: ServerResponse): void {
  json(response, path === "/api/v1/create_session" ? { session_id: "s" } : { request_id: "r" });
}

async function timed(run: Promise<unknown>): Promise<{ error: unknown; ms: number }> {
  const began = performance.now();
  const error = await run.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  return { error, ms: performance.now() - began };
}

test.each(FETCHES)("a body that trickles ends at the call's time limit, by %s", async (_, fetch) => {
  const baseUrl = await serve((_path, response) => trickle(response));
  const transport = new Transport({ baseUrl, apiKey: "tml-key", fetch, patienceMs: 1500 });
  const { error, ms } = await timed(transport.call("/api/v1/optim_step", { timeoutMs: 200 }));
  expect(error).toBeInstanceOf(RemoteError);
  expect(String(error)).toMatch(/Cannot call http.*optim_step: it did not answer in time\. Tried for \d s\./);
  // An attempt and the pause behind it take at least 575 ms, and the last attempt begins within the patience.
  expect(calls.length).toBeLessThanOrEqual(3);
  expect(ms).toBeGreaterThan(190 * calls.length);
});

test.each(FETCHES)("a result whose body trickles ends when its signal aborts, by %s", async (_, fetch) => {
  const baseUrl = await serve((path, response) =>
    path.endsWith("retrieve_future") ? trickle(response) : accept(path, response),
  );
  const transport = new Transport({ baseUrl, apiKey: "tml-key", fetch });
  const stop = new AbortController();
  const session = await TinkerSession.open(transport, { sdkVersion: "0.25.0" });
  const id = await session.submit("/api/v1/optim_step", { body: {} });
  const waiting = timed(session.result(id, { type: "OptimStep", signal: stop.signal }));
  setTimeout(() => stop.abort(new Error("stopped")), 10 * TRICKLE_MS);
  expect(String((await waiting).error)).toBe("Error: stopped");
  session.close();
});

test.each(FETCHES)("a server that answers heartbeats and completes no result, by %s", async (_, fetch) => {
  const baseUrl = await serve((path, response) =>
    path.endsWith("retrieve_future") ? json(response, { type: "try_again" }, 408) : accept(path, response),
  );
  const transport = new Transport({ baseUrl, apiKey: "tml-key", fetch });
  const session = await TinkerSession.open(transport, { sdkVersion: "0.25.0", resultPatienceMs: 500 });
  await session.ask("/api/v1/session_heartbeat", { body: {}, shape: z.object({}) });
  const id = await session.submit("/api/v1/optim_step", { body: {} });
  const { error, ms } = await timed(session.result(id, { type: "OptimStep" }));
  expect(error).toBeInstanceOf(RemoteError);
  expect(String(error)).toContain("Cannot get the result of OptimStep: the service has not finished it");
  // Timers end up to a millisecond early.
  expect(ms).toBeGreaterThan(490);
  session.close();
});
