/**
 * Names for a user's own loggers, so that a configuration can list them. A module given by `--import` registers one:
 *
 *     import { registerLogger } from "grpu";
 *     registerLogger("mine", () => ({ log: ({ step, metrics }) => send(step, metrics) }));   // rllm.trainer.logger=[console, mine]
 */
import type { Logger } from "../logger.ts";

/** Opens a logger for a run, whose files go into the folder `dir`. */
export type OpenLogger = (context: { readonly dir: string }) => Logger;

// On the global object, so that a user's module reaches the same table even when it loads a second copy of grpu.
const KEY = Symbol.for("grpu.log.registry");
const shared = globalThis as unknown as Record<symbol, Map<string, OpenLogger> | undefined>;
shared[KEY] ??= new Map();
const registry: Map<string, OpenLogger> = shared[KEY];

/** Makes a logger known to `rllm.trainer.logger`, in place of one of that name. The last registration counts. */
export function registerLogger(name: string, open: OpenLogger): void {
  registry.set(name, open);
}

export function loggerNames(): string[] {
  return [...registry.keys()];
}

/** The logger of that name; undefined where nothing registered it. */
export function registeredLogger(name: string): OpenLogger | undefined {
  return registry.get(name);
}
