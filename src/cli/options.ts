/** Options that several commands share. */
import type { DeviceName, OpenDeviceOptions } from "../engine/compute/open.ts";
import type { Input, Option } from "./command.ts";

export const IMPORT: Option = {
  flag: "--import",
  value: "FILE",
  describe:
    "a module (TypeScript, JavaScript) that registers rewards, environments, estimators, stages, ...; may repeat",
  repeat: true,
};

export const DEVICE: Option = {
  flag: "--device",
  value: "NAME",
  describe: "where to compute; auto takes a GPU if there is one",
  choices: ["auto", "webgpu", "cpu"],
};

export const PROFILE: Option = {
  flag: "--profile",
  describe: "write a trace of the run's phases and kernels into its folder, for ui.perfetto.dev",
};

/** Option of the GPU, on the commands without a configuration. */
export const ADAPTER: readonly Option[] = [
  { flag: "--adapter", value: "NAME", describe: "which GPU: a part of its name, or its number in grpu device --list" },
  { flag: "--backend", value: "NAME", describe: "the GPU's interface: vulkan, metal, d3d12, ..." },
];

/** `--adapter` and `--backend` for `openDevice`. */
export function adapterOf(options: Input["options"]): { adapter?: string; backend?: string } {
  const { adapter, backend } = options as { adapter?: string; backend?: string };
  return { ...(adapter === undefined ? {} : { adapter }), ...(backend === undefined ? {} : { backend }) };
}

/** The device of the commands without a configuration. */
export function deviceOf(options: Input["options"]): OpenDeviceOptions {
  return { device: (options.device as DeviceName | undefined) ?? "auto", ...adapterOf(options) };
}

/** GPU option of the commands whose `--adapter` is a LoRA adapter. */
export const GPU: readonly Option[] = [
  { flag: "--gpu", value: "NAME", describe: "which GPU: a part of its name, or its number in grpu device --list" },
  { flag: "--backend", value: "NAME", describe: "the GPU's interface: vulkan, metal, d3d12, ..." },
];

/** `--gpu` and `--backend` for `openDevice`. */
export function gpuOf({ gpu, backend }: Input["options"]): { adapter?: string; backend?: string } {
  return adapterOf({ adapter: gpu, backend });
}

export const ALLOW_UNSUPPORTED: Option = {
  flag: "--allow-unsupported",
  describe: "warn about settings that the backend cannot honour, instead of refusing them",
};

export function importsOf({ options }: Input): readonly string[] {
  return (options.import as readonly string[] | undefined) ?? [];
}

/** `--device` as an override of the setting of that name. */
export function deviceOverride({ options }: Input): string[] {
  return options.device === undefined ? [] : [`device=${options.device}`];
}

/** `--device` as it was typed. */
export function deviceFlag({ options }: Input): string[] {
  return options.device === undefined ? [] : ["--device", String(options.device)];
}
