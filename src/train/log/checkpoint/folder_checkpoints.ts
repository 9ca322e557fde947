/**
 * Checkpoints as folders on disk, under rLLM's names: `global_step_<N>/` and `latest_checkpointed_iteration.txt`;
 * `best_checkpoint.json` names the best one. A folder is written under a temporary name, flushed to the disk and
 * renamed, so a folder with its final name was complete; its list of checksums shows whether it still is.
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { ConfigError } from "../../../leaves/errors.ts";
import { damageOf, sealFolder, syncDirectory, syncFile } from "./seal.ts";
import type { Best, Checkpoint, CheckpointContents, CheckpointStore } from "./store.ts";

/** Checkpoint that a run resumes from, and how many checkpoints it keeps. */
export interface FolderCheckpointsOptions {
  /** `auto` (the default): the last checkpoint in the folder; `disable`: none; `resume_path`: `resumeFrom`. */
  readonly resumeMode?: "auto" | "disable" | "resume_path";
  readonly resumeFrom?: string | undefined;
  /** Number of newest checkpoints to keep; all if absent. The best one is kept in addition. */
  readonly keep?: number | undefined;
  /** Called for every checkpoint that cannot be used, with the reason. */
  readonly onSkip?: (message: string) => void;
  /** Called before anything in the folder changes; what it throws leaves the folder as it is. */
  readonly beforeWrite?: () => Promise<void>;
}

/** Contents of `best_checkpoint.json`. */
export interface BestCheckpoint extends Best {
  /** Name of the folder, in the folder of this file. */
  readonly checkpoint: string;
}

const STATE_FILE = "loop.json";
const TRACKER_FILE = "latest_checkpointed_iteration.txt";
const BEST_FILE = "best_checkpoint.json";
const TEMPORARY = ".writing-";
const DISCARDED = ".deleting-";
const NAME = /^(global|warmup)_step_(\d+)$/;

/**
 * Keeps a run's checkpoints in a folder, which is made when the first is saved.
 * @example
 *     const checkpoints = new FolderCheckpoints<LoopState>("runs/sums", { keep: 2 });
 *     await train({ ...run, checkpoints });
 */
export class FolderCheckpoints<State> implements CheckpointStore<State> {
  readonly dir: string;
  private readonly options: FolderCheckpointsOptions;
  lastSaved: Checkpoint<State> | undefined;
  /** The answer of `find`, until a newer checkpoint is saved. */
  private found?: Promise<Checkpoint<State> | undefined> | undefined;

  constructor(dir: string, options: FolderCheckpointsOptions = {}) {
    this.dir = dir;
    this.options = options;
  }

  async save(name: string, contents: CheckpointContents<State>): Promise<void> {
    await this.options.beforeWrite?.();
    this.found = undefined;
    const target = join(this.dir, name);
    const temporary = join(this.dir, `${TEMPORARY}${name}`);
    try {
      await this.dropUnfinished();
      await mkdir(temporary, { recursive: true });
      await contents.write(temporary);
      await writeFile(join(temporary, STATE_FILE), JSON.stringify(contents.state));
      await sealFolder(temporary);
      // Another process may have taken the folder during the write.
      await this.options.beforeWrite?.();
      await discard(target);
      await rename(temporary, target);
      if (contents.best) await this.point(BEST_FILE, `${JSON.stringify({ checkpoint: name, ...contents.best })}\n`);
      // Last: after a crash before this line, the run resumes from the previous checkpoint and makes this one again.
      const step = NAME.exec(name);
      if (step?.[1] === "global") await this.point(TRACKER_FILE, `${step[2]}\n`);
    } catch (error) {
      await rm(temporary, { recursive: true, force: true }).catch(() => {});
      throw await this.explain(error, target);
    }
    await this.prune();
    this.lastSaved = { dir: target, state: contents.state };
  }

  find(): Promise<Checkpoint<State> | undefined> {
    this.found ??= this.search();
    return this.found;
  }

  private async search(): Promise<Checkpoint<State> | undefined> {
    const { resumeMode, resumeFrom } = this.options;
    if (resumeMode === "disable") return undefined;
    if (resumeMode === "resume_path") return readCheckpoint(resumeFrom ?? "");
    await this.warnOfUnfinished();
    const names = await this.candidates();
    for (const name of names) {
      try {
        return await readCheckpoint<State>(join(this.dir, name));
      } catch (error) {
        if (!(error instanceof ConfigError)) throw error;
        this.options.onSkip?.(`${error.message}. It is skipped.`);
      }
    }
    if (names.length === 0) return undefined;
    throw new ConfigError(
      `Cannot resume: no checkpoint in the folder is whole (${this.dir}). Start a new run with training.resume_mode=disable, which moves the folder aside.`,
      { path: "training.resume_mode" },
    );
  }

  /** Name of the newest checkpoint: the one tracked, or the highest step where that is gone. */
  async latest(): Promise<string | undefined> {
    return (await this.candidates())[0];
  }

  /** The best checkpoint, while it is there. */
  async best(): Promise<BestCheckpoint | undefined> {
    const text = await readFile(join(this.dir, BEST_FILE), "utf8").catch(() => "null");
    const best = JSON.parse(text) as BestCheckpoint | null;
    return best && (await this.names()).includes(best.checkpoint) ? best : undefined;
  }

  /** Returns the candidates in the order in which they are tried: the one tracked, then the newest first. */
  private async candidates(): Promise<string[]> {
    const names = (await this.names()).reverse();
    const tracked = await readFile(join(this.dir, TRACKER_FILE), "utf8").catch(() => "");
    const name = `global_step_${tracked.trim()}`;
    return names.includes(name) ? [name, ...names.filter((each) => each !== name)] : names;
  }

  /** Whole checkpoints, oldest first. */
  async names(): Promise<string[]> {
    const entries = await readdir(this.dir).catch(() => []);
    return entries.filter((name) => NAME.test(name)).sort((a, b) => rank(a) - rank(b));
  }

  private async warnOfUnfinished(): Promise<void> {
    for (const name of await this.leftovers(TEMPORARY)) {
      this.options.onSkip?.(
        `The run ended while it wrote ${name.slice(TEMPORARY.length)}; that checkpoint is ignored (${this.dir})`,
      );
    }
  }

  /** Removes what a crash left of checkpoints that were being written or removed. */
  private async dropUnfinished(): Promise<void> {
    for (const name of [...(await this.leftovers(DISCARDED)), ...(await this.leftovers(TEMPORARY))])
      await rm(join(this.dir, name), { recursive: true, force: true });
  }

  private async leftovers(prefix: string): Promise<string[]> {
    const entries = await readdir(this.dir).catch(() => []);
    return entries.filter((name) => name.startsWith(prefix));
  }

  /** Replaces a small file at once. */
  private async point(file: string, text: string): Promise<void> {
    const temporary = join(this.dir, `${TEMPORARY}${file}`);
    await writeFile(temporary, text);
    await syncFile(temporary);
    await rename(temporary, join(this.dir, file));
    await syncDirectory(this.dir);
  }

  private async prune(): Promise<void> {
    const { keep } = this.options;
    if (keep === undefined) return;
    const names = await this.names();
    const best = await this.best();
    for (const name of names.slice(0, Math.max(names.length - Math.max(keep, 1), 0))) {
      if (name !== best?.checkpoint) await discard(join(this.dir, name));
    }
  }

  private async explain(error: unknown, target: string): Promise<unknown> {
    if (!isDiskFull(error)) return error;
    const latest = await this.latest().catch(() => undefined);
    const before = latest
      ? `The previous checkpoint is whole: ${join(this.dir, latest)}.`
      : "No checkpoint precedes it.";
    return new ConfigError(
      `Cannot save the checkpoint: the disk is full (${target}). ${before} Free some space and continue with training.resume_mode=auto.`,
      { path: "training.default_local_dir", kind: "data" },
    );
  }
}

/** A backend may have wrapped the system's error in its own message. */
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

/**
 * Reads a checkpoint's state and verifies its files.
 * @throws {ConfigError} when the folder is no checkpoint, or not as it was written
 */
export async function readCheckpoint<State>(dir: string): Promise<Checkpoint<State>> {
  const file = join(dir, STATE_FILE);
  const text = await readFile(file, "utf8").catch(() => undefined);
  if (text === undefined) {
    throw new ConfigError(
      `Cannot resume: the folder is not a checkpoint of grpu train, because it has no ${STATE_FILE} (${dir}). Name another folder.`,
      { path: "training.resume_from_path" },
    );
  }
  const damage = await damageOf(dir);
  if (damage) throw new ConfigError(`Cannot resume: the checkpoint is damaged: ${damage} (${dir})`);
  try {
    return { dir, state: JSON.parse(text) as State };
  } catch {
    throw new ConfigError("Cannot resume: the checkpoint's state is not JSON. Resume from an earlier checkpoint.", {
      file,
    });
  }
}

/** Renames a folder before removing it, so that an interrupted removal leaves no partial checkpoint under its name. */
async function discard(dir: string): Promise<void> {
  const away = join(dirname(dir), `${DISCARDED}${basename(dir)}`);
  await rm(away, { recursive: true, force: true });
  try {
    await rename(dir, away);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return;
    throw error;
  }
  await rm(away, { recursive: true, force: true });
}
