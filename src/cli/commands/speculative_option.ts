/** `--speculative-config`, as vLLM's server takes it. */

import { lookupOf, type SpeculativeOptions } from "../../engine/model/generate/ngram.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Option } from "../command.ts";

export const SPECULATIVE: Option = {
  flag: "--speculative-config",
  value: "JSON",
  describe:
    'how tokens are guessed ahead, as in vLLM: {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2} (default: not at all)',
};

const NUMBERS = {
  num_speculative_tokens: "numSpeculativeTokens",
  prompt_lookup_max: "promptLookupMax",
  prompt_lookup_min: "promptLookupMin",
} as const;

/** @throws {ConfigError} for text that is no such configuration */
export function speculativeOf(text: unknown): SpeculativeOptions | undefined {
  if (text === undefined) return undefined;
  const { method, ...settings } = parsed(String(text));
  if (method !== "ngram") throw wrong(`method must be "ngram" (${JSON.stringify(method) ?? "missing"})`);
  const unknown = Object.keys(settings).find((key) => !Object.hasOwn(NUMBERS, key));
  if (unknown !== undefined) throw wrong(`it has no ${unknown}. It takes method, ${Object.keys(NUMBERS).join(", ")}`);
  const noNumber = Object.entries(settings).find(([, value]) => typeof value !== "number");
  if (noNumber) throw wrong(`${noNumber[0]} must be a number (${JSON.stringify(noNumber[1])})`);
  if (settings.num_speculative_tokens === undefined) throw wrong("num_speculative_tokens is missing");
  const numbers = Object.entries(NUMBERS).map(([key, name]) => [name, settings[key]]);
  const options = { method: "ngram", ...(Object.fromEntries(numbers) as Omit<SpeculativeOptions, "method">) } as const;
  lookupOf(options);
  return options;
}

function parsed(text: string): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw wrong(`it is no JSON (${(error as Error).message})`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw wrong(`it must be an object (${text})`);
}

function wrong(rule: string): ConfigError {
  return new ConfigError(`Cannot read --speculative-config: ${rule}.`);
}
