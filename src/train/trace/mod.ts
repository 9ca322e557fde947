/** Stores of agents' model calls: in memory, or in a SQLite database that rLLM's model gateway reads and writes too. */
export { MemoryTraceStore } from "./memory.ts";
export { openTraceStore, type TraceOpenOptions } from "./open.ts";
export { type Pruned, prune, type Retention } from "./retention.ts";
export type { OpenTraceStore, StoreOptions, StoreSize } from "./store.ts";
export { UnrecordedStore } from "./unrecorded.ts";
