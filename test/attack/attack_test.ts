/**
 * Every server under attack, each in a process of its own: hostile requests get the answers that they should, and
 * meanwhile the server answers others, does not stand still, and holds a bounded amount of memory.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TOKEN } from "../fixtures/cluster.ts";
import { type Attacked, attack, type Kind, sendRaw } from "./attacked.ts";
import { BODIES, type Known, toRequest } from "./bodies.ts";
import { Client } from "./client.ts";
import { AGENT_KEY } from "./fuzz_servers.ts";
import { MODEL_BODIES, REWARD_BODIES, toModelRequest } from "./model_bodies.ts";
import { ANYWHERE, type Hostile } from "./requests.ts";

const KEY = "tml-attacked";
/** Longest time that one request may keep all others waiting. */
const MOST_STALL_MS = 250;
const MOST_RSS_BYTES = 900 * 2 ** 20;

const SERVERS: readonly Kind[] = ["tinker", "keyed", "view", "gateway", "openai", "rewards", "demo"];
const HEALTH: Partial<Record<Kind, string>> = {
  view: "/data.json",
  gateway: "/health",
  openai: "/health",
  rewards: "/health",
  demo: "/",
};

describe.each(SERVERS)("%s", (kind) => {
  let target: Attacked;
  let known: Known;
  beforeAll(async () => {
    target = await attack(kind);
    if (kind === "tinker") known = await new Client(target.url).open();
  });
  afterAll(() => target?.close());

  const isAlive = async () => {
    expect([target.ended(), target.errors()]).toEqual([undefined, ""]);
    const headers = { authorization: `Bearer ${TOKEN}` };
    const health = await fetch(`${target.url}${HEALTH[kind] ?? "/api/v1/healthz"}`, { headers });
    expect(health.status).toBe(200);
  };

  async function endure(request: Hostile): Promise<void> {
    const { statuses, text, closed } = await sendRaw(target.url, request.pieces(), request);
    // An answer, or none because the connection was ended; never a connection that stays open without one.
    const answers = statuses.length > 0 ? statuses : [closed ? 0 : -1];
    for (const status of answers) expect(request.statuses, text.slice(0, 500)).toContain(status);
    expect(text).not.toMatch(/\n\s+at |\/src\/|node_modules/);
    await isAlive();
    const { stallMs, rssBytes } = await target.measure();
    expect(stallMs, "ms that the event loop stood").toBeLessThan(MOST_STALL_MS);
    expect(rssBytes).toBeLessThan(MOST_RSS_BYTES);
  }

  test.each(ANYWHERE.map((request) => [request.name, request] as const))("%s", async (_, request) => {
    await endure(request);
  });

  if (kind === "gateway" || kind === "openai")
    test.each(MODEL_BODIES.map((row) => [row[0], row] as const))("%s", async (_, row) => {
      await endure(toModelRequest(row, AGENT_KEY));
    });

  if (kind === "rewards")
    test.each(REWARD_BODIES.map((row) => [row[0], row] as const))("%s", async (_, row) => {
      await endure(toModelRequest(row, TOKEN));
    });

  if (kind === "tinker") {
    const named = (name: RegExp) => BODIES.filter(([it]) => name.test(it)).map((row) => toRequest(row, known).pieces());

    test.each(BODIES.map((row) => [row[0], row] as const))("%s", async (_, row) => {
      await endure(toRequest(row, known));
    });

    test("others are answered while bodies of the largest size arrive", async () => {
      const large = named(/30 MB|20 M|5 M empty|32 MB/);
      const done = Promise.all(large.map((pieces) => sendRaw(target.url, pieces)));
      const latencies: number[] = [];
      let isDone = false;
      void done.then(() => {
        isDone = true;
      });
      while (!isDone) {
        const started = performance.now();
        await fetch(`${target.url}/api/v1/healthz`);
        latencies.push(performance.now() - started);
      }
      expect((await target.measure()).stallMs).toBeLessThan(MOST_STALL_MS);
      expect(latencies.length).toBeGreaterThan(3);
    });

    test("bodies that arrive at once hold a bounded amount of memory, and those refused come again later", async () => {
      const [largest] = named(/30 MB/);
      const answers = await Promise.all(Array.from({ length: 10 }, () => sendRaw(target.url, largest!)));
      const statuses = answers.flatMap((it) => it.statuses);
      expect(statuses).toContain(200);
      // 408: on a machine that is busy otherwise.
      expect(statuses.filter((status) => ![200, 408, 429].includes(status))).toEqual([]);
      for (const { statuses, text } of answers)
        if (statuses.includes(429)) expect(text.toLowerCase()).toContain("retry-after: 1");
      const { rssBytes } = await target.measure();
      expect(rssBytes).toBeLessThan(MOST_RSS_BYTES);
      await isAlive();
    });
  }

  if (kind === "keyed") {
    test("a body of 200 MB without the key is not kept", async () => {
      await target.measure();
      const head = "POST /api/v1/forward_backward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n";
      const { statuses } = await sendRaw(target.url, [head, Buffer.alloc(200_000_000)]);
      expect([[401], []]).toContainEqual(statuses);
      expect((await target.measure()).rssBytes).toBeLessThan(300 * 2 ** 20);
      await isAlive();
    });

    test.each([
      [{}, 401],
      [{ "x-api-key": "" }, 401],
      [{ "x-api-key": `${KEY}x` }, 401],
      [{ "x-api-key": KEY.slice(0, -1) }, 401],
      [{ "x-api-key": `wrong, ${KEY}` }, 401],
      [{ authorization: `Basic ${KEY}` }, 401],
      [{ "x-api-key": KEY }, 200],
    ])("the headers %j at every route: %i", async (headers, status) => {
      for (const path of ["", "/metrics", "/api/v1/checkpoints", "/api/v1/sessions", "/api/v1/training_runs"])
        expect((await fetch(`${target.url}${path}`, { headers })).status, path).toBe(status);
      const post = {
        method: "POST",
        headers: { ...headers, "content-type": "application/json" },
        body: "{}",
      };
      expect((await fetch(`${target.url}/api/v1/client/config`, post)).status).toBe(status);
    });
  }
});
