/** Our gateway with a configuration of rLLM's, as JSON in the first argument; it ends with its standard input. */
import { startGateway } from "../../dist/serve/gateway/mod.js";
import { openTraceStore } from "../../dist/train/trace/mod.js";

const config = JSON.parse(process.argv[2]);
const store = await openTraceStore(config.store_worker === "sqlite" ? config.db_path : "memory");
const gateway = await startGateway({
  store,
  syncTraces: config.sync_traces,
  model: config.model ?? undefined,
  workers: {
    healthCheckInterval: config.health_check_interval,
    addLogprobs: config.add_logprobs,
    addReturnTokenIds: config.add_return_token_ids,
    stripVllmFields: config.strip_vllm_fields,
  },
});
for (const [i, worker] of config.workers.entries())
  gateway.service.workers.add({ ...worker, worker_id: worker.worker_id || String(i) });
process.stdout.write(`${gateway.url}\n`);
process.stdin.resume().on("end", async () => {
  await gateway.close();
  await store.close();
  process.exit(0);
});
