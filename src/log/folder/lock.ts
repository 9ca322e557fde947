/**
 * A lock on a folder, for one process that writes there: a file in the folder names its owner and is touched every few
 * seconds. A lock whose owner crashed is taken over: at once where the owner's process can be looked up, after missed
 * heartbeats where it ran on another host.
 */
import { readFileSync, unlinkSync } from "node:fs";
import { link, mkdir, readdir, realpath, rename, rm, rmdir, stat, utimes, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { ConfigError, fileError, RemoteError } from "../../errors.ts";
import {
  ageOf,
  describeOwner,
  type FolderOwner,
  type FoundOwner,
  OWNER_FILE,
  parseOwner,
  readOwner,
  thisOwner,
  writeOwner,
} from "./owner.ts";
import { isFromHere, isRunning } from "./process_mark.ts";

export interface FolderLockOptions {
  /** What to do when the folder is taken, for the message: `Give this run another folder.` */
  readonly advice: string;
  /** The setting that names the folder, for the message. */
  readonly setting?: string;
  /** Default: this process's command line, without the secrets in it. */
  readonly command?: string;
  /** Milliseconds between two heartbeats. Default 5,000. */
  readonly heartbeatMs?: number;
  /** Age of the last heartbeat, in ms, after which an owner on another host may be gone. Default 60,000. */
  readonly staleMs?: number;
}

type Settled = FolderLockOptions & Required<Pick<FolderLockOptions, "heartbeatMs" | "staleMs">>;

/** Tries to settle which of several processes gets the folder. */
const ATTEMPTS = 50;
const RETRY_MS = 40;
/** A take-over takes milliseconds; one as old as this crashed. */
const TAKEOVER_MS = 10_000;
/** Heartbeats for which an owner on another host is watched before its lock is taken over. */
const WATCHED_HEARTBEATS = 3;

/** The locks of this process, released when it exits. */
const held = new Set<FolderLock>();
let hasExitListener = false;

/** The lock on a folder that this process holds. See {@link FolderLock.take}. */
export class FolderLock {
  /** Absolute, without links. */
  readonly folder: string;
  readonly owner: FolderOwner;
  /** Aborted, with a {@link RemoteError} as its reason, once the lock is found lost. */
  readonly signal: AbortSignal;
  private readonly lost = new AbortController();
  private readonly made: boolean;
  private readonly timer: ReturnType<typeof setInterval>;
  /** Set while the folder is between two names, when the file's absence means nothing. */
  private moving = false;

  private constructor(it: { folder: string; owner: FolderOwner; made: boolean; heartbeatMs: number }) {
    this.folder = it.folder;
    this.owner = it.owner;
    this.made = it.made;
    this.signal = this.lost.signal;
    this.timer = setInterval(() => void this.beat(), it.heartbeatMs);
    this.timer.unref?.();
    held.add(this);
    if (!hasExitListener) process.on("exit", releaseAll);
    hasExitListener = true;
  }

  /**
   * Locks a folder for this process until {@link release}, or until the process exits. A folder that does not exist is
   * made; the one above it must exist.
   * @throws {ConfigError} when another process, or another part of this one, holds it: says which and since when.
   */
  static async take(folder: string, options: FolderLockOptions): Promise<FolderLock> {
    const settled = { heartbeatMs: 5_000, staleMs: 60_000, ...options };
    const given = resolve(folder);
    let path = given;
    const owner = await thisOwner(options.command ?? commandOf(process.argv.slice(1)));
    let made = false;
    try {
      made = await makeFolder(given);
      // Moving a link would leave the folder, and the file system, that it leads to.
      path = await realpath(given);
      await claim(path, owner, settled);
      await sweep(path, owner).catch(() => undefined);
    } catch (error) {
      if (made) await rmdir(path).catch(() => {});
      throw fileError(error, { act: "lock the folder", file: path }) ?? error;
    }
    return new FolderLock({ folder: path, owner, made, heartbeatMs: settled.heartbeatMs });
  }

  /** @throws {RemoteError} when the lock is lost: the folder was moved or deleted, or another process took it. */
  async check(): Promise<void> {
    if (!this.moving && !this.signal.aborted) {
      const found = await readOwner(this.folder);
      const isOurs = found === "unreadable" || found?.nonce === this.owner.nonce;
      if (!isOurs && !this.moving && held.has(this)) this.lose(found);
    }
    this.signal.throwIfAborted();
  }

  /**
   * Gives the folder another name and puts an empty one, locked, in its place.
   * @param to must not exist, and lie on the same file system.
   */
  async moveAside(to: string): Promise<void> {
    const fresh = `${this.folder}.taking-${this.owner.nonce}`;
    await mkdir(fresh);
    try {
      await this.replaceBy(fresh, { keepAs: to });
    } catch (error) {
      await rm(fresh, { recursive: true, force: true });
      throw error;
    }
  }

  /**
   * Puts another folder in this one's place, and the lock with it.
   * @param options.keepAs the new name of the folder that is replaced.
   */
  async replaceBy(replacement: string, { keepAs }: { keepAs: string }): Promise<void> {
    await this.check();
    this.moving = true;
    try {
      await writeOwner(join(replacement, OWNER_FILE), this.owner);
      await rename(this.folder, keepAs);
      await rename(replacement, this.folder).catch(async (error) => {
        await rename(keepAs, this.folder).catch(() => {});
        throw error;
      });
      await rm(join(keepAs, OWNER_FILE), { force: true });
    } finally {
      this.moving = false;
    }
  }

  /** Ends the lock. A folder that {@link take} made and that is still empty goes too. Does nothing a second time. */
  async release(): Promise<void> {
    if (!held.has(this)) return;
    this.releaseNow();
    if (this.made && !this.signal.aborted) await rmdir(this.folder).catch(() => {});
  }

  /** Without waiting, for a process that exits. Leaves the file of another owner alone. */
  releaseNow(): void {
    clearInterval(this.timer);
    held.delete(this);
    const file = join(this.folder, OWNER_FILE);
    try {
      if (parseOwner(readFileSync(file, "utf8"))?.nonce === this.owner.nonce) unlinkSync(file);
    } catch {
      // The folder was moved or deleted: there is nothing left to release.
    }
  }

  private async beat(): Promise<void> {
    const now = new Date();
    if (!this.moving) await utimes(join(this.folder, OWNER_FILE), now, now).catch(() => {});
    await this.check().catch(() => {});
  }

  private lose(found: FolderOwner | undefined): void {
    clearInterval(this.timer);
    const why = found
      ? `another process took it, ${describeOwner(found)}`
      : "it was moved or deleted while this process wrote there";
    const message = `Cannot go on writing to the folder ${this.folder}: ${why}. This process writes nothing more there.`;
    this.lost.abort(new RemoteError(message, { retryable: false }));
  }
}

function releaseAll(): void {
  for (const lock of held) lock.releaseNow();
}

/** Puts the owner's file in place, or throws because a live owner is there. */
async function claim(folder: string, owner: FolderOwner, options: Settled): Promise<void> {
  const file = join(folder, OWNER_FILE);
  const draft = `${file}.${owner.nonce}`;
  try {
    for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
      await makeFolder(folder);
      if (await isFirst(file, { draft, owner })) return;
      const found = await readOwner(folder);
      if (found !== undefined && (await isGone(file, found, options))) {
        if (await takeOver(file, { draft, found })) return;
      } else if (found !== undefined && found !== "unreadable") throw refusal(folder, found, options);
      await pause(RETRY_MS);
    }
  } finally {
    await rm(draft, { force: true });
  }
  throw new ConfigError(
    `Cannot lock the folder ${folder}: ${file} names no owner. Delete that file if no process uses the folder.`,
    { path: options.setting },
  );
}

/** Makes the file unless there is one. Of several processes one succeeds. */
async function isFirst(
  file: string,
  { draft, owner }: { draft: string; owner: FolderOwner },
): Promise<boolean> {
  try {
    await writeOwner(draft, owner);
    await link(draft, file);
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // ENOENT: the folder's owner moved it between two operations.
    if (code === "EEXIST" || code === "ENOENT") return false;
    // Anything else may be a file system without hard links. A reader may meet this file before its text is there.
    return unlessThere(writeOwner(file, owner, { flag: "wx" }));
  }
}

/** Replaces the file of an owner that is gone. Of several processes one succeeds, by making a file named after that owner. */
async function takeOver(
  file: string,
  { draft, found }: { draft: string; found: FoundOwner },
): Promise<boolean> {
  const token = `${file}.after-${nonceOf(found)}`;
  if (!(await unlessThere(writeFile(token, "", { flag: "wx" })))) {
    if ((await ageOf(token)) > TAKEOVER_MS) await rm(token, { force: true });
    return false;
  }
  try {
    if (nonceOf(await readOwner(dirname(file))) !== nonceOf(found)) return false;
    await rename(draft, file);
    return true;
  } catch (error) {
    // The draft was swept away by one that was quicker.
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  } finally {
    await rm(token, { force: true });
  }
}

/** Removes what others left that were killed while they took the folder; those that still try write theirs again. */
async function sweep(folder: string, { nonce }: FolderOwner): Promise<void> {
  const names = (await readdir(folder)).filter((name) => name.startsWith(`${OWNER_FILE}.`));
  for (const name of names) if (!name.endsWith(nonce)) await rm(join(folder, name), { force: true });
}

function nonceOf(found: FoundOwner): string | undefined {
  return typeof found === "object" ? found.nonce : found;
}

/** Whether the owner no longer runs. */
async function isGone(file: string, found: FoundOwner, options: Settled): Promise<boolean> {
  if (typeof found === "object" && (await isFromHere(found))) return !(await isRunning(found));
  // Far in the future is no sign of life either: a clock is wrong.
  if (Math.abs(await ageOf(file)) <= options.staleMs) return false;
  return isSilent(file, options);
}

/** Watches for heartbeats, whatever the two hosts' clocks say. */
async function isSilent(file: string, { heartbeatMs }: Settled): Promise<boolean> {
  const before = await stat(file).catch(() => undefined);
  await pause(WATCHED_HEARTBEATS * heartbeatMs);
  const after = await stat(file).catch(() => undefined);
  return before !== undefined && before.mtimeMs === after?.mtimeMs;
}

function refusal(folder: string, owner: FolderOwner, { advice, setting }: Settled): ConfigError {
  return new ConfigError(
    `Cannot write to the folder ${folder}: it is in use by ${describeOwner(owner)}. ${advice}`,
    { path: setting },
  );
}

/** False where the file to be made exists. */
async function unlessThere(made: Promise<void>): Promise<boolean> {
  try {
    await made;
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** True when it made the folder. */
async function makeFolder(folder: string): Promise<boolean> {
  try {
    await mkdir(folder);
    return true;
  } catch (error) {
    const isThere = (error as NodeJS.ErrnoException).code === "EEXIST" && (await stat(folder)).isDirectory();
    if (isThere) return false;
    throw error;
  }
}

const SECRET = /(key|token|secret|password|passwd|credentials?)$/i;

/** A command line as others may read it: `api_key=…`, `--api-key …`. */
export function commandOf(args: readonly string[]): string {
  const shown = args.map((arg, i) => {
    const [name, value] = arg.split("=", 2);
    const isFlag = args[i - 1]?.startsWith("-") ?? false;
    if (isFlag && SECRET.test(args[i - 1]!)) return "…";
    return value !== undefined && SECRET.test(name!) ? `${name}=…` : arg;
  });
  return shown.join(" ");
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
