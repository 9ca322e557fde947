/** How an adapter's files name its base model. */

/** `.../models--Qwen--Qwen3-0.6B/snapshots/HASH`, where Hugging Face's clients keep downloads. */
const CACHED = /models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/]/;

export interface BaseName {
  /** Absolute, because a relative path means another folder to a program that starts elsewhere. */
  readonly folder: string;
  /** The name on the Hub of a downloaded folder, else `folder`: `base_model_name_or_path` for other programs. */
  readonly name: string;
}

/**
 * Returns the name of a folder or of a GGUF file on this machine; a name that is neither stays as it is. Only the
 * cache's path shows a name on the Hub: `_name_or_path` in a config.json is where its weights came from, before a
 * fine-tune changed them.
 */
export async function baseNameOf(source: string): Promise<BaseName> {
  const { absolutePath, diskFile, isFolder } = await import("./disk.ts");
  if (!(await isFolder(source)) && !(await diskFile(source))) return { folder: source, name: source };
  const folder = absolutePath(source);
  const [, owner, name] = CACHED.exec(folder) ?? [];
  return { folder, name: owner === undefined ? folder : `${owner}/${name}` };
}
