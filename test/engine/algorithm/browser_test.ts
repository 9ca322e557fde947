/** The engine in headless Chromium, against the published figures: the compiled package over HTTP. */
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, statSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CHROMIUM, openChromium } from "../../fixtures/chromium.ts";
import { F32, furthest, lossBatch, offsetsOf, pack, readGolden, readRows } from "./golden.ts";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));

const TYPES: Record<string, string> = { js: "text/javascript", html: "text/html" };

/** Serves dist/; everything else is an empty page. */
function serve(): Promise<Server> {
  const server = createServer((request, reply) => {
    const path = ROOT + decodeURIComponent(new URL(request.url ?? "/", "http://page").pathname).replace(/^\/+/, "");
    const isServed = path.startsWith(`${ROOT}dist/`) && !path.includes("..") && existsSync(path);
    if (isServed && statSync(path).isFile()) {
      reply.writeHead(200, { "content-type": TYPES[path.split(".").pop()!] ?? "application/octet-stream" });
      reply.end(readFileSync(path));
      return;
    }
    reply.writeHead(request.url === "/" ? 200 : 404, { "content-type": "text/html" });
    reply.end("<!doctype html><title>grpu</title>");
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

let server: Server;
let browser: Browser;
let page: Page;

interface PageCase {
  readonly kind: "loss" | "advantages";
  readonly name: string;
  readonly spec: unknown;
  readonly settings: Record<string, number | boolean>;
  readonly batch: Record<string, number[]>;
}

/** Runs in the page: typed arrays do not cross, lists do. */
async function compute(one: PageCase) {
  // Spelled as text: the test runner would rewrite an import of its own.
  const load = new Function("path", "return import(path)");
  const [{ openDevice }, grpu] = await Promise.all([
    load("/dist/engine/compute/open.js"),
    load("/dist/engine/algorithm/mod.js"),
  ]);
  const device = await openDevice({ device: "webgpu" });
  try {
    const { groups, ...lists } = one.batch;
    const ints = ["offsets", "mask"];
    const batch: Record<string, unknown> = Object.fromEntries(
      Object.entries(lists).map(([name, list]) => [
        name,
        ints.includes(name) ? Uint32Array.from(list) : Float32Array.from(list),
      ]),
    );
    if (one.kind === "loss") {
      batch.advantages = { level: "token", values: batch.advantages };
      const { loss, dlogprobs, metrics } = await grpu.computePolicyLoss(batch, one.spec, { device });
      return { loss, values: Array.from(dlogprobs as Float32Array), metrics };
    }
    batch.groups = grpu.packGroups(Uint32Array.from(groups!), Math.max(...groups!) + 1);
    const { advantages } = await grpu.computeAdvantages(batch, one.name, { device, settings: one.settings });
    return { values: Array.from(advantages as Float64Array) };
  } finally {
    device.destroy();
  }
}

/** The page is the same whoever drives it; playwright drives it from Node. */
const isNode = !("Deno" in globalThis);

describe.skipIf(!CHROMIUM || !isNode)("in headless Chromium", () => {
  beforeAll(async () => {
    spawnSync(process.execPath, ["scripts/build.mjs"], { cwd: ROOT, stdio: "inherit" });
    server = await serve();
    browser = await openChromium();
    page = await browser.newPage();
    await page.goto(`http://localhost:${(server.address() as AddressInfo).port}/`);
  });
  afterAll(async () => {
    await browser?.close();
    server?.close();
  });

  const rows = readRows("small");
  const lists = (batch: object) =>
    Object.fromEntries(Object.entries(batch).map(([name, values]) => [name, Array.from(values as ArrayLike<number>)]));

  const losses =
    readGolden<
      {
        loss: string;
        loss_agg_mode: string;
        params: Record<string, number>;
        rollout_is_weights: unknown;
        value: number;
        dlogprobs: number[][];
        metrics: Record<string, number>;
      }[]
    >("small.losses.json");
  test.each(["vanilla", "gspo", "geo_mean", "kl_cov", "dppo_kl"])("the loss %s", async (name) => {
    const golden = losses.find((c) => c.loss === name && c.rollout_is_weights === null)!;
    const { offsets, mask, logprobs, oldLogprobs, advantages } = lossBatch(rows, false);
    const recorded = { kl_cov_ratio: 0.05, ppo_kl_coef: 0.1 };
    const spec = { name, loss_agg_mode: golden.loss_agg_mode, settings: { ...golden.params, ...recorded } };
    const batch = lists({ offsets, mask, logprobs, oldLogprobs, advantages: advantages.values });
    const got = await page.evaluate(compute, { kind: "loss", name, spec, settings: {}, batch } as PageCase);
    expect(furthest([got.loss], [golden.value], F32)).toBeUndefined();
    expect(furthest(got.values, golden.dlogprobs.flat(), F32)).toBeUndefined();
    for (const [key, value] of Object.entries(golden.metrics))
      expect(furthest([got.metrics[key]], [value], F32), key).toBeUndefined();
  });

  const cases =
    readGolden<{ estimator: string; params: Record<string, number | boolean>; advantages: number[][] }[]>(
      "small.advantages.json",
    );
  test.each(["grpo", "rloo", "reinforce_plus_plus_baseline", "gae", "optimal_token_baseline"])(
    "the estimator %s",
    async (name) => {
      const golden = cases.find(({ estimator }) => estimator === name)!;
      const names = [...new Set(rows.map(({ group }) => group))];
      const mask = pack(rows, "mask");
      const batch = lists({
        offsets: offsetsOf(rows),
        mask,
        groups: rows.map(({ group }) => names.indexOf(group)),
        scores: rows.map(({ reward }) => reward),
        tokenRewards: pack(rows, "token_rewards"),
        values: pack(rows, "values"),
        oldLogprobs: pack(rows, "old_logprobs"),
        sumPiSquared: pack(rows, "sum_pi_squared"),
      });
      const one: PageCase = { kind: "advantages", name, spec: null, settings: golden.params, batch };
      const got = await page.evaluate(compute, one);
      const trained = (values: readonly number[]) => values.filter((_, t) => mask[t] !== 0);
      expect(furthest(trained(got.values), trained(golden.advantages.flat()), F32)).toBeUndefined();
    },
  );
});
