/**
 * A lock on a folder, for one process that writes there: a file in the folder names its owner and is touched every few
 * seconds. A lock whose owner crashed is taken over: at once where the owner's process can be looked up, after missed
 * heartbeats where it ran on another host.
 */
import { fileError, RemoteError } from "../../../leaves/errors.ts";
import { nodeModule } from "../../../leaves/node_module.ts";
import { claim, type FolderLockOptions, makeFolder, sweep } from "./claim.ts";
import {
  commandOf,
  describeOwner,
  type FolderOwner,
  OWNER_FILE,
  parseOwner,
  readOwner,
  thisOwner,
  writeOwner,
} from "./owner.ts";

const { readFileSync, unlinkSync } = /* @__PURE__ */ nodeModule("node:fs");
const { mkdir, realpath, rename, rm, rmdir, utimes } = /* @__PURE__ */ nodeModule("node:fs/promises");
const { join, resolve } = /* @__PURE__ */ nodeModule("node:path");

export type { FolderLockOptions } from "./claim.ts";

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

  private constructor(parts: { folder: string; owner: FolderOwner; made: boolean; heartbeatMs: number }) {
    this.folder = parts.folder;
    this.owner = parts.owner;
    this.made = parts.made;
    this.signal = this.lost.signal;
    this.timer = setInterval(() => void this.beat(), parts.heartbeatMs);
    this.timer.unref?.();
    held.add(this);
    if (!hasExitListener) process.on("exit", releaseAll);
    hasExitListener = true;
  }

  /**
   * Locks a folder for this process until {@link release}, or until the process exits. A folder that does not exist is
   * made; the one above it must exist.
   * @throws {ConfigError} when another process, or another part of this one, holds it; the message names it.
   */
  static async take(folder: string, options: FolderLockOptions): Promise<FolderLock> {
    const settled = { heartbeatMs: 5_000, staleMs: 60_000, ...options };
    const absolute = resolve(folder);
    let path = absolute;
    const owner = await thisOwner(options.command ?? commandOf(process.argv.slice(1)));
    let made = false;
    try {
      made = await makeFolder(absolute);
      // Moving a link would leave the folder, and the file system, that it leads to.
      path = await realpath(absolute);
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

  /** Releases without waiting, for a process that exits. Leaves the file of another owner alone. */
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
