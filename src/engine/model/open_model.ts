/** Opens a model from any folder: a whole model, or an adapter with its base model. */

import { ConfigError } from "../../leaves/errors.ts";
import type { Device } from "../compute/device.ts";
import { fingerprintOf, floatBytes, sha256 } from "./files/fingerprint.ts";
import { type ModelFolder, openModelFolder, openTokenizer } from "./files/folder.ts";
import { folderKind } from "./files/open_folder.ts";
import { type Adapter, openAdapter, openBaseLayers, readAdapterShape } from "./files/peft.ts";
import type { FolderReader } from "./files/reader.ts";
import type { TextTokenizer } from "./files/tokenizer.ts";
import { loadWeights } from "./initial_weights.ts";
import { LanguageModel, type LanguageModelOptions } from "./language_model.ts";
import { UNEMBED_TARGET } from "./lora.ts";
import { trainsWeights } from "./storage_format.ts";
import type { StoredWeights } from "./stored_weights.ts";
import { LoraAdapter } from "./train/lora_adapter.ts";
import { EMBEDDING } from "./weights.ts";

/** Identifies a model: its folder and its weights. */
export interface ModelMark {
  readonly folder: string;
  /** See fingerprint.ts. */
  readonly fingerprint: string;
}

/** A model whose files are open and whose weights have not been read. */
export interface OpenedModel {
  readonly mark: ModelMark;
  /** The base model's files. */
  readonly files: ModelFolder;
  /** Adapters to merge into it, in this order. */
  readonly adapters: readonly { readonly adapter: Adapter; readonly folder: string }[];
  readonly tokenizer: TextTokenizer | undefined;
}

/**
 * Opens the folder of a model, or of an adapter and its base.
 * @param folder a path on disk, or a reader; the base of an adapter is a path.
 * @param options.base folder of the base, in place of the one that the adapter records.
 * @throws ConfigError when there is no such folder, or the adapter was trained on another base.
 */
export async function openModel(
  folder: string | FolderReader,
  options: { base?: string | undefined } = {},
): Promise<OpenedModel> {
  const name = nameOf(folder);
  if ((await folderKind(folder)) === "model") {
    const files = await openModelFolder(folder);
    const fingerprint = await fingerprintOf(files);
    return { mark: { folder: name, fingerprint }, files, adapters: [], tokenizer: files.tokenizer };
  }
  const base = await openBase(folder, options);
  const adapter = await openAdapter(folder);
  await checkBaseLayers(folder, base.files);
  const fingerprint = `${base.mark.fingerprint}+${await adapterPrint(adapter)}`;
  return {
    mark: { folder: name, fingerprint },
    files: base.files,
    adapters: [...base.adapters, { adapter, folder: name }],
    tokenizer: (await openTokenizer(folder, base.files.config.eosTokenIds)) ?? base.tokenizer,
  };
}

const nameOf = (folder: string | FolderReader) => (typeof folder === "string" ? folder : folder.name);

/** @throws ConfigError where base weights in an adapter's file differ from the base's, as after a larger vocabulary. */
async function checkBaseLayers(folder: string | FolderReader, { tensors, read }: ModelFolder): Promise<void> {
  for (const [module, readOwn] of await openBaseLayers(folder)) {
    const name = tensors.has(`${module}.weight`) ? `${module}.weight` : EMBEDDING;
    const [saved, base] = [await readOwn(), await read(name)];
    if (saved.length === base.length && saved.every((value, i) => value === base[i])) continue;
    const message = `Cannot open the adapter: it contains weights for ${module} that differ from the base model's. Merge it into its base with PEFT (merge_and_unload), and give the merged folder.`;
    throw new ConfigError(message, { file: `${nameOf(folder)}/adapter_model.safetensors` });
  }
}

/**
 * The base model of an adapter.
 * @throws ConfigError as {@link openModel}
 */
export async function openBase(
  folder: string | FolderReader,
  options: { base?: string | undefined } = {},
): Promise<OpenedModel> {
  const { base: recorded, fingerprint } = await readAdapterShape(folder);
  const place = options.base ?? recorded;
  const file = `${nameOf(folder)}/adapter_config.json`;
  if (place === undefined) {
    throw new ConfigError(
      "Cannot open the adapter: it does not name its base model. Give that model's folder (--base DIR, or model.name=DIR), or write it into base_model_name_or_path.",
      { file },
    );
  }
  const base = await openModel(place).catch((error) => {
    if (!(error instanceof ConfigError)) throw error;
    const hint = options.base === undefined ? " Give its folder with --base DIR, or model.name=DIR." : "";
    throw new ConfigError(`Cannot open the base model of the adapter ${nameOf(folder)}: ${error.message}${hint}`, {
      file,
    });
  });
  if (fingerprint === undefined || fingerprint === base.mark.fingerprint) return base;
  throw new ConfigError(
    `Cannot open the adapter on ${place}: it was trained on ${recorded}, whose weights have the fingerprint ${short(fingerprint)}; those of ${place} have ${short(base.mark.fingerprint)}. Give the model that it was trained on.`,
    { file },
  );
}

/** Reads the weights and the adapters onto a device. Allocates no gradients or moments; frees what it holds where reading fails. */
export async function loadModel(
  device: Device,
  { files, adapters: saved }: OpenedModel,
  options: LanguageModelOptions = {},
): Promise<LanguageModel> {
  const changesOutput = saved.some(({ adapter }) => adapter.targets.includes(UNEMBED_TARGET));
  // Training all weights needs the adapters merged, and merging into a tied output matrix would change the embedding.
  const weights = await loadWeights(device, files, { ...options, untied: trainsWeights(options) && changesOutput });
  const adapters: LoraAdapter[] = [];
  const mark = device.mark();
  try {
    for (const { adapter, folder } of saved) {
      const lora = new LoraAdapter(weights, adapter);
      adapters.push(lora);
      lora.load(adapter, `${folder}/adapter_config.json`);
      if (lora.isMerged) await merge(adapters.pop()!, weights);
    }
    return LanguageModel.over({ weights, adapters }, options);
  } catch (error) {
    device.rollback(mark);
    for (const adapter of adapters) adapter.release();
    weights.release();
    throw error;
  }
}

async function merge(adapter: LoraAdapter, into: StoredWeights): Promise<void> {
  try {
    adapter.addTo(into);
    // The adapter's values must stay alive until the recorded work has read them.
    await into.device.submit();
  } finally {
    adapter.release();
  }
}

async function adapterPrint({ rank, alpha, modules }: Adapter): Promise<string> {
  const text = new TextEncoder();
  const parts = [...modules]
    .sort(([first], [two]) => (first < two ? -1 : 1))
    .flatMap(([name, { a, b }]) => [text.encode(name), floatBytes(a), floatBytes(b)]);
  return sha256([text.encode(`${rank} ${alpha}`), ...parts]);
}

function short(fingerprint: string): string {
  return fingerprint
    .split("+")
    .map((part) => part.slice(0, 12))
    .join("+");
}
