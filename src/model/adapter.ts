/** A LoRA adapter in PEFT's form (`adapter_config.json`, `adapter_model.safetensors`), which vLLM and SGLang serve. */
import { ConfigError, UnsupportedError } from "../errors.ts";
import { type FolderReader, openTensors, readJson } from "./folder.ts";
import { encodeSafetensors, type TensorSource } from "./safetensors_write.ts";

/** y = W x + (alpha / rank) B (A x) on the `targets` of every layer. */
export interface AdapterConfig {
  readonly rank: number;
  readonly alpha: number;
  /** Last part of the module names: `q_proj`, `down_proj`, ... */
  readonly targets: readonly string[];
  /** Name or folder of the model it belongs to. */
  readonly base?: string;
}

/** The two factors of one module: A [rank, in], B [out, rank], row-major. */
export interface AdapterFactors {
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly inSize: number;
  readonly outSize: number;
}

export interface Adapter extends AdapterConfig {
  /** By module: `model.layers.0.self_attn.q_proj`. */
  readonly modules: ReadonlyMap<string, AdapterFactors>;
}

const PREFIX = "base_model.model.";

/** Writes an adapter folder. @throws ConfigError when factors do not fit the rank, or the disk is full. */
export async function saveAdapter(dir: string, adapter: Adapter): Promise<void> {
  const { writeFolder } = await import("./files.ts");
  const tensors: TensorSource[] = [];
  for (const [module, { a, b, inSize, outSize }] of adapter.modules) {
    const name = `${PREFIX}${module}`;
    tensors.push({ name: `${name}.lora_A.weight`, shape: [adapter.rank, inSize], data: a });
    tensors.push({ name: `${name}.lora_B.weight`, shape: [outSize, adapter.rank], data: b });
  }
  const config = {
    peft_type: "LORA",
    task_type: "CAUSAL_LM",
    base_model_name_or_path: adapter.base ?? null,
    r: adapter.rank,
    lora_alpha: adapter.alpha,
    lora_dropout: 0,
    bias: "none",
    fan_in_fan_out: false,
    target_modules: adapter.targets,
    inference_mode: true,
  };
  await writeFolder(dir, [
    { name: "adapter_model.safetensors", content: encodeSafetensors(tensors) },
    { name: "adapter_config.json", content: `${JSON.stringify(config, null, 2)}\n` },
  ]);
}

/**
 * Reads an adapter folder, all factors at once (they are small).
 * @throws ConfigError for missing or ill-shaped parts, UnsupportedError for PEFT features that change the formula.
 */
export async function openAdapter(folder: string | FolderReader): Promise<Adapter> {
  const reader = typeof folder === "string" ? await (await import("./files.ts")).diskFolder(folder) : folder;
  const file = `${reader.name}/adapter_config.json`;
  const raw = (await readJson(reader, "adapter_config.json")) as Record<string, unknown> | undefined;
  if (!raw) throw new ConfigError("Cannot open the adapter as it has no adapter_config.json", { file });
  const config = parseAdapterConfig(raw, file);
  const { tensors, read } = await openTensors(reader, "adapter_model");
  const modules = new Map<string, AdapterFactors>();
  for (const [name, info] of tensors) {
    const match = /^(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight$/.exec(name);
    if (!match) {
      throw new ConfigError(`Cannot read the adapter as this is not a LoRA factor: ${name}`, {
        file: info.file,
      });
    }
    const [, module, factor] = match;
    if (info.shape.length !== 2 || info.shape[factor === "A" ? 0 : 1] !== config.rank) {
      const message = `Cannot read tensor ${name} as the adapter's rank is ${config.rank}: shape [${info.shape}]`;
      throw new ConfigError(message, { file: info.file });
    }
    if (factor === "B") continue;
    const nameOfB = name.replace(/lora_A\.weight$/, "lora_B.weight");
    const infoOfB = tensors.get(nameOfB);
    if (!infoOfB)
      throw new ConfigError(`Cannot read the adapter as ${nameOfB} is missing`, { file: info.file });
    modules.set(module, {
      a: await read(name),
      b: await read(nameOfB),
      inSize: info.shape[1],
      outSize: infoOfB.shape[0],
    });
  }
  if (modules.size * 2 !== tensors.size) {
    throw new ConfigError("Cannot read the adapter as some modules have B and no A", { file: reader.name });
  }
  return { ...config, modules };
}

/** Features of PEFT that would change the formula; each must be off. */
const OFF: Readonly<Record<string, readonly unknown[]>> = {
  use_dora: [false],
  use_rslora: [false],
  bias: ["none"],
  fan_in_fan_out: [false],
  modules_to_save: [null],
};

function parseAdapterConfig(raw: Record<string, unknown>, file: string): AdapterConfig {
  const unsupported = (key: string) =>
    new UnsupportedError(`Cannot load an adapter with ${key} ${JSON.stringify(raw[key])} (${file})`, {
      part: "adapter",
      capability: key,
    });
  if (raw.peft_type !== "LORA") throw unsupported("peft_type");
  for (const [key, allowed] of Object.entries(OFF)) {
    if (raw[key] !== undefined && !allowed.includes(raw[key])) throw unsupported(key);
  }
  for (const key of ["rank_pattern", "alpha_pattern"]) {
    if (Object.keys((raw[key] ?? {}) as object).length > 0) throw unsupported(key);
  }
  const { r, lora_alpha: alpha, target_modules: targets, base_model_name_or_path: base } = raw;
  if (!Number.isSafeInteger(r) || (r as number) < 1) {
    throw new ConfigError(`Cannot read the adapter as r must be a whole number: ${r}`, { file, path: "r" });
  }
  if (typeof alpha !== "number") {
    throw new ConfigError(`Cannot read the adapter as lora_alpha must be a number: ${alpha}`, {
      file,
      path: "lora_alpha",
    });
  }
  if (!Array.isArray(targets)) throw unsupported("target_modules");
  return { rank: r as number, alpha, targets, base: typeof base === "string" ? base : undefined };
}
