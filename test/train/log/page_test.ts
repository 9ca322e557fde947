/** The page of runs in headless Chromium, as a person meets it. */
import { appendFileSync, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Browser, chromium, type Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { renderPage } from "../../../src/train/log/page/render.ts";
import { RunFolder } from "../../../src/train/log/page/run_folder.ts";
import { serveRuns } from "../../../src/train/log/page/view_server.ts";
import { someMetrics, type WrittenRun, writeRun } from "../../fixtures/run_folder.ts";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
if (!CHROMIUM) console.warn("the page's test is skipped: no Chromium");

describe.skipIf(!CHROMIUM || "Deno" in globalThis)("in headless Chromium", () => {
  let dir: string;
  let browser: Browser;
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), "grpu-page-"));
    browser = await chromium.launch({ executablePath: CHROMIUM!, args: ["--no-sandbox"] });
  });
  afterAll(async () => {
    await browser?.close();
    rmSync(dir, { recursive: true, force: true });
  });

  /** A page on which nothing went wrong and nothing was asked of any network. */
  async function open(url: string, options: { width?: number; colorScheme?: "light" | "dark" } = {}) {
    const { width = 1200, colorScheme = "light" } = options;
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
    const faults: string[] = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("request", (request) => {
      if (!request.url().startsWith(new URL("/", url).href) && !request.url().startsWith("data:"))
        faults.push(request.url());
    });
    await page.goto(url);
    return { page, faults };
  }

  function written(name: string, run: WrittenRun): RunFolder {
    const settingsOf = (text: string) => ({ "training.seed": text.trim() });
    const folder = new RunFolder(writeRun(join(dir, name), run), { settingsOf, name });
    folder.poll();
    return folder;
  }

  function saved(name: string, folders: readonly RunFolder[]): string {
    const file = join(dir, `${name}.html`);
    writeFileSync(file, renderPage(folders.map((folder) => folder.data())));
    return `file://${file}`;
  }

  const texts = (page: Page, selector: string) => page.locator(selector).allInnerTexts();

  test("one run: figures, curves, groups, filters, staleness and samples", async () => {
    const sample = (step: number, response: string) => ({
      step,
      task: "t",
      prompt: "<b>1+1</b>",
      response,
      reward: step && 1,
      is_correct: step > 0,
    });
    const run = written("one", {
      metrics: someMetrics(40),
      samples: [sample(0, "3"), sample(40, "2")],
      groups: [
        { step: 1, groups: [{ task: "a", name: "adder", rewards: [0, 0], solved: 0 }] },
        { step: 40, groups: [{ task: "b", name: "adder", rewards: [1, 0, null], solved: 1 }] },
      ],
      facts: { title: "Sums", subtitle: "adding", total_steps: 50, ended: "x", complete: false },
    });
    const { page, faults } = await open(saved("one", [run]));
    expect(await texts(page, "h1")).toEqual(["Sums"]);
    expect(await texts(page, ".badge")).toEqual(["stopped"]);
    expect((await texts(page, ".tile")).join(" ")).toMatch(/0\.25.*→.*0\.75.*validation accuracy.*40 \/ 50/s);
    expect(await texts(page, "h2")).toEqual([
      "Training",
      "Groups",
      "Filters",
      "Staleness",
      "Warm-up",
      "What it says",
      "More",
    ]);
    const drawn = await texts(page, ".chart h3");
    for (const title of ["Reward", "Validation accuracy", "Entropy", "Staleness", "Cross-entropy"])
      expect(drawn).toContain(title);
    expect(await page.locator(".chart canvas").count()).toBe(drawn.length);
    expect((await texts(page, "section:has(h2:text('Filters')) tbody")).join()).toMatch(
      /Groups of equal rewards groups\s+120\s+25%/,
    );
    expect(await texts(page, ".samples td")).toEqual(
      ["<b>1+1</b>", "3\n0", "2\n1"].map((it) => expect.stringContaining(it.split("\n")[0]!)),
    );
    expect(await texts(page, ".strip .sum")).toEqual(["1 of 3"]);
    await page.locator(".groups input").fill("0");
    expect(await texts(page, ".strip .sum")).toEqual(["0 of 2"]);
    await page.locator("summary").first().click();
    await page.locator("input[type=search]").fill("staleness");
    await expect.poll(() => texts(page, "details .chart code")).toEqual(["async/staleness_mean"]);
    expect(faults).toEqual([]);
    await page.close();
  });

  test("values are read by pointer and by keyboard, and every curve has a label", async () => {
    const { page, faults } = await open(saved("keys", [written("keys", { metrics: someMetrics(40) })]));
    const plot = page.locator(".plot").first();
    expect(await plot.getAttribute("aria-label")).toMatch(/^Reward, from 0\.025 to 1, between 0\.025 and 1\./);
    await plot.focus();
    for (const [key, told] of [
      ["ArrowLeft", "step 40: 1"],
      ["ArrowLeft", "step 39: 0.975"],
      ["Home", "step 1: 0.025"],
    ]) {
      await page.keyboard.press(key!);
      await expect.poll(() => page.locator("#said").textContent()).toBe(told);
    }
    const over = (await page.locator(".plot .u-over").first().boundingBox())!;
    await page.mouse.move(over.x + over.width - 2, over.y + 30);
    await expect.poll(() => texts(page, ".tip")).toEqual([expect.stringMatching(/step 40\s*1/)]);
    expect(faults).toEqual([]);
    await page.close();
  });

  test("runs side by side: of different lengths, unfinished, without a metric or a step", async () => {
    const short = someMetrics(10).map(({ "actor/entropy": _, ...line }) => line) as ReturnType<typeof someMetrics>;
    const runs = [
      written("long", { metrics: someMetrics(40), config: "1", facts: { ended: "x", complete: true } }),
      written("short", { metrics: short, config: "2" }),
      written("empty", { config: "3" }),
    ];
    const { page, faults } = await open(saved("many", runs));
    const figures = page.locator("section:has(h2:text('Final figures')) tr");
    expect(await figures.filter({ hasText: "training steps" }).locator("td").allInnerTexts()).toEqual([
      "40",
      "10",
      "0",
    ]);
    expect(await figures.filter({ hasText: "actor/entropy" }).locator("td").allInnerTexts()).toEqual([
      "0.025",
      "–",
      "–",
    ]);
    expect(await texts(page, "section:has(h2:text('Differing settings')) tbody td")).toEqual(["1", "2", "3"]);
    expect(await page.locator(".plot").first().getAttribute("aria-label")).toMatch(/long: from.*; short: from/);
    await page.locator(".legend button", { hasText: "long" }).click();
    expect(await page.locator(".plot").first().getAttribute("aria-label")).not.toContain("long");
    expect(faults).toEqual([]);
    await page.close();
  });

  test.each(["light", "dark"] as const)("on a phone nothing is wider than the screen (%s)", async (colorScheme) => {
    const runs = ["a", "b"].map((name) =>
      written(`${name}-${colorScheme}`, { metrics: someMetrics(30), config: name }),
    );
    const { page, faults } = await open(saved(colorScheme, runs), { width: 360, colorScheme });
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(360);
    const background = await page.evaluate("getComputedStyle(document.body).backgroundColor");
    expect(background).toBe(colorScheme === "dark" ? "rgb(20, 23, 28)" : "rgb(246, 246, 244)");
    expect(faults).toEqual([]);
    await page.close();
  });

  test("served live, the page follows the files by itself and says when its server is gone", async () => {
    const run = written("live", { facts: { title: "Live", subtitle: "", total_steps: 9 } });
    const server = await serveRuns([run], { host: "127.0.0.1", port: 0 });
    const { page, faults } = await open(server.url);
    try {
      expect(await texts(page, ".nothing")).toEqual([expect.stringContaining("Nothing was measured yet")]);
      appendFileSync(
        join(run.dir, "metrics.jsonl"),
        '{"phase":"train","step":1,"reward/adder/mean":0.5,"training/global_step":1}\n',
      );
      await expect.poll(() => texts(page, ".tile b"), { timeout: 10_000 }).toContain("1 / 9");
      expect(await texts(page, ".badge")).toEqual(["running"]);
    } finally {
      await server.close();
    }
    await expect.poll(() => texts(page, ".badge.lost"), { timeout: 10_000 }).toEqual(["no longer live"]);
    expect(faults).toEqual([]);
    await page.close();
  });
});
