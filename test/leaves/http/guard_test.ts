import { createHash } from "node:crypto";
import { describe, expect, test } from "vitest";
import { guardHandler, type RequestGuardOptions } from "../../../src/leaves/http/guard.ts";
import { areEqual, keyIn } from "../../../src/leaves/http/key.ts";
import { checkOriginName, isHostName, isLoopback } from "../../../src/leaves/http/origin.ts";
import { Refusal, refusalResponse } from "../../../src/leaves/http/refusal.ts";

const GUARD: RequestGuardOptions = {
  site: { host: "127.0.0.1", names: ["box.local"], origins: ["https://app.example"] },
  methods: ["GET", "POST"],
  headers: ["X-API-Key"],
};

/** The answer to a request with these headers. */
async function ask(headers: Record<string, string>, more: Partial<RequestGuardOptions> & { method?: string } = {}) {
  const { method = "GET", ...options } = more;
  const handler = guardHandler(() => new Response("fine"), { ...GUARD, ...options });
  return handler(new Request("http://localhost:8000/x", { method, headers }));
}

describe("a keyless server on loopback", () => {
  test.each([
    ["127.0.0.1:8000", 200],
    ["127.8.8.8", 200],
    ["localhost:1", 200],
    ["LOCALHOST", 200],
    ["[::1]:8000", 200],
    ["app.localhost", 200],
    ["box.local:99", 200],
    ["evil.example:8000", 403],
    ["192.168.0.7", 403],
    ["localhost.evil.example", 403],
    ["127.0.0.1.evil.example", 403],
    ["127.evil.example", 403],
    ["evil.example@localhost", 403],
    ["localhost, evil.example", 403],
    ["[::1", 403],
    ["", 403],
  ])("answers for the host %j: %i", async (host, status) => {
    expect((await ask({ host })).status).toBe(status);
  });

  test.each<[string, Record<string, string>, number]>([
    ["a client without a page", {}, 200],
    ["its own page", { origin: "http://localhost:8000" }, 200],
    ["its own page behind TLS", { host: "box.local", origin: "https://box.local" }, 200],
    ["a named page", { origin: "https://app.example" }, 200],
    ["a named page's neighbour", { origin: "https://app.example.evil.example" }, 403],
    ["a named page without TLS", { origin: "http://app.example" }, 403],
    ["another port of this machine", { origin: "http://localhost:3000" }, 403],
    ["a page without an origin", { origin: "null" }, 403],
    ["an image on another site", { "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors" }, 403],
    ["an image on another port", { "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors" }, 403],
    ["its own image", { "sec-fetch-site": "same-origin", "sec-fetch-mode": "no-cors" }, 200],
    ["a followed link", { "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate" }, 200],
    ["a typed address", { "sec-fetch-site": "none", "sec-fetch-mode": "navigate" }, 200],
  ])("answers %s: %#", async (_, headers, status) => {
    expect((await ask(headers)).status).toBe(status);
  });

  test("a form of another site does not count as a link", async () => {
    const headers = { "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate" };
    expect((await ask(headers, { method: "POST" })).status).toBe(403);
  });

  test("beyond loopback, any numeric address is answered and no other name", async () => {
    const site = { ...GUARD.site, host: "0.0.0.0" };
    for (const host of ["192.168.0.7:8000", "[fe80::1]", "localhost"])
      expect((await ask({ host }, { site })).status).toBe(200);
    expect((await ask({ host: "evil.example" }, { site })).status).toBe(403);
    expect((await ask({ host: "gpu.lan" }, { site: { ...site, host: "gpu.lan" } })).status).toBe(200);
  });
});

describe("CORS", () => {
  const preflight = (origin: string) =>
    ask({ origin, "access-control-request-method": "DELETE" }, { method: "OPTIONS", apiKey: "tml-key" });

  test("a preflight of a listed page gets methods and headers, and the page may read answers", async () => {
    const answer = await preflight("https://app.example");
    expect([answer.status, answer.headers.get("access-control-allow-methods")]).toEqual([204, "GET, POST"]);
    expect(answer.headers.get("access-control-allow-headers")).toBe("X-API-Key");
    expect(answer.headers.get("access-control-allow-private-network")).toBe("true");
    expect(answer.headers.get("access-control-allow-origin")).toBe("https://app.example");
  });

  test("a preflight of another page is refused without naming an origin", async () => {
    const answer = await preflight("https://evil.example");
    expect([answer.status, answer.headers.get("access-control-allow-origin")]).toEqual([403, null]);
    expect((await ask({})).headers.get("access-control-allow-origin")).toBeNull();
  });

  test.each([
    "*",
    "app.example",
    "https://app.example/",
    "https://app.example/x",
    "file:///x",
    "null",
    "ftp://app.example",
  ])("%j is no origin", (origin) => expect(() => checkOriginName(origin)).toThrow(/Cannot allow the origin/));
});

test.each<[headers: Record<string, string>, query: string, key: string | undefined]>([
  [{ "x-api-key": "a", authorization: "Bearer b" }, "?key=c", "a"],
  [{ authorization: "Bearer b" }, "?key=c", "b"],
  [{ authorization: "bearer   b" }, "", "b"],
  [{ authorization: "the bearer b" }, "", "the bearer b"],
  [{}, "?key=c", "c"],
  [{}, "", undefined],
])("the key of %j and %j is %j", (headers, query, key) => {
  const request = new Request(`http://localhost/${query}`, { headers });
  expect(keyIn(request, { allowsQuery: true })).toBe(key);
  expect(keyIn(request, { allowsQuery: false })).toBe(key === "c" ? undefined : key);
});

test.each([
  [429, undefined, "1"],
  [503, undefined, "1"],
  [429, 30, "30"],
  [410, 5, "5"],
  [404, undefined, null],
])("a refusal of %i, to be tried again after %j s, answers Retry-After %j", async (status, retryAfter, header) => {
  const answer = refusalResponse(new Refusal(status, "Cannot.", { retryAfter }));
  expect([answer.status, answer.headers.get("retry-after")]).toEqual([status, header]);
  expect(await answer.json()).toEqual({ detail: "Cannot." });
});

test.each([
  ["127.0.0.1", true],
  ["::1", true],
  ["localhost", true],
  ["0.0.0.0", false],
  ["127.evil.example", false],
  ["::", false],
])("isLoopback(%j) is %j", (host, is) => expect(isLoopback(host)).toBe(is));

test.each([
  ["a.example", true],
  ["[::1]", true],
  ["a.example:80", false],
  ["a b", false],
  ["", false],
])("isHostName(%j) is %j", (name, is) => expect(isHostName(name)).toBe(is));

describe("the key", () => {
  const apiKey = "tml-secret";
  const digest = (key: string) => createHash("sha256").update(key).digest();

  test("a key whose digest agrees with the right one in any single byte is refused", async () => {
    const right = digest(apiKey);
    for (let at = 0; at < 32; at++) {
      let n = 0;
      while (digest(`tml-${n}`)[at] !== right[at]) n++;
      expect((await ask({ "x-api-key": `tml-${n}` }, { apiKey })).status, `byte ${at}`).toBe(401);
    }
  });

  test("digests that differ in a single bit of any byte are not equal", () => {
    const right = digest(apiKey);
    expect(areEqual(right, Uint8Array.from(right))).toBe(true);
    expect(areEqual(right, right.subarray(1))).toBe(false);
    for (let bit = 0; bit < 256; bit++) {
      const wrong = Uint8Array.from(right);
      wrong[bit >> 3]! ^= 1 << (bit & 7);
      expect(areEqual(right, wrong), `bit ${bit}`).toBe(false);
    }
  });

  test("the header counts; a key in the query counts only for pages", async () => {
    const handler = guardHandler(() => new Response(), { ...GUARD, apiKey, queryKey: /^\/$/, open: /^\/open$/ });
    const status = async (path: string, headers = {}) =>
      (await handler(new Request(`http://localhost${path}`, { headers }))).status;
    expect(await status("/x", { "x-api-key": apiKey })).toBe(200);
    expect(await status("/x", { authorization: `Bearer ${apiKey}` })).toBe(200);
    expect(await status("/x", { "x-api-key": "wrong", authorization: `Bearer ${apiKey}` })).toBe(401);
    expect(await status(`/x?key=${apiKey}`)).toBe(401);
    expect(await status(`/?key=${apiKey}`)).toBe(200);
    expect(await status("/open")).toBe(200);
    expect(await status("/open/x")).toBe(401);
  });
});

test("every answer carries the security headers, and a failure does not reveal its cause", async () => {
  const broken = guardHandler(() => {
    throw new Error("/etc/secret");
  }, GUARD);
  const answers = [await ask({}), await ask({ host: "evil.example" }), await broken(new Request("http://localhost/"))];
  expect(answers.map(({ status }) => status)).toEqual([200, 403, 500]);
  for (const { headers } of answers)
    expect(Object.fromEntries(headers)).toMatchObject({
      "content-security-policy": expect.stringContaining("frame-ancestors 'none'"),
      "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer",
      "cross-origin-resource-policy": "same-origin",
    });
  expect(await answers[2]!.text()).not.toMatch(/secret|\n\s+at /);
});
