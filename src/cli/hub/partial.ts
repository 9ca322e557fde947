/** The folder that an unfinished pull keeps: whole files in `files`, parts of others in `parts`, and the lock. */
import { readdirSync } from "node:fs";
import { mkdir, rm, rmdir } from "node:fs/promises";
import { join, relative } from "node:path";
import { ConfigError } from "../../leaves/errors.ts";
import { OWNER_FILE } from "../../train/log/folder/owner.ts";
import type { ListedFile } from "./listing.ts";

export interface PartialPull {
  readonly files: string;
  readonly parts: string;
}

/**
 * Removes what an earlier pull, of another commit or with other globs, left in the folder. Links are removed too, so that
 * nothing is written through them.
 * @throws {ConfigError} for a folder that is no pull's.
 */
export async function openPartial(dir: string, files: readonly ListedFile[]): Promise<PartialPull> {
  const place = { files: join(dir, "files"), parts: join(dir, "parts") };
  const isOurs = readdirSync(dir, { withFileTypes: true }).every((entry) =>
    entry.isDirectory() ? Object.values(place).includes(join(dir, entry.name)) : entry.name.startsWith(OWNER_FILE),
  );
  if (!isOurs)
    throw new ConfigError("Cannot pull: the folder holds files that no pull wrote. Move it, or name another --out.", {
      file: dir,
      kind: "data",
    });
  for (const folder of Object.values(place)) await mkdir(folder, { recursive: true });
  await keepOnly(place.files, new Set(files.map(({ path }) => path)));
  await keepOnly(place.parts, new Set(files.map(({ digest }) => digest)));
  return place;
}

/** Removes every other file, every link, and folders that are empty then. */
async function keepOnly(dir: string, kept: ReadonlySet<string>): Promise<void> {
  const entries = readdirSync(dir, { recursive: true, withFileTypes: true });
  const pathOf = (entry: (typeof entries)[number]) => join(entry.parentPath ?? entry.path, entry.name);
  for (const entry of entries) {
    const isKept = entry.isFile() && kept.has(relative(dir, pathOf(entry)).replaceAll("\\", "/"));
    if (!entry.isDirectory() && !isKept) await rm(pathOf(entry));
  }
  const folders = entries.filter((entry) => entry.isDirectory()).map(pathOf);
  for (const folder of folders.sort((a, b) => b.length - a.length)) await rmdir(folder).catch(() => {});
}
