/** The server of a run's page: what each address answers, and how many pages follow at once. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { RunFolder } from "../../../src/train/log/page/run_folder.ts";
import { serveRuns, type ViewServer } from "../../../src/train/log/page/view_server.ts";

let server: ViewServer;
let changes: number;
let polls: number;

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  [changes, polls] = [0, 0];
  const run = {
    poll: () => {
      polls++;
      return changes;
    },
    data: () => ({ name: "a", title: "<a>", curves: {} }),
  } as unknown as RunFolder;
  server = await serveRuns([run, run], { host: "127.0.0.1", port: 0, allowedHosts: ["runs.example"] });
});
afterEach(async () => {
  await server.close();
  vi.useRealTimers();
});

const get = (path: string, init?: RequestInit) => fetch(`${server.url}${path}`, init);
const tick = () => vi.advanceTimersByTimeAsync(1000);

async function followed() {
  const response = await get("events");
  const reader = response.body!.getReader();
  const next = async () => {
    const { value, done } = await reader.read();
    return done ? undefined : new TextDecoder().decode(value);
  };
  return { response, next };
}

describe("answers", () => {
  test("the page, whose scripts alone may run", async () => {
    const response = await get("");
    expect(response.headers.get("content-type")).toBe("text/html; charset=utf-8");
    const nonce = /nonce="([^"]+)"/.exec(await response.text())![1]!;
    expect(response.headers.get("content-security-policy")).toContain(`'nonce-${nonce}'`);
    expect(/nonce="([^"]+)"/.exec(await (await get("")).text())![1]).not.toBe(nonce);
  });

  test("the data of every run, read anew", async () => {
    const before = polls;
    const response = await get("data.json");
    expect(response.headers.get("content-type")).toBe("application/json; charset=utf-8");
    expect(response.headers.get("content-security-policy") ?? "").not.toContain("nonce");
    const text = await response.text();
    expect(text).not.toContain("<");
    expect(JSON.parse(text)).toMatchObject({ live: true, runs: [{ title: "<a>" }, { title: "<a>" }] });
    expect(polls).toBe(before + 2);
  });

  test.each([
    ["other", "GET", 404, /There is no such page/],
    ["", "POST", 405, /only shows runs. Send GET/],
    ["data.json", "DELETE", 405, /only shows runs/],
  ])("/%s by %s with %i", async (path, method, status, message) => {
    const response = await get(path, { method });
    expect(response.status).toBe(status);
    expect(await response.text()).toMatch(message);
  });
});

describe("pages that follow", () => {
  test("learn of the state at once, then every second whether anything changed in any run", async () => {
    const { response, next } = await followed();
    expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
    expect(await next()).toBe("data: 0\n\n");
    await tick();
    expect(await next()).toBe(": nothing new\n\n");
    changes = 3;
    await tick();
    expect(await next()).toBe("data: 6\n\n");
    await tick();
    expect(await next()).toBe(": nothing new\n\n");
  });

  test("are the reason to look at the files: without one nobody does", async () => {
    const before = polls;
    await tick();
    expect(polls).toBe(before);
  });

  test("end with the server", async () => {
    const { next } = await followed();
    await next();
    await server.close();
    expect(await next().catch(() => undefined)).toBeUndefined();
    const before = polls;
    await tick();
    expect(polls).toBe(before);
  });
});
