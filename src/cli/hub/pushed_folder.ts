/** Folders that `grpu push` uploads for a name: a folder as it is, or what `grpu export` writes of a run or a checkpoint. */
import { existsSync, statSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { exportFolder } from "../../engine/model/export.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { RunData } from "../../train/log/page/page_data.ts";
import { isRunFolder } from "../../train/log/page/run_folder.ts";
import { checkpointDir } from "../../train/run/model/checkpoint_dir.ts";
import { openRuns } from "../../train/run/place/runs.ts";
import type { Io } from "../command.ts";

export interface PushedFolder {
  readonly dir: string;
  /** The run that trained it. */
  readonly run: RunData | undefined;
  /** Removes what was written for the upload. */
  remove(): Promise<void>;
}

export interface FolderOptions {
  /** Adds an adapter to its base's weights. */
  readonly merge: boolean;
  /** Folder of an adapter's base, in place of the one that it records. */
  readonly base: string | undefined;
}

/** @throws {ConfigError} for a folder that does not exist, and where the export fails. */
export async function pushedFolder(name: string, options: FolderOptions, io: Io): Promise<PushedFolder> {
  if (!statSync(name, { throwIfNoEntry: false })?.isDirectory())
    throw new ConfigError(`Cannot push: there is no such folder (${name}). Check the path.`, { kind: "data" });
  const run = runOf(name);
  if (run === undefined && !options.merge) return { dir: name, run: undefined, remove: async () => {} };
  const parent = await mkdtemp(join(tmpdir(), "grpu-push-"));
  const remove = () => rm(parent, { recursive: true, force: true });
  try {
    const dir = join(parent, "export");
    await exportFolder(await checkpointDir(name, io), { out: dir, ...options });
    return { dir, run: run === undefined ? undefined : dataOf(run), remove };
  } catch (error) {
    await remove();
    throw error;
  }
}

/** The folder of the run that is named, or whose checkpoint is; undefined for other folders. */
function runOf(source: string): string | undefined {
  const dir = resolve(source);
  const isModel = ["config.json", "adapter_config.json"].some((name) => existsSync(join(dir, name)));
  if (!isModel) return isRunFolder(dir) ? dir : undefined;
  return /^global_step_\d+$/.test(basename(dir)) && isRunFolder(dirname(dir)) ? dirname(dir) : undefined;
}

function dataOf(dir: string): RunData {
  const [run] = openRuns([dir]);
  run!.poll();
  return run!.data();
}
