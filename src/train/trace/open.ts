/** Opens a trace store by its place. */
import { ConfigError, fileError } from "../../leaves/errors.ts";
import { nodeModule } from "../../leaves/node_module.ts";
import { MemoryTraceStore } from "./memory.ts";
import { type Retention, withRetention } from "./retention.ts";
import { SqliteTraceStore } from "./sqlite/sqlite_store.ts";
import { type OpenTraceStore, type StoreOptions, systemSeconds } from "./store.ts";

/** How {@link openTraceStore} treats a path. */
export interface TraceOpenOptions extends StoreOptions {
  /** Refuse a database that does not exist. Default false: it is created, with the folders above it. */
  readonly mustExist?: boolean;
  /** Bounds of what the store keeps; absent: everything. */
  readonly retention?: Retention | undefined;
}

/** Traces hold what people said to a model: they are this user's alone. */
const PRIVATE = { folder: 0o700, file: 0o600 };

/**
 * Opens the store at `place`: `memory`, or the path of a SQLite database; `~` is the user's folder.
 * @throws {ConfigError} for a file that is no trace database, or that cannot be written; {UnsupportedError} in a runtime
 * without SQLite
 * @see rLLM's `rllm.sdk.store.path`
 */
export async function openTraceStore(place: string, options: TraceOpenOptions = {}): Promise<OpenTraceStore> {
  const { retention, now = systemSeconds } = options;
  const store = await openPlace(place, options);
  return retention ? withRetention(store, { retention, now }) : store;
}

async function openPlace(place: string, options: TraceOpenOptions): Promise<OpenTraceStore> {
  if (place === "memory") return new MemoryTraceStore(options);
  const path = placeOnDisk(place);
  const { closeSync, existsSync, mkdirSync, openSync } = nodeModule("node:fs");
  if (options.mustExist && !existsSync(path)) {
    throw new ConfigError("Cannot open the trace store: there is no such file. Check the path.", {
      file: path,
      kind: "data",
    });
  }
  try {
    mkdirSync(nodeModule("node:path").dirname(path), { recursive: true, mode: PRIVATE.folder });
  } catch (cause) {
    throw fileError(cause, { act: "create the folder of the trace store" }) ?? cause;
  }
  try {
    // SQLite gives the files beside it the permissions of the database. One that is there keeps its own.
    if (!existsSync(path)) closeSync(openSync(path, "a", PRIVATE.file));
  } catch (cause) {
    throw fileError(cause, { act: "create the trace store", file: path }) ?? cause;
  }
  return SqliteTraceStore.open(path, options);
}

function placeOnDisk(place: string): string {
  const { join } = nodeModule("node:path");
  return /^~(?=$|[/\\])/.test(place) ? join(nodeModule("node:os").homedir(), place.slice(1)) : place;
}
