/**
 * A local checkpoint: a model folder (or a PEFT adapter) that other tools read, plus the optimiser's moments and step,
 * so that training continues bit for bit.
 */

import { modelConfigJson, parseModelConfig } from "../../../engine/model/files/config_json.ts";
import { configDifferences } from "../../../engine/model/files/fingerprint.ts";
import { folderKind, openFolder } from "../../../engine/model/files/open_folder.ts";
import { openAdapter } from "../../../engine/model/files/peft.ts";
import { readFolderJson } from "../../../engine/model/files/reader.ts";
import { openSafetensors } from "../../../engine/model/files/safetensors.ts";
import { encodeSafetensors, type TensorSource } from "../../../engine/model/files/safetensors_write.ts";
import { openTensors } from "../../../engine/model/files/tensor_files.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import type { LanguageModel } from "../../../engine/model/language_model.ts";
import { describeLora } from "../../../engine/model/lora.ts";
import type { ModelMark } from "../../../engine/model/open_model.ts";
import type { ParameterSet } from "../../../engine/model/parameters.ts";
import { saveAdapterFolder, saveModelFolder, saveValueModel, tensorSources } from "../../../engine/model/save_model.ts";
import type { StoredWeights } from "../../../engine/model/stored_weights.ts";
import type { ValueModel } from "../../../engine/model/value_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";

interface CheckpointOptions {
  readonly model: LanguageModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Recorded in an adapter's files. */
  readonly base?: ModelMark | undefined;
  /** Text of the base's generation_config.json, written beside weights. An adapter's base has it. */
  readonly generationConfig?: string | undefined;
  /** Whether to write the optimiser's state. Default true. */
  readonly optimizer?: boolean;
}

const OPTIMIZER_FILE = "optimizer.safetensors";
const REFERENCE = "reference";

/**
 * Writes `dir`: weights or adapter, tokenizer, and with `optimizer` also `optimizer.safetensors` and, where a reference
 * is frozen, `reference.safetensors`.
 */
export async function saveLocalCheckpoint(dir: string, options: CheckpointOptions): Promise<void> {
  const { model } = options;
  if (model.adapter) await saveAdapterFolder(dir, options);
  else await saveModelFolder(dir, options);
  if (options.optimizer === false) return;
  const { writeFolder } = await import("../../../engine/model/files/disk.ts");
  const files = [await optimizerFile(model)];
  if (model.frozenReference) {
    const tensors = await tensorSources(model.frozenReference);
    files.push({ name: `${REFERENCE}.safetensors`, content: encodeSafetensors(tensors) });
  }
  await writeFolder(dir, files);
}

/** A model with an optimiser: a policy or a critic. */
type Trained = Pick<LanguageModel, "optimizer">;

async function optimizerTensors({ optimizer }: Trained): Promise<TensorSource[]> {
  return [
    ...(await flatTensors(optimizer.means, "mean.")),
    ...(await flatTensors(optimizer.variances, "variance.")),
    { name: "step", shape: [1], data: Int32Array.of(optimizer.step) },
  ];
}

async function optimizerFile(model: Trained) {
  return { name: OPTIMIZER_FILE, content: encodeSafetensors(await optimizerTensors(model)) };
}

async function flatTensors(values: ParameterSet, prefix: string): Promise<TensorSource[]> {
  const tensors = [...(await values.read())];
  return tensors.map(([name, data]) => ({ name: prefix + name, shape: [data.length], data }));
}

/** Optimiser steps in the weights of a checkpoint; undefined for a folder that holds no optimiser's state. */
export async function checkpointStep(dir: string): Promise<number | undefined> {
  const reader = await (await openFolder(dir)).open(OPTIMIZER_FILE);
  if (!reader) return undefined;
  const file = await openSafetensors(reader);
  return file.tensors.has("step") ? (await file.readIntegers("step"))[0] : undefined;
}

/**
 * The inverse of {@link saveLocalCheckpoint}, into a model of the same shape.
 * @param options.optimizer false resets the moments instead of loading them. Default true.
 * @param options.base the model's base: an adapter that was trained on another one is refused.
 * @throws ConfigError for a checkpoint of another model or shape, or a damaged one.
 */
export async function loadLocalCheckpoint(
  dir: string,
  model: LanguageModel,
  options: { readonly optimizer?: boolean; readonly base?: ModelMark | undefined } = {},
): Promise<void> {
  await checkKind(dir, model);
  if (model.adapter) await loadAdapter(dir, model, options);
  else await loadTensors(dir, { stem: "model", into: model.base });
  if (options.optimizer === false) model.optimizer.reset();
  else await loadOptimizer(dir, model);
  const { listFolder } = await import("../../../engine/model/files/disk.ts");
  if ((await listFolder(dir)).includes(`${REFERENCE}.safetensors`)) {
    model.freezeReference();
    await loadTensors(dir, { stem: REFERENCE, into: model.frozenReference! });
    model.frozenReference!.refresh();
  }
  model.refresh();
  await model.device.submit();
}

/**
 * Loads the values of an adapter into a model with an adapter of that shape.
 * @throws ConfigError as {@link loadLocalCheckpoint}
 */
export async function loadAdapter(
  dir: string,
  model: LanguageModel,
  { base }: { readonly base?: ModelMark | undefined } = {},
): Promise<void> {
  const saved = await openAdapter(dir);
  if (base && saved.fingerprint !== undefined && saved.fingerprint !== base.fingerprint)
    throw new ConfigError(
      `Cannot load the adapter: it was trained on another model than ${base.folder} (${saved.base ?? "not recorded"}).`,
      { file: dir },
    );
  model.adapter!.load(saved, `${dir}/adapter_config.json`);
  model.refresh();
}

/** Folder of the critic in a checkpoint. */
const CRITIC = "critic";

/** Writes the critic of a checkpoint: a model folder or an adapter, and its optimiser. Nothing before its first use. */
export async function saveCritic(
  dir: string,
  { model, ...options }: Pick<CheckpointOptions, "tokenizer" | "base"> & { readonly model: ValueModel },
): Promise<void> {
  if (model.isStarted) await saveValueCheckpoint(`${dir}/${CRITIC}`, { model, ...options });
}

/** Writes a model with a scalar head as a model folder or an adapter, and its optimiser. */
export async function saveValueCheckpoint(
  dir: string,
  { model, ...options }: Pick<CheckpointOptions, "tokenizer" | "base"> & { readonly model: ValueModel },
): Promise<void> {
  await saveValueModel(dir, { model, ...options });
  const { writeFolder } = await import("../../../engine/model/files/disk.ts");
  await writeFolder(dir, [await optimizerFile(model)]);
}

/**
 * The inverse of {@link saveCritic}, into a critic of the same shape. A checkpoint without one leaves it as it is.
 * @throws ConfigError as {@link loadLocalCheckpoint}
 */
export async function loadCritic(dir: string, model: ValueModel): Promise<void> {
  const folder = `${dir}/${CRITIC}`;
  const { listFolder } = await import("../../../engine/model/files/disk.ts");
  if ((await listFolder(folder)).length > 0) await loadValueCheckpoint(folder, model, { what: "critic" });
}

/**
 * The inverse of {@link saveValueCheckpoint}, into a model of the same shape.
 * @throws ConfigError as {@link loadLocalCheckpoint}
 */
export async function loadValueCheckpoint(
  dir: string,
  model: ValueModel,
  { what }: { readonly what: string },
): Promise<void> {
  await checkKind(dir, { adapter: model.adapter, config: model.base.config }, what);
  if (model.adapter) model.adapter.load(await openAdapter(dir), `${dir}/adapter_config.json`);
  else await loadTensors(dir, { stem: "model", into: model.base });
  await loadOptimizer(dir, model);
  model.refresh();
  await model.device.submit();
}

async function checkKind(dir: string, model: Pick<LanguageModel, "adapter" | "config">, what = "model"): Promise<void> {
  const kind = await folderKind(dir);
  if (kind === "model" && !model.adapter) return checkConfig(dir, model);
  if (kind === "adapter" && model.adapter) return;
  const rule = model.adapter
    ? `it holds all weights of a model, and the ${what} trains an adapter (${describeLora(model.adapter.config)})`
    : `it holds an adapter, and all weights of the ${what} train`;
  throw new ConfigError(`Cannot load the checkpoint: ${rule}.`, { file: dir });
}

async function checkConfig(dir: string, { config }: Pick<LanguageModel, "config">): Promise<void> {
  const file = `${dir}/config.json`;
  const saved = parseModelConfig(await readFolderJson(await openFolder(dir), "config.json"), file);
  // Compared as written and read back, because config.json does not hold every field.
  const modelConfig = parseModelConfig(modelConfigJson(config), file);
  const differences = configDifferences(saved, modelConfig);
  if (differences.length === 0) return;
  throw new ConfigError(
    `Cannot load the checkpoint: it belongs to another model. The checkpoint and the model differ in ${differences.join("; ")}.`,
    { file },
  );
}

async function loadOptimizer(dir: string, { optimizer }: Trained): Promise<void> {
  const saved = await openOptimizer(dir);
  for (const [values, prefix] of [
    [optimizer.means, "mean."],
    [optimizer.variances, "variance."],
  ] as const)
    for (const name of values.layout.entries.keys()) values.write(name, await saved.read(prefix + name));
  const [step] = await saved.readIntegers("step");
  optimizer.step = step!;
  optimizer.gradients.clear();
}

async function openOptimizer(dir: string) {
  const file = await (await openFolder(dir)).open(OPTIMIZER_FILE);
  if (file) return openSafetensors(file);
  throw new ConfigError(
    `Cannot continue training: the checkpoint has no ${OPTIMIZER_FILE}, so its weights can be sampled and evaluated only. To train from them, give them as the model (model.name).`,
    { file: dir },
  );
}

async function loadTensors(dir: string, { stem, into }: { stem: string; into: StoredWeights }): Promise<void> {
  const saved = await openTensors(dir, stem);
  for (const part of into.parts) {
    const data = await saved.read(part.tensor);
    if (data.length !== part.rows * part.columns)
      throw new ConfigError(
        `Cannot load the checkpoint: ${part.tensor} must hold ${part.rows} x ${part.columns} weights (${data.length}). It belongs to another model.`,
        { file: `${dir}/${stem}.safetensors` },
      );
    into.writeTensor(part, data);
  }
}
