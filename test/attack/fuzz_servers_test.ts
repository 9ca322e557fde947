/** Thousands of random requests at each server, which has a process of its own: it lives, answers documented errors, never stands still, and tells no key. */
import { Agent } from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TOKEN } from "../fixtures/cluster.ts";
import { type Attacked, attack, sendRaw } from "./attacked.ts";
import { ADMIN_TOKEN, AGENT_KEY, type FuzzedKind, faultIn, randomRequest, SURFACES, sendFor } from "./fuzz_servers.ts";
import { Chance } from "./mutate.ts";

const AT_ONCE = 8;
/** Requests between two looks at the process. */
const BATCH = 500;
const MOST_RSS_BYTES = 900 * 2 ** 20;
const MOST_STALL_MS = 250;
const FIRST_SEED = Number(process.env.FIRST_SEED ?? 1);
const MORE = Number(process.env.FUZZ_TIMES ?? 1);

/** Statuses that the cases must reach. */
const KINDS: readonly [FuzzedKind, number, readonly number[]][] = [
  ["gateway", 6000, [200, 400, 401, 403, 404, 409, 410]],
  ["openai", 4000, [200, 400, 401, 403, 404]],
  ["rewards", 3000, [200, 401, 404, 422]],
  ["demo", 1000, [200, 404]],
];

describe.each(KINDS)("%s", (kind, cases, expected) => {
  let target: Attacked;
  beforeAll(async () => {
    target = await attack(kind);
  });
  afterAll(() => target?.close());

  test(`${cases * MORE} random requests`, async () => {
    const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE });
    const faults: string[] = [];
    const statuses = new Map<number, number>();
    const send = async (n: number) => {
      const of = randomRequest(SURFACES[kind], new Chance(FIRST_SEED, n));
      const answer = await sendFor(target.url, { agent, of });
      statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1);
      const fault = faultIn(answer, of);
      if (fault)
        faults.push(`request ${n}: ${of.method} ${of.path.slice(0, 100)} ${String(of.body).slice(0, 300)}: ${fault}`);
    };
    for (let first = 0; first < cases * MORE; first += BATCH) {
      let next = first;
      const worker = async () => {
        for (let n = next++; n < first + BATCH; n = next++) await send(n);
      };
      await Promise.all(Array.from({ length: AT_ONCE }, worker));
      const { stallMs, rssBytes } = await target.measure();
      const range = `requests ${first} to ${first + BATCH - 1}`;
      if (stallMs > MOST_STALL_MS) faults.push(`${range}: the event loop stood for ${stallMs.toFixed()} ms`);
      expect(rssBytes, range).toBeLessThan(MOST_RSS_BYTES);
    }
    agent.destroy();
    expect(faults).toEqual([]);
    for (const status of expected) expect(statuses.get(status) ?? 0, String(status)).toBeGreaterThan(20);
    expect([target.ended(), target.errors()]).toEqual([undefined, ""]);
    const headers = { authorization: `Bearer ${kind === "rewards" ? TOKEN : AGENT_KEY}` };
    expect((await fetch(`${target.url}/${kind === "demo" ? "" : "health"}`, { headers })).status).toBe(200);
    if (kind === "gateway") expect(await forgedSessions(target)).toEqual([]);
  }, 600_000);

  if (kind === "gateway" || kind === "openai") halfRequests(() => target);
});

/** Ids of sessions that forge a line or climb in a path. */
async function forgedSessions({ url }: Attacked): Promise<string[]> {
  const listed = await fetch(`${url}/sessions`, { headers: { authorization: `Bearer ${ADMIN_TOKEN}` } });
  const ids = ((await listed.json()) as { session_id: string }[]).map(({ session_id }) => session_id);
  expect(ids.length).toBeGreaterThan(20);
  return ids.filter((id) => /[\p{Cc}\p{Zl}\p{Zp}]|(^|\/)\.{1,2}(\/|$)/u.test(id));
}

function halfRequests(targetOf: () => Attacked): void {
  const isAlive = async () => {
    const { url, ended, errors } = targetOf();
    expect([ended(), errors()]).toEqual([undefined, ""]);
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${AGENT_KEY}` },
      body: JSON.stringify({ messages: [{ role: "user", content: "hi" }], max_tokens: 4 }),
    });
    expect(answer.status, await answer.text()).toBe(200);
  };

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
      const answer = await sendRaw(targetOf().url, pieces, { quietMs: 2000, mostMs: 60_000 });
      for (const status of answer.statuses.length > 0 ? answer.statuses : [408]) expect(statuses).toContain(status);
      await isAlive();
    });
  });
}
