/** The process of the server that `serve_bench.ts` loads: it answers each message with what it holds. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { LanguageModel } from "../src/engine/model/language_model.ts";
import { saveLocalCheckpoint } from "../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../src/train/backend/local/engine.ts";
import { type MemoryUse, openLoadedServer } from "../test/fixtures/serve_load.ts";
import { openBenchDevice } from "./harness.ts";
import { STORIES_SHAPE } from "./model_bench.ts";

/** Sent to the parent once. */
export interface ServeChildOpened {
  readonly url: string;
  readonly device: string;
}

/** Sent as the answer to each message. */
export type ServeChildReport = MemoryUse;

const MEBI = 2 ** 20;
/** Filled within the first minutes, after which memory must be flat. */
const LIMITS = { policyBytes: 4 * MEBI, resultBytes: 32 * MEBI };

const root = await mkdtemp(join(tmpdir(), "grpu-serve-bench-"));
const device = await openBenchDevice();
const folder = join(root, "model");
await saveLocalCheckpoint(folder, { model: LanguageModel.create(device, STORIES_SHAPE, { seed: 1 }) });
const engine = await LocalEngine.open({ device, folder });
const server = await openLoadedServer({ engine, root: join(root, "saved"), limits: LIMITS });

process.on("message", async () => process.send!(await server.memory()));
process.on("disconnect", async () => {
  await rm(root, { recursive: true });
  process.exit();
});
process.send!({ url: server.url, device: device.info.description } satisfies ServeChildOpened);
