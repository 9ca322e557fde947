/** The files that a run writes before its first attempts are scored, removed when the run never begins. */
import { rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { namesIn } from "../../log/folder/owner.ts";
import { CONFIG_FILE, GROUPS_FILE, METRICS_FILE, PROFILE_FILE, RUN_FILE, SAMPLES_FILE } from "../../log/run_files.ts";

const OWN = new RegExp(
  `^(${[CONFIG_FILE, RUN_FILE, METRICS_FILE, SAMPLES_FILE, GROUPS_FILE, PROFILE_FILE, "tensorboard", "wandb"].join("|")}|warmup_step_\\d+|\\.(writing|deleting)-.*)$`,
);

/** Removes a run's files; the folder too where it holds no others. */
export async function removeOwn(dir: string): Promise<void> {
  const names = (await namesIn(dir)).filter((name) => OWN.test(name));
  for (const name of names) await rm(join(dir, name), { recursive: true, force: true });
  await removeEmpty([dir]);
}

export async function removeEmpty(folders: readonly string[]): Promise<void> {
  for (const folder of folders) await rmdir(folder).catch(() => {});
}
