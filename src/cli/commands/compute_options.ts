/** Options that the commands of `grpu compute` share, and what they hold. */
import type { Device } from "../../engine/compute/device.ts";
import type { Precision, Rollouts } from "../../engine/packing/rollouts/rollouts.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { utf8Chunks } from "../../leaves/utf8.ts";
import type { Input, Io, Option } from "../command.ts";
import { importsOf } from "../options.ts";

export const INPUT_OPTION: Option = {
  flag: "--input",
  value: "FILE",
  describe: "rollouts as JSONL or Parquet; - is standard input (JSONL)",
  required: true,
};
export const SET: Option = {
  flag: "--set",
  value: "key=value",
  describe: "a setting under its published name; may repeat",
  repeat: true,
};
export const JSON_OUTPUT: Option = { flag: "--json", describe: "print one JSON object instead of a summary" };
export const AGGREGATION: Option = {
  flag: "--agg",
  value: "MODE",
  describe: "how token losses are aggregated",
  choices: ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
  default: "token-mean",
};

export const FIELDS = `Each line of the input is one trajectory: group, reward, and per token mask (1 = trained on), token_rewards, logprobs, old_logprobs, rollout_logprobs, ref_logprobs, values, entropy, sum_pi_squared, advantages.`;

async function importUserModules(input: Input): Promise<void> {
  const paths = importsOf(input);
  if (paths.length === 0) return;
  const { importModules } = await import("../../train/run/task/modules.ts");
  await importModules(paths);
}

/** Runs on the device of `--device`; `cpu` is the float64 reference, without a device. */
async function onDevice(
  input: Input,
  run: (device: Device | undefined, where: string) => Promise<void>,
): Promise<void> {
  const name = (input.options.device ?? "auto") as "auto" | "webgpu" | "cpu";
  const { openDevice } = await import("../../engine/compute/open.ts");
  const device = name === "cpu" ? undefined : await openDevice({ device: name });
  if (!device || device.info.kind === "cpu") {
    device?.destroy();
    await run(undefined, "cpu (float64)");
    return;
  }
  try {
    await run(device, device.info.description);
  } finally {
    device.destroy();
  }
}

/** Runs on the rollouts of `--input`, on the device of `--device`, with the modules of `--import`. */
export async function onRollouts(
  input: Input,
  io: Io,
  run: (rollouts: Rollouts, on: { device: Device | undefined; where: string }) => Promise<void>,
): Promise<void> {
  await importUserModules(input);
  await onDevice(input, async (device, where) => run(await readRollouts(input, io, device), { device, where }));
}

/** Float64 where the reference computes, float32 where a device does. */
export async function readRollouts(input: Input, io: Io, device: Device | undefined): Promise<Rollouts> {
  const [{ readJsonl, readParquet }, { createReadStream, existsSync }] = await Promise.all([
    import("../../engine/packing/rollouts/read.ts"),
    import("node:fs"),
  ]);
  const path = String(input.options.input);
  const precision: Precision = device ? "f32" : "f64";
  if (path === "-") return readJsonl(await io.stdin(), { file: "stdin", precision });
  if (!existsSync(path)) throw new ConfigError("Cannot read the rollouts: there is no such file.", { file: path });
  if (!path.endsWith(".parquet"))
    return readJsonl(utf8Chunks(createReadStream(path), { what: "rollouts", file: path }), { file: path, precision });
  const { asyncBufferFromFile } = await import("hyparquet");
  return readParquet(await asyncBufferFromFile(path), { file: path, precision });
}

export type SettingValue = string | number | boolean | null;

/** `--set key=value`: numbers, true, false and null as what they are, the rest as text. */
export function settingsOf({ options }: Input): Record<string, SettingValue> {
  const entries = ((options.set as readonly string[] | undefined) ?? []).map((text): [string, SettingValue] => {
    const at = text.indexOf("=");
    if (at < 1) throw new ConfigError(`Cannot read --set: it has no key= (${JSON.stringify(text)}). Write key=value.`);
    return [text.slice(0, at), settingValue(text.slice(at + 1))];
  });
  return Object.fromEntries(entries);
}

const WORDS: Readonly<Record<string, boolean | null>> = {
  true: true,
  false: false,
  True: true,
  False: false,
  null: null,
  None: null,
};

function settingValue(text: string): SettingValue {
  if (Object.hasOwn(WORDS, text)) return WORDS[text]!;
  return text.trim() !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}
