/**
 * The folder of a run. One process writes there, and a command that fails before its run has begun leaves the folder as
 * it was: an earlier run that made way is put back, and a run to be continued is not written to.
 */
import { existsSync, realpathSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileError } from "../../../leaves/errors.ts";
import { setting } from "../../config/schema.ts";
import { toYaml } from "../../config/show.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import { FolderLock } from "../../log/folder/lock.ts";
import { makeFolders } from "../../log/folder/make_folders.ts";
import { namesIn } from "../../log/folder/owner.ts";
import { placeAside } from "../../log/folder/place_aside.ts";
import type { Logger } from "../../log/logger.ts";
import { writeFacts } from "../../log/loggers/report_file.ts";
import { CONFIG_FILE, type RunFacts } from "../../log/run_files.ts";
import type { LoopState } from "../../loop/contract.ts";
import type { RunIo } from "../io.ts";
import { type RunSession, runFolder } from "../session.ts";
import { warnOfChanges } from "./changed_settings.ts";
import { removeEmpty, removeOwn } from "./own_files.ts";
import { placedLogger } from "./placed_logger.ts";

const SETTING = "training.default_local_dir";
const ADVICE = `Wait until it has ended, or give this run a folder of its own with ${SETTING}=DIR.`;

export class RunPlace {
  readonly dir: string;
  readonly checkpoints: FolderCheckpoints<LoopState>;
  /** The checkpoint that the run continues from. */
  checkpoint: string | undefined;
  private config: Tree;
  private added: readonly string[] = [];
  private readonly io: RunIo;
  private readonly lock: FolderLock;
  /** Folders above the run's that were made for it, the innermost first. */
  private readonly madeAbove: readonly string[];
  /** Whether the run continues the one in the folder. */
  private isContinued = false;
  /** Whether the run only adds a validation to the one in the folder. */
  private isAddition = false;
  /** Folder to which the run that was here before has moved. */
  private earlier: string | undefined;
  private facts: RunFacts | undefined;
  private hasWritten = false;
  private isBegun = false;

  private constructor(at: { config: Tree; io: RunIo; lock: FolderLock; madeAbove: readonly string[] }) {
    const { config, io, lock } = at;
    this.config = config;
    this.io = io;
    this.lock = lock;
    this.madeAbove = at.madeAbove;
    this.dir = runFolder(config);
    this.checkpoints = new FolderCheckpoints<LoopState>(this.dir, {
      resumeMode: setting(config, "training.resume_mode"),
      resumeFrom: setting(config, "training.resume_from_path") ?? undefined,
      keep: setting(config, "training.max_ckpt_to_keep") ?? undefined,
      onSkip: (message) => io.err(`warning: ${message}\n`),
      beforeWrite: () => this.write(),
    });
  }

  /**
   * Locks the folder that the configuration names and looks for the checkpoint to continue from. Changes nothing else.
   * @throws {ConfigError} when another process writes there, or no checkpoint can be used.
   */
  static async open(config: Tree, io: RunIo): Promise<RunPlace> {
    const dir = runFolder(config);
    const madeAbove = makeFolders(dirname(resolve(dir)), { act: `make the folder that ${SETTING} names` });
    try {
      const lock = await FolderLock.take(dir, { advice: ADVICE, setting: SETTING });
      const place = new RunPlace({ config, io, lock, madeAbove });
      await place.look().catch(async (error) => {
        await place.close();
        throw error;
      });
      return place;
    } catch (error) {
      await removeEmpty(madeAbove);
      throw error;
    }
  }

  /** Aborted when another process took the folder, or it was moved away. */
  get signal(): AbortSignal {
    return this.lock.signal;
  }

  /** Whether the folder holds something of this run's own that is worth keeping. */
  get hasBegun(): boolean {
    return this.isBegun || this.isContinued;
  }

  private async look(): Promise<void> {
    const from = await this.checkpoints.find();
    if (!from) return;
    this.isContinued = !relative(realpathSync(this.dir), realpathSync(from.dir)).startsWith("..");
    this.isAddition = this.isContinued && setting(this.config, "rllm.trainer.val_only");
    this.checkpoint = from.dir;
    this.io.err(`Continuing from ${this.isContinued ? basename(from.dir) : from.dir}\n`);
  }

  /** Takes the configuration with the checkpoint's shape, and warns about differences from the run that is continued. */
  use({ config, added }: Pick<RunSession, "config" | "added">): void {
    this.config = config;
    this.added = added;
    if (this.checkpoint === undefined) return;
    warnOfChanges(config, { file: join(dirname(this.checkpoint), CONFIG_FILE), io: this.io });
  }

  /** Makes the folder ready for the run. An earlier run that this one does not continue makes way. */
  async begin(facts: RunFacts): Promise<void> {
    this.facts = facts;
    if (this.isContinued) return;
    if ((await namesIn(this.dir)).length > 0) {
      const place = await placeAside(this.lock.folder);
      await this.lock.moveAside(place).catch((cause) => {
        throw fileError(cause, { act: "move the earlier run out of the way", file: this.dir }) ?? cause;
      });
      this.earlier = place;
      this.io.err(`Moved the earlier run from ${this.dir} to ${place}\n`);
    }
    await this.write();
  }

  /** @throws {RemoteError} when the folder is no longer this process's. Called before anything is written there. */
  async write(): Promise<void> {
    await this.lock.check();
    if (this.hasWritten || this.isAddition || !this.facts) return;
    this.hasWritten = true;
    // Without the head, the file would not compose again.
    const head = this.added.length > 0 ? `# @added ${JSON.stringify(this.added)}\n` : "";
    writeFileSync(join(this.dir, CONFIG_FILE), head + toYaml(this.config));
    writeFacts(this.dir, this.facts);
  }

  /** Says how the run ended; nothing of a run that was continued and had nothing left to do. */
  async end(outcome: Pick<RunFacts, "complete">): Promise<void> {
    if ((await this.checkpoints.latest()) !== undefined) this.isBegun = true;
    await this.lock.check();
    if (this.isContinued && !this.hasWritten) return;
    await this.write();
    if (this.facts) writeFacts(this.dir, { ...this.facts, ended: new Date().toISOString(), ...outcome });
  }

  /** A logger of the run that writes only while the folder is this process's, and drops nothing before it writes. */
  logger(inner: Logger): Logger {
    return placedLogger(inner, {
      isContinued: this.isContinued,
      isAddition: this.isAddition,
      write: () => this.write(),
      markBegun: () => {
        this.isBegun = true;
      },
    });
  }

  /** Releases the folder; where the run never began, leaves it as it was before. */
  async close(): Promise<void> {
    try {
      if (!this.hasBegun && !this.signal.aborted) await this.undo();
    } finally {
      await this.lock.release();
      await removeEmpty(this.madeAbove);
    }
  }

  private async undo(): Promise<void> {
    if (this.earlier !== undefined) {
      const failed = await placeAside(this.lock.folder);
      await this.lock.replaceBy(this.earlier, { keepAs: failed });
      this.io.err(`Moved the earlier run back to ${this.dir}, because the new run did not begin\n`);
      await removeOwn(failed);
      if (existsSync(failed)) this.io.err(`Files that other code wrote meanwhile are in ${failed}\n`);
    } else if (this.hasWritten && (await this.checkpoints.latest()) === undefined) await removeOwn(this.dir);
  }
}
