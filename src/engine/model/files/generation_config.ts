/** `generation_config.json`: end tokens, and how the model's authors sample it. */
import { ConfigError } from "../../../leaves/errors.ts";
import { readTokenIds } from "./config_json.ts";
import { openFolder } from "./open_folder.ts";
import { type FolderReader, readFolderJson } from "./reader.ts";

export const GENERATION_CONFIG_FILE = "generation_config.json";

/** Recommendations of a model's authors. Absent: they say nothing. */
export interface SamplingDefaults {
  readonly temperature?: number;
  readonly top_p?: number;
  readonly top_k?: number;
}

export interface GenerationConfig {
  /** Path or address. */
  readonly file: string;
  /** Empty where the file names none: then config.json's hold. */
  readonly eosTokenIds: readonly number[];
  readonly sampling: SamplingDefaults;
  /** Recommended settings that would change the sampling, and that have no counterpart here: `repetition_penalty=1.1`. */
  readonly ignored: readonly string[];
}

/** Values that change nothing, of settings without a counterpart here. */
const NEUTRAL: Readonly<Record<string, readonly unknown[]>> = {
  repetition_penalty: [1],
  min_p: [0],
  typical_p: [1],
  no_repeat_ngram_size: [0],
  presence_penalty: [0],
  frequency_penalty: [0],
};

const RANGES: Readonly<Record<keyof SamplingDefaults, (value: number) => boolean>> = {
  temperature: (value) => value >= 0,
  top_p: (value) => value > 0 && value <= 1,
  top_k: (value) => Number.isInteger(value) && value >= -1,
};

/**
 * Reads the file of a model folder; nothing where it has none. As in vLLM, the recommended values hold whatever
 * `do_sample` says.
 * @throws ConfigError for a value that cannot be used, naming the key.
 */
export async function readGenerationConfig(folder: string | FolderReader): Promise<GenerationConfig> {
  const reader = await openFolder(folder);
  const file = `${reader.name}/${GENERATION_CONFIG_FILE}`;
  const raw = (await readFolderJson(reader, GENERATION_CONFIG_FILE)) ?? {};
  if (typeof raw !== "object" || raw === null || Array.isArray(raw))
    throw new ConfigError("Cannot read the model's generation settings: they are not a JSON object.", { file });
  const config = raw as Record<string, unknown>;
  return {
    file,
    eosTokenIds: readTokenIds(config, { key: "eos_token_id", file }),
    sampling: readSampling(config, file),
    ignored: Object.entries(NEUTRAL)
      .filter(([key, values]) => ![undefined, null, ...values].includes(config[key]))
      .map(([key]) => `${key}=${JSON.stringify(config[key])}`),
  };
}

function readSampling(config: Record<string, unknown>, file: string): SamplingDefaults {
  const found: { -readonly [K in keyof SamplingDefaults]: SamplingDefaults[K] } = {};
  for (const [key, accepts] of Object.entries(RANGES) as [keyof SamplingDefaults, (value: number) => boolean][]) {
    const value = config[key] ?? undefined;
    if (value === undefined) continue;
    if (typeof value !== "number" || !accepts(value))
      throw new ConfigError(
        `Cannot read the model's generation settings: ${key} is out of range (${JSON.stringify(value)}).`,
        { file, path: key },
      );
    found[key] = value;
  }
  return found;
}

/** `temperature=0.7 top_p=0.8`; empty where nothing is recommended. */
export function describeSampling(sampling: SamplingDefaults): string {
  return Object.entries(sampling)
    .map(([key, value]) => `${key}=${value}`)
    .join(" ");
}
