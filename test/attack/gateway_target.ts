/**
 * A recording gateway in a process of its own, over an engine that draws letters: `gateway_target STORE PORT SESSION_MIB [CHUNK_MS]`.
 * Sends `{url}` when it listens, and for every message what it holds.
 */

import { Serving } from "../../src/serve/openai/serving.ts";
import { openServedGateway } from "../../src/train/run/serve/served_gateway.ts";
import { TextEngine } from "../fixtures/text_engine.ts";

const [store, port, sessionMib, chunkMs] = process.argv.slice(2);
const engine = new TextEngine({ chunkMs: Number(chunkMs ?? 2), room: 512, contextLength: 2048 });
const serving = new Serving({
  engine,
  tokenizer: engine.tokenizer,
  models: { letters: { weightVersion: 1 } },
  defaults: { max_tokens: 64, temperature: 1, top_p: 1, top_k: 0 },
});
const close = async () => {
  await serving.stop({ graceMs: 0 });
  serving.close();
};
const served = await openServedGateway({
  opened: { serving, close },
  store: store!,
  syncTraces: true,
  limits: { sessionBytes: Number(sessionMib) * 2 ** 20 },
  port: Number(port),
  auth: { apiKeys: ["sk-attacked"], adminToken: "admin-attacked" },
});
process.on("message", () => {
  // The fixture's own list of calls is no memory of the gateway's.
  engine.calls.length = 0;
  global.gc?.();
  const { rss, heapUsed } = process.memoryUsage();
  process.send?.({
    rss,
    heapUsed,
    pending: serving.pending,
    widest: engine.widest,
    requests: serving.figures.requests.total,
  });
});
process.on("disconnect", () => process.exit(0));
process.send?.({ url: served.url });
