/** How an adapter's files name its base model. */
import { openFolder } from "./open_folder.ts";
import { HUB_NAME, readJson } from "./reader.ts";

/** `.../models--Qwen--Qwen3-0.6B/snapshots/HASH`, where Hugging Face's clients keep downloads. */
const CACHED = /models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/]/;

export interface BaseName {
  /** Absolute, because a relative path means another folder to a program that starts elsewhere. */
  readonly folder: string;
  /** The name on the Hub where the folder records one, else `folder`: `base_model_name_or_path` for other programs. */
  readonly name: string;
}

/** Of a folder on this machine; a name that is no folder here stays as it is. */
export async function baseNameOf(given: string): Promise<BaseName> {
  const { absolutePath, isFolder } = await import("./disk.ts");
  if (!(await isFolder(given))) return { folder: given, name: given };
  const folder = absolutePath(given);
  const [, owner, name] = CACHED.exec(folder) ?? [];
  if (owner !== undefined) return { folder, name: `${owner}/${name}` };
  const config = await readJson(await openFolder(folder), "config.json").catch(() => undefined);
  const recorded = (config as { _name_or_path?: unknown } | null | undefined)?._name_or_path;
  const isHub = typeof recorded === "string" && HUB_NAME.test(recorded) && !(await isFolder(recorded));
  return { folder, name: isHub ? recorded : folder };
}
