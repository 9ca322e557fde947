/**
 * Names for a user's own backends, so that a configuration can say which. A module given by `--import` registers one:
 *
 *     import { defineBackend, registerBackend } from "grpu";
 *     registerBackend("mine", () => defineBackend({ sample, forwardBackward, optimStep }));   // rllm.backend=mine
 */

import type { Tree } from "../config/yaml/tree.ts";
import type { Backend } from "../contract/backend.ts";
import { ConfigError } from "../errors.ts";

/** Opens a backend for a run. It sees the whole configuration: the settings of the local backend, and `rllm.*`. */
export type OpenBackend = (context: { readonly config: Tree }) => Backend | Promise<Backend>;

// On the global object, so that a user's module reaches the same table even when it loads a second copy of grpu.
const KEY = Symbol.for("grpu.backend.registry");
const shared = globalThis as unknown as Record<symbol, Map<string, OpenBackend> | undefined>;
shared[KEY] ??= new Map();
const registry: Map<string, OpenBackend> = shared[KEY];

const TAKEN = ["local", "tinker", "verl", "trinity"];

/**
 * Makes a backend known as `rllm.backend`. The last registration of a name counts.
 * @throws {ConfigError} for the name of a backend that comes with grpu.
 */
export function registerBackend(name: string, open: OpenBackend): void {
  if (TAKEN.includes(name)) {
    throw new ConfigError(
      `Cannot register the backend ${name} as grpu has one of that name: choose another`,
      {
        path: "rllm.backend",
      },
    );
  }
  registry.set(name, open);
}

export function backendNames(): string[] {
  return [...registry.keys()];
}

/** The backend of that name; undefined where nothing registered it. */
export function registeredBackend(name: string): OpenBackend | undefined {
  return registry.get(name);
}
