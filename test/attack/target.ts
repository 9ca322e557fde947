/**
 * A server in a process of its own, to be attacked: `target KIND ROOT [WEIGHT_BYTES [SESSION_MS]]`. Sends `{url}` when
 * it listens, and for every message `{stallMs, delayMs, rssBytes}` since the last one.
 */
import { join } from "node:path";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { serveDemo } from "../../src/cli/process/demo_server.ts";
import type { TextTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { listen } from "../../src/leaves/http/listen.ts";
import { startGateway } from "../../src/serve/gateway/mod.ts";
import { addPages } from "../../src/serve/gateway/page/gateway_pages.ts";
import { servedHost } from "../../src/serve/openai/engine.ts";
import { servingMetrics } from "../../src/serve/openai/metrics.ts";
import { Serving } from "../../src/serve/openai/serving.ts";
import { servingStatus } from "../../src/serve/openai/status.ts";
import { createApp } from "../../src/serve/tinker/app.ts";
import { Checkpoints } from "../../src/serve/tinker/checkpoint/checkpoints.ts";
import { TinkerService } from "../../src/serve/tinker/service.ts";
import { RunFolder } from "../../src/train/log/page/run_folder.ts";
import { serveRuns } from "../../src/train/log/page/view_server.ts";
import { openTextThread } from "../../src/train/run/serve/text_thread.ts";
import { singleTurn } from "../../src/train/task/rollout.ts";
import { openTraceStore, UnrecordedStore } from "../../src/train/trace/mod.ts";
import { CHATML, chatTokenizer } from "../fixtures/chat.ts";
import { testService } from "../fixtures/cluster.ts";
import { someMetrics, writeRun } from "../fixtures/run_folder.ts";
import { TextEngine } from "../fixtures/text_engine.ts";
import { ADMIN_TOKEN, AGENT_KEY } from "./fuzz_servers.ts";
import { StallMeter } from "./stall_meter.ts";
import { ToyModel } from "./toy_model.ts";

/** Of the build: Node 20 runs no TypeScript in a thread. */
const TEXT_WORKER = new URL("../../dist/train/run/serve/text_worker.js", import.meta.url);
const KEY = "tml-attacked";
const LIMITS = { headersMs: 600, requestMs: 10_000, stillMs: 20_000 };

const [kind, root, weightBytes, sessionMs] = process.argv.slice(2);
const place = { host: "127.0.0.1", port: 0, limits: LIMITS };

async function openView(): Promise<string> {
  const folder = writeRun(join(root!, "run"), { metrics: someMetrics(5) });
  return (await serveRuns([new RunFolder(folder, { settingsOf: () => ({}) })], place)).url.replace(/\/$/, "");
}

async function openTinker(): Promise<string> {
  const service = new TinkerService({
    models: [{ engine: new ToyModel({ weightBytes: Number(weightBytes ?? 100) }), names: ["toy"] }],
    checkpoints: await Checkpoints.open(root!, { log: () => {} }),
    limits: sessionMs ? { sessionMs: Number(sessionMs) } : {},
  });
  const apiKey = kind === "keyed" ? KEY : undefined;
  const app = createApp({ service, apiKey, holdMs: 1000, bodyIdleMs: 3000, bodiesBytes: 128 * 2 ** 20 });
  return (await listen(app, place)).url;
}

async function openGateway(): Promise<string> {
  const engine = new TextEngine({ room: 256, contextLength: 4096 });
  const serving = new Serving({
    engine,
    tokenizer: engine.tokenizer,
    thread: openTextThread(engine.tokenizer as TextTokenizer, { script: TEXT_WORKER }),
    models: { letters: { weightVersion: 1 } },
    defaults: { max_tokens: 16, temperature: 1, top_p: 1, top_k: 0 },
  });
  const gateway = await startGateway({
    engines: servedHost(serving),
    store: kind === "openai" ? new UnrecordedStore() : await openTraceStore(join(root!, "traces.db")),
    auth: { apiKeys: [AGENT_KEY], adminToken: ADMIN_TOKEN },
    socket: LIMITS,
    extend: (app, routes) =>
      addPages(app, routes, {
        isRecording: kind !== "openai",
        status: () => servingStatus(serving, { sessions: routes.service.sessions.count }),
        metrics: () => servingMetrics(serving),
      }),
  });
  return gateway.url;
}

/** Rewards of a run whose judge costs nothing. */
async function openRewards(): Promise<string> {
  const tokenizer = chatTokenizer(CHATML);
  const rollout = singleTurn("one", () => 1);
  return (await testService({ rollout, isSingleTurn: true, tokenizer, socket: LIMITS })).url;
}

async function openDemo(): Promise<string> {
  return (await serveDemo(place)).url;
}

const OPEN: Readonly<Record<string, () => Promise<string>>> = {
  view: openView,
  gateway: openGateway,
  openai: openGateway,
  rewards: openRewards,
  demo: openDemo,
};
const url = await (OPEN[kind!] ?? openTinker)();
const meter = new StallMeter();
// As the clock on the wall has it: what other processes take counts as well.
const delay = monitorEventLoopDelay({ resolution: 10 });
delay.enable();
let rssBytes = 0;
setInterval(() => {
  rssBytes = Math.max(rssBytes, process.memoryUsage.rss());
}, 20);
process.on("message", () => {
  process.send?.({ stallMs: meter.take(), delayMs: delay.max / 1e6, rssBytes });
  delay.reset();
  rssBytes = process.memoryUsage.rss();
});
process.on("disconnect", () => process.exit(0));
process.send?.({ url });
