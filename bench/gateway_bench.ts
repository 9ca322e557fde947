/**
 * What the gateway adds to a call: the time of a chat completion over its socket, with a session, a key, limits and a trace,
 * next to the same call of the engine in this process, and to a bare server that gives a fixed answer. The sampler replies at
 * once, so that nothing but the gateway is timed. Where other programs take the processors, the process's own time on them says
 * more than the clock: it holds the client's part as well.
 */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { createFetch } from "../src/chat/endpoint.ts";
import { startGateway } from "../src/serve/gateway/mod.ts";
import { openTraceStore } from "../src/train/trace/mod.ts";
import { END, scriptedHost } from "../test/fixtures/gateway.ts";
import { check, heading, remark } from "./harness.ts";

const CALLS = 1000;
const MOST_MS = 3;

export async function run(): Promise<void> {
  heading("gateway: time that it adds to a call, ms (median, 99 of 100, mean of the processors')");
  const words = "and the 12 on ".repeat(300);
  for (const [what, content] of [
    ["a short prompt", "in the"],
    ["a prompt of 4 kB", words],
  ] as const) {
    const engines = scriptedHost(() => `${"the and on ".repeat(20)}${END}`);
    const body = JSON.stringify({ model: "scripted", messages: [{ role: "user", content }] });
    const local = createFetch(await engines.open({ model: "scripted", history: [] }));
    const here = await timed(async () => local("http://here/v1/chat/completions", { method: "POST", body }));
    const answer = await (await local("http://here/v1/chat/completions", { method: "POST", body })).text();
    const bare = await timedServer(answer, body);
    const store = await openTraceStore("memory");
    const gateway = await startGateway({ engines, store, auth: { apiKeys: ["key"], adminToken: "token" } });
    const headers = { "content-type": "application/json", authorization: "Bearer key" };
    let call = 0;
    const there = await timed(async () =>
      fetch(`${gateway.url}/sessions/s${call++ % 100}/v1/chat/completions`, { method: "POST", body, headers }),
    );
    await gateway.close();
    check((await store.traces({})).length === CALLS + WARM_UP, "a trace is missing");
    const added = there.median - here.median;
    remark(
      `${what}: ${text(there)} over HTTP, ${text(here)} in process, ${text(bare)} a bare server: ${added.toFixed(2)} added, ${(there.cpu - here.cpu).toFixed(2)} on the processors`,
    );
    check(added < MOST_MS, `the gateway adds ${added.toFixed(2)} ms to a call, more than ${MOST_MS}`);
  }
}

const WARM_UP = 200;

interface Times {
  readonly median: number;
  readonly high: number;
  /** Of the processors, client and server together. */
  readonly cpu: number;
}

const text = ({ median, high, cpu }: Times) => `${median.toFixed(2)} (${high.toFixed(2)}, ${cpu.toFixed(2)})`;

async function timed(call: () => Promise<Response>): Promise<Times> {
  const all: number[] = [];
  let before = process.cpuUsage();
  for (let i = -WARM_UP; i < CALLS; i++) {
    if (i === 0) before = process.cpuUsage();
    const start = performance.now();
    const response = await call();
    await response.text();
    check(response.status === 200, `a call failed with ${response.status}`);
    if (i >= 0) all.push(performance.now() - start);
  }
  const { user, system } = process.cpuUsage(before);
  all.sort((a, b) => a - b);
  return {
    cpu: (user + system) / 1000 / CALLS,
    median: all[all.length >> 1]!,
    high: all[Math.floor(0.99 * (all.length - 1))]!,
  };
}

/** A server that reads the body and gives the answer: what a socket costs. */
async function timedServer(answer: string, body: string): Promise<Times> {
  const server = createServer((request, response) => {
    request.resume().on("end", () => response.setHeader("content-type", "application/json").end(answer));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const times = await timed(async () => fetch(`http://127.0.0.1:${port}/`, { method: "POST", body }));
  server.closeAllConnections();
  server.close();
  return times;
}
