/**
 * Names for a user's own backends, so that a configuration can choose one. A module given by `--import` registers it:
 *
 *     import { defineBackend, registerBackend } from "grpu";
 *     registerBackend("mine", () => defineBackend({ sample, forwardBackward, optimStep }));   // rllm.backend=mine
 */

import type { Backend } from "../../engine/contract/backend.ts";
import { createRegistry } from "../../leaves/registry.ts";
import type { Tree } from "../config/yaml/tree.ts";

/** Opens a backend for a run. It sees the whole configuration: the settings of the local backend, and `rllm.*`. */
export type OpenBackend = (context: { readonly config: Tree }) => Backend | Promise<Backend>;

/** The user's backends; those of grpu are opened by the command line. */
export const backends = createRegistry<OpenBackend>("backend", {
  setting: "rllm.backend",
  reserved: ["local", "tinker", "verl", "trinity"],
});

/**
 * Makes a backend known as `rllm.backend`. The last registration of a name counts.
 * @throws {ConfigError} for the name of a backend that comes with grpu.
 */
export function registerBackend(name: string, open: OpenBackend): void {
  backends.register(name, open);
}
