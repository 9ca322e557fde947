/** PEFT's `adapter_config.json`: which of its settings are supported. */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";

/** Settings that could change the formula, with the values that do not. */
const ALLOWED: Readonly<Record<string, readonly unknown[]>> = {
  bias: ["none"],
  // Other values change the base weights before training.
  init_lora_weights: [true, false, "gaussian", "eva", "orthogonal"],
};

/** Settings of PEFT that concern training only, or that are read here. */
const KNOWN = new Set(
  `peft_type task_type base_model_name_or_path revision peft_version auto_mapping inference_mode lora_dropout r
  lora_alpha target_modules exclude_modules layers_pattern layers_to_transform use_rslora eva_config megatron_core
  qalora_group_size runtime_config rank_pattern alpha_pattern modules_to_save`.split(/\s+/),
);

/** Modules that PEFT lists for sequence classification; the models here have a `score`. */
const HEADS: ReadonlySet<unknown> = new Set(["score", "classifier"]);

/** Whether a setting is off, as every unknown feature of PEFT must be. */
function isOff(value: unknown): boolean {
  if (value === null || value === undefined || value === false) return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}

/** Contents of `adapter_config.json`. */
export interface ParsedAdapterConfig {
  readonly rank: number;
  readonly alpha: number;
  /** Undefined where the file has a pattern: the factors show which modules it matched. */
  readonly targets: readonly string[] | undefined;
  readonly base: string | undefined;
  readonly scoreHead: boolean;
}

/** @throws ConfigError for an ill-typed key, UnsupportedError for PEFT features that change the formula. */
export function parseAdapterConfig(raw: Record<string, unknown>, file: string): ParsedAdapterConfig {
  const unsupported = (key: string) =>
    new UnsupportedError(
      `Cannot load an adapter with ${key} ${JSON.stringify(raw[key])}: it is not supported (${file}).`,
      { part: "adapter", capability: key },
    );
  if (raw.peft_type !== "LORA") throw unsupported("peft_type");
  for (const [key, value] of Object.entries(raw)) {
    const isFine = key in ALLOWED ? ALLOWED[key]!.includes(value) : KNOWN.has(key) || isOff(value);
    if (!isFine) throw unsupported(key);
  }
  for (const key of ["rank_pattern", "alpha_pattern"]) if (!isOff(raw[key])) throw unsupported(key);
  const heads = isOff(raw.modules_to_save) ? [] : raw.modules_to_save;
  if (!Array.isArray(heads) || heads.some((name) => !HEADS.has(name))) throw unsupported("modules_to_save");
  const { r, lora_alpha: alpha, target_modules: targets, base_model_name_or_path: base } = raw;
  const fail = (path: string, rule: string) =>
    new ConfigError(`Cannot read the adapter: ${path} must be ${rule} (${raw[path]}).`, { file, path });
  if (!Number.isSafeInteger(r) || (r as number) < 1) throw fail("r", "a whole number above 0");
  if (typeof alpha !== "number") throw fail("lora_alpha", "a number");
  const isPattern = typeof targets === "string";
  if (!isPattern && !Array.isArray(targets)) throw unsupported("target_modules");
  // Rank-stabilised LoRA scales by alpha / sqrt(r): this alpha makes alpha / r equal to it.
  const scaled = raw.use_rslora === true ? alpha * Math.sqrt(r as number) : alpha;
  return {
    rank: r as number,
    alpha: scaled,
    targets: isPattern ? undefined : (targets as readonly string[]),
    base: typeof base === "string" ? base : undefined,
    scoreHead: heads.includes("score"),
  };
}
