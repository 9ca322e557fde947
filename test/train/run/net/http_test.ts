import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { httpFetch } from "../../../../src/train/run/net/http.ts";

let server: Server;
let url: string;

beforeAll(async () => {
  server = createServer((request, response) => {
    if (request.url === "/hang") return;
    const parts: Uint8Array[] = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      if (request.url === "/empty") return void response.writeHead(204).end();
      if (request.url === "/cut")
        return void response.writeHead(200, { "content-length": "9" }).write("cut", () => request.socket.destroy());
      response.writeHead(418, "teapot", {
        "content-type": "application/json",
        "x-seen": String(request.headers["x-key"]),
      });
      response.end(JSON.stringify({ method: request.method, body: Buffer.concat(parts).toString("hex") }));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test.each([
  ["POST", Uint8Array.of(0, 255, 10), "00ff0a"],
  ["POST", "ä", "c3a4"],
  ["GET", undefined, ""],
])("%s %s is answered as fetch answers", async (method, body, hex) => {
  const init = { method, body: body ?? null, headers: { "X-Key": "k" } };
  for (const fetched of [await httpFetch(`${url}/path`, init), await fetch(`${url}/path`, init)]) {
    expect([fetched.status, fetched.statusText, fetched.ok]).toEqual([418, "teapot", false]);
    expect([fetched.headers.get("content-type"), fetched.headers.get("x-seen")]).toEqual(["application/json", "k"]);
    expect(await fetched.json()).toEqual({ method, body: hex });
  }
});

test("an answer without a body, one that is cut off, a server that is not there, and an abort", async () => {
  expect((await httpFetch(`${url}/empty`, { method: "POST" })).status).toBe(204);
  await expect(httpFetch(`${url}/cut`, { method: "GET" })).rejects.toThrow();
  await expect(httpFetch("http://127.0.0.1:9", { method: "GET" })).rejects.toThrow("ECONNREFUSED");
  const stop = new AbortController();
  const hung = httpFetch(`${url}/hang`, { method: "GET", signal: stop.signal });
  stop.abort();
  await expect(hung).rejects.toThrow(/abort/i);
  // An error that is not handed on would leave the caller waiting.
}, 10_000);
