/** A page of another site, in headless Chromium, against servers without a key on this machine. */
import { existsSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { type Browser, chromium, type Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Attacked, attack } from "./attacked.ts";
import { Client } from "./client.ts";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
if (!CHROMIUM) console.warn("the test of another site's page is skipped: no Chromium");

/** Whatever a page can send, in the page. */
const TRIES = `async ({ base, path }) => {
  const create = base + "/api/v1/create_session";
  const tries = [
    [path, { method: "DELETE" }],
    [path, { method: "DELETE", mode: "no-cors" }],
    [path + "/publish", { method: "POST", mode: "no-cors" }],
    [create, { method: "POST", body: "{}", mode: "no-cors" }],
    [create, { method: "POST", body: new Blob(["{}"]), mode: "no-cors" }],
    [create, { method: "POST", body: "{}", headers: { "content-type": "application/json" } }],
  ];
  for (const [url, init] of tries) await fetch(url, init).catch(() => {});
  navigator.sendBeacon(create, "{}");
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.name = "target";
  const form = document.body.appendChild(document.createElement("form"));
  Object.assign(form, { method: "POST", enctype: "text/plain", action: create, target: "target" });
  const field = form.appendChild(document.createElement("input"));
  Object.assign(field, { name: '{"tags":["', value: '"]}' });
  form.submit();
  await new Promise((wake) => setTimeout(wake, 500));
}`;

/** What a page can read of a frame that it opens. */
const FRAME = `async (src) => {
  const frame = document.body.appendChild(document.createElement("iframe"));
  const loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
  frame.src = src;
  await loaded;
  try {
    return frame.contentDocument?.body.textContent ?? "another origin";
  } catch {
    return "another origin";
  }
}`;

describe.skipIf(!CHROMIUM || "Deno" in globalThis)("in headless Chromium", () => {
  let browser: Browser;
  let site: Server;
  let page: Page;
  let tinker: Attacked;
  let view: Attacked;
  let run: string;

  beforeAll(async () => {
    [tinker, view] = await Promise.all([attack("tinker"), attack("view")]);
    const client = new Client(tinker.url);
    const { model } = await client.open();
    await client.result("save_weights", { model_id: model, seq_id: 1, path: "kept" });
    run = model;
    site = createServer((_, response) => response.setHeader("content-type", "text/html").end("<title>evil</title>"));
    await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
    // The other site has a name of its own, and one that points at the servers (DNS rebinding).
    const args = ["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"];
    browser = await chromium.launch({ executablePath: CHROMIUM!, args });
    page = await browser.newPage();
    await page.goto(`http://evil.example:${(site.address() as AddressInfo).port}/`);
  });
  afterAll(async () => {
    await browser?.close();
    site?.close();
    await Promise.all([tinker?.close(), view?.close()]);
  });

  const servers = () => ({ tinker: tinker.url, view: view.url });
  const checkpoints = async () =>
    ((await (await fetch(`${tinker.url}/api/v1/checkpoints`)).json()) as { checkpoints: unknown[] }).checkpoints.length;

  test("nothing is read: neither data, nor pages, nor whether there is a server", async () => {
    const { tinker, view } = servers();
    const urls = [`${tinker}/`, `${tinker}/metrics`, `${tinker}/api/v1/checkpoints`, `${tinker}/api/v1/healthz`];
    const read = await page.evaluate(
      (all) => Promise.all(all.map((url) => fetch(url).then((it) => it.text(), String))),
      [...urls, `${view}/`, `${view}/data.json`, `${view}/events`],
    );
    for (const text of read) expect(text).toMatch(/Failed to fetch/);
    const opaque = await page.evaluate(
      (url) => fetch(url, { mode: "no-cors" }).then((it) => it.type, String),
      `${tinker}/api/v1/checkpoints`,
    );
    expect(opaque).toMatch(/Failed to fetch|opaque/);
  });

  test("nothing is changed: no form, no simple post, no method that asks first", async () => {
    const { tinker } = servers();
    const path = `${tinker}/api/v1/training_runs/${run}/checkpoints/weights/kept`;
    const sessions = async () =>
      ((await (await fetch(`${tinker}/api/v1/sessions`)).json()) as { sessions: unknown[] }).sessions.length;
    const before = await sessions();
    await page.evaluate(`(${TRIES})(${JSON.stringify({ base: tinker, path })})`);
    expect(await checkpoints()).toBe(1);
    expect(await sessions()).toBe(before);
    const listed = await (await fetch(`${tinker}/api/v1/checkpoints`)).json();
    expect(listed).toMatchObject({ checkpoints: [{ public: false }] });
  });

  test("no page of theirs is shown in a frame, and no other name for this machine is answered", async () => {
    for (const url of Object.values(servers())) {
      const text = await page.evaluate(`(${FRAME})(${JSON.stringify(url)})`);
      expect(text).toBe("another origin");
      const frame = page.frames().at(-1);
      expect(frame?.url()).not.toBe(`${url}/`);
      const rebound = await browser.newPage();
      const answer = await rebound.goto(url.replace("127.0.0.1", "evil.example"));
      expect(answer?.status()).toBe(403);
      await rebound.close();
    }
  });

  test("the servers' own pages work under their policies", async () => {
    for (const url of Object.values(servers())) {
      const own = await browser.newPage();
      const faults: string[] = [];
      own.on("pageerror", (error) => faults.push(error.message));
      own.on("console", (message) => {
        if (message.type() === "error") faults.push(message.text());
      });
      await own.goto(url);
      await own.waitForTimeout(2500);
      expect(faults).toEqual([]);
      expect(await own.textContent("main")).toMatch(/live|running/);
      await own.close();
    }
  });
});
