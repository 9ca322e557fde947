/** Saves a language model for other programs: its weights as a model folder, or its adapter as PEFT does. */

import { ConfigError } from "../../leaves/errors.ts";
import { readFloats } from "../compute/device.ts";
import type { ModelConfig } from "./config.ts";
import type { FolderWriter } from "./files/file_source.ts";
import { GENERATION_CONFIG_FILE } from "./files/generation_config.ts";
import { type AdapterFactors, writeAdapterFolder } from "./files/peft.ts";
import type { TensorSource } from "./files/safetensors_write.ts";
import type { TextTokenizer } from "./files/tokenizer.ts";
import { writeModelFolder } from "./files/write_model_folder.ts";
import { writeFiles } from "./files/writer.ts";
import type { LanguageModel } from "./language_model.ts";
import { weightShapes } from "./layers.ts";
import { moduleOf } from "./lora.ts";
import type { ModelMark } from "./open_model.ts";
import { Scratch } from "./scratch.ts";
import { fusedRows, type StoredWeights } from "./stored_weights.ts";
import type { LoraAdapter } from "./train/lora_adapter.ts";
import type { ValueModel } from "./value_model.ts";
import { SCORE } from "./weights.ts";

/** Options of {@link saveModelFolder} and {@link saveAdapterFolder}. */
export interface SaveModelOptions {
  readonly model: LanguageModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Type of the weights in the file. Default F32. */
  readonly dtype?: "F32" | "BF16";
  /** Text of generation_config.json: {@link ModelFolder.generationConfig} of the model that was trained. Default: no file. */
  readonly generationConfig?: string | undefined;
}

/**
 * Writes a model as a folder that {@link openModelFolder}, transformers and vLLM read; an adapter is merged into the
 * weights. Existing files stay whole until all new ones are on the disk.
 * @param to a path on disk, or a writer such as {@link MemoryFolder}.
 * @throws ConfigError when a weight is not finite, or the disk is full.
 */
export async function saveModelFolder(to: string | FolderWriter, options: SaveModelOptions): Promise<void> {
  const { model, tokenizer, dtype, generationConfig } = options;
  const { base, adapters } = model;
  // An adapter on a tied output matrix makes it another matrix than the embedding table.
  const tied = model.config.tied && !adapters.some(({ isOnTiedTable }) => isOnTiedTable);
  const config = { ...model.config, tied };
  const tensors = sourcesOf(config, new Map([...(await base.readTensors()), ...(await mergedTensors(base, adapters))]));
  const extra: Record<string, string> =
    generationConfig === undefined ? {} : { [GENERATION_CONFIG_FILE]: generationConfig };
  await writeModelFolder(to, { config, tensors, tokenizer, dtype, extra });
}

/**
 * Writes a model's adapter as a folder that PEFT, vLLM and SGLang read.
 * @param to a path on disk, or a writer such as {@link MemoryFolder}.
 * @param options.base the model that the adapter belongs to, recorded in the folder.
 * @throws ConfigError for a model without an adapter, values that are not finite, or a full disk.
 */
export async function saveAdapterFolder(
  to: string | FolderWriter,
  {
    model,
    tokenizer,
    base,
  }: Pick<SaveModelOptions, "tokenizer"> & {
    readonly model: Pick<LanguageModel, "adapter">;
    readonly base?: ModelMark | undefined;
  },
): Promise<void> {
  const { adapter } = model;
  if (!adapter) throw new ConfigError("Cannot save the adapter: the model has none. Save its weights.");
  const values = await adapter.values.read();
  const modules = new Map<string, AdapterFactors>();
  for (const { tensor, rows: outSize, columns: inSize } of adapter.tensors()) {
    const module = moduleOf(tensor);
    modules.set(module, { a: values.get(`${module}.A`)!, b: values.get(`${module}.B`)!, inSize, outSize });
  }
  const { rank, alpha, targets, scoreHead } = adapter.config;
  const { folder, fingerprint } = base ?? {};
  const score = scoreHead ? values.get(SCORE) : undefined;
  await writeAdapterFolder(to, { rank, alpha, targets, scoreHead, base: folder, fingerprint, modules, score });
  if (!tokenizer) return;
  const files = Object.entries(tokenizer.files()).map(([name, content]) => ({ name, content }));
  await writeFiles(to, files);
}

/**
 * Writes a model with a scalar head as a folder that transformers reads (`AutoModelForSequenceClassification`), or its
 * adapter as PEFT does.
 * @throws ConfigError as {@link saveModelFolder} and {@link saveAdapterFolder}
 */
export async function saveValueModel(
  dir: string,
  {
    model,
    base,
    ...options
  }: Pick<SaveModelOptions, "tokenizer" | "dtype"> & {
    readonly model: ValueModel;
    readonly base?: ModelMark | undefined;
  },
): Promise<void> {
  if (model.adapter) return saveAdapterFolder(dir, { model, base, ...options });
  model.start();
  await writeModelFolder(dir, { config: model.base.config, tensors: await tensorSources(model.base), ...options });
}

/** All weights under their names in a model folder. */
export async function tensorSources(weights: StoredWeights): Promise<TensorSource[]> {
  return sourcesOf(weights.config, await weights.readTensors());
}

function sourcesOf(config: ModelConfig, data: ReadonlyMap<string, Float32Array>): TensorSource[] {
  return [...weightShapes(config)].map(([name, shape]) => ({ name, shape, data: data.get(name)! }));
}

/** The tensors that adapters change, in f32. Merged one fused matrix at a time, so that the device holds no second model. */
async function mergedTensors(
  base: StoredWeights,
  adapters: readonly LoraAdapter[],
): Promise<Map<string, Float32Array>> {
  const tensors = new Map<string, Float32Array>();
  for (const fused of new Set(adapters.flatMap(({ parts }) => [...parts.keys()]))) {
    const changes = adapters.flatMap((adapter) => (adapter.parts.get(fused) ?? []).map((part) => ({ adapter, part })));
    const { rows, columns } = base.shapeOf(fused);
    const scratch = new Scratch(base.device);
    try {
      const matrix = scratch.floats(rows * columns, "merged weights");
      base.copyMatrix(fused, matrix);
      for (const { adapter, part } of changes) adapter.addPart(part, matrix);
      const merged = await readFloats(base.device, matrix);
      for (const { part } of changes) tensors.set(part.tensor, fusedRows(part, merged));
    } finally {
      scratch.release();
    }
  }
  return tensors;
}
