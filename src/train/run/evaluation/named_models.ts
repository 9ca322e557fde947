/** The models that a person wants compared: those named, and every checkpoint of a run. */
import { existsSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { ConfigError } from "../../../leaves/errors.ts";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import type { RunIo } from "../io.ts";
import { checkpointDir } from "../model/checkpoint_dir.ts";

/** A model with the folder of its weights; undefined: the model as configured. */
export interface NamedModel {
  readonly name: string;
  readonly checkpoint: string | undefined;
}

/** A model as a person names it. */
export interface ModelNames {
  /** Folders of runs (their latest step), checkpoints, adapters and models. */
  readonly models: readonly string[];
  /** Folders of runs, each with every checkpoint. */
  readonly runs: readonly string[];
}

/** @throws {ConfigError} for a folder that cannot be opened, and for a model that is named twice. */
export async function namedModels(
  { models: folders, runs }: ModelNames,
  { io, configured }: { io: RunIo; configured: string | null },
) {
  const steps = await Promise.all(runs.map(checkpointsOf));
  const typed = [...folders, ...steps.flat()];
  if (typed.length === 0) return [{ name: configured ?? "the model as configured", checkpoint: undefined }];
  const models: NamedModel[] = [];
  for (const dir of typed) {
    const checkpoint = await checkpointDir(dir, io);
    if (models.some((each) => resolve(each.checkpoint!) === resolve(checkpoint)))
      throw new ConfigError(`Cannot compare a model with itself: it is named twice (${checkpoint}). Name it once.`);
    models.push({ name: checkpoint, checkpoint });
  }
  return models;
}

/** Every checkpoint of a run, the oldest first. */
async function checkpointsOf(run: string): Promise<string[]> {
  const names = existsSync(run) ? await new FolderCheckpoints(run, { resumeMode: "disable" }).names() : [];
  if (names.length > 0) return names.map((name) => join(run, name));
  throw new ConfigError(
    "Cannot evaluate the checkpoints of the run: there is none in the folder. Name the folder of a run, or a model with --model.",
    { file: run },
  );
}

/** The shortest ends of the paths that differ from each other: columns of a table are narrow. */
export function shortNames(models: readonly { readonly name: string }[]): string[] {
  const paths = models.map(({ name }) => name.split(/[\\/]/));
  const ends = (length: number) => paths.map((parts) => parts.slice(-length).join("/"));
  const longest = Math.max(...paths.map((parts) => parts.length));
  for (let length = 1; length < longest; length++) if (new Set(ends(length)).size === paths.length) return ends(length);
  return models.length === 1 ? models.map(({ name }) => basename(name)) : models.map(({ name }) => name);
}
