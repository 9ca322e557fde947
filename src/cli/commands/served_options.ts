/** Models and adapters to serve, from the options of a command line. */
import type { DeviceName } from "../../engine/compute/open.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { OpenServingOptions } from "../../train/run/serve/serving.ts";
import type { Input, Io } from "../command.ts";
import { gpuOf } from "../options.ts";
import { replySampling } from "./chat.ts";
import { integerOption } from "./model_options.ts";
import { speculativeOf } from "./speculative_option.ts";

/** @throws {ConfigError} for an adapter without a name, and for sampling values out of range */
export function modelOptions(options: Input["options"], io: Io): OpenServingOptions {
  const { memoryGib } = options;
  return {
    model: String(options.model),
    names: options.modelName as readonly string[] | undefined,
    adapters: adaptersOf(options.adapter),
    base: options.base as string | undefined,
    template: options.chatTemplate as string | undefined,
    sampling: replySampling(options),
    speculative: speculativeOf(options.speculativeConfig),
    device: {
      device: (options.device as DeviceName | undefined) ?? "auto",
      ...gpuOf(options),
      ...(memoryGib !== undefined && {
        memoryBudgetBytes: integerOption(memoryGib, { flag: "--memory-gib", least: 1 }) * 2 ** 30,
      }),
    },
    log: (line) => io.err(`${line}\n`),
  };
}

/** `NAME=DIR`, each name once. */
export function adaptersOf(option: Input["options"][string]): Record<string, string> {
  const adapters: Record<string, string> = {};
  for (const text of Array.isArray(option) ? (option as string[]) : []) {
    const [, name, dir] = /^([^=]+)=(.+)$/s.exec(text) ?? [];
    if (name === undefined || dir === undefined)
      throw new ConfigError(
        `Cannot serve the adapter ${text}: --adapter takes NAME=DIR, the name that requests use and a folder.`,
      );
    if (Object.hasOwn(adapters, name))
      throw new ConfigError(`Cannot serve two adapters as ${name}: give each another name.`);
    adapters[name] = dir;
  }
  return adapters;
}
