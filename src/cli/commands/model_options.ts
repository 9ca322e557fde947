/** Options of the commands that run a model, and their values. */
import type { SamplingParams } from "../../engine/contract/backend.ts";
import type { SamplingDefaults } from "../../engine/model/files/generation_config.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Input, Option } from "../command.ts";

export const MODEL: Option = {
  flag: "--model",
  value: "DIR",
  describe: "folder of the model",
  required: true,
};

export const BASE: Option = {
  flag: "--base",
  value: "DIR",
  describe: "folder of the adapter's base model; default: the one that the adapter names",
};

/** Values of the sampling flags that are not given, of a model that recommends none. */
const DEFAULTS = { temperature: 1, top_p: 1, top_k: 0 } as const;

export const SAMPLING_OPTIONS: readonly Option[] = [
  { flag: "--max-tokens", value: "N", describe: "number of new tokens at most", default: "64" },
  { flag: "--temperature", value: "T", describe: "0 always takes the most likely token (default: 1)" },
  {
    flag: "--top-p",
    value: "P",
    describe: "sample from the most likely tokens that hold this probability (default: 1)",
  },
  { flag: "--top-k", value: "K", describe: "sample from this many tokens; 0 is all (default: 0)" },
  { flag: "--seed", value: "N", describe: "seed of the random generator", default: "0" },
];

/** Values for what requests or messages leave open; the model's own where no flag is given. */
export const REPLY_SAMPLING: readonly Option[] = [
  { flag: "--max-tokens", value: "N", describe: "tokens of a reply that sets no limit itself (default: 1024)" },
  { flag: "--temperature", value: "T", describe: "0 always takes the most likely token (default: the model's)" },
  { flag: "--top-p", value: "P", describe: "sample from the tokens that hold this probability (default: the model's)" },
  { flag: "--top-k", value: "K", describe: "sample from this many tokens; 0 is all (default: the model's)" },
];

type Value = Input["options"][string];

/**
 * The sampling options as the backend takes them, without stop tokens.
 * @param recommended values of the model's authors, for flags that are not given
 */
export function modelSamplingParams(options: Input["options"], recommended: SamplingDefaults = {}): SamplingParams {
  const { temperature, topP, topK } = options;
  const other = { ...DEFAULTS, ...recommended };
  return {
    max_tokens: integerOption(options.maxTokens, { flag: "--max-tokens", least: 1 }),
    temperature:
      temperature === undefined ? other.temperature : numberOption(temperature, { flag: "--temperature", least: 0 }),
    top_p: topP === undefined ? other.top_p : numberOption(topP, { flag: "--top-p", least: 0, most: 1 }),
    top_k: topK === undefined ? other.top_k : integerOption(topK, { flag: "--top-k", least: 0 }),
    stop_token_ids: [],
  };
}

interface Range {
  readonly flag: string;
  readonly least: number;
  readonly most?: number;
}

/** @throws {ConfigError} for anything but a number in the range. */
export function numberOption(value: Value, { flag, least, most = Number.POSITIVE_INFINITY }: Range): number {
  const read = typeof value === "string" && value.trim() !== "" ? Number(value) : Number.NaN;
  if (read >= least && read <= most) return read;
  const range = most === Number.POSITIVE_INFINITY ? `at least ${least}` : `in [${least}, ${most}]`;
  throw new ConfigError(`Cannot use ${flag}: it takes a number ${range} (${value}).`);
}

export function integerOption(value: Value, range: Range): number {
  const read = numberOption(value, range);
  if (Number.isInteger(read)) return read;
  throw new ConfigError(`Cannot use ${range.flag}: it takes a whole number (${value}).`);
}
