/**
 * Writes models and adapters for other programs, from folder to folder: no device is opened, and one tensor at a time is
 * in memory.
 */
import { ConfigError } from "../../leaves/errors.ts";
import { decodeUtf8 } from "../../leaves/utf8.ts";
import type { ModelConfig } from "./config.ts";
import { setRoundedToOdd } from "./dtype.ts";
import type { FileSource } from "./files/file_source.ts";
import type { ModelFolder } from "./files/folder.ts";
import { GENERATION_CONFIG_FILE } from "./files/generation_config.ts";
import { folderKind, openFolder } from "./files/open_folder.ts";
import { type Adapter, type AdapterFactors, openAdapter, openBaseLayers, writeAdapterFolder } from "./files/peft.ts";
import { type FolderReader, readFolderJson } from "./files/reader.ts";
import type { TensorSource } from "./files/safetensors_write.ts";
import { weightFiles } from "./files/shards.ts";
import { encodeGguf } from "./gguf/container.ts";
import type { GgufForm } from "./gguf/form.ts";
import { modelMetadata } from "./gguf/metadata.ts";
import { ggufTensors } from "./gguf/tensors.ts";
import { vocabularyMetadata } from "./gguf/vocabulary.ts";
import { weightShapes } from "./layers.ts";
import { describeLora, moduleOf, UNEMBED_TARGET } from "./lora.ts";
import { type OpenedModel, openModel } from "./open_model.ts";
import { EMBEDDING } from "./weights.ts";

/** Destination and form of an export: an adapter merged or alone, the type of the weights, the size of a file. */
export interface ExportOptions {
  /** An empty folder, or one that does not exist. */
  readonly out: string;
  /** Adds adapters to the weights. False writes the adapter alone. Default false; a model without adapters is written whole. */
  readonly merge?: boolean;
  /** Type of merged or copied weights. Default: that of the base where all its weights have it, else float32. */
  readonly dtype?: "bfloat16" | "float32" | undefined;
  /** Writes one GGUF file, which llama.cpp reads, with matrices of this type; `dtype` and `maxShardBytes` do not apply. */
  readonly gguf?: GgufForm | undefined;
  /** Folder of an adapter's base, in place of the one that it records. */
  readonly base?: string | undefined;
  /** See {@link weightFiles}. */
  readonly maxShardBytes?: number | undefined;
}

type StoredType = "bfloat16" | "float32";

/** Result of an export. */
export interface Exported {
  readonly kind: "model" | "adapter";
  readonly dtype: StoredType | GgufForm;
  readonly files: readonly string[];
}

/**
 * Writes a model folder, or an adapter folder, that transformers, PEFT and vLLM read, with the tokenizer, the chat
 * template and generation_config.json of its source. The products of adapters are added in float64, and the
 * sum is rounded once, to the type of the file.
 * @throws ConfigError for a folder that cannot be read, an `out` that holds files, or a full disk.
 */
export async function exportFolder(folder: string, options: ExportOptions): Promise<Exported> {
  await requireEmpty(options.out, "export");
  const isAlone = (await folderKind(folder)) === "adapter" && !options.merge;
  if (isAlone && options.gguf !== undefined)
    throw new ConfigError("Cannot export an adapter alone as GGUF. Merge it into its base with --merge.", {
      file: folder,
      kind: "usage",
    });
  if (isAlone) return exportAdapter(folder, options);
  const opened = await openModel(folder, { base: options.base });
  const { gguf, out } = options;
  return gguf === undefined ? exportModel(opened, { folder, ...options }) : exportGguf(opened, { out, form: gguf });
}

/** @throws ConfigError for a folder that holds files */
async function requireEmpty(out: string, act: "export" | "import"): Promise<void> {
  const { listFolder } = await import("./files/disk.ts");
  if ((await listFolder(out)).length === 0) return;
  throw new ConfigError(`Cannot ${act}: the folder is not empty. Name another, or remove its files.`, {
    file: out,
  });
}

/**
 * Writes a GGUF file, with its shards, as a model folder, all weights in `dtype`. Default bfloat16.
 * @throws ConfigError for a file that cannot be read, an `out` that holds files, or a full disk; UnsupportedError for a family or a type that is not read here
 */
export async function importGguf(
  file: string,
  { out, dtype = "bfloat16", maxShardBytes }: Pick<ExportOptions, "out" | "dtype" | "maxShardBytes">,
): Promise<Exported> {
  const { ggufFiles } = await import("./files/disk.ts");
  const { ggufFolder } = await import("./files/gguf/folder.ts");
  await requireEmpty(out, "import");
  const files = await ggufFiles(file);
  if (files.length === 0) throw new ConfigError("Cannot import: there is no such GGUF file.", { file });
  const opened = await openModel(await ggufFolder(files, { name: file, dtype }));
  return exportModel(opened, { folder: file, out, maxShardBytes, dtype });
}

async function exportAdapter(folder: string, { out, dtype, base }: ExportOptions): Promise<Exported> {
  if (dtype === "bfloat16")
    throw new ConfigError(
      "Cannot export the adapter in bfloat16: its factors are float32, as PEFT writes them. Leave --dtype out, or merge it.",
    );
  // Compares the fingerprint, and base weights that the adapter's file contains.
  if (base !== undefined) await openModel(folder, { base });
  else if ((await openBaseLayers(folder)).size > 0)
    throw new ConfigError(
      "Cannot export the adapter alone: its file contains weights of its base, which cannot be compared. Give the base with --base DIR, or merge it.",
      { file: folder },
    );
  const { writeFolder } = await import("./files/disk.ts");
  const adapter = await openAdapter(folder);
  await writeAdapterFolder(out, base === undefined ? adapter : { ...adapter, base });
  const texts = await textFiles([folder]);
  await writeFolder(out, texts);
  const adapterFiles = ["adapter_config.json", "adapter_model.safetensors"];
  return { kind: "adapter", dtype: "float32", files: [...adapterFiles, ...texts.map(({ name }) => name)] };
}

async function exportModel(opened: OpenedModel, options: ExportOptions & { folder: string }): Promise<Exported> {
  const { writeFolder } = await import("./files/disk.ts");
  const dtype = options.dtype ?? storedType(opened.files);
  const tensors = mergedTensors(opened, dtype);
  const hasOutput = tensors.some(({ name }) => name === UNEMBED);
  const files = [
    ...weightFiles(tensors, { dtype: dtype === "bfloat16" ? "BF16" : "F32", maxShardBytes: options.maxShardBytes }),
    { name: "config.json", content: await configText(opened.files.name, { dtype, hasOutput }) },
    ...(await textFiles([...opened.adapters.map(({ folder }) => folder).reverse(), opened.files.name])),
  ];
  await writeFolder(options.out, files);
  return { kind: "model", dtype, files: files.map(({ name }) => name) };
}

/** The merged weights, the tokenizer and the chat template in one file. */
async function exportGguf(opened: OpenedModel, { out, form }: { out: string; form: GgufForm }): Promise<Exported> {
  const { writeFolder } = await import("./files/disk.ts");
  const { config, name: base } = opened.files;
  const name = base.split(/[\\/]/).findLast((part) => part !== "") ?? base;
  const texts = await textFiles([...opened.adapters.map(({ folder }) => folder).reverse(), base]);
  const metadata = new Map([
    ...modelMetadata(config, { name, form }),
    ...tokenizerMetadata(texts, { config, file: base }),
  ]);
  const merged = mergedTensors(opened, form === "bf16" ? "bfloat16" : "float32");
  const tensors = ggufTensors(merged, { config, form });
  const file = { name: `model-${form}.gguf`, content: encodeGguf(metadata, tensors) };
  await writeFolder(out, [file]);
  return { kind: "model", dtype: form, files: [file.name] };
}

function tokenizerMetadata(texts: readonly FileSource[], { config, file }: { config: ModelConfig; file: string }) {
  const textOf = (wanted: string) => {
    const content = texts.find(({ name }) => name === wanted)?.content as Uint8Array | undefined;
    return content && decodeUtf8(content, { file: wanted });
  };
  const tokenizer = textOf("tokenizer.json");
  if (tokenizer === undefined)
    throw new ConfigError("Cannot export the model as GGUF: it has no tokenizer.json. Add the model's tokenizer.", {
      file,
    });
  const settings = JSON.parse(textOf("tokenizer_config.json") ?? "{}") as Readonly<Record<string, unknown>>;
  const template = settings.chat_template;
  const chatTemplate = textOf("chat_template.jinja") ?? (typeof template === "string" ? template : undefined);
  return vocabularyMetadata(JSON.parse(tokenizer), { ...config, chatTemplate, settings, file });
}

function storedType({ config, tensors }: ModelFolder): "bfloat16" | "float32" {
  return [...weightShapes(config).keys()].every((name) => tensors.get(name)?.dtype === "BF16") ? "bfloat16" : "float32";
}

/** The base's config.json with what the export changes; other keys stay as they are published. */
async function configText(base: string, output: { dtype: string; hasOutput: boolean }): Promise<string> {
  const raw = (await readFolderJson(await openFolder(base), "config.json")) as Record<string, unknown>;
  // transformers 5 names the key dtype, 4 torch_dtype.
  const key = "dtype" in raw ? "dtype" : "torch_dtype";
  // Also where the base's file says that a separate output matrix is tied.
  const changed = { ...raw, [key]: output.dtype, ...(output.hasOutput && { tie_word_embeddings: false }) };
  return `${JSON.stringify(changed, null, 2)}\n`;
}

const UNEMBED = `${UNEMBED_TARGET}.weight`;

/** The tensors of the base in its order, each merged when its data are asked for. */
function mergedTensors({ files, adapters }: OpenedModel, dtype: StoredType): TensorSource[] {
  checkModules(files, adapters);
  const changesOutput = adapters.some(({ adapter }) => adapter.modules.has(UNEMBED_TARGET));
  const { tied } = files.config;
  const kept = [...files.tensors.values()].filter(({ name }) => !(tied && name === UNEMBED) && !UNUSED.test(name));
  const sources = kept.map(({ name, shape }) => source(name, { from: name, shape, files, adapters, dtype }));
  if (!tied || !changesOutput) return sources;
  const { shape } = files.tensors.get(EMBEDDING)!;
  return [...sources, source(UNEMBED, { from: EMBEDDING, shape, files, adapters, dtype })];
}

/** No forward pass reads it, and newer versions of transformers do not expect it. */
const UNUSED = /\.rotary_emb\.inv_freq$/;

function source(
  name: string,
  tensor: { from: string; shape: readonly number[]; dtype: StoredType } & Pick<OpenedModel, "files" | "adapters">,
): TensorSource {
  const changes = tensor.adapters.flatMap(({ adapter }) => {
    const factors = adapter.modules.get(moduleOf(name));
    return factors ? [{ ...factors, rank: adapter.rank, alpha: adapter.alpha }] : [];
  });
  return {
    name,
    shape: tensor.shape,
    async data() {
      const weights = await tensor.files.read(tensor.from);
      const [first] = changes;
      if (first) addProducts(weights, changes, { width: first.inSize, isRoundedAgain: tensor.dtype === "bfloat16" });
      return weights;
    },
  };
}

type Change = Pick<Adapter, "rank" | "alpha"> & Pick<AdapterFactors, "a" | "b">;

/** weights += alpha / rank B A of each adapter. An element is summed in float64, and rounded once to the type of the file. */
function addProducts(
  weights: Float32Array,
  changes: readonly Change[],
  { width, isRoundedAgain }: { width: number; isRoundedAgain: boolean },
): void {
  const row = new Float64Array(width);
  for (let o = 0; o * width < weights.length; o++) {
    const into = weights.subarray(o * width, (o + 1) * width);
    row.set(into);
    for (const change of changes) addRow(row, change, o);
    if (isRoundedAgain) setRoundedToOdd(into, row);
    else into.set(row);
  }
}

/** Row `o` of alpha / rank B A. */
function addRow(row: Float64Array, { a, b, rank, alpha }: Change, o: number): void {
  for (let k = 0; k < rank; k++) {
    const factor = (b[o * rank + k]! * alpha) / rank;
    const from = k * row.length;
    for (let i = 0; i < row.length; i++) row[i]! += factor * a[from + i]!;
  }
}

/** @throws ConfigError where an adapter changes a matrix that the base lacks, or that has another shape. */
function checkModules(files: ModelFolder, adapters: OpenedModel["adapters"]): void {
  for (const { adapter, folder } of adapters) {
    if (adapter.scoreHead)
      throw new ConfigError(
        "Cannot merge the adapter: it has a scalar head, which a merged model would be without. Export it alone, without --merge.",
        { file: folder },
      );
    for (const [module, { inSize, outSize }] of adapter.modules) {
      const name = module === UNEMBED_TARGET && files.config.tied ? EMBEDDING : `${module}.weight`;
      const shape = files.tensors.get(name)?.shape;
      if (`${shape}` === `${[outSize, inSize]}`) continue;
      throw new ConfigError(
        `Cannot merge the adapter (${describeLora(adapter)}): ${module} must be [${shape ?? "missing"}] ([${outSize},${inSize}]). It belongs to another model than ${files.name}.`,
        { file: folder },
      );
    }
  }
}

const TOKENIZER_FILES = [
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "tokenizer.model",
  "vocab.json",
  "merges.txt",
  "chat_template.jinja",
] as const;

/**
 * The tokenizer of the first folder that has one, with its chat template, and the first generation_config.json. Tokenizer
 * files of two folders are not mixed, because one's template does not fit the other's tokens.
 */
async function textFiles(folders: readonly string[]): Promise<FileSource[]> {
  const readers = await Promise.all(folders.map(openFolder));
  const firstWith = async (names: readonly string[]) => {
    for (const reader of readers) for (const name of names) if (await reader.open(name)) return reader;
    return undefined;
  };
  const tokenizer = await firstWith(["tokenizer.json", "tokenizer.model", "vocab.json"]);
  const generation = await firstWith([GENERATION_CONFIG_FILE]);
  const files = await Promise.all([
    ...TOKENIZER_FILES.map((name) => copied(name, tokenizer)),
    copied(GENERATION_CONFIG_FILE, generation),
  ]);
  return files.filter((file) => file !== undefined);
}

async function copied(name: string, from: FolderReader | undefined): Promise<FileSource | undefined> {
  const file = await from?.open(name);
  return file && { name, content: await file.read(0, file.size) };
}
