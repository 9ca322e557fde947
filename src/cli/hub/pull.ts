/** `grpu pull`: a repository's files, of one commit, as a folder that appears when all of them are whole. */
import { existsSync, readdirSync, realpathSync, rmdirSync } from "node:fs";
import { mkdir, rename, rm, rmdir } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { formatBytes } from "../../engine/compute/memory.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { FolderLock } from "../../train/log/folder/lock.ts";
import { Progress } from "../../train/log/progress.ts";
import type { Screen } from "../../train/log/terminal.ts";
import { ask, type Hub } from "./access.ts";
import { download } from "./download.ts";
import { chosenFiles, type HubSelection, type ListedFile } from "./listing.ts";
import { openPartial, type PartialPull } from "./partial.ts";

export interface PullOptions extends Omit<HubSelection, "sha"> {
  /** A branch, a tag or a commit. */
  readonly revision: string;
  readonly out: string;
  readonly screen: Screen;
}

export interface Pulled {
  /** The commit. */
  readonly sha: string;
  readonly files: readonly string[];
}

/**
 * Downloads into `OUT.partial` and gives the files their place at the end. A pull that was interrupted continues there.
 * @throws {ConfigError} for an `out` that holds files, a list of files that is not safe, and where no file fits.
 */
export async function pull(hub: Hub, options: PullOptions): Promise<Pulled> {
  const out = placeOf(options.out);
  const { sha = options.revision } = await ask(hub, (hubPackage, common) =>
    hubPackage.modelInfo({ ...common, name: options.repo, revision: options.revision, additionalFields: ["sha"] }),
  );
  const choice = { ...options, sha };
  const files = await chosenFiles(hub, choice);
  await mkdir(dirname(out), { recursive: true });
  const lock = await FolderLock.take(`${out}.partial`, {
    command: "grpu pull",
    advice: "Wait for it, or name another folder.",
  });
  try {
    const place = await openPartial(lock.folder, files);
    await downloadAll(hub, files, { ...choice, place, lock });
    await rm(place.parts, { recursive: true });
    if (existsSync(out)) rmdirSync(out);
    await rename(place.files, out);
  } finally {
    await lock.release();
  }
  await rmdir(lock.folder).catch(() => {});
  return { sha, files: files.map(({ path }) => path) };
}

/** The folder that a link leads to, because a link itself cannot be replaced by a folder. */
function placeOf(place: string): string {
  if (!existsSync(place)) return resolve(place);
  if (readdirSync(place).length === 0) return realpathSync(place);
  throw new ConfigError("Cannot pull: the folder is not empty. Name another, or remove its files.", {
    file: place,
    kind: "data",
  });
}

interface Downloads extends HubSelection {
  readonly place: PartialPull;
  readonly lock: FolderLock;
  readonly screen: Screen;
}

async function downloadAll(hub: Hub, files: readonly ListedFile[], downloads: Downloads): Promise<void> {
  const { repo, sha, place, lock, screen } = downloads;
  for (const [i, file] of files.entries()) {
    screen.err(`${i + 1}/${files.length}  ${file.path}  ${formatBytes(file.size)}\n`);
    const shown = new Progress(screen, file.path, { unit: "MB" });
    const progress = (bytes: number) => shown.update(Math.round(bytes / 1e6), Math.round(file.size / 1e6));
    await download(hub, file, { repo, sha, ...place, progress }).finally(() => shown.finish());
    await lock.check();
  }
}
