/** A folder given as a path or as a reader, and what it holds. */
import { ConfigError } from "../../../leaves/errors.ts";
import type { FolderReader } from "./reader.ts";

/**
 * A path on disk becomes a reader. A GGUF file, or a folder that holds one and no config.json, is read as the folder that it stands for.
 * @throws ConfigError when there is no such folder, or the file cannot be read.
 */
export async function openFolder(folder: string | FolderReader): Promise<FolderReader> {
  if (typeof folder !== "string") return folder;
  // Imported on demand, so that pages, which bring their own reader, never load node:fs.
  const { diskFolder, ggufFiles } = await import("./disk.ts");
  const files = await ggufFiles(folder);
  if (files.length === 0) return diskFolder(folder);
  const { ggufFolder } = await import("./gguf/folder.ts");
  return ggufFolder(files, { name: folder });
}

/**
 * A whole model, or an adapter of another one; an adapter may keep its base's config.json.
 * @throws ConfigError for a folder with neither.
 */
export async function folderKind(folder: string | FolderReader): Promise<"model" | "adapter"> {
  const reader = await openFolder(folder);
  const has = async (name: string) => (await reader.open(name)) !== undefined;
  const isAdapter = await has("adapter_config.json");
  const hasWeights = async () => (await has("model.safetensors")) || (await has("model.safetensors.index.json"));
  if ((await has("config.json")) && (!isAdapter || (await hasWeights()))) return "model";
  if (isAdapter) return "adapter";
  throw new ConfigError(
    "Cannot open the model folder: it has neither config.json (a model) nor adapter_config.json (an adapter).",
    { file: reader.name },
  );
}
