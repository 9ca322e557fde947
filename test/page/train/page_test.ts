/**
 * The page that trains, in headless Chromium on a software GPU, as `grpu demo` serves it. worker_session_test.ts tests the
 * worker in Node. PAGE_TRAINING=1 adds the whole recipe of sums, which takes many minutes.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { unzipSync } from "fflate";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { serveDemo } from "../../../src/cli/process/demo_server.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { blobFolder } from "../../../src/engine/model/files/memory_folder.ts";
import { openAdapter } from "../../../src/engine/model/files/peft.ts";
import type { Listening } from "../../../src/leaves/http/listen.ts";
import { CHROMIUM, openChromium } from "../../fixtures/chromium.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";

/** The longest that one task may keep the page's thread from a person, of the thread's own time. */
const LONGEST_TASK_MS = 100;
/** The whole recipe of sums took 19 minutes on two busy cores. */
const SUMS_MS = 1_500_000;
const WAIT_MS = 240_000;
const WAIT = { timeout: WAIT_MS };
const BRIEF = "rllm.data.train_batch_size=2&rllm.rollout.n=2&rllm.trainer.total_batches=2";
const SHORT = `warmup.steps=2&${BRIEF}`;

const isLong = process.env.PAGE_TRAINING === "1";

describe.skipIf(!CHROMIUM || "Deno" in globalThis)("in headless Chromium", () => {
  let server: Listening;
  let browser: Browser;
  beforeAll(async () => {
    server = await serveDemo({ host: "127.0.0.1", port: 0 });
    browser = await openChromium();
  });
  afterAll(async () => {
    await browser?.close();
    await server?.close();
  });

  /** The page at an address, and everything that went wrong on it. */
  async function open(hash: string, { width = 1200 } = {}) {
    const page = await browser.newPage({ viewport: { width, height: 900 } });
    page.setDefaultTimeout(WAIT_MS);
    const faults: string[] = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
    page.on("request", (request) => {
      if (!/^(http:\/\/127\.0\.0\.1:\d+\/|data:|blob:)/.test(request.url())) faults.push(request.url());
    });
    await page.goto(`${server.url}/${hash === "" ? "" : `#${hash}`}`);
    // The worker has answered with the values of the settings.
    await expect.poll(() => page.inputValue("[data-path='rllm.rollout.n']"), WAIT).not.toBe("");
    return { page, faults };
  }

  const tile = (page: Page, label: string) => page.locator(".tile", { hasText: label }).locator("b").innerText();
  async function settled(page: Page) {
    const end = page.locator(".tile", { hasText: /done|ended with an error/ });
    expect(await end.innerText(), await page.locator("#part-status").innerText()).toMatch(/done/);
  }
  const lastOf = async (page: Page, label: string) => Number((await tile(page, label)).split("→").at(-1));

  /** Whether the table of answers is of the validation at or before the step that the first tile shows. */
  async function showsLastValidation(page: Page): Promise<boolean> {
    const step = Number.parseInt(await page.locator(".tile b").first().innerText(), 10);
    const heads = await page.locator(".samples th").allInnerTexts();
    return step >= 10 && heads.at(-1) === `After (step ${10 * Math.floor(step / 10)})`;
  }

  async function exported(page: Page) {
    const download = page.waitForEvent("download");
    await page.click("#export");
    const files = unzipSync(readFileSync(await (await download).path()));
    const named = Object.entries(files).map(
      ([name, bytes]) => [name.split("/")[1]!, new Blob([bytes as Uint8Array<ArrayBuffer>])] as const,
    );
    return blobFolder("exported", new Map(named));
  }

  /** Waits until the tile, which has two decimals, shows more than the reward. */
  const exceeds = (page: Page, reward: number, timeout: number) =>
    expect.poll(() => lastOf(page, "mean reward"), { timeout, interval: 500 }).toBeGreaterThan(reward);

  test(
    "digits reach a mean reward of 0.9 while the page stays responsive, and the model that it exports opens in Node",
    async () => {
      const { page, faults } = await open("");
      await browser.startTracing(page, { categories: ["toplevel", "disabled-by-default-toplevel"] });
      await page.click("#start");
      await exceeds(page, 0.9, WAIT_MS);
      const longest = longestTask(await browser.stopTracing());
      expect(longest).toBeGreaterThan(0);
      expect(longest).toBeLessThan(LONGEST_TASK_MS);
      expect(Number((await tile(page, "mean reward")).split("→")[0])).toBeLessThan(0.6);
      await expect.poll(() => showsLastValidation(page), { timeout: WAIT_MS, interval: 500 }).toBe(true);
      const { config } = await openModelFolder(await exported(page));
      expect(config.hiddenSize).toBe(64);
      expect(faults).toEqual([]);
      await page.close();
    },
    2 * WAIT_MS,
  );

  test.runIf(isLong)(
    "sums reach a mean reward of 0.9",
    async () => {
      const { page, faults } = await open("task=sums");
      await page.click("#start");
      await exceeds(page, 0.9, SUMS_MS);
      expect(faults).toEqual([]);
      await page.close();
    },
    SUMS_MS + WAIT_MS,
  );

  test(
    "two runs with settings of the address train side by side, and the address keeps what is changed",
    async () => {
      const { page, faults } = await open(
        `${SHORT}&2:rllm.algorithm.adv_estimator=rloo&${SHORT.replaceAll(/(^|&)/g, "$12:")}`,
      );
      await page.click("#start");
      await page.click("#run-1");
      await expect.poll(() => page.inputValue("[data-path='rllm.algorithm.adv_estimator']"), WAIT).toBe("rloo");
      await page.selectOption("[data-path='rllm.algorithm.loss_fn']", "cispo");
      expect(new URL(page.url()).hash).toContain("2:rllm.algorithm.loss_fn=cispo");
      await page.click("#start");
      await settled(page);
      await page.click("#run-0");
      await settled(page);
      await expect.poll(() => page.locator(".legend button").count(), WAIT).toBe(2);
      expect(faults).toEqual([]);
      await page.reload();
      await expect.poll(() => page.inputValue("[data-path='rllm.trainer.total_batches']"), WAIT).toBe("2");
      await page.click("#run-1");
      await expect.poll(() => page.inputValue("[data-path='rllm.algorithm.loss_fn']"), WAIT).toBe("cispo");
      await page.close();
    },
    2 * WAIT_MS,
  );

  test(
    "a change during training acts at a named step; pause, continue and reset do what they say",
    async () => {
      const { page, faults } = await open(SHORT.replace(/total_batches=2/, "total_batches=500"));
      await page.click("#start");
      await expect.poll(() => tile(page, "mean reward"), WAIT).not.toBe("–");
      await page.fill("[data-path='rllm.rollout.n']", "3");
      await page.press("[data-path='rllm.rollout.n']", "Enter");
      await page.locator(".changes li", { hasText: /From step \d+: group size 2 → 3/ }).waitFor();
      await expect.poll(() => page.locator(".attempts li").count(), WAIT).toBe(3);
      await page.click("#hold");
      await page.locator(".tile", { hasText: "paused" }).waitFor();
      await page.fill("[data-path='training.learning_rate']", "-1");
      await page.press("[data-path='training.learning_rate']", "Enter");
      await page.locator(".fault", { hasText: "training.learning_rate" }).waitFor();
      await expect.poll(() => page.inputValue("[data-path='training.learning_rate']"), WAIT).toBe("0.002");
      await page.click("#reset");
      await page.locator(".tile", { hasText: "not started" }).waitFor();
      expect(faults).toEqual([]);
      await page.close();
    },
    2 * WAIT_MS,
  );

  test(
    "without a GPU it trains on the CPU and says so; a wrong address is named; a phone needs no sideways scrolling",
    async () => {
      const { page, faults } = await open(`device=cpu&poem=1&${SHORT}`, { width: 390 });
      await page.locator(".notes", { hasText: "compute on the CPU" }).waitFor();
      await page.locator(".notes", { hasText: "Cannot use poem of the address" }).waitFor();
      await page.focus("#start");
      await page.keyboard.press("Enter");
      await settled(page);
      expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(390);
      expect(await page.locator("#said").innerText()).toMatch(/Run 1 is done at step 2/);
      expect(faults).toEqual([]);
      await page.close();
    },
    2 * WAIT_MS,
  );

  test(
    "the keyboard skips to the settings, and keeps its place when buttons follow each other",
    async () => {
      const { page, faults } = await open(SHORT);
      const focused = () => page.evaluate("document.activeElement.id");
      const address = page.url();
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      expect([await focused(), page.url()]).toEqual(["part-controls", address]);
      await page.focus("#start");
      await page.keyboard.press("Enter");
      await expect.poll(focused, WAIT).toBe("hold");
      await settled(page);
      await expect.poll(focused, WAIT).toBe("export");
      await page.focus("#reset");
      await page.keyboard.press("Enter");
      await expect.poll(focused, WAIT).toBe("start");
      expect(faults).toEqual([]);
      await page.close();
    },
    2 * WAIT_MS,
  );

  test.skipIf(!hasShared)(
    "stories train the adapter of a chosen folder",
    async () => {
      const { page, faults } = await open(`task=stories&${BRIEF}`);
      const dir = sharedPath("models/stories260k");
      const names = readdirSync(dir).filter((name) => /\.(json|safetensors)$/.test(name));
      await page
        .locator("#drop input")
        .nth(1)
        .setInputFiles(names.map((name) => join(dir, name)));
      await page.locator(".given-model").waitFor();
      await page.click("#start");
      await settled(page);
      expect((await openAdapter(await exported(page))).rank).toBe(8);
      expect(faults).toEqual([]);
      await page.close();
    },
    2 * WAIT_MS,
  );
});

interface TraceEvent {
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  /** The thread's own time, µs: what other programs take of the machine does not count. */
  readonly tdur?: number;
  readonly args: { readonly name?: string };
}

/** The longest task of the page's main thread, ms. */
function longestTask(trace: Buffer): number {
  const { traceEvents } = JSON.parse(trace.toString("utf8")) as { traceEvents: readonly TraceEvent[] };
  const mains = traceEvents.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
  const isMain = ({ pid, tid }: TraceEvent) => mains.some((main) => main.pid === pid && main.tid === tid);
  const tasks = traceEvents.filter((event) => /RunTask$/.test(event.name) && isMain(event));
  return Math.max(...tasks.map(({ tdur = 0 }) => tdur)) / 1000;
}
