/**
 * Names for a user's own loggers, so that a configuration can list them. A module given by `--import` registers one:
 *
 *     import { registerLogger } from "grpu";
 *     registerLogger("mine", () => ({ log: ({ step, metrics }) => send(step, metrics) }));   // rllm.trainer.logger=[console, mine]
 */
import { createRegistry } from "../../../leaves/registry.ts";
import type { Logger } from "../logger.ts";

/** Opens a logger for a run, whose files go into the folder `dir`. */
export type OpenLogger = (context: { readonly dir: string }) => Logger;

/** The user's loggers. One with the name of a built-in logger replaces it. */
export const loggers = createRegistry<OpenLogger>("logger", { setting: "rllm.trainer.logger" });

/** Makes a logger known to `rllm.trainer.logger`. The last registration of a name counts. */
export function registerLogger(name: string, open: OpenLogger): void {
  loggers.register(name, open);
}
