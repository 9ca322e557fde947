/**
 * Checkpoints as folders on disk, under rLLM's names: `global_step_<N>/` and `latest_checkpointed_iteration.txt`.
 * A folder is written under a temporary name, flushed to the disk and renamed, so one that has its name is whole.
 */
import { mkdir, open, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { ConfigError } from "../errors.ts";
import type { Checkpoint, CheckpointStore } from "./checkpoint_store.ts";

export interface FolderCheckpointsOptions {
  /** `auto`: the last checkpoint in the folder; `disable`: none; `resume_path`: `resumeFrom`. */
  readonly resumeMode: "auto" | "disable" | "resume_path";
  readonly resumeFrom?: string;
  /** Checkpoints kept, the newest; all if absent. */
  readonly keep?: number;
}

const STATE_FILE = "loop.json";
const TRACKER_FILE = "latest_checkpointed_iteration.txt";
const TEMPORARY = ".writing-";
const NAME = /^(global|warmup)_step_(\d+)$/;

export class FolderCheckpoints<State> implements CheckpointStore<State> {
  readonly dir: string;
  private readonly options: FolderCheckpointsOptions;

  constructor(dir: string, options: FolderCheckpointsOptions) {
    this.dir = dir;
    this.options = options;
  }

  async save(name: string, it: { state: State; write: (dir: string) => Promise<void> }): Promise<void> {
    const target = join(this.dir, name);
    const temporary = join(this.dir, `${TEMPORARY}${name}`);
    try {
      await rm(temporary, { recursive: true, force: true });
      await mkdir(temporary, { recursive: true });
      await it.write(temporary);
      await writeFile(join(temporary, STATE_FILE), JSON.stringify(it.state));
      await syncFolder(temporary);
      await rm(target, { recursive: true, force: true });
      await rename(temporary, target);
      await this.track(name);
    } catch (error) {
      await rm(temporary, { recursive: true, force: true }).catch(() => {});
      throw await this.explain(error, target);
    }
    await this.prune();
  }

  async find(): Promise<Checkpoint<State> | undefined> {
    const { resumeMode, resumeFrom } = this.options;
    if (resumeMode === "disable") return undefined;
    if (resumeMode === "resume_path") return readCheckpoint(resumeFrom ?? "");
    const latest = await this.latest();
    return latest === undefined ? undefined : readCheckpoint(join(this.dir, latest));
  }

  /** Name of the newest whole checkpoint: the one tracked, or the highest step where that is gone. */
  async latest(): Promise<string | undefined> {
    const names = await this.names();
    const tracked = await readFile(join(this.dir, TRACKER_FILE), "utf8").catch(() => "");
    const name = `global_step_${tracked.trim()}`;
    return names.includes(name) ? name : names.at(-1);
  }

  /** Whole checkpoints, oldest first. */
  private async names(): Promise<string[]> {
    const entries = await readdir(this.dir).catch(() => []);
    return entries.filter((name) => NAME.test(name)).sort((a, b) => rank(a) - rank(b));
  }

  private async track(name: string): Promise<void> {
    const step = NAME.exec(name);
    if (step?.[1] !== "global") return;
    const temporary = join(this.dir, `${TEMPORARY}tracker`);
    await writeFile(temporary, `${step[2]}\n`);
    await syncFile(temporary);
    await rename(temporary, join(this.dir, TRACKER_FILE));
    await syncDirectory(this.dir);
  }

  private async prune(): Promise<void> {
    const { keep } = this.options;
    if (keep === undefined) return;
    const names = await this.names();
    for (const name of names.slice(0, Math.max(names.length - Math.max(keep, 1), 0))) {
      await rm(join(this.dir, name), { recursive: true, force: true });
    }
  }

  private async explain(error: unknown, target: string): Promise<unknown> {
    if (!isDiskFull(error)) return error;
    const latest = await this.latest().catch(() => undefined);
    const before = latest
      ? `The checkpoint before it is whole: ${join(this.dir, latest)}.`
      : "There is none before it.";
    return new ConfigError(
      `Cannot save the checkpoint as the disk is full: ${target}. ${before} Free some space and continue with training.resume_mode=auto.`,
      { path: "training.default_local_dir" },
    );
  }
}

/** A backend may have put the system's error into words of its own. */
function isDiskFull(error: unknown): boolean {
  const { code, cause, message } = error as NodeJS.ErrnoException;
  const isFull = code === "ENOSPC" || code === "EDQUOT" || /disk is full/.test(message);
  return isFull || (cause !== undefined && isDiskFull(cause));
}

/** Warm-up steps come before all training steps. */
function rank(name: string): number {
  const [, phase, step] = NAME.exec(name) as RegExpExecArray;
  return Number(step) - (phase === "warmup" ? 1e12 : 0);
}

/** @throws {ConfigError} when the folder is no checkpoint. */
export async function readCheckpoint<State>(dir: string): Promise<Checkpoint<State>> {
  const file = join(dir, STATE_FILE);
  const text = await readFile(file, "utf8").catch(() => undefined);
  if (text === undefined) {
    throw new ConfigError(
      `Cannot resume as the folder is no checkpoint of grpu train (it has no ${STATE_FILE}): ${dir}`,
      { path: "training.resume_from_path" },
    );
  }
  try {
    return { dir, state: JSON.parse(text) as State };
  } catch {
    throw new ConfigError("Cannot resume as the checkpoint's state is not JSON", { file });
  }
}

/** Flushes every file of a folder, the folders in it, and itself. */
async function syncFolder(dir: string): Promise<void> {
  for (const entry of await readdir(dir, { withFileTypes: true })) {
    const path = join(dir, entry.name);
    if (entry.isDirectory()) await syncFolder(path);
    else await syncFile(path);
  }
  await syncDirectory(dir);
}

async function syncFile(path: string): Promise<void> {
  const handle = await open(path, "r+");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Makes renames in a directory lasting. Windows cannot open directories and needs no flush. */
async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, "r").catch(() => undefined);
  await handle?.sync().catch(() => {});
  await handle?.close();
}

/**
 * Moves what an earlier run left out of the way of a fresh one: `NAME` becomes `NAME.1`, `NAME.2`, ...
 * @returns the new place, or undefined when there was nothing.
 */
export async function setAside(dir: string): Promise<string | undefined> {
  const entries = await readdir(dir).catch(() => []);
  if (entries.length === 0) return undefined;
  const siblings = await readdir(dirname(dir));
  const numbers = siblings
    .filter((name) => name.startsWith(`${basename(dir)}.`))
    .map((name) => Number(name.slice(basename(dir).length + 1)))
    .filter(Number.isInteger);
  const place = `${dir}.${Math.max(0, ...numbers) + 1}`;
  await rename(dir, place);
  return place;
}
