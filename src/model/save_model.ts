/** Saves a language model for other programs: its weights as a model folder, or its adapter as PEFT does. */
import { ConfigError } from "../errors.ts";
import { weightShapes } from "./files/config.ts";
import { type AdapterFactors, writeAdapterFolder } from "./files/peft.ts";
import type { TensorSource } from "./files/safetensors_write.ts";
import type { TextTokenizer } from "./files/tokenizer.ts";
import { writeModelFolder } from "./files/write_model_folder.ts";
import type { LanguageModel } from "./language_model.ts";
import { moduleOf } from "./lora.ts";
import type { ModelMark } from "./open_model.ts";
import type { Weights } from "./weights.ts";

/** What {@link saveModelFolder} and {@link saveAdapterFolder} write. */
export interface SaveModelOptions {
  readonly model: LanguageModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Type of the weights in the file. Default F32. */
  readonly dtype?: "F32" | "BF16";
}

/**
 * Writes a model as a folder that {@link openModelFolder}, transformers and vLLM read; an adapter is merged into the
 * weights. Existing files stay whole until all new ones are on the disk.
 * @throws ConfigError when a weight is not finite, or the disk is full.
 */
export async function saveModelFolder(dir: string, { model, tokenizer, dtype }: SaveModelOptions): Promise<void> {
  const tensors = await tensorSources(model.weights);
  await writeModelFolder(dir, { config: model.config, tensors, tokenizer, dtype });
}

/**
 * Writes a model's adapter as a folder that PEFT, vLLM and SGLang read.
 * @param options.base the model that the adapter belongs to, recorded in the folder.
 * @throws ConfigError for a model without an adapter, values that are not finite, or a full disk.
 */
export async function saveAdapterFolder(
  dir: string,
  { model, tokenizer, base }: Omit<SaveModelOptions, "dtype"> & { readonly base?: ModelMark | undefined },
): Promise<void> {
  const { adapter } = model;
  if (!adapter) throw new ConfigError("Cannot save the adapter: the model has none. Save its weights.");
  const values = await adapter.values.read();
  const modules = new Map<string, AdapterFactors>();
  for (const { tensor, rows: outSize, columns: inSize } of adapter.tensors()) {
    const module = moduleOf(tensor);
    modules.set(module, { a: values.get(`${module}.A`)!, b: values.get(`${module}.B`)!, inSize, outSize });
  }
  const { rank, alpha, targets } = adapter.config;
  const { folder, fingerprint } = base ?? {};
  await writeAdapterFolder(dir, { rank, alpha, targets, base: folder, fingerprint, modules });
  if (!tokenizer) return;
  const { writeFolder } = await import("./files/disk.ts");
  const files = Object.entries(tokenizer.files()).map(([name, content]) => ({ name, content }));
  await writeFolder(dir, files);
}

/** All weights under their names in a model folder. */
export async function tensorSources(weights: Weights): Promise<TensorSource[]> {
  const data = await weights.readTensors();
  return [...weightShapes(weights.config)].map(([name, shape]) => ({ name, shape, data: data.get(name)! }));
}
