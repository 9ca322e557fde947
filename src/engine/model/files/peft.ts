/** A LoRA adapter in PEFT's form (`adapter_config.json`, `adapter_model.safetensors`), which vLLM and SGLang serve. */
import { ConfigError } from "../../../leaves/errors.ts";
import type { LoraConfig } from "../lora.ts";
import { type BaseName, baseNameOf } from "./base_name.ts";
import type { FolderWriter } from "./file_source.ts";
import { openFolder } from "./open_folder.ts";
import { parseAdapterConfig } from "./peft_config.ts";
import { type FolderReader, readFolderJson } from "./reader.ts";
import { encodeSafetensors, type TensorSource } from "./safetensors_write.ts";
import { openTensors, type TensorFiles } from "./tensor_files.ts";
import { writeFiles } from "./writer.ts";

/** The settings of a saved adapter. */
export interface AdapterConfig extends Omit<LoraConfig, "modules"> {
  /** Folder of the base model, or its name where the adapter records no folder. */
  readonly base?: string | undefined;
  /** Fingerprint of the base model's weights, see fingerprint.ts. Absent in adapters made elsewhere. */
  readonly fingerprint?: string | undefined;
}

/** The factors of one module: A [rank, in], B [out, rank], row-major. */
export interface AdapterFactors {
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly inSize: number;
  readonly outSize: number;
}

export interface Adapter extends AdapterConfig {
  /** Factors by module: `model.layers.0.self_attn.q_proj`. */
  readonly modules: ReadonlyMap<string, AdapterFactors>;
  /** The weight of a scalar head, [C]; with `scoreHead`. */
  readonly score?: Float32Array | undefined;
}

const PREFIX = "base_model.model.";
const SCORE = "score.weight";
/** Holds the fingerprint and the folder of the base model, for which PEFT's files have no field. */
const BASE_FILE = "base.json";

/** Writes an adapter folder. @throws ConfigError when factors do not fit the rank, or the disk is full. */
export async function writeAdapterFolder(to: string | FolderWriter, adapter: Adapter): Promise<void> {
  const tensors: TensorSource[] = [];
  for (const [module, { a, b, inSize, outSize }] of adapter.modules) {
    const name = `${PREFIX}${module}`;
    tensors.push({ name: `${name}.lora_A.weight`, shape: [adapter.rank, inSize], data: a });
    tensors.push({ name: `${name}.lora_B.weight`, shape: [outSize, adapter.rank], data: b });
  }
  const { score } = adapter;
  if (score) tensors.push({ name: `${PREFIX}${SCORE}`, shape: [1, score.length], data: score });
  const base = adapter.base === undefined ? undefined : await recordedBase(adapter.base, to);
  const config = {
    peft_type: "LORA",
    task_type: score ? "SEQ_CLS" : "CAUSAL_LM",
    base_model_name_or_path: base?.name ?? null,
    r: adapter.rank,
    lora_alpha: adapter.alpha,
    lora_dropout: 0,
    bias: "none",
    fan_in_fan_out: false,
    target_modules: adapter.targets,
    ...(score && { modules_to_save: ["score"] }),
    inference_mode: true,
  };
  const { fingerprint } = adapter;
  await writeFiles(to, [
    ...(fingerprint ? [{ name: BASE_FILE, content: `${JSON.stringify({ ...base, fingerprint })}\n` }] : []),
    { name: "adapter_model.safetensors", content: encodeSafetensors(tensors) },
    { name: "adapter_config.json", content: `${JSON.stringify(config, null, 2)}\n` },
  ]);
}

/** A page knows no paths: there a base has its name alone. */
function recordedBase(base: string, to: string | FolderWriter): BaseName | Promise<BaseName> {
  return typeof to === "string" ? baseNameOf(base) : { folder: base, name: base };
}

/** An adapter without its factors. */
export interface AdapterShape extends AdapterConfig {
  readonly modules: ReadonlySet<string>;
}

/** Reads the configuration and the names of an adapter folder, without its factors. */
export async function readAdapterShape(folder: string | FolderReader): Promise<AdapterShape> {
  const { config, names } = await openFiles(folder);
  return { ...config, modules: new Set(names.keys()) };
}

/**
 * Base weights in the adapter's file, by module: PEFT writes those of output matrices. The caller must check that they
 * equal the base model's.
 */
export async function openBaseLayers(folder: string | FolderReader): Promise<Map<string, () => Promise<Float32Array>>> {
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
 * Reads an adapter folder with all its factors.
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
  const [score] = config.scoreHead ? scoreNames(files) : [];
  return { ...config, modules, ...(score !== undefined && { score: await files.read(score) }) };
}

/** Name of the scalar head's weight in the file. */
function scoreNames({ tensors }: TensorFiles): string[] {
  return [...tensors.keys()].filter((name) => IS_SCORE.test(name));
}

const IS_SCORE = /^(?:base_model\.model\.)?score\.weight$/;

/** Names of a module's two factors in the file. */
type FactorNames = readonly [a: string, b: string];

interface AdapterFiles {
  readonly config: AdapterConfig;
  readonly names: ReadonlyMap<string, FactorNames>;
  readonly files: TensorFiles;
}

async function openFiles(folder: string | FolderReader): Promise<AdapterFiles> {
  const reader = await openFolder(folder);
  const file = `${reader.name}/adapter_config.json`;
  const raw = (await readFolderJson(reader, "adapter_config.json")) as Record<string, unknown> | undefined;
  if (!raw) throw new ConfigError("Cannot open the adapter: it has no adapter_config.json.", { file });
  const { targets, ...config } = parseAdapterConfig(raw, file);
  const files = await openTensors(reader, "adapter_model");
  const names = factorNames(files, { ...config, folder: reader.name });
  if (config.scoreHead && scoreNames(files).length !== 1)
    throw new ConfigError(`Cannot read the adapter: ${PREFIX}${SCORE} is missing, which modules_to_save names.`, {
      file: `${reader.name}/adapter_model.safetensors`,
    });
  const saved = (await readFolderJson(reader, BASE_FILE)) as (Partial<BaseName> & { fingerprint?: string }) | undefined;
  return {
    config: {
      ...config,
      // A person may have written another base into adapter_config.json.
      base: saved?.name !== undefined && saved.name === config.base ? saved.folder : config.base,
      targets: targetsOf(names, { listed: targets, file }),
      fingerprint: saved?.fingerprint,
    },
    names,
    files,
  };
}

function factorNames(
  { tensors }: TensorFiles,
  { rank, scoreHead, folder }: Pick<AdapterConfig, "rank" | "scoreHead"> & { folder: string },
): Map<string, FactorNames> {
  const names = new Map<string, FactorNames>();
  const factors = [...tensors].filter(([name]) => !BASE_LAYER.test(name) && !(scoreHead && IS_SCORE.test(name)));
  for (const [name, { file, shape }] of factors) {
    const fail = (rule: string) => new ConfigError(`Cannot read the adapter: ${rule}.`, { file });
    const match = /^(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight$/.exec(name);
    if (!match) throw fail(`tensor ${name} is not a LoRA factor`);
    const [, module, factor] = match;
    if (shape.length !== 2 || shape[factor === "A" ? 0 : 1] !== rank)
      throw fail(`tensor ${name} does not have the adapter's rank ${rank} (shape [${shape}])`);
    if (factor === "B") continue;
    const nameOfB = name.replace(/lora_A\.weight$/, "lora_B.weight");
    if (!tensors.has(nameOfB)) throw fail(`${nameOfB} is missing`);
    names.set(module!, [name, nameOfB]);
  }
  if (names.size * 2 !== factors.length)
    throw new ConfigError("Cannot read the adapter: some modules have B and no A.", { file: folder });
  return names;
}

/**
 * Last parts of the names of the modules that have factors, in the order of the list. Listed targets without a module
 * are left out.
 * @throws ConfigError for factors outside the list, which PEFT would not load.
 */
function targetsOf(
  names: ReadonlyMap<string, FactorNames>,
  { listed, file }: { listed: readonly string[] | undefined; file: string },
): string[] {
  const isListed = (module: string) =>
    listed === undefined || listed.some((target) => module === target || module.endsWith(`.${target}`));
  const left = [...names.keys()].find((module) => !isListed(module));
  if (left !== undefined) {
    const message = `Cannot read the adapter: ${left} has factors, but target_modules is [${listed}]. Add it to the list, or remove its factors.`;
    throw new ConfigError(message, { file, path: "target_modules" });
  }
  const found = new Set(Array.from(names.keys(), (module) => module.slice(module.lastIndexOf(".") + 1)));
  const inOrder = (listed ?? []).filter((target) => found.delete(target));
  return [...inOrder, ...found];
}
