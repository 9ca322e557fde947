/** The shape of a model as its files give it, before a weight is read. */
import type { ModelConfig } from "./config.ts";
import type { DType } from "./dtype.ts";
import { type ModelFolder, openModelConfig } from "./files/folder.ts";
import { openFolder } from "./files/open_folder.ts";
import { type FolderReader, readFolderJson } from "./files/reader.ts";
import { openTensors } from "./files/tensor_files.ts";
import { resolveTiedOutput } from "./files/tied_output.ts";
import type { LoraConfig } from "./lora.ts";

export interface ModelShape {
  readonly config: ModelConfig;
  /** A tensor's type in the files; `undefined` where there are none. */
  typeOf(tensor: string): DType | undefined;
  /** Adapters that are added to it, in this order. Default: nothing. */
  readonly adapters?: readonly LoraConfig[];
}

/** The shape of an open folder. */
export function shapeOf({ config, tensors }: Pick<ModelFolder, "config" | "tensors">): ModelShape {
  return { config, typeOf: (tensor) => tensors.get(tensor)?.dtype };
}

const TYPES: Readonly<Record<string, DType>> = { bfloat16: "BF16", float16: "F16", float32: "F32", float64: "F64" };

/**
 * The shape of a model folder, which may have no weights: their type is then what config.json names, else unknown.
 * @throws ConfigError and UnsupportedError for a folder without a config.json that can be read, or damaged headers.
 */
export async function openModelShape(folder: string | FolderReader): Promise<ModelShape> {
  const reader = await openFolder(folder);
  const config = await openModelConfig(reader);
  const files = ["model.safetensors", "model.safetensors.index.json"];
  const opened = await Promise.all(files.map((file) => reader.open(file)));
  if (opened.some((file) => file !== undefined)) {
    const resolved = await resolveTiedOutput(config, await openTensors(reader));
    return shapeOf({ config: resolved.config, tensors: resolved.files.tensors });
  }
  const { dtype, torch_dtype } = ((await readFolderJson(reader, "config.json")) ?? {}) as Record<string, unknown>;
  const type = TYPES[String(dtype ?? torch_dtype).replace(/^torch\./, "")];
  return { config, typeOf: () => type };
}
