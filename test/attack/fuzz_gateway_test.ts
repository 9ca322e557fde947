/** 10,000 random requests at a gateway in a process of its own: it lives, answers documented errors, and tells no key. */
import { Agent } from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Attacked, attack, sendRaw } from "./attacked.ts";
import { ADMIN_TOKEN, AGENT_KEY, faultIn, fuzzGatewayRequest, sendFor } from "./fuzz_gateway.ts";
import { Chance } from "./mutate.ts";

const CASES = 10_000;
const AT_ONCE = 8;
const MOST_RSS_BYTES = 900 * 2 ** 20;

let target: Attacked;
beforeAll(async () => {
  target = await attack("gateway");
});
afterAll(() => target?.close());

const isAlive = async () => {
  expect([target.ended(), target.errors()]).toEqual([undefined, ""]);
  const answer = await fetch(`${target.url}/sessions/alive/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${AGENT_KEY}` },
    body: JSON.stringify({ messages: [{ role: "user", content: "hi" }], max_tokens: 4 }),
  });
  expect(answer.status, await answer.text()).toBe(200);
};

test(`${CASES} random requests`, async () => {
  const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE });
  const faults: string[] = [];
  const statuses = new Map<number, number>();
  let next = 0;
  const worker = async () => {
    for (let n = next++; n < CASES; n = next++) {
      const of = fuzzGatewayRequest(new Chance(1, n));
      const answer = await sendFor(target.url, { agent, of });
      statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1);
      const fault = faultIn(answer, of);
      if (fault)
        faults.push(`request ${n}: ${of.method} ${of.path.slice(0, 100)} ${String(of.body).slice(0, 300)}: ${fault}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  agent.destroy();
  expect(faults).toEqual([]);
  // The cases reach the models, the checks and the routes.
  for (const status of [200, 400, 401, 403, 404, 409, 410])
    expect(statuses.get(status) ?? 0, String(status)).toBeGreaterThan(20);
  const listed = await fetch(`${target.url}/sessions`, { headers: { authorization: `Bearer ${ADMIN_TOKEN}` } });
  const ids = ((await listed.json()) as { session_id: string }[]).map(({ session_id }) => session_id);
  expect(ids.length).toBeGreaterThan(20);
  // No call created a session whose id forges a line or climbs in a path.
  expect(ids.filter((id) => /[\p{Cc}\p{Zl}\p{Zp}]|(^|\/)\.{1,2}(\/|$)/u.test(id))).toEqual([]);
  expect((await target.measure()).rssBytes).toBeLessThan(MOST_RSS_BYTES);
  await isAlive();
}, 600_000);

describe("half a request", () => {
  const head = (more: string) =>
    `POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${AGENT_KEY}\r\nContent-Type: application/json\r\n${more}`;
  const body = JSON.stringify({ messages: [{ role: "user", content: "hi" }], stream: true, max_tokens: 1000 });

  test.each<[string, readonly string[], readonly number[]]>([
    ["a body larger than the limit", [`${head("Content-Length: 34000000")}\r\n\r\n{`, " ".repeat(33_999_999)], [413]],
    ["a body that never comes", [`${head("Content-Length: 100")}\r\n\r\n`], [408]],
    ["a chunked body without an end", [`${head("Transfer-Encoding: chunked")}\r\n\r\n5\r\n{"a":`], [408]],
    ["a stream that is closed at once", [`${head(`Content-Length: ${body.length}`)}\r\n\r\n${body}`], [200]],
    [
      "a session's path that climbs",
      ["GET /sessions/../admin/workers HTTP/1.1\r\nHost: localhost\r\n\r\n"],
      [401, 404],
    ],
    [
      "an encoded path that climbs",
      ["GET /sessions/%2e%2e/admin/workers HTTP/1.1\r\nHost: localhost\r\n\r\n"],
      [401, 404],
    ],
  ])("%s", async (_, pieces, statuses) => {
    const answer = await sendRaw(target.url, pieces, { quietMs: 2000, mostMs: 60_000 });
    for (const status of answer.statuses.length > 0 ? answer.statuses : [408]) expect(statuses).toContain(status);
    await isAlive();
  });
});
