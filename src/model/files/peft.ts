/** A LoRA adapter in PEFT's form (`adapter_config.json`, `adapter_model.safetensors`), which vLLM and SGLang serve. */
import { ConfigError, UnsupportedError } from "../../errors.ts";
import { type FolderReader, openTensors, readJson, type TensorFiles } from "./folder.ts";
import { encodeSafetensors, type TensorSource } from "./safetensors_write.ts";

/** y = W x + (alpha / rank) B (A x) on the `targets` of every layer. */
export interface AdapterConfig {
  readonly rank: number;
  readonly alpha: number;
  /** Last part of the module names: `q_proj`, `down_proj`, ... */
  readonly targets: readonly string[];
  /** Name or folder of the model it belongs to. */
  readonly base?: string | undefined;
  /** Of that model's weights, see fingerprint.ts. Absent in adapters made elsewhere. */
  readonly fingerprint?: string | undefined;
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
/** Beside PEFT's files, which have no place for a fingerprint: the model that the adapter belongs to. */
const BASE_FILE = "base.json";

/** Writes an adapter folder. @throws ConfigError when factors do not fit the rank, or the disk is full. */
export async function saveAdapter(dir: string, adapter: Adapter): Promise<void> {
  const { writeFolder } = await import("./disk.ts");
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
  const { base: folder, fingerprint } = adapter;
  await writeFolder(dir, [
    ...(fingerprint ? [{ name: BASE_FILE, content: `${JSON.stringify({ folder, fingerprint })}\n` }] : []),
    { name: "adapter_model.safetensors", content: encodeSafetensors(tensors) },
    { name: "adapter_config.json", content: `${JSON.stringify(config, null, 2)}\n` },
  ]);
}

/** An adapter without its factors. */
export interface AdapterShape extends AdapterConfig {
  readonly modules: ReadonlySet<string>;
}

/** What {@link openAdapter} reads, without the factors: for those who ask what an adapter is before they open a model. */
export async function describeAdapter(folder: string | FolderReader): Promise<AdapterShape> {
  const { config, names } = await openFiles(folder);
  return { ...config, modules: new Set(names.keys()) };
}

/**
 * Base weights that PEFT wrote into the adapter's file, as it does for output matrices: by module. They must be the
 * base model's own.
 */
export async function openBaseLayers(folder: string): Promise<Map<string, () => Promise<Float32Array>>> {
  const { tensors, read } = await openTensors(folder, "adapter_model");
  const layers = new Map<string, () => Promise<Float32Array>>();
  for (const name of tensors.keys()) {
    const module = BASE_LAYER.exec(name)?.[1];
    if (module !== undefined) layers.set(module, () => read(name));
  }
  return layers;
}

const BASE_LAYER = /^(?:base_model\.model\.)?(.+)\.base_layer\.weight$/;

/**
 * Reads an adapter folder, all factors at once (they are small).
 * @throws ConfigError for missing or ill-shaped parts, UnsupportedError for PEFT features that change the formula.
 */
export async function openAdapter(folder: string | FolderReader): Promise<Adapter> {
  const { config, names, files } = await openFiles(folder);
  const modules = new Map<string, AdapterFactors>();
  for (const [module, [a, b]] of names) {
    modules.set(module, {
      a: await files.read(a),
      b: await files.read(b),
      inSize: files.tensors.get(a)!.shape[1]!,
      outSize: files.tensors.get(b)!.shape[0]!,
    });
  }
  return { ...config, modules };
}

/** Names of a module's two factors in the file. */
type FactorNames = readonly [a: string, b: string];

interface AdapterFiles {
  readonly config: AdapterConfig;
  readonly names: ReadonlyMap<string, FactorNames>;
  readonly files: TensorFiles;
}

async function openFiles(folder: string | FolderReader): Promise<AdapterFiles> {
  const reader = typeof folder === "string" ? await (await import("./disk.ts")).diskFolder(folder) : folder;
  const file = `${reader.name}/adapter_config.json`;
  const raw = (await readJson(reader, "adapter_config.json")) as Record<string, unknown> | undefined;
  if (!raw) throw new ConfigError("Cannot open the adapter as it has no adapter_config.json", { file });
  const { targets, ...config } = parseAdapterConfig(raw, file);
  const files = await openTensors(reader, "adapter_model");
  const names = factorNames(files, { rank: config.rank, folder: reader.name });
  const base = (await readJson(reader, BASE_FILE)) as { fingerprint?: string } | undefined;
  return {
    config: {
      ...config,
      targets: targetsOf(names, { listed: targets, file }),
      fingerprint: base?.fingerprint,
    },
    names,
    files,
  };
}

function factorNames(
  { tensors }: TensorFiles,
  { rank, folder }: { rank: number; folder: string },
): Map<string, FactorNames> {
  const names = new Map<string, FactorNames>();
  const factors = [...tensors].filter(([name]) => !BASE_LAYER.test(name));
  for (const [name, { file, shape }] of factors) {
    const match = /^(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight$/.exec(name);
    if (!match)
      throw new ConfigError(`Cannot read the adapter as this is not a LoRA factor: ${name}`, { file });
    const [, module, factor] = match;
    if (shape.length !== 2 || shape[factor === "A" ? 0 : 1] !== rank) {
      throw new ConfigError(`Cannot read tensor ${name} as the adapter's rank is ${rank}: shape [${shape}]`, {
        file,
      });
    }
    if (factor === "B") continue;
    const nameOfB = name.replace(/lora_A\.weight$/, "lora_B.weight");
    if (!tensors.has(nameOfB))
      throw new ConfigError(`Cannot read the adapter as ${nameOfB} is missing`, { file });
    names.set(module!, [name, nameOfB]);
  }
  if (names.size * 2 !== factors.length)
    throw new ConfigError("Cannot read the adapter as some modules have B and no A", { file: folder });
  return names;
}

/**
 * Last parts of the names of the modules that have factors. A list may name others too, which no module has.
 * @throws ConfigError for factors that the list leaves out: PEFT would not load them.
 */
function targetsOf(
  names: ReadonlyMap<string, FactorNames>,
  { listed, file }: { listed: readonly string[] | undefined; file: string },
): string[] {
  const isListed = (module: string) =>
    listed === undefined || listed.some((target) => module === target || module.endsWith(`.${target}`));
  const left = [...names.keys()].find((module) => !isListed(module));
  if (left !== undefined) {
    const message = `Cannot read the adapter: ${left} has factors, and target_modules is [${listed}]. Add it there, or remove its factors.`;
    throw new ConfigError(message, { file, path: "target_modules" });
  }
  const found = new Set(Array.from(names.keys(), (module) => module.slice(module.lastIndexOf(".") + 1)));
  const inOrder = (listed ?? []).filter((target) => found.delete(target));
  return [...inOrder, ...found];
}

/** Values that leave the formula as it is, for settings that could change it. */
const ALLOWED: Readonly<Record<string, readonly unknown[]>> = {
  bias: ["none"],
  // The others change the base weights before training.
  init_lora_weights: [true, false, "gaussian", "eva", "orthogonal"],
};

/** Settings of PEFT that are about training, or that are read here. */
const KNOWN = new Set(
  `peft_type task_type base_model_name_or_path revision peft_version auto_mapping inference_mode lora_dropout r
  lora_alpha target_modules exclude_modules layers_pattern layers_to_transform use_rslora eva_config megatron_core
  qalora_group_size runtime_config rank_pattern alpha_pattern`.split(/\s+/),
);

/** Whether a setting is off. A feature of PEFT that is not known here must be. */
function isOff(value: unknown): boolean {
  if (value === null || value === undefined || value === false) return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}

/** The targets are undefined where the file gives a pattern for them: the factors tell which they were. */
type ParsedConfig = Omit<AdapterConfig, "targets"> & { readonly targets: readonly string[] | undefined };

function parseAdapterConfig(raw: Record<string, unknown>, file: string): ParsedConfig {
  const unsupported = (key: string) =>
    new UnsupportedError(`Cannot load an adapter with ${key} ${JSON.stringify(raw[key])} (${file})`, {
      part: "adapter",
      capability: key,
    });
  if (raw.peft_type !== "LORA") throw unsupported("peft_type");
  for (const [key, value] of Object.entries(raw)) {
    const isFine = key in ALLOWED ? ALLOWED[key]!.includes(value) : KNOWN.has(key) || isOff(value);
    if (!isFine) throw unsupported(key);
  }
  for (const key of ["rank_pattern", "alpha_pattern"]) if (!isOff(raw[key])) throw unsupported(key);
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
  const isPattern = typeof targets === "string";
  if (!isPattern && !Array.isArray(targets)) throw unsupported("target_modules");
  // Rank-stabilised: the scale is alpha / sqrt(r), which this alpha gives as alpha / r.
  const scaled = raw.use_rslora === true ? alpha * Math.sqrt(r as number) : alpha;
  return {
    rank: r as number,
    alpha: scaled,
    targets: isPattern ? undefined : targets,
    base: typeof base === "string" ? base : undefined,
  };
}
