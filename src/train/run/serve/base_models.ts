/** Opens the base models of a Tinker server: several share one device and are loaded when first asked for. */
import { realpath } from "node:fs/promises";
import { resolve } from "node:path";
import type { Device } from "../../../engine/compute/device.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { ServedBaseModel } from "../../../serve/tinker/base_models.ts";
import { LocalEngine } from "../../backend/local/engine.ts";

export interface BaseModelsSettings {
  /** Folders as on the command line. */
  readonly folders: readonly string[];
  /** Further names: of the one model, or with several `NAME=DIR` each. */
  readonly names: readonly string[];
  /** Folder of the base, for an adapter that does not name it. */
  readonly base?: string | undefined;
  readonly warn: (message: string) => void;
}

/** @throws {ConfigError} for a folder without a model, and for a name of two models */
export async function openBaseModels(device: Device, settings: BaseModelsSettings): Promise<ServedBaseModel[]> {
  const { names, base, warn } = settings;
  const folders = [...new Set(settings.folders)];
  const isOnly = folders.length === 1;
  if (!isOnly && base !== undefined)
    throw new ConfigError(
      `Cannot serve ${folders.length} models with one --base (${base}). Leave it out: an adapter names its base model.`,
    );
  const further = isOnly ? new Map([[folders[0]!, names]]) : namesByFolder(names, folders);
  const models: ServedBaseModel[] = [];
  for (const folderName of folders) {
    const folder = resolve(folderName);
    const engine = await LocalEngine.open({
      device,
      folder,
      base,
      warn,
      sharers: folders.length,
      // The only one is loaded now, so that what is wrong with it shows now.
      loadsNow: isOnly,
    });
    models.push({
      engine,
      names: [...new Set([...(further.get(folderName) ?? []), folder, await realpath(folder), folderName])],
    });
  }
  refuseSharedNames(models);
  return models;
}

/** `NAME=DIR` with a folder of `--model`. */
function namesByFolder(names: readonly string[], folders: readonly string[]): Map<string, string[]> {
  const further = new Map<string, string[]>();
  for (const text of names) {
    const [, name, folder] = /^([^=]+)=(.+)$/s.exec(text) ?? [];
    if (name === undefined || !folders.includes(folder!))
      throw new ConfigError(
        `Cannot tell which model --model-name ${text} is for: there are ${folders.length}. Give NAME=DIR with one of ${folders.join(", ")}.`,
      );
    further.set(folder!, [...(further.get(folder!) ?? []), name]);
  }
  return further;
}

function refuseSharedNames(models: readonly ServedBaseModel[]): void {
  const servedNames = models.flatMap(({ names }) => names);
  const twice = servedNames.find((name, i) => servedNames.indexOf(name) !== i);
  if (twice !== undefined)
    throw new ConfigError(`Cannot serve two models as ${twice}. Give each of them another name, and each folder once.`);
}
