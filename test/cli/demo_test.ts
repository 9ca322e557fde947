/** The server of `grpu demo`. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { serveDemo } from "../../src/cli/process/demo_server.ts";
import type { Listening } from "../../src/leaves/http/listen.ts";
import { grpu } from "../fixtures/cli.ts";

describe("grpu demo", () => {
  let server: Listening;
  beforeAll(async () => {
    server = await serveDemo({ host: "127.0.0.1", port: 0 });
  });
  afterAll(() => server.close());

  const FILES: [path: string, type: string, holds: string][] = [
    ["/", "text/html", "main.js"],
    ["/index.html", "text/html", "main.js"],
    ["/main.js", "text/javascript", "worker.js"],
    ["/worker.js", "text/javascript", "guess_digit"],
    ["/style.css", "text/css", ".attempts"],
  ];
  test.each(FILES)("serves %s", async (path, type, holds) => {
    const answer = await fetch(server.url + path);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toContain(type);
    expect(answer.headers.get("content-security-policy")).toMatch(/default-src 'none'; script-src 'self'; worker-src/);
    expect(await answer.text()).toContain(holds);
  });

  test.each([
    ["GET", "/../package.json", 404],
    ["GET", "/run.yaml", 404],
    ["POST", "/", 405],
  ])("%s %s is refused", async (method, path, status) => {
    expect((await fetch(server.url + path, { method })).status).toBe(status);
  });

  test("a page of another site gets nothing", async () => {
    const answer = await fetch(server.url, { headers: { origin: "https://evil.example" } });
    expect(answer.status).toBe(403);
  });

  test("refuses a port that is none", async () => {
    const { code, err } = await grpu(["demo", "--port", "70000"]);
    expect(code).not.toBe(0);
    expect(err).toContain("--port");
  });
});
