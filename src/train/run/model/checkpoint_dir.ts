/** The folder of weights that a person names: a checkpoint, a model, an adapter, or a run, whose latest step it is. */
import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import { ConfigError } from "../../../leaves/errors.ts";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import { damageOf } from "../../log/checkpoint/seal.ts";
import { isRunFolder } from "../../log/page/run_folder.ts";
import type { RunIo } from "../io.ts";

/** Files that sampling reads. An optimiser's files may be gone, and texts may have been edited. */
export const WEIGHTS = /^(model|adapter_model).*\.safetensors$/;

/**
 * `dir`, or the latest step of the run in it, which is printed on standard error.
 * @throws {ConfigError} for a run without a checkpoint, and for weights that are not those that were written.
 */
export async function checkpointDir(dir: string, io: RunIo): Promise<string> {
  const found = await findDir(dir, io);
  const damage = await damageOf(found, { only: WEIGHTS });
  if (damage === undefined) return found;
  throw new ConfigError(`Cannot open the checkpoint: it is damaged: ${damage}. Use an earlier one.`, {
    file: found,
  });
}

async function findDir(dir: string, io: RunIo): Promise<string> {
  if (!statSync(dir, { throwIfNoEntry: false })?.isDirectory()) return dir;
  const isModel = ["config.json", "adapter_config.json"].some((name) => existsSync(join(dir, name)));
  if (isModel || !isRunFolder(dir)) return dir;
  const checkpoints = new FolderCheckpoints(dir, { resumeMode: "disable" });
  const latest = await checkpoints.latest();
  if (latest === undefined) {
    throw new ConfigError(
      "Cannot open a model of the run: the run has no checkpoint yet. Wait for its first, or continue it.",
      {
        file: dir,
      },
    );
  }
  const best = await checkpoints.best();
  const other = best && best.checkpoint !== latest ? `; the best, by ${best.metric}, is ${best.checkpoint}` : "";
  io.err(`${join(dir, latest)}: the latest step of the run${other}\n`);
  return join(dir, latest);
}

/** The newest checkpoint of the run in `dir`; undefined before its first. */
export async function newestCheckpoint(dir: string): Promise<string | undefined> {
  const latest = await new FolderCheckpoints(dir, { resumeMode: "disable" }).latest();
  return latest && join(dir, latest);
}
