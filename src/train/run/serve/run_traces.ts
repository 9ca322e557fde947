/** The conversations that a run recorded, for the page of runs. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Handler } from "../../../leaves/http/guard.ts";
import { traceViewer } from "../../../serve/gateway/page/trace_viewer.ts";
import { readYaml } from "../../config/yaml/read.ts";
import { getAt } from "../../config/yaml/tree.ts";
import { CONFIG_FILE } from "../../log/run_files.ts";
import { openTraceStore } from "../../trace/mod.ts";
import { traceStorePath } from "../gateway/gateway_settings.ts";
import { newestCheckpoint } from "../model/checkpoint_dir.ts";
import { decoder } from "./served_gateway.ts";

/** A page of conversations that is open. */
export interface RunTraces {
  readonly handler: Handler;
  close(): Promise<void>;
}

/** The store of the first of these runs that has one on the disk; undefined where none has. */
export async function openRunTraces(dirs: readonly string[]): Promise<RunTraces | undefined> {
  for (const dir of dirs) {
    const path = storeOfRun(dir);
    if (path === undefined || !existsSync(path)) continue;
    const store = await openTraceStore(path, { mustExist: true });
    const handler = traceViewer({ store, decode: await decodeOf(dir), home: "../" });
    return { handler, close: () => store.close() };
  }
  return undefined;
}

function storeOfRun(dir: string): string | undefined {
  const file = join(dir, CONFIG_FILE);
  if (!existsSync(file)) return undefined;
  try {
    const { tree } = readYaml(readFileSync(file, "utf8"), file);
    // Runs of earlier versions have no such setting.
    return getAt(tree, "rllm.sdk.store.path") === undefined ? undefined : traceStorePath(tree);
  } catch (error) {
    // It is being written, or of another version: the page of the run shows what it can, too.
    if (error instanceof ConfigError) return undefined;
    throw error;
  }
}

/** Returns the decoder of the run's newest checkpoint; without one the page shows ids. */
async function decodeOf(dir: string): Promise<((id: number) => string) | undefined> {
  const checkpoint = await newestCheckpoint(dir);
  if (checkpoint === undefined) return undefined;
  const tokenizer = await openTokenizer(checkpoint, []).catch(() => undefined);
  return tokenizer && decoder(tokenizer);
}
